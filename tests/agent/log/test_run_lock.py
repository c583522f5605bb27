"""One process at a time goes on with a run; readers, killed runs and odd file systems are not hindered by that."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.agent.log.events import RunLogError
from kernelwright.agent.log.store import LOCK, RunLock, RunLog
from tests.support.processes import no_room
from tests.support.search import new_log

ROOT = Path(__file__).parents[3]
HOLDING = """
import sys
from pathlib import Path
from kernelwright.agent.log.store import RunLog

with RunLog.open(Path(sys.argv[1]), alone=True):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path):
    """That of a run which nobody goes on with."""
    new_log(tmp_path / "run").close()
    return tmp_path / "run"


@pytest.fixture
def holder(folder):
    words = [sys.executable, "-c", HOLDING, str(folder)]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_with_the_name_of_the_first_and_may_read(folder, holder):
    said = f"process {holder.pid} goes on with the run in {folder}; wait until it has ended, or end it"
    for _ in range(2):  # who is refused leaves the lock where it is
        with pytest.raises(RunLogError, match=f"^{said}$"):
            RunLog.open(folder, alone=True)
    with RunLog.open(folder) as log:
        assert [event.kind for event in log.events()] == ["run_started"]


def test_who_starts_a_run_holds_it(tmp_path):
    with new_log(tmp_path / "run"), pytest.raises(RunLogError, match=f"^process {os.getpid()} goes on"):
        RunLog.open(tmp_path / "run", alone=True)


def test_a_run_that_was_closed_or_whose_process_was_killed_can_be_gone_on_with(folder, holder):
    holder.kill()
    holder.wait()
    for _ in range(2):
        RunLog.open(folder, alone=True).close()


def test_a_fork_that_outlives_its_process_holds_nothing(folder):
    log = RunLog.open(folder, alone=True)
    waits, ends = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ends)
        os.read(waits, 1)
        os._exit(0)
    try:
        log.close()
        RunLog.open(folder, alone=True).close()
    finally:
        os.close(ends)
        os.close(waits)
        os.waitpid(child, 0)


@pytest.mark.parametrize("put", [Path.mkdir, lambda path: path.symlink_to("nowhere/else")], ids=["folder", "link"])
def test_where_no_lock_can_be_made_the_run_goes_on_and_a_log_says_so(folder, caplog, put):
    (folder / LOCK).unlink()
    put(folder / LOCK)
    with RunLog.open(folder, alone=True):
        assert "other processes" in caplog.text


def test_a_holder_on_another_machine_is_named_with_it(folder, holder):
    (folder / LOCK).write_text("77 node-3.cluster")
    with pytest.raises(RunLogError, match=r"process 77 on node-3\.cluster .*/run/lock$"):
        RunLog.open(folder, alone=True)


def test_in_a_full_folder_the_holder_is_not_taken_for_an_earlier_one(tmp_path):
    (tmp_path / LOCK).write_text(f"77 {os.uname().nodename}")
    first = RunLock(tmp_path)
    with no_room():
        first.take()
    with pytest.raises(RunLogError, match=r"^another process goes on"):
        RunLock(tmp_path).take()
    first.release()
