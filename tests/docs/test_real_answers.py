"""The page on searching says what the record of real answers says, and that record holds what was judged."""

import math

from bench.results.records import Searched, read_lines
from bench.sections import RECORD, answered_by, left_out, tables, target
from kernelwright.sandbox.verdict.verdicts import Passed
from tests.docs.pages import DOCS

PAGE = (DOCS / "search.md").read_text(encoding="utf-8")
FOUND = list(read_lines(RECORD, Searched.model_validate_json))


def test_its_tables_are_those_of_the_record():
    assert FOUND
    for table in tables(FOUND):
        assert table in PAGE


def test_what_leaving_a_section_out_was_worth_follows_from_the_first_verdicts():
    speedups = {}
    for one in FOUND:
        verdict = one.attempts[0].attempt.verdict
        if answered_by(one) != "recorded" and isinstance(verdict, Passed):
            speedups[left_out(one), one.problem] = verdict.measurement.speedup
    ratios = [speedups["crib", problem] / speedups["", problem] for name, problem in speedups if name == "crib"]
    middle = math.prod(ratios) ** (1 / len(ratios))
    (line,) = [line for line in tables(FOUND)[0].splitlines() if line.startswith("| crib |")]
    assert f"| {middle:.2f} ({len(ratios)} problems) |" in line


def test_every_run_of_a_target_was_asked_about_the_same_problems():
    asked = {}
    for one in FOUND:
        if answered_by(one) != "recorded":
            asked.setdefault(target(one), {}).setdefault(left_out(one), set()).add(one.problem)
    for parts in asked.values():
        others = {frozenset(names) for left, names in parts.items() if left}
        assert len(others) == 1 and parts[""] >= next(iter(others))
