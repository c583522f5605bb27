"""A new column of a leaderboard is one line in one file, and stands in every table of that kind."""

import pytest

from kernelwright.evals import tables
from kernelwright.evals.leaderboard import boards
from kernelwright.evals.tables import as_html, as_markdown, board_tables
from kernelwright.evals.verdict_store import run_summary
from tests.support.runs import made_run
from tests.support.second_verdicts import shown


@pytest.fixture
def board(tmp_path):
    (found,) = boards([run_summary(made_run(tmp_path / "run"))], "h1")
    return found


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
