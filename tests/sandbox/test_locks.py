"""Locks on files whose names anybody can guess: only this user's own files are used, and the rest is told."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelwright.sandbox.locks import (
    WaitLimit,
    computing,
    foreign_load,
    measuring,
    open_own,
    processor_lock,
    processor_path,
    try_lock,
)
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.terminal import INTERRUPTED
from tests.sandbox.conftest import SCALED_ROWS
from tests.support.processes import holders, locked_bytes, waiters

TAKERS = {"processor_lock": lambda: processor_lock((0, 1)), "measuring": lambda: measuring(wait_s=0)}


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch):
    """Locks of the test alone: other tests may be timing."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def names_of(take, place):
    """The names of the locks that it uses, which another user can know too."""
    with take():
        pass
    names = [path.name for path in place.iterdir()]
    for path in place.iterdir():
        path.unlink()
    return names


def of_another(path):
    path.touch(mode=0o666)
    os.chown(path, 4321, 4321)


ROOT_ALONE = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
OBSTACLES = {
    "a link": (lambda path: path.symlink_to(path.parent / "elsewhere"), r"lock .*kernelwright.* TMPDIR"),
    "a folder": (Path.mkdir, r"\(Is a directory\).* TMPDIR"),
    "another user's": (of_another, "another user"),
}


@pytest.mark.parametrize("name", TAKERS)
@pytest.mark.parametrize("what", ["a link", "a folder", pytest.param("another user's", marks=ROOT_ALONE)])
def test_what_lies_in_place_of_a_lock_is_refused_and_a_link_is_not_followed(name, what, own_place):
    put, words = OBSTACLES[what]
    for lock in names_of(TAKERS[name], own_place):
        put(own_place / lock)
    with pytest.raises(MachineError, match=words):
        TAKERS[name]().__enter__()
    assert not (own_place / "elsewhere").exists()


def test_a_pipe_in_place_of_a_lock_is_told_and_waits_for_nobody(own_place):
    os.mkfifo(own_place / "lock")
    with pytest.raises(MachineError, match="it is not a file"):
        open_own(own_place / "lock")


def test_a_lock_is_closed_to_others_and_holds(own_place):
    first, second = open_own(own_place / "lock"), open_own(own_place / "lock")
    assert (own_place / "lock").stat().st_mode & 0o777 == 0o600
    assert try_lock(first) and not try_lock(second)
    os.close(first)
    os.close(second)


ROOT = Path(__file__).parents[2]
WANTS_PEAKS = "from kernelwright.sandbox.peaks import peaks_here; print(peaks_here(False, 1).model_dump_json())"
HOLDS = """
import sys, time
from kernelwright.sandbox.locks import processor_lock
with processor_lock((0, 1)):
    print("held", flush=True)
    sys.stdin.read()
"""
FORKS = """
import os, sys, time
from kernelwright.sandbox.locks import processor_lock
with processor_lock((0, 1)):
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(600)
    time.sleep(600)
"""
AT_ONCE = WaitLimit(limit_s=0)


def until(condition):
    """A test that waits for something ends by its runner, not by a guess at how fast this machine is."""
    while not condition():
        time.sleep(0.01)


