"""Problems that are larger than the machine are refused before anything is made; other parts of a backend."""

import threading
from contextlib import closing

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.calls.backend import (
    CERTAIN_BYTES,
    ON_DEVICE,
    ON_HOST,
    Backend,
    Needs,
    child_bytes,
    child_refusal,
    fit_easily,
    planned,
    references_kept,
    refusal,
    taken_bytes,
)
from kernelwright.sandbox.calls.gpu_buffers import register, with_relief
from kernelwright.sandbox.calls.sessions import beyond_threads
from kernelwright.sandbox.machine import free_bytes
from kernelwright.sandbox.verdict.errors import BrokenProblem, UnsupportedHere
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import WorkFolder
from tests.support.problems import stateless, tiny_problem

MIB = 2**20


def problem(rows):
    """Inputs of so many times 4 MiB."""
    source = stateless("torch.relu(x)", f"torch.randn({rows}, 1024, 1024)")
    return tiny_problem(source, name=f"relu_of_{rows}", size="file")


@pytest.fixture(scope="module")
def child():
    """A reference's child that has loaded nothing; asks it what a problem takes."""
    settings = JudgeSettings()
    with closing(WorkFolder()) as folder, backend_of(settings).open_session("reference", folder) as session:
        session.greet()

        def ask(posed, settings=settings):
            backend_of(settings).require_room(posed, session, str(folder.write("reference.py", posed.source)))

        ask.plan = lambda posed: planned(posed, session, str(folder.write("reference.py", posed.source)), 60)
        yield ask


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No plan of an earlier run is found."""
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))


@pytest.mark.slow
def test_inputs_larger_than_the_machine_are_refused_with_both_figures(child):
    rows = free_bytes() // (4 * MIB)
    with pytest.raises(UnsupportedHere, match=f"judging relu_of_{rows} takes.*GiB of inputs.*this machine has"):
        child(problem(rows), JudgeSettings(memory_bytes=2**50))


@pytest.mark.slow
def test_the_whole_reference_is_refused_so_before_it_is_loaded():
    with pytest.raises(UnsupportedHere, match=r"GiB of memory.* may take"):
        backend_of(JudgeSettings()).reference(problem(2**20))


@pytest.mark.slow
def test_a_child_that_is_too_small_is_told_and_a_larger_one_does(child):
    posed = problem(100)  # 400 MiB, and with the result and float64 of both 2.4 GB
    with pytest.raises(UnsupportedHere, match=r"1 GiB;.* --memory"):
        child(posed, JudgeSettings(memory_bytes=2**30))
    child(posed, JudgeSettings(memory_bytes=3 * 2**30))


@pytest.mark.slow
def test_a_plan_is_of_the_problem_and_its_dtype_and_is_remembered(child, tmp_path):
    posed = problem(100)
    found = child.plan(posed)
    assert (found.inputs, found.result, found.exact, found.peak) == (400 * MIB, 400 * MIB, 800 * MIB, 400 * MIB)
    assert list(tmp_path.rglob("needs/*.json"))
    assert planned(posed, None, "nobody is asked again", 1) == found
    assert child.plan(posed.model_copy(update={"dtype": "bfloat16"})).inputs == 200 * MIB


def test_small_problems_are_not_planned():
    posed = problem(CERTAIN_BYTES // (4 * MIB) - 1)
    backend_of(JudgeSettings(memory_bytes=2**30)).require_room(posed, None, "nobody is asked")
    unreadable = posed.model_copy(update={"source": "not Python at all ("})
    backend_of(JudgeSettings()).require_room(unreadable, None, "nobody is asked")


@pytest.mark.slow
def test_a_reference_that_can_not_be_planned_is_let_through(child):
    posed = problem(100)
    looking = posed.model_copy(update={"source": posed.source.replace("relu(x)", "relu(x) * int(x.sum().item())")})
    assert child.plan(looking) is None
    room_for_inputs = JudgeSettings(memory_bytes=1400 * MIB)  # so that what the text shows is no reason to refuse it
    with pytest.raises(UnsupportedHere):
        child(posed, room_for_inputs)
    child(looking, room_for_inputs)


GIB = 2**30
OWNS = pytest.mark.parametrize("own", [ON_DEVICE, ON_HOST], ids=["device", "host"])
SIZES = st.integers(0, 200 * GIB)
NEEDS = st.builds(Needs, inputs=SIZES, result=SIZES, exact=SIZES, peak=SIZES, weights=SIZES, scratch=SIZES)
LARGE = Needs(inputs=2 * GIB, result=3 * GIB, exact=6 * GIB, peak=4 * GIB, weights=1 * GIB)


@OWNS
def test_of_a_small_problem_all_references_are_kept(own):
    assert references_kept(Needs(2**20, 2**20, 2**21, 2**20, 0), 5, 16 * GIB, own) == 5


@OWNS
def test_as_many_are_kept_as_fit_to_the_byte(own):
    for count in (1, 2, 3):
        just = taken_bytes(LARGE, count, own)
        assert references_kept(LARGE, 5, just, own) == count
        assert references_kept(LARGE, 5, just - 1, own) == count - 1


def test_one_reference_has_its_inputs_its_result_and_what_lies_between():
    own = ON_DEVICE
    children = 2 * (LARGE.weights + LARGE.peak + own.child)
    assert taken_bytes(LARGE, 1, own) == 4 * LARGE.inputs + LARGE.result + own.judge + children


def test_float64_takes_its_room_beside_three_references_but_not_beside_two():
    own, child = ON_DEVICE, LARGE.weights + LARGE.peak + ON_DEVICE.child
    assert taken_bytes(LARGE, 2, own) - taken_bytes(LARGE, 1, own) == child
    assert taken_bytes(LARGE, 3, own) - taken_bytes(LARGE, 2, own) > child + LARGE.exact_peak


def test_on_the_host_a_check_in_float64_with_the_judges_copies_fits_beside_a_single_reference():
    child = child_bytes(LARGE) - LARGE.peak - LARGE.inputs
    judge = 4 * LARGE.inputs + 2 * LARGE.result + 2.5 * LARGE.exact + 2 * LARGE.weights + ON_HOST.judge
    candidate = LARGE.weights + LARGE.peak + ON_HOST.child
    assert taken_bytes(LARGE, 1, ON_HOST) == child + judge + candidate
    scratch = LARGE._replace(scratch=5 * GIB)
    assert child_bytes(scratch) - child_bytes(LARGE) == 5 * GIB
    assert taken_bytes(scratch, 1, ON_HOST) - taken_bytes(LARGE, 1, ON_HOST) == 5 * GIB


@given(NEEDS, st.integers(1, 8), st.sampled_from([ON_DEVICE, ON_HOST]))
def test_more_references_take_more(needs, count, own):
    assert taken_bytes(needs, count + 1, own) > taken_bytes(needs, count, own)


@given(NEEDS, SIZES, SIZES, st.integers(1, 8), st.sampled_from([ON_DEVICE, ON_HOST]))
def test_more_memory_never_keeps_fewer(needs, free, more, wanted, own):
    assert references_kept(needs, wanted, free, own) <= references_kept(needs, wanted, free + more, own) <= wanted


@given(NEEDS, st.integers(0, 4), st.integers(1, GIB), st.sampled_from([ON_DEVICE, ON_HOST]))
def test_whatever_takes_more_never_keeps_more_and_never_takes_less(needs, which, more, own):
    greater = Needs(*(size + more * (index == which) for index, size in enumerate(needs)))
    assert taken_bytes(greater, 3, own) >= taken_bytes(needs, 3, own)
    assert child_bytes(greater) >= child_bytes(needs)
    assert references_kept(greater, 5, 80 * GIB, own) <= references_kept(needs, 5, 80 * GIB, own)


def test_a_call_in_float64_takes_twice_of_everything():
    assert LARGE.exact_peak == 2 * (2 + 4 + 1) * GIB
    assert child_bytes(LARGE) >= LARGE.exact_peak + 7 * GIB


def test_a_problem_is_large_above_one_gibibyte():
    assert LARGE.is_large
    assert not Needs(inputs=GIB // 2, result=9 * GIB, exact=0, peak=GIB // 4, weights=GIB // 4).is_large


@pytest.mark.parametrize(("own", "where"), [(ON_DEVICE, "the device has"), (ON_HOST, "this machine has")])
def test_a_refusal_says_what_it_takes_and_what_there_is(own, where):
    said = refusal("sums", LARGE, 5 * GIB, own)
    assert "judging sums takes" in said and f"{taken_bytes(LARGE, 1, own) / GIB:.3g} GiB" in said
    assert f"{where} 5 GiB" in said
    assert "2 GiB of inputs" in said and "1 GiB of weights" in said and "takes 4 GiB beside them" in said


def test_a_child_that_is_too_small_is_told_with_the_option_that_gives_more():
    said = child_refusal("sums", LARGE, 3 * GIB)
    assert f"{child_bytes(LARGE) / GIB:.3g} GiB" in said and "a child may take 3 GiB" in said and "--memory" in said


SMALL = Needs(2**20, 2**20, 2**21, 2**20, 0)


def test_references_start_together_where_twice_their_need_is_free_and_the_host_holds_all_weights():
    needs, just = Needs(GIB, GIB, 2 * GIB, GIB, 2 * GIB), 2 * 6 * (ON_DEVICE.child + 7 * GIB)
    found = [fit_easily(needs, 6, just - less, 12 * GIB - lacking) for less, lacking in ((0, 0), (1, 0), (0, 1))]
    assert found == [True, False, False]


@pytest.fixture
def asked():
    """Givers by name, of which the second has just ended; who was asked is noted."""
    found = []

    def ended():
        found.append("ended")
        raise BrokenProblem("it has gone")

    entries = [register(giver, 0) for giver in (lambda: found.append("first"), ended, lambda: found.append("last"))]
    entries.append(register(lambda: found.append("of another device"), 1))
    yield found
    for forget in entries:
        forget()


def failing(times, error):
    left = [error] * times

    def work():
        if left:
            raise left.pop()
        return "done"

    return work


def test_all_of_the_device_are_asked_although_one_has_ended_and_the_result_is_logged(asked, logged):
    assert with_relief(failing(1, torch.OutOfMemoryError("none left"))) == "done"
    assert asked == ["first", "ended", "last"]
    refused, came = logged.messages
    assert "it has gone" in refused
    assert "device 0" in came and "3 sessions" in came


def test_what_fails_again_is_told(asked):
    with pytest.raises(torch.OutOfMemoryError):
        with_relief(failing(2, torch.OutOfMemoryError("none left")))


def test_nobody_is_asked_over_another_error_or_where_there_is_enough(asked):
    with pytest.raises(ValueError, match="other"):
        with_relief(failing(1, ValueError("other")))
    assert with_relief(lambda: 7) == 7
    assert not asked


HERE = JudgeSettings()
PATIENCE_S = 60


def test_all_go_on_side_by_side_and_each_answer_is_in_its_place():
    meeting = threading.Barrier(3, timeout=PATIENCE_S)

    def work(number):
        meeting.wait()
        return number

    assert Backend(HERE).in_parallel([lambda number=number: work(number) for number in range(3)]) == [0, 1, 2]
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


@pytest.mark.parametrize(
    ("settings", "cpu_ms"),
    [({}, 1.0), ({}, 20.0), ({}, 20.4), ({"threads": 3}, 40.0), ({"cores": (0, 1)}, 40.0)],
    ids=["less", "as much", "what clocks differ by", "as many threads as cores", "as few cores as threads"],
)
def test_what_the_threads_can_use_is_not_reported(settings, cpu_ms):
    assert not beyond_threads(TWO_OF_THREE.model_copy(update=settings), milliseconds=10.0, cpu_ms=cpu_ms)
