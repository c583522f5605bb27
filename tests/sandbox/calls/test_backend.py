import threading

import pytest

from kernelwright.sandbox.calls.backend import Backend
from kernelwright.sandbox.calls.sessions import beyond_threads
from kernelwright.sandbox.verdict.settings import JudgeSettings

HERE = JudgeSettings()
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


TWO_OF_THREE = JudgeSettings(threads=2, cores=(0, 1, 2))


def test_more_processor_time_than_the_threads_can_use_is_told():
    said = beyond_threads(TWO_OF_THREE, milliseconds=10.0, cpu_ms=21.0)
    assert "21.00 ms" in said and "10.00 ms" in said and "--threads 2" in said


@pytest.mark.parametrize("cpu_ms", [1.0, 20.0, 20.4])
def test_what_the_threads_can_use_is_nothing_to_tell_nor_what_clocks_differ_by(cpu_ms):
    assert not beyond_threads(TWO_OF_THREE, milliseconds=10.0, cpu_ms=cpu_ms)


@pytest.mark.parametrize("settings", [{"threads": 3}, {"cores": (0, 1)}], ids=["as many threads", "as few cores"])
def test_where_there_are_as_many_threads_as_cores_there_is_nothing_to_exceed(settings):
    assert not beyond_threads(TWO_OF_THREE.model_copy(update=settings), milliseconds=10.0, cpu_ms=40.0)
