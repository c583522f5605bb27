"""Putting sizes into a source text."""

import pytest

from kernelwright.problems import ProblemError
from kernelwright.problems.loading import put_sizes


def test_a_literal_is_replaced_and_its_comment_stays() -> None:
    assert put_sizes("ROWS = 16  # rows\nCOLS=3\n", {"ROWS": 4096}) == "ROWS = 4096  # rows\nCOLS=3\n"


def test_several_constants_are_replaced_whatever_their_lengths() -> None:
    assert put_sizes("A = 1\nB = 22222\nC = 3\n", {"C": 333, "A": 1000, "B": 2}) == "A = 1000\nB = 2\nC = 333\n"


def test_two_constants_on_one_line_are_both_replaced() -> None:
    assert put_sizes("A = 1; B = 2\n", {"A": 10, "B": 20}) == "A = 10; B = 20\n"


def test_letters_beyond_ascii_do_not_move_the_place() -> None:
    assert put_sizes('NOTE = "größe"; ROWS = 16\n', {"ROWS": 8}) == 'NOTE = "größe"; ROWS = 8\n'


def test_a_form_feed_and_a_line_separator_are_no_line_ends() -> None:
    source = '"""a\x0cb\u2028c"""\nROWS = 16\n'
    assert put_sizes(source, {"ROWS": 8}) == source.replace("16", "8")


def test_an_annotated_constant_is_replaced() -> None:
    assert put_sizes("ROWS: int = 16\n", {"ROWS": 8}) == "ROWS: int = 8\n"


def test_a_negative_value_is_put_in_and_replaced() -> None:
    assert put_sizes("DIM = -1\n", {"DIM": -2}) == "DIM = -2\n"


def test_a_use_of_the_name_is_left_alone() -> None:
    source = "ROWS = 16\n\n\ndef f(ROWS=16):\n    ROWS = 16\n    return ROWS\n"
    assert put_sizes(source, {"ROWS": 8}) == source.replace("16", "8", 1)


def test_no_values_leave_the_text_as_it_is() -> None:
    assert put_sizes("ROWS = 16\n", {}) == "ROWS = 16\n"


def test_a_constant_that_is_absent_is_refused_with_those_there_are() -> None:
    with pytest.raises(ProblemError, match=r"'COLS'.* BATCH, ROWS"):
        put_sizes("ROWS = 16\nBATCH = 1\n", {"COLS": 1})


def test_a_computed_constant_counts_as_absent() -> None:
    with pytest.raises(ProblemError, match="no constant 'ROWS'"):
        put_sizes("ROWS = 4 * 4\n", {"ROWS": 8})


def test_a_constant_set_twice_is_refused_with_its_lines() -> None:
    with pytest.raises(ProblemError, match="'ROWS' on lines 1 and 3"):
        put_sizes("ROWS = 16\n\nROWS = 8\n", {"ROWS": 4})
