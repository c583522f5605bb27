from bench.kernelbench_record import read, summary, table
from tests.docs.pages import DOCS

PAGE = (DOCS / "kernelbench.md").read_text(encoding="utf-8")


def test_the_table_and_the_figures_above_it_are_those_of_the_record():
    assert table(read()) in PAGE
    assert summary(read()) in PAGE


def test_no_problem_stands_in_it_twice():
    problems = [row["problem"] for row in read()]
    assert len(set(problems)) == len(problems)
