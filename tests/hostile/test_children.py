"""A child against its judge: it can neither block it nor run behind its back, and what it prints is bounded."""

import os
import textwrap
import time
from contextlib import ExitStack

import pytest

from kernelwright.sandbox.calls.sessions import Misbehaved, Session
from kernelwright.sandbox.jail.layers import FILTER
from kernelwright.sandbox.jail.process import Child, ChildGone
from kernelwright.sandbox.jail.zygote import KEPT_BYTES, Capture
from kernelwright.sandbox.workfolder import WorkFolder
from tests.hostile.conftest import TIGHT

WAKES_ITSELF = """
import ctypes, signal

class Event(ctypes.Structure):
    _fields_ = (("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("rest", ctypes.c_char * 52))

timer, when = ctypes.c_void_p(), (ctypes.c_long * 4)(0, 0, 0, 300_000_000)
libc = ctypes.CDLL(None)
assert libc.timer_create(1, ctypes.byref(Event(None, signal.SIGCONT, b"")), ctypes.byref(timer)) == 0
assert libc.timer_settime(timer, 0, when, None) == 0
"""
"""Three tenths of a second after it was loaded, when it has long been stopped."""
STOPS_ITSELF_AGAIN = (
    WAKES_ITSELF
    + """
import os, threading, time

def stop_again():
    time.sleep(0.2)  # by then the judge has stopped it: the sleep ends when the timer has woken it
    os.kill(os.getpid(), signal.SIGSTOP)

threading.Thread(target=stop_again, daemon=True).start()
"""
)
WANDERS = """
import os, threading

everywhere, found = range(os.cpu_count()), []

def wander():
    os.sched_setaffinity(0, everywhere)
    found.append(len(os.sched_getaffinity(0)))

wander()
thread = threading.Thread(target=wander)
thread.start()
thread.join()
if os.fork() == 0:
    wander()
    os._exit(found[-1])
found.append(os.waitstatus_to_exitcode(os.wait()[1]))
"""
MAKES_TIMERS = """
import ctypes, os

libc = ctypes.CDLL(None)

def timers():
    made = ctypes.c_void_p()
    while libc.timer_create(1, None, ctypes.byref(made)) == 0: yield made

def descriptors():
    while libc.timerfd_create(1, 0) >= 0: yield True

def made(some, most):
    return sum(1 for _, _ in zip(range(most), some()))
"""
SLEEPS = """
import threading, time

def sleep():
    while True:
        time.sleep(0.0002)

for _ in range(8):
    threading.Thread(target=sleep, daemon=True).start()
"""
SPINS = """
import threading

def spin():
    while True:
        pass

threading.Thread(target=spin, daemon=True).start()
"""


@pytest.fixture
def folder():
    folder = WorkFolder()
    yield folder
    folder.close()


def message(folder, code, op):
    source = folder.write("candidate.py", textwrap.dedent(code) + "\nfrom torch.nn import Identity as ModelNew\n")
    return {
        "op": op,
        "source": str(source),
        "entry": "ModelNew",
        "built": str(folder.path / "build"),
        "threads": 1,
        "cores": sorted(os.sched_getaffinity(0)),
        "arguments": {"l": []},
    }


@pytest.fixture
def worker(folder):
    """Starts a worker that has some code loaded, as it would a candidate's."""
    with ExitStack() as stack:

        def start(code, **settings):
            session = stack.enter_context(Session("worker", folder, TIGHT.model_copy(update=settings)))
            session.greet()
            session.ask(message(folder, code, "load"), 30)
            return session

        yield start


def wait_until_it_has_run(session):
    before = session._child.cpu_ms()
    while session._child.cpu_ms() == before:
        time.sleep(0.001)


@pytest.mark.slow
@pytest.mark.parametrize("code", [SLEEPS, SPINS], ids=["sleeping threads", "a busy thread"])
def test_a_child_that_stands_still_uses_no_processor_at_all(worker, code):
    session = worker(code)
    for _ in range(200):
        session.nothing_ms()
        session.refuse_activity_while_stopped()
    time.sleep(0.2)
    session.nothing_ms()


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(5))
@pytest.mark.parametrize(
    ("code", "meet_again"),
    [
        pytest.param(WAKES_ITSELF, Session.nothing_ms, id="goes on"),
        pytest.param(STOPS_ITSELF_AGAIN, Session.nothing_ms, id="stops again"),
        pytest.param(WAKES_ITSELF, Session.refuse_activity_while_stopped, id="after another side's turn"),
    ],
)
def test_a_child_that_has_itself_woken_is_refused(worker, code, meet_again, turn):
    session = worker(code, jail="off")  # the filter leaves no such timer
    wait_until_it_has_run(session)
    with pytest.raises(Misbehaved, match="ran while"):
        meet_again(session)


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(5))
def test_without_the_witness_nobody_sees_that_it_ran(worker, turn):
    session = worker(WAKES_ITSELF, jail="off", without=("idle_witness",))
    wait_until_it_has_run(session)
    session.nothing_ms()


