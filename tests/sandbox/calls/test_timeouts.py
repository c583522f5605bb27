"""Waiting for a candidate, with real compilers and programs that are none."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from kernelwright.sandbox.calls.timeouts import (
    WALL,
    CallTimeout,
    CandidateLate,
    Compilers,
    FirstCallTimeout,
    ImportTimeout,
    is_compiler,
)
from kernelwright.sandbox.jail.process import ChildLate
from kernelwright_child.supervisor import descendants

PATIENCE_S = 120
"""Beyond this a test itself has gone wrong."""
BUSY = "constexpr long f() { long n = 0; for (;;) ++n; return n; } constexpr long x = f();"
LIMITS = ["-fconstexpr-ops-limit=9223372036854775807", "-fconstexpr-loop-limit=2147483647"]


@pytest.fixture
def started():
    """Starts programs with a pipe to write to; they are ended with the test, and so is what they have started."""
    running = []

    def start(*words):
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        running.append(subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True, **silent))
        return running[-1]

    yield start
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()


def compiler_below(process):
    """The process in which g++ compiles, once it is there."""
    limit = time.monotonic() + PATIENCE_S
    while time.monotonic() < limit:
        for pid in descendants(process.pid):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() == "cc1plus":
                    return pid
        time.sleep(0.05)
    raise AssertionError("g++ has started no compiler")


def is_ever(wanted, pids):
    """Whether three looks in a row find this."""
    compilers, limit, seen = Compilers(), time.monotonic() + PATIENCE_S, 0
    while seen < 3 and time.monotonic() < limit:
        time.sleep(0.1)
        seen = seen + 1 if compilers.are_at_work(pids) is wanted else 0
    return seen == 3


def test_a_compiler_that_computes_is_at_work_and_extends_the_limit_up_to_that_of_a_build(started):
    compiling = started("g++", "-x", "c++", "-std=c++17", *LIMITS, "-fsyntax-only", "-")
    compiling.stdin.write(BUSY.encode())
    compiling.stdin.close()
    pid = compiler_below(compiling)
    assert is_ever(True, [compiling.pid, pid])
    with pytest.raises(ChildLate) as late:
        ImportTimeout(1, 3).wait(Silent(pid))
    assert not isinstance(late.value, CandidateLate)


def test_a_compiler_that_waits_for_its_input_is_not_at_work(started):
    process = started("g++", "-x", "c++", "-fsyntax-only", "-")
    assert is_compiler(process.pid)
    assert is_ever(False, [process.pid, compiler_below(process)])


def test_a_program_that_bears_a_compilers_name_or_calls_itself_one_is_none(started, tmp_path):
    shutil.copy(shutil.which("yes"), tmp_path / "cc1plus")
    for words in ([str(tmp_path / "cc1plus")], ["bash", "-c", "exec -a /usr/bin/g++ sleep 600"]):
        assert not is_compiler(started(*words).pid)


def test_a_process_that_has_gone_is_no_compiler():
    process = subprocess.Popen(["true"])
    process.wait()
    assert not Compilers().are_at_work([process.pid])


class Silent:
    """A child that never speaks, with these processes."""

    def __init__(self, *pids):
        self._pids = list(pids)

    def has_spoken(self, timeout_s):
        time.sleep(timeout_s)
        return False

    def processes(self):
        return self._pids


def test_a_candidate_that_waits_for_nothing_is_late_by_itself():
    with pytest.raises(CandidateLate, match=r"0\.3 s,.* no compiler"):
        ImportTimeout(0.3, PATIENCE_S).wait(Silent())


def late_after(limit_s, *pids):
    start = time.monotonic()
    with pytest.raises(ChildLate):
        CallTimeout(limit_s).wait(Silent(*pids))
    return time.monotonic() - start


def test_a_call_that_sleeps_is_late_at_its_limit(started):
    assert 0.6 <= late_after(0.6, started("sleep", str(PATIENCE_S)).pid) < WALL * 0.6


@pytest.mark.parametrize(("pauses", "least_s"), [(False, 1.0), (True, 2.0)])
def test_a_first_call_is_late_once_the_device_was_busy_without_a_pause(pauses, least_s):
    looks = iter(range(1000))
    start = time.monotonic()
    with pytest.raises(ChildLate):
        FirstCallTimeout(1.0, 2.0, lambda: not pauses or next(looks) % 3 > 0).wait(Silent())
    assert least_s <= time.monotonic() - start < PATIENCE_S


def busy_on_one_core(started, count):
    """So many processes that all compute on the same core."""
    core = str(min(os.sched_getaffinity(0)))
    return [started("taskset", "-c", core, "sh", "-c", "while :; do :; done").pid for _ in range(count)]


def test_time_in_which_a_call_waits_for_a_core_is_not_counted(started):
    assert late_after(1.0, busy_on_one_core(started, 3)[0]) > 1.5


def test_processes_of_a_call_that_wait_for_each_other_are_late(started):
    assert late_after(0.6, *busy_on_one_core(started, 6)) < 0.7 * WALL * 0.6


@pytest.mark.slow
def test_a_call_that_hardly_gets_a_core_ends_at_ten_times_its_limit(started):
    assert late_after(0.3, busy_on_one_core(started, 20)[0]) >= WALL * 0.3
