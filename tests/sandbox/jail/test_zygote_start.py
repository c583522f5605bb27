"""The end of a supervisor that this process has started itself."""

import subprocess
import sys
import time

import pytest

from kernelwright.sandbox.jail.process import StartedSupervisor

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
