"""The tables of a board fit a terminal, and a new column is one line in one file."""

import pytest

from kernelwright.evals import tables
from kernelwright.evals.leaderboard import boards, with_metrics
from kernelwright.evals.tables import ROW_COLUMNS, as_html, as_markdown, board_tables, row_texts
from kernelwright.evals.verdict_store import run_summary
from tests.support.runs import made_run
from tests.support.second_verdicts import shown

WIDTHS = (80, 120, 180, 200)
LONG_MODEL = "organisation/a-model-with-a-very-long-name-70B-instruct-2026"


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    runs = [run_summary(made_run(folder / name, model=name)) for name in ("model-a", "b")]
    found = boards([runs[0], runs[1].model_copy(update={"model": LONG_MODEL})], "h1")
    (board,) = with_metrics(found, {"worst of all problems": lambda cells: 0.5})
    return board


def lines(board, width):
    return shown(*board_tables(board, width), width=width).splitlines()


def heads(board, width):
    """The words above the rule of each table."""
    found, above = [], []
    for line in lines(board, width):
        if set(line.strip()) == {"─"}:
            found += above
            above = []
        else:
            above = [] if not line.strip() else above + line.split()
    return found


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_terminal_and_no_word_or_number_broken(board, width):
    printed = lines(board, width)
    assert max(len(line.rstrip()) for line in printed) <= width
    wanted = [word for heading in (*ROW_COLUMNS, "worst of all problems") for word in heading.split()]
    assert not set(wanted) - set(heads(board, width))
    numbers = {word for row in board.rows for text in row_texts(row, board)[4:] for word in text.split()}
    assert not numbers - {word for line in printed for word in line.split()}
    for table in board_tables(board, width):
        assert [str(column.header) for column in table.columns][:2] == ["rank", "model"]


def test_the_columns_stand_in_their_order_and_once_each_and_on_a_wide_terminal_in_one_table(board):
    assert len(board_tables(board, 240)) == 1
    found = [str(column.header) for table in board_tables(board, 80) for column in table.columns[2:]]
    assert found == [*list(ROW_COLUMNS)[2:], "worst of all problems"]


def test_a_line_for_entrants_is_a_column_of_every_table_of_them(board, monkeypatch):
    monkeypatch.setitem(tables.ROW_COLUMNS, "kernels", lambda row, board: f"{len(board.ranked(row))} in all")
    wanted = f"{len(board.problems)} in all"
    for text in (shown(*board_tables(board, 400), width=400), as_markdown([board]), as_html([board])):
        assert "kernels" in text and wanted in text


def test_a_metric_of_the_users_own_stands_behind_a_new_column(board, monkeypatch):
    monkeypatch.setitem(tables.ROW_COLUMNS, "kernels", lambda row, board: "7")
    row = board.rows[0].model_copy(update={"own": {"worst": 2.0}})
    found = board.model_copy(update={"rows": (row,)})
    assert tables.headings(found)[-2:] == ("kernels", "worst")
    assert tables.row_texts(row, found)[-2:] == ["7", "2"]


@pytest.mark.parametrize("table", ["GROUP_COLUMNS", "CELL_COLUMNS"])
def test_a_line_for_groups_or_kernels_is_a_column_too(board, monkeypatch, table):
    monkeypatch.setitem(getattr(tables, table), "another one", lambda one: "its text")
    page = as_html([board])
    assert "another one" in page and "its text" in page
