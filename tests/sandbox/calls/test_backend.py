import threading

import pytest

from kernelwright.sandbox.calls.backend import Backend
from kernelwright.sandbox.verdict.settings import Settings

HERE = Settings()
PATIENCE_S = 60


def test_all_go_on_side_by_side_and_each_answer_is_in_its_place():
    meeting = threading.Barrier(3, timeout=PATIENCE_S)

    def work(number):
        meeting.wait()
        return number

    assert Backend(HERE).in_parallel([lambda number=number: work(number) for number in range(3)]) == [0, 1, 2]


def test_nothing_comes_to_nothing():
    assert Backend(HERE).in_parallel([]) == []


def test_an_error_is_raised_once_the_others_have_come_to_their_end():
    ended, failed = [], threading.Event()

    def fail():
        failed.set()
        raise ValueError("no")

    def go_on():
        assert failed.wait(PATIENCE_S)
        ended.append(True)

    with pytest.raises(ValueError, match="no"):
        Backend(HERE).in_parallel([fail, go_on])
    assert ended == [True]
