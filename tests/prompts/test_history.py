"""Cutting the table of attempts: what goes first, what stays longest."""

from kernelwright.prompts import PastAttempt, render, shortened
from tests.support.briefs import brief


def row(number, speedup=None):
    outcome = "failed at check" if speedup is None else "passed"
    return PastAttempt(number=number, role="improve", idea="idea", outcome=outcome, detail="x" * 60, speedup=speedup)


ROWS = [row(1, 1.0), row(2), row(3, 5.0), row(4), row(5), row(6, 2.0), row(7), row(8), row(9)]


def numbers(tokens, first=()):
    return [one.number for one in shortened(ROWS, tokens, first)]


def test_all_rows_stay_where_there_is_room_and_none_without():
    assert numbers(10_000) == list(range(1, 10))
    assert numbers(0) == []


def test_the_fastest_stays_longest_after_the_rows_that_the_step_rests_on_and_the_latest_before_older_ones():
    assert numbers(50) == [3]
    assert numbers(50, first=(2,)) == [2]
    assert numbers(150) == [3, 7, 8, 9]
    assert not {2, 4, 5} & set(numbers(215))


def test_rows_keep_their_order():
    assert numbers(150, first=(9, 1)) == sorted(numbers(150, first=(9, 1)))


def test_the_prompt_says_how_many_are_left_out():
    prompt = render(brief("improve").model_copy(update={"left_out": 7}))
    assert "7 further attempts" in prompt.text
