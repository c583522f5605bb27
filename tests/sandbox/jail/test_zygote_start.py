"""The end of a keeper that this process has started itself."""

import subprocess
import sys
import time

import pytest

from kernelwright.sandbox.jail.process import StartedKeeper

WAITS = "import sys; sys.stdin.read()"


@pytest.fixture
def program():
    started = subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE)
    yield started
    started.kill()
    started.stdin.close()
    started.wait()


def test_one_that_does_not_end_in_time_is_told(program):
    keeper = StartedKeeper(program)
    with pytest.raises(subprocess.TimeoutExpired):
        keeper.wait(timeout=0.01)
    assert program.poll() is None


def test_one_that_has_ended_is_waited_for_as_often_as_one_likes(program):
    keeper = StartedKeeper(program)
    assert keeper.pid == program.pid
    keeper.kill()
    for _ in range(2):
        keeper.wait(timeout=60)
    keeper.wait()
    assert program.returncode == -9


def test_its_end_is_known_at_once_and_not_at_the_next_of_rare_looks(program):
    keeper, looks = StartedKeeper(program), []
    sleep, time.sleep = time.sleep, looks.append
    try:
        program.stdin.close()
        keeper.wait(timeout=60)
    finally:
        time.sleep = sleep
    assert looks == []