@pytest.mark.slow
@pytest.mark.parametrize("without", [(), ("namespaces",)], ids=["namespaces", "alone"])
def test_a_child_with_one_thread_stays_on_its_core_with_all_its_threads_and_processes(worker, without):
    worker(WANDERS + "assert found == [1, 1, 1], found\n", threads=1, jail_without=without)


@pytest.mark.slow
def test_a_child_with_more_threads_can_bind_them(worker):
    worker(WANDERS + "import torch\nassert found == [len(os.sched_getaffinity(0))] * 3, found\n", threads=2)


@pytest.mark.slow
@pytest.mark.parametrize("without", [(), ("namespaces",)], ids=["namespaces", "alone"])
def test_a_child_on_a_processor_gets_no_timer_that_goes_on_while_it_stands_still(worker, without):
    code = MAKES_TIMERS + "assert made(timers, 100) == made(descriptors, 100) == 0\n"
    assert FILTER in worker(code, jail_without=without).layers


@pytest.mark.slow
def test_without_the_filter_it_gets_thousands(worker):
    worker(MAKES_TIMERS + "assert made(timers, 2000) == 2000 and made(descriptors, 500) == 500\n", jail="off")


@pytest.mark.slow
def test_a_child_that_may_use_a_gpu_gets_a_few_for_its_driver(worker):
    code = MAKES_TIMERS + "assert 16 <= made(timers, 2000) <= 200 and made(descriptors, 4) == 4\n"
    worker(code, device="cuda")


@pytest.mark.slow
def test_children_of_one_user_side_by_side_leave_each_other_some(worker):
    code = MAKES_TIMERS + "assert made(timers, 8) == 8\n"
    assert all(worker(code, device="cuda", jail_without=("namespaces",)).layers for _ in range(4))


@pytest.mark.slow
def test_a_process_that_the_child_has_started_is_seen(worker):
    session = worker("import os\nif os.fork() == 0:\n    while True: pass")
    assert len(session._child.offspring()) == 1


DETACHED = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True: time.sleep(60)
    os._exit(0)
os.wait()
"""


@pytest.mark.slow
def test_a_process_that_was_handed_on_to_another_parent_is_seen_with_and_without_a_control_group(worker):
    session = worker(DETACHED)
    child, jail = session._child, session._child._jail
    found = child.offspring()
    assert len(found) == 1
    child._jail = jail._replace(group=None)
    try:
        assert child.offspring() == found
    finally:
        child._jail = jail


@pytest.mark.slow
def test_a_group_that_a_child_could_leave_tells_nothing(worker):
    jail = worker("pass")._child._jail
    weak = jail._replace(prefix=(), plan=jail.plan | {"landlock": None, "user": None})
    assert weak.members() is None
    if jail.group is not None and jail.prefix:
        assert jail.members()


@pytest.mark.slow
def test_a_process_that_has_ended_and_was_not_waited_for_is_none_of_a_group(worker):
    session = worker("import os\nif os.fork() == 0: os._exit(0)")
    if session._child._jail.members() is None:
        pytest.skip("no control group can be made here that a child can not leave")
    time.sleep(0.2)
    assert session._child.offspring() == []


@pytest.mark.slow
def test_a_child_that_does_not_read_can_not_block_the_judge(folder):
    child = Child("worker", folder, TIGHT)
    try:
        child.greet(time.monotonic() + 60)
        child.stop()
        with pytest.raises(ChildGone, match="does not read"):
            for _ in range(1000):
                child.send({"words": "x" * 60_000})
    finally:
        child.close()


@pytest.mark.slow
def test_closing_a_child_twice_is_no_error(folder):
    child = Child("worker", folder, TIGHT)
    child.close()
    child.close()


def test_a_flood_is_kept_at_both_ends_and_its_middle_is_counted():
    capture = Capture()
    writer = os.dup(capture.write_fd)
    capture.start()
    os.write(writer, b"first")
    for _ in range(1000):
        os.write(writer, b"x" * 65536)
    os.write(writer, b"last")
    os.close(writer)
    text = capture.text()
    assert text.startswith("first")
    assert text.endswith("last")
    assert f"[... {1000 * 65536 + 9 - 2 * KEPT_BYTES} bytes left out ...]" in text
    assert len(text) < 2 * KEPT_BYTES + 100
