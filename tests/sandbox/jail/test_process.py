"""A child that can not be started leaves nothing: no descriptor, no control group, nothing to be closed later."""

import gc
import itertools
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kernelwright.sandbox.jail.bubblewrap import hidden_paths
from kernelwright.sandbox.jail.layers import group_parents
from kernelwright.sandbox.jail.process import Child, StartedSupervisor
from kernelwright.sandbox.jail.zygote import Zygotes, frozen_imports, set_passive_waiting
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import shared_environment

SETTINGS = JudgeSettings()
WAYS = {"forked": SETTINGS, "spawned": SETTINGS, "spawned behind landlock": JudgeSettings(jail_without=("namespaces",))}
PATIENCE_S = 120


def zygotes_with_one(folder):
    """Some of the test's own, of which one has been started."""
    own = Zygotes()
    own.find(shared_environment(SETTINGS.threads, steady=True), folder.imports)
    return own


def descriptors():
    return {int(entry.name) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()}


def left(before, limit_s=10):
    """Those that are open beyond `before`, once threads that drain a pipe have had time to see its end."""
    end = time.monotonic() + limit_s
    while (more := descriptors() - before) and time.monotonic() < end:
        time.sleep(0.01)
    return more


def groups():
    """The control groups of this process's children, those of other tests among them."""
    return {path for parent in group_parents() for path in parent.glob(f"kernelwright-{os.getpid()}-*")}


@contextmanager
def room_for(count):
    """Within it so many more descriptors can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = sorted(set(range(soft)) - descriptors())
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[count], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_wherever_descriptors_run_out_none_stays_open_and_no_control_group_stays(folder, way):
    with closing(Child("worker", folder, WAYS[way], None)) as first:  # finds out what this machine offers
        first.greet(time.monotonic() + PATIENCE_S)
    others = groups()
    for count in itertools.count():
        before, stands = descriptors(), False
        zygotes = zygotes_with_one(folder) if way == "forked" else None
        try:
            with room_for(count):
                child = Child("worker", folder, WAYS[way], zygotes)
            stands = True
            child.close()
        except MachineError:
            pass
        finally:
            if zygotes is not None:
                zygotes.close()
        assert (left(before), groups() - others) == (set(), set()), f"with room for {count}"
        if stands:
            break
    assert count > 5


@pytest.mark.slow
def test_wherever_descriptors_run_out_a_zygote_leaves_none_open_either():
    for count in itertools.count():
        before = descriptors()
        with closing(Zygotes()) as zygotes, room_for(count):
            found = zygotes.find({"PATH": os.defpath})
        assert left(before) == set(), f"with room for {count}"
        if found is not None:
            break
    assert count > 2


@pytest.mark.slow
def test_one_that_fails_in_both_ways_later_closes_nothing_that_is_somebody_elses(folder, monkeypatch):
    with closing(zygotes_with_one(folder)) as zygotes:
        child = Child("worker", folder, JudgeSettings(jail="off"), zygotes)
        os.kill(zygotes.pids[0], signal.SIGKILL)
        monkeypatch.setattr(sys, "executable", "/nonexistent/python")
        with pytest.raises(MachineError, match="no child process"):
            child.greet(time.monotonic() + PATIENCE_S)
    others = [os.open("/dev/null", os.O_RDONLY) for _ in range(16)]  # whoever comes next gets the same numbers
    child.close()
    assert set(others) <= descriptors()
    assert child.output() == ""
    for fd in others:
        os.close(fd)


WAITS = "import sys; sys.stdin.read()"


@pytest.fixture
def program():
    started = subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE)
    yield started
    started.kill()
    started.stdin.close()
    started.wait()


def test_one_that_does_not_end_in_time_is_told(program):
    supervisor = StartedSupervisor(program)
    with pytest.raises(subprocess.TimeoutExpired):
        supervisor.wait(timeout=0.01)
    assert program.poll() is None


def test_one_that_has_ended_is_waited_for_as_often_as_one_likes(program):
    supervisor = StartedSupervisor(program)
    assert supervisor.pid == program.pid
    supervisor.kill()
    for _ in range(2):
        supervisor.wait(timeout=60)
    supervisor.wait()
    assert program.returncode == -9


def test_its_end_is_known_at_once_and_not_at_the_next_of_rare_looks(program):
    supervisor, looks = StartedSupervisor(program), []
    sleep, time.sleep = time.sleep, looks.append
    try:
        program.stdin.close()
        supervisor.wait(timeout=60)
    finally:
        time.sleep = sleep
    assert looks == []


def test_accepted_jobs_are_hidden_where_the_users_state_lies_in_a_folder_of_tools(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    jobs = tmp_path / "state" / "kernelwright"
    assert str(jobs) not in hidden_paths()
    jobs.mkdir(parents=True)
    assert str(jobs) in hidden_paths()


def test_threads_of_loops_rest_in_a_judge_unless_a_user_chooses_otherwise(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "")
    monkeypatch.delenv("OMP_WAIT_POLICY")
    set_passive_waiting()
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    set_passive_waiting()
    assert os.environ["OMP_WAIT_POLICY"] == "active"


def test_the_collector_rests_while_what_stays_is_imported_and_passes_over_it_later():
    before = gc.get_freeze_count()
    with frozen_imports():
        assert not gc.isenabled()
        kept = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(kept)
    gc.unfreeze()
