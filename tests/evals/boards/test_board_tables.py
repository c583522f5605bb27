"""The leaderboard on terminals of several widths."""

import io

import pytest
from rich.console import Console

from kernelwright.evals.boards.leaderboard import boards, with_metrics
from kernelwright.evals.boards.tables import ROW_COLUMNS, board_tables, row_texts
from kernelwright.evals.runs.facts import run_facts
from tests.support.runs import made_run

WIDTHS = (80, 120, 180, 200)
LONG_MODEL = "organisation/a-model-with-a-very-long-name-70B-instruct-2026"


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    runs = [run_facts(made_run(folder / name, model=name)) for name in ("model-a", "b")]
    found = boards([runs[0], runs[1].model_copy(update={"model": LONG_MODEL})], "h1")
    (board,) = with_metrics(found, {"worst of all problems": lambda cells: 0.5})
    return board


def lines(board, width):
    console = Console(width=width, file=io.StringIO())
    for table in board_tables(board, width):
        console.print(table)
    return console.file.getvalue().splitlines()


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
def test_no_word_of_a_heading_is_broken(board, width):
    wanted = [word for heading in (*ROW_COLUMNS, "worst of all problems") for word in heading.split()]
    assert not set(wanted) - set(heads(board, width))


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_terminal(board, width):
    assert max(len(line.rstrip()) for line in lines(board, width)) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_every_number_is_whole(board, width):
    shown = {word for line in lines(board, width) for word in line.split()}
    numbers = {word for row in board.rows for text in row_texts(row, board)[4:] for word in text.split()}
    assert not numbers - shown


@pytest.mark.parametrize("width", WIDTHS)
def test_each_table_begins_with_rank_and_model(board, width):
    for table in board_tables(board, width):
        assert [str(column.header) for column in table.columns][:2] == ["rank", "model"]


def test_a_wide_terminal_has_all_columns_in_one_table(board):
    assert len(board_tables(board, 240)) == 1


def test_the_columns_stand_in_their_order_and_once_each(board):
    found = [str(column.header) for table in board_tables(board, 80) for column in table.columns[2:]]
    assert found == [*list(ROW_COLUMNS)[2:], "worst of all problems"]
