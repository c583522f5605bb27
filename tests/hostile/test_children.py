"""A child against its judge: it can neither block it nor run behind its back, and what it prints is bounded."""

import os
import textwrap
import time

import pytest

from sandbox.capture import KEPT_BYTES, Capture
from sandbox.children import Child, ChildGone
from sandbox.sessions import Session
from sandbox.workfolder import WorkFolder
from tests.hostile.conftest import TIGHT

WAKES_ITSELF = """
import ctypes, signal

class Event(ctypes.Structure):
    _fields_ = (("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("rest", ctypes.c_char * 52))

timer, when = ctypes.c_void_p(), (ctypes.c_long * 4)(0, 50_000_000, 0, 50_000_000)
libc = ctypes.CDLL(None)
assert libc.timer_create(1, ctypes.byref(Event(None, signal.SIGCONT, b"")), ctypes.byref(timer)) == 0
assert libc.timer_settime(timer, 0, when, None) == 0
"""


@pytest.fixture
def folder():
    folder = WorkFolder()
    yield folder
    folder.close()


@pytest.fixture
def session(folder):
    with Session("builder", folder, TIGHT) as session:
        session.greet()
        yield session


def run(session, folder, code):
    """Have the child run some code, as it would a candidate's."""
    source = folder.write("candidate.py", textwrap.dedent(code) + "\ndef ModelNew(): pass\n")
    message = {
        "op": "build",
        "source": str(source),
        "entry": "ModelNew",
        "built": str(folder.path / "build"),
        "threads": 1,
        "cores": sorted(os.sched_getaffinity(0)),
        "arguments": {"l": []},
    }
    return session.ask(message, 30)


@pytest.mark.slow
def test_a_child_that_stands_still_is_seen_to(session, folder):
    run(session, folder, "import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start()")
    before = session._child.standing()
    assert len(before) > 1
    time.sleep(0.3)
    assert session._child.standing() == before


@pytest.mark.slow
def test_a_child_that_wakes_itself_is_seen_to_have_run(session, folder):
    run(session, folder, WAKES_ITSELF)
    with pytest.raises(ChildGone, match="runs on"):  # either of the two looks may see it
        before = session._child.standing()
        time.sleep(0.3)
        if session._child.standing() != before:
            raise ChildGone("runs on")


@pytest.mark.slow
def test_a_child_that_does_not_read_can_not_block_the_judge(folder):
    child = Child("worker", folder, TIGHT)
    try:
        child.greet(time.monotonic() + 60)
        child.freeze()
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