def program(text):
    return subprocess.Popen(
        [sys.executable, "-c", text], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def may_time(cores, shared=False):
    try:
        with processor_lock(cores, shared, AT_ONCE):
            return True
    except MachineError:
        return False


def test_a_core_is_timed_on_by_one_alone_and_parts_of_a_processor_side_by_side():
    with processor_lock((0, 1)):
        assert not may_time((0, 1)) and not may_time((1,)) and not may_time((1, 2))
    assert may_time((0, 1))
    with processor_lock((0,)), processor_lock((1,)):
        assert not may_time((0, 1))


def test_builds_share_cores_and_are_no_company_for_a_timing():
    with processor_lock((0, 1), shared=True):
        assert may_time((0, 1), shared=True) and not may_time((1,))
    with processor_lock((1,)):
        assert not may_time((0, 1), shared=True)


def test_nothing_is_measured_twice_at_once_or_while_something_is_timed():
    with processor_lock((0,)), pytest.raises(MachineError, match=r"processor.* taken"), measuring(0):
        pass
    with measuring(0), pytest.raises(MachineError), measuring(0):
        pass


def test_who_comes_to_time_waits_for_the_measurement():
    order = []

    def time_something():
        with processor_lock((0,)):
            order.append("timed")

    with measuring():
        other = threading.Thread(target=time_something)
        other.start()
        other.join(0.2)
        order.append("measured")
    other.join()
    assert order == ["measured", "timed"]


def test_nobody_comes_in_before_one_who_waits():
    """However many share the cores, one after the other: who wants them alone is not kept waiting for ever."""
    with ExitStack() as first:
        first.enter_context(processor_lock((0,), shared=True))
        entered, leave = threading.Event(), threading.Event()

        def alone():
            with processor_lock((0,)):
                entered.set()
                leave.wait()

        waiting = threading.Thread(target=alone)
        waiting.start()
        until(lambda: waiters() == 1)
        assert not may_time((0,), shared=True)
        first.close()
        entered.wait()
        leave.set()
        waiting.join()


def test_threads_of_one_process_have_one_turn_at_a_time_and_all_come_to_it(capfd):
    inside, most = [], []

    def work():
        for _ in range(5):
            with processor_lock((0, 1)):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    with ThreadPoolExecutor(4) as pool:
        for thread in [pool.submit(work) for _ in range(4)]:
            thread.result()
    assert most == [1] * 20 and capfd.readouterr().err == ""
    assert locked_bytes() == []


def test_who_waits_says_once_for_whom_and_goes_on():
    with program(HOLDS) as holder:
        assert holder.stdout.readline() == "held\n" and holders() == [0, 1]
        other = program(HOLDS)
        told = other.stderr.readline()
        assert f"process {holder.pid} " in told and "waits for its turn" in told
        assert waiters() == 1
        holder.stdin.close()
        assert other.stdout.readline() == "held\n"
        _, more = other.communicate()
        assert more == ""


def test_whom_a_lock_is_waited_for_is_logged(logged):
    with processor_lock((0, 1)):
        assert not logged.messages
        assert not may_time((0, 1))
    (message,) = logged.messages
    assert "waiting" in message and f"process {os.getpid()} " in message


def test_a_holder_that_is_killed_frees_the_turn_also_where_a_fork_of_it_lives_on():
    with program(FORKS) as holder:
        fork = int(holder.stdout.readline())
        try:
            assert not may_time((0,))
            holder.kill()
            holder.wait()
            assert may_time((0, 1))
        finally:
            os.kill(fork, signal.SIGKILL)


def test_waiting_ends_where_nobody_wants_the_turn_any_more():
    stopped, errors = threading.Event(), []

    def wait():
        try:
            with processor_lock((0,), waiting=WaitLimit(stopped=stopped.is_set)):
                pass
        except MachineError as error:
            errors.append(str(error))

    with processor_lock((0,)):
        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: waiters() == 1)
        stopped.set()
        thread.join()
    (error,) = errors
    assert "stopped before its turn" in error
    assert locked_bytes(processor_path()) == []


@pytest.mark.long
@pytest.mark.slow
def test_of_two_processes_that_want_the_peaks_one_measures(tmp_path):
    compiler, log = tmp_path / "compiler", tmp_path / "log"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    environment = os.environ | {
        "CXX": str(compiler),
        "KERNELWRIGHT_CACHE": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path),
    }
    command = [sys.executable, "-c", WANTS_PEAKS]
    both = [subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    first, second = (process.communicate()[0] for process in both)
    assert first == second != ""
    assert sum("measure.cpp" in line for line in log.read_text().splitlines()) == 1


MANY, SOME = 20, 10


@pytest.fixture
def load():
    """Processes that all compute on one core, which is none of this process's beside them."""
    core = min(os.sched_getaffinity(0))
    words = ["nice", "-n", "19", "taskset", "-c", str(core), "sh", "-c", "while :; do :; done"]
    busy = [subprocess.Popen(words) for _ in range(MANY)]

    def end():
        for process in busy:
            process.kill()
            process.wait()

    yield SimpleNamespace(core=core, end=end)
    end()


def meeting(core, wait, times=1):
    """A process that meets the load where all but `SOME` of many cores are timed on."""
    call = f"report_load({(core, *range(1000, 1000 + MANY))}, {MANY + 1 - SOME}, {wait})"
    code = f"from kernelwright.sandbox.locks import report_load\nfor _ in range({times}): {call}"
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)


def test_a_process_that_has_ended_meanwhile_is_no_load():
    gone = subprocess.Popen(["true"])
    gone.wait()
    cores = tuple(os.sched_getaffinity(0))
    assert computing(Path(f"/proc/{gone.pid}"), cores) == 0 < computing(Path(f"/proc/{os.getpid()}"), cores)


@pytest.mark.slow
def test_a_load_is_reported_once_or_waited_for_and_what_a_process_has_started_itself_is_none(load):
    assert foreign_load((load.core,)) < SOME
    _, words = meeting(load.core, wait=False, times=3).communicate()
    assert words.count("\n") == 1 and f"on {MANY + 1} cores" in words
    waiting = meeting(load.core, wait=True)
    assert "waiting" in waiting.stderr.readline() and waiting.poll() is None
    load.end()
    waiting.communicate()
    assert waiting.returncode == 0


@pytest.mark.slow
def test_a_judge_that_waits_for_the_load_to_go_ends_with_an_interrupt(load, tmp_path):
    (tmp_path / "problem.py").write_text(SCALED_ROWS.source)
    (tmp_path / "candidate.py").write_text(SCALED_ROWS.source.replace("Model(", "ModelNew("))
    words = ["judge", "problem.py", "candidate.py", "--wait-quiet", "--effort", "screen"]
    # What a shell without job control has started in the background ignores interrupts.
    command = ["env", "--default-signal=INT", "taskset", "-c", str(load.core)]
    command += [sys.executable, "-P", "-m", "kernelwright", *words]
    judging = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert any("Ctrl-C" in line for line in judging.stderr)
    judging.send_signal(signal.SIGINT)
    judging.communicate()
    assert judging.returncode == INTERRUPTED
