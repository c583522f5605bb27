"""The record of a run on disk: append-only, shared by processes, and clear about what is wrong with it."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kernelwright.agent.log.events import Kept, Resumed, RunLogError, Stopped
from kernelwright.agent.log.store import DATABASE, LOCK, RunLock, RunLog
from kernelwright.sandbox.jail import bubblewrap
from tests.support.processes import no_room
from tests.support.search import PROBLEM, SETTING, new_log, searched

ROOT = Path(__file__).parents[3]


def test_a_run_that_is_opened_again_gives_the_same_header_events_and_problem(log):
    searched(log)
    with RunLog.open(log.folder) as again:
        assert (again.header, list(again.events())) == (log.header, list(log.events()))
        assert again.problem(PROBLEM.name) == PROBLEM


def test_the_header_names_run_problems_and_circumstances(log):
    header = json.loads((log.folder / "header.json").read_text())
    assert (header["run_id"], header["problems"]) == ("run", {PROBLEM.name: PROBLEM.digest})
    assert all(header[key] == getattr(SETTING, key) for key in ("device", "versions", "config"))


def test_events_of_one_problem_leave_out_those_of_another(log):
    log.append(Stopped(problem="other", reason="enough"))
    log.append(Stopped(problem=PROBLEM.name, reason="enough"))
    assert [event.problem for event in log.events(PROBLEM.name)] == [PROBLEM.name]


def test_events_after_a_place_leave_out_those_before(log):
    for _ in range(1200):
        log.append(Resumed(problem=PROBLEM.name))
    assert [event.seq for event in log.events(after=3)] == list(range(4, 1202))


def count_of(log, blob):
    with sqlite3.connect(log.folder / "run.db") as connection:
        return connection.execute("SELECT count(*) FROM blobs WHERE bytes = CAST(? AS BLOB)", [blob]).fetchone()[0]


def test_a_blob_is_stored_once(log):
    for _ in range(2):
        log.append(Resumed(problem=PROBLEM.name), blobs=["the same"])
    assert count_of(log, "the same") == 1


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET kind = 'judged'",
        "DELETE FROM events",
        "REPLACE INTO events (seq, time, kind, payload) VALUES (1, '', '', '')",
        "UPDATE blobs SET bytes = x'00'",
        "DELETE FROM blobs",
        "REPLACE INTO blobs SELECT sha256, x'00' FROM blobs",
    ],
)
def test_the_file_itself_refuses_any_change(log, statement):
    refusal = pytest.raises(sqlite3.IntegrityError, match="append-only")
    with sqlite3.connect(log.folder / "run.db") as connection, refusal:
        connection.execute(statement)


def test_a_step_of_an_attempt_can_be_logged_only_once_and_its_blobs_with_it(log):
    searched(log)
    judged = next(event for event in log.events() if event.kind == "judged")
    with pytest.raises(RunLogError, match="only one process"):
        log.append(judged.body, blobs=["an orphan"])
    assert count_of(log, "an orphan") == 0


APPENDING = """
import sys
from pathlib import Path
from kernelwright.agent.log.events import Kept
from kernelwright.agent.log.store import RunLog

with RunLog.open(Path(sys.argv[1])) as log:
    for number in range(200):
        log.append(Kept(problem=sys.argv[2], attempt=number, speedup=1.0, previous=None), blobs=[f"{number}"])
