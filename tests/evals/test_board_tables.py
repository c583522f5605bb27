import pytest

from kernelwright.evals.leaderboard import boards, with_metrics
from kernelwright.evals.tables import ROW_COLUMNS, board_tables, row_texts
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
