"""The jobs' file: where it lies, and a remedy where it cannot be used, which never costs accepted jobs."""

import asyncio
import json
import logging
import os
import resource
import sqlite3
import subprocess
import sys

import pytest

from kernelwright.sandbox.service.requests import read_request
from kernelwright.sandbox.service.store import JOBS, TRIM_EVERY, DiskError, JobStore, StoreError, usual_state
from kernelwright.terminal import MACHINE_LACKS
from tests.support.service import ROOT, job

LESS_THAN_A_MAP_BYTES = 16 * 2**10
"""Below what SQLite needs beside a file that is written ahead."""


def new(number):
    return read_request(json.dumps(job(number=number)), ["cpu"])


@pytest.fixture
def kept(tmp_path):
    """The file of two jobs that were accepted."""
    store = JobStore(tmp_path / "jobs.db", 100)
    for number in range(2):
        store.add(new(number))
    store.close()
    return tmp_path / "jobs.db"


def told(path):
    """What is told at the start, and of which kind it is."""
    with pytest.raises(StoreError) as found:
        JobStore(path, 100)
    return type(found.value), str(found.value)


def test_starts_that_each_end_few_jobs_keep_no_more_than_is_to_be_kept(tmp_path):
    asked = new(0)
    for _ in range(2):
        store = JobStore(tmp_path / "jobs.db", 5)
        jobs = [store.add(asked)[0] for _ in range(TRIM_EVERY - 1)]
        for one in jobs:
            store.cancel(one.id)
        store.close()
    store = JobStore(tmp_path / "jobs.db", 5)
    assert [store.get(one.id) is not None for one in jobs] == [False] * (len(jobs) - 5) + [True] * 5
    assert store._db.execute("SELECT count(*) FROM jobs").fetchone() == (5,)
    store.close()


def test_a_start_forgets_no_job_that_has_not_ended(kept):
    store = JobStore(kept, 0)
    assert len(store.unfinished()) == 2
    store.close()


def test_a_job_ends_and_a_start_is_made_also_where_the_oldest_can_not_be_forgotten(tmp_path):
    asked, store = new(0), JobStore(tmp_path / "jobs.db", 0)
    store._db.execute("CREATE TRIGGER full BEFORE DELETE ON jobs BEGIN SELECT RAISE(FAIL, 'no room'); END")
    assert all(store.cancel(store.add(asked)[0].id) for _ in range(TRIM_EVERY))
    store.close()
    JobStore(tmp_path / "jobs.db", 0).close()


def test_a_file_that_is_no_database_or_damaged_may_be_removed_with_its_jobs(kept, tmp_path):
    (tmp_path / "none.db").write_text("no database " * 1000)
    kind, sentence = told(tmp_path / "none.db")
    assert kind is StoreError and "--state" in sentence and sentence.endswith("remove it")
    data = kept.read_bytes()
    kept.write_bytes(data[:100] + b"\xaa" * (len(data) - 100))
    kind, sentence = told(kept)
    assert kind is StoreError and "--state" in sentence and "remove it with the jobs" in sentence


def test_a_file_that_can_not_be_opened_is_not_to_be_removed(tmp_path):
    (tmp_path / "jobs.db").mkdir()
    kind, sentence = told(tmp_path / "jobs.db")
    assert kind is StoreError and "check the permissions" in sentence and "remove" not in sentence


@pytest.mark.slow
def test_another_process_that_holds_the_file_is_to_be_ended(kept):
    with sqlite3.connect(kept, isolation_level=None) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN EXCLUSIVE")
        kind, sentence = told(kept)
    other.close()
    assert kind is StoreError and "another process" in sentence and "remove" not in sentence


def test_a_full_disk_is_the_machines_fault_and_what_was_accepted_stays(kept):
    # A limit on the size of the file makes SQLite give the very error that a full disk makes it give.
    store = JobStore(kept, 100)
    store._db.execute("PRAGMA max_page_count = 8")

    async def fill():
        for number in range(100):
            await store.do(store.add, new(number))

    with pytest.raises(DiskError, match="no space left"):
        asyncio.run(fill())
    store.close()
    again = JobStore(kept, 100)
    assert len(again.unfinished()) >= 2
    again.close()


@pytest.mark.slow
def test_serve_on_a_disk_without_room_ends_with_3_and_says_to_free_some(kept):
    asked = ["serve", "--device", "cpu", "--state", str(kept.parent), "--socket", str(kept.parent / "socket")]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "kernelwright", *asked], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (LESS_THAN_A_MAP_BYTES,) * 2),
    )  # fmt: skip
    assert done.returncode == MACHINE_LACKS, done.stderr
    assert str(kept) in done.stderr and "free some space" in done.stderr
    assert "remove" not in done.stderr and len(done.stderr.splitlines()) == 1
    store = JobStore(kept, 100)
    assert len(store.unfinished()) == 2
    store.close()


@pytest.fixture
def user_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def put_jobs(folder):
    folder.mkdir(parents=True)
    JobStore(folder / JOBS, keep=1).close()


@pytest.mark.usefixtures("user_folders")
def test_jobs_lie_in_the_users_state_which_nobody_empties_to_gain_room(tmp_path):
    (tmp_path / "cache" / "service").mkdir(parents=True)  # the socket lies there
    assert usual_state() == tmp_path / "state" / "kernelwright" / "service"


@pytest.mark.usefixtures("user_folders")
def test_jobs_of_an_earlier_version_stay_where_they_are_and_that_is_told_in_a_line(tmp_path, caplog):
    put_jobs(tmp_path / "cache" / "service")
    with caplog.at_level(logging.WARNING, "kernelwright.sandbox.service"):
        assert usual_state() == tmp_path / "cache" / "service"
    (told,) = caplog.messages
    assert f"the jobs stay in {tmp_path / 'cache' / 'service'}" in told and "\n" not in told


@pytest.mark.usefixtures("user_folders")
def test_once_there_are_jobs_in_the_users_state_those_count(tmp_path, caplog):
    put_jobs(tmp_path / "cache" / "service")
    put_jobs(tmp_path / "state" / "kernelwright" / "service")
    assert usual_state() == tmp_path / "state" / "kernelwright" / "service"
    assert not caplog.messages