"""


def test_four_processes_that_append_at_once_lose_nothing(log):
    commands = [[sys.executable, "-c", APPENDING, str(log.folder), name] for name in "abcd"]
    processes = [subprocess.Popen(command, cwd=ROOT) for command in commands]
    assert [process.wait(timeout=120) for process in processes] == [0] * 4
    for name in "abcd":
        assert [event.attempt for event in log.events(name)] == list(range(200))


def test_a_write_takes_the_write_lock_before_anything_else(log):
    statements = []
    log._connection.set_trace_callback(statements.append)
    log.append(Resumed(problem=PROBLEM.name), blobs=["text"])
    assert (statements[0], statements[-1]) == ("BEGIN IMMEDIATE", "COMMIT")


def test_an_event_bears_the_time_at_which_it_could_be_written(log):
    """Else events of two processes that write at once would not be in the order of their times."""
    with closing(sqlite3.connect(log.folder / DATABASE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = ThreadPoolExecutor(1).submit(log.append, Stopped(problem=PROBLEM.name, reason="done"))
        time.sleep(0.2)
        release_result = datetime.now(UTC)
        other.execute("COMMIT")
    assert waiting.result().time >= release_result


def test_a_folder_in_use_two_problems_of_one_name_and_an_unknown_blob_are_told(log, tmp_path):
    with pytest.raises(RunLogError, match="not empty"):
        new_log(log.folder)
    with pytest.raises(RunLogError, match=r"two problems.* 'doubled'"):
        RunLog.create(tmp_path / "run", [PROBLEM, PROBLEM], SETTING)
    with pytest.raises(RunLogError, match="holds no blob abc"):
        log.blob("abc")


@pytest.mark.parametrize(
    ("made", "name", "said"),
    [
        (RunLog.open, "nowhere", "there is no folder"),
        (RunLog.open, "", r"holds no header\.json"),
        (RunLog.open, "file", r"holds no header\.json"),
        (new_log, "file", "choose another"),
        (new_log, "file/run", "cannot make the folder"),
    ],
)
def test_what_is_no_folder_of_a_run_and_one_that_cannot_be_made_are_told(tmp_path, made, name, said):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunLogError, match=said):
        made(tmp_path / name)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"format": 7}, r"format 7.* up to 2"), (None, "not valid JSON"), ({"device": None}, "damaged at 'device'")],
)
def test_a_header_that_is_not_in_order_is_told(log, changes, said):
    path = log.folder / "header.json"
    path.write_text("{" if changes is None else json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(RunLogError, match=said):
        RunLog.open(log.folder)


def of_something_else(path):
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE other (x)")


def overwritten(path):
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xaa" * (len(data) - 4096))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (Path.unlink, "cannot be opened"),
        (of_something_else, "not made by"),
        (lambda path: path.write_text("no database " * 1000), "no SQLite file"),
        (overwritten, "damaged"),
    ],
    ids=["missing", "of something else", "no database", "damaged"],
)
def test_a_harmed_database_is_told(log, harm, said):
    searched(log)
    log.close()
    harm(log.folder / "run.db")
    with pytest.raises(RunLogError, match=said), RunLog.open(log.folder) as again:
        list(again.events())


def test_an_event_of_an_unknown_kind_is_told(log):
    with sqlite3.connect(log.folder / "run.db") as connection:
        connection.execute("INSERT INTO events (time, kind, payload) VALUES ('2030-01-01T00:00:00+00:00', 'x', '{}')")
    with pytest.raises(RunLogError, match="event 2 of "):
        list(log.events())


def test_a_full_disk_is_told_and_what_was_logged_stays(log):
    # A limit on the size of the file makes SQLite give the very error that a full disk makes it give.
    log._connection.execute("PRAGMA max_page_count = 20")
    with pytest.raises(RunLogError, match="no space left; free some"):
        for number in range(1000):
            log.append(Kept(problem="x", attempt=number, speedup=1.0, previous=None), blobs=[f"{number}" * 1000])
    with RunLog.open(log.folder) as again:
        logged = [event.attempt for event in again.events("x")]
    assert logged == list(range(len(logged))) and logged


def test_a_run_that_was_copied_elsewhere_can_be_read(log, tmp_path):
    searched(log)
    events = list(log.events())
    log.close()
    shutil.copytree(log.folder, tmp_path / "copy with spaces and ?#%")
    with RunLog.open(tmp_path / "copy with spaces and ?#%") as copy:
        assert list(copy.events()) == events


@pytest.mark.skipif(bool(bubblewrap.obstacle()), reason="mounting needs namespaces")
def test_a_run_on_a_read_only_disk_can_be_read(log):
    searched(log)
    log.close()
    mount = [bubblewrap.program(), "--dev-bind", "/", "/", "--ro-bind", log.folder, log.folder]
    subprocess.run([*mount, sys.executable, "-P", "-m", "kernelwright", "show", log.folder], check=True)


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
