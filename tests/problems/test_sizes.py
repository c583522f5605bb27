import pytest

from kernelwright.problems import ProblemError
from kernelwright.problems.source_rewriting import put_sizes

USED = "ROWS = 16\n\n\ndef f(ROWS=16):\n    ROWS = 16\n    return ROWS\n"
ODD_ENDS = '"""a\x0cb\u2028c"""\nROWS = 16\n'


@pytest.mark.parametrize(
    ("source", "values", "found"),
    [
        ("ROWS = 16  # rows\nCOLS=3\n", {"ROWS": 4096}, "ROWS = 4096  # rows\nCOLS=3\n"),
        ("A = 1\nB = 22222\nC = 3\n", {"C": 333, "A": 1000, "B": 2}, "A = 1000\nB = 2\nC = 333\n"),
        ("A = 1; B = 2\n", {"A": 10, "B": 20}, "A = 10; B = 20\n"),
        ('NOTE = "größe"; ROWS = 16\n', {"ROWS": 8}, 'NOTE = "größe"; ROWS = 8\n'),
        (ODD_ENDS, {"ROWS": 8}, ODD_ENDS.replace("16", "8")),
        ("ROWS: int = 16\n", {"ROWS": 8}, "ROWS: int = 8\n"),
        ("DIM = -1\n", {"DIM": -2}, "DIM = -2\n"),
        (USED, {"ROWS": 8}, USED.replace("16", "8", 1)),
        ("ROWS = 16\n", {}, "ROWS = 16\n"),
    ],
    ids=[
        "a comment that stays",
        "several, whatever their lengths",
        "two on one line",
        "letters beyond ASCII",
        "a form feed and a line separator, which are no line ends",
        "an annotated constant",
        "a negative value",
        "a use of the name, which is left alone",
        "no values",
    ],
)
def test_a_literal_is_replaced_where_it_stands(source: str, values: dict[str, int], found: str) -> None:
    assert put_sizes(source, values) == found


@pytest.mark.parametrize(
    ("source", "values", "said"),
    [
        ("ROWS = 16\nBATCH = 1\n", {"COLS": 1}, r"'COLS'.* BATCH, ROWS"),
        ("ROWS = 4 * 4\n", {"ROWS": 8}, "no constant 'ROWS'"),
        ("ROWS = 16\n\nROWS = 8\n", {"ROWS": 4}, "'ROWS' on lines 1 and 3"),
    ],
    ids=["absent", "computed", "set twice"],
)
def test_a_constant_that_is_not_set_once_by_a_literal_is_refused(
    source: str, values: dict[str, int], said: str
) -> None:
    with pytest.raises(ProblemError, match=said):
        put_sizes(source, values)
