"""`JobStore`: the jobs on disk, in one SQLite file that only this process writes.

An accepted job is committed, and synced, before the client gets its answer. A job ends once: ending it again changes
nothing.
"""

import asyncio
import hashlib
import json
import logging
import secrets
import sqlite3
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

from kernelwright.problems.problem import Record
from kernelwright.sandbox.pool.executor import JobError, Stage
from kernelwright.sandbox.storage import cache_root, is_there, state_root
from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION

State = Literal["queued", "judging", "done", "cancelled"]
"""`done`: with a report, or with an error in place of a verdict. It is reached once, as is `cancelled`."""
DeviceKind = Literal["cpu", "cuda"]


class NewJob(Record):
    """A request that has been read: the job to keep, and to judge later."""

    work: str
    """`Work` as JSON, which the listening process does not parse."""
    stage: Stage
    device: DeviceKind
    problem: str
    priority: int
    key: str | None


class Job(Record):
    """A job as clients see it."""

    id: str
    state: State
    problem: str
    device: DeviceKind
    priority: int
    created: str
    """UTC, as ISO 8601."""
    finished: str | None = None
    begun: int = 0
    """Starts of its judging: more than one where the service was killed meanwhile."""
    report: dict[str, Any] | None = None
    """The object of `kernelwright judge --json`."""
    error: JobError | None = None


class ServiceFacts(Record):
    """Facts about the service."""

    harness: str = f"judge version {JUDGE_VERSION}"
    """Deprecated: clients of the version before compare it."""
    judge_version: int
    """Verdicts of different judge versions are not compared."""
    wire_version: int
    """The version of the messages. Clients of another version are refused."""
    devices: dict[DeviceKind, list[dict[str, Any]]]
    """The devices, with the conditions of each verdict that is reached on them."""
    room: dict[DeviceKind, int]
    """Jobs that are built or judged at a time; more wait."""
    queue: int
    """Jobs that may be open."""
    draining: bool


P = ParamSpec("P")
R = TypeVar("R")
LOG = logging.getLogger("kernelwright.sandbox.service")
JOBS = "jobs.db"
"""The file in the service's folder."""
PRIORITY_S = 60.0
"""The waiting time that one point of priority replaces. So no job waits for ever."""
TRIM_EVERY = 50
"""Ended jobs after which the oldest are deleted; each start deletes them too."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, key TEXT UNIQUE, asked TEXT NOT NULL,
    state TEXT NOT NULL, problem TEXT NOT NULL, place TEXT NOT NULL, stage TEXT NOT NULL, priority INTEGER NOT NULL,
    due REAL NOT NULL, created REAL NOT NULL, finished REAL, begun INTEGER NOT NULL DEFAULT 0,
    work BLOB, report BLOB, verdict BLOB, device TEXT, error TEXT
);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, seq);
"""
SHOWN = "id, state, problem, place, priority, created, finished, begun, report, error"
HELD = "another process holds the file; end that one, or wait for it"
REMEDIES = {
    sqlite3.SQLITE_FULL: "there is no space left; free some, and leave the file: it holds the jobs that were accepted",
    sqlite3.SQLITE_IOERR: "the disk is full or has failed; free some space or check its health, and leave the file: it "
    "holds the jobs that were accepted",
    sqlite3.SQLITE_BUSY: HELD,
    sqlite3.SQLITE_LOCKED: HELD,
    sqlite3.SQLITE_CORRUPT: "the file is damaged; give another --state folder, or remove it with the jobs in it",
    sqlite3.SQLITE_NOTADB: "the file is none of SQLite's; give another --state folder, or remove it",
    sqlite3.SQLITE_READONLY: "the file may not be written; check the permissions of it and of its folder",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; check the permissions of it and of its folder",
}
"""By SQLite's code. Only a file without readable jobs may be removed."""
OF_THE_DISK = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})


def usual_state() -> Path:
    """Return the service's folder where none is named. One of an earlier version in the user's cache stays in use."""
    folder, earlier = state_root() / "service", cache_root() / "service"
    if is_there(folder / JOBS) or not is_there(earlier / JOBS):
        return folder
    LOG.warning(
        "the jobs stay in %s, where a cleaner of caches may delete them: end the service and move it to %s, "
        "or name it with --state",
        earlier,
        folder,
    )
    return earlier


class StoreError(Exception):
    """The jobs' file cannot be used; one sentence with the remedy."""


class DiskError(StoreError):
    """The same where the disk is full or has failed: the machine's fault, not the user's."""


class KeyTaken(Exception):
    """The key belongs to another request."""


class OpenJob(NamedTuple):
    id: str
    device: DeviceKind
    due: float
    """The time of its request in seconds, less the value of its priority: the earliest is judged first."""


class Begun(NamedTuple):
    work: str
    stage: Stage
    times: int


class Ending(NamedTuple):
    """End of a job that was not cancelled: an error, or the other three."""

    error: JobError | None = None
    report: dict[str, Any] | None = None
    verdict: str | None = None
    device: str | None = None
    """The `Device` as JSON; None where the verdict was reached without one."""

    @property
    def outcome(self) -> str:
        return "error" if self.report is None else str(self.report["outcome"])


class JobStore:
    """Use its methods through `do`, which has them run one after the other in a thread of their own."""

    def __init__(self, path: Path, keep: int) -> None:
        """`keep`: the number of ended jobs that are kept; the oldest are deleted first."""
        self._keep, self._ended = keep, 0
        self._thread = ThreadPoolExecutor(1, "jobs")
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(SCHEMA)
            self._forget_oldest()  # this process may end before it has ended `TRIM_EVERY`
        except sqlite3.Error as error:
            raise _store_error(f"{path} cannot be used", error) from None

    async def do(self, what: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        """Call one of the methods below. It is completed also where the caller is cancelled. Raises `StoreError`."""
        called = asyncio.get_running_loop().run_in_executor(self._thread, lambda: what(*given, **named))
        try:
            return await asyncio.shield(called)
        except sqlite3.Error as error:
            raise _store_error("the jobs cannot be kept", error) from None

    def close(self) -> None:
        self._thread.shutdown()
        self._db.close()

    def known(self, new: NewJob) -> Job | None:
        """Return the job with the request's key. Raises `KeyTaken` where that is another request's."""
        found = self._db.execute("SELECT id, asked FROM jobs WHERE key = ?", (new.key,)).fetchone()
        if found is None:
            return None
        if found[1] != _digest(new):
            raise KeyTaken
        return self.get(found[0])

    def add(self, new: NewJob) -> tuple[Job, OpenJob | None]:
        """Keep a new job; return it and its entry of the queue, which is None where the request was known."""
        if new.key is not None and (known := self.known(new)) is not None:
            return known, None
        now = time.time()
        opened = OpenJob(secrets.token_hex(16), new.device, now - PRIORITY_S * new.priority)
        row = (opened.id, new.key, _digest(new), "queued", new.problem, new.device, new.stage, new.priority)
        self._db.execute(
            "INSERT INTO jobs (id, key, asked, state, problem, place, stage, priority, due, created, work) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*row, opened.due, now, _packed(new.work)),
        )
        job = self.get(opened.id)
        assert job is not None
        return job, opened

    def get(self, id: str) -> Job | None:
        row = self._db.execute(f"SELECT {SHOWN} FROM jobs WHERE id = ?", (id,)).fetchone()
        if row is None:
            return None
        id, state, problem, place, priority, created, finished, begun, report, error = row
        return Job(
            id=id,
            state=state,
            problem=problem,
            device=place,
            priority=priority,
            created=_time(created),
            finished=None if finished is None else _time(finished),
            begun=begun,
            report=None if report is None else json.loads(zlib.decompress(report)),
            error=None if error is None else JobError.model_validate_json(error),
        )

    def evidence(self, id: str) -> dict[str, Any]:
        """Return the complete verdict and the device of a job that has one, for our own clients."""
        row = self._db.execute("SELECT verdict, device FROM jobs WHERE id = ?", (id,)).fetchone()
        if row is None or row[0] is None:
            return {"verdict": None, "judged_on": None}
        return {"verdict": json.loads(zlib.decompress(row[0])), "judged_on": row[1] and json.loads(row[1])}

    def unfinished(self) -> list[OpenJob]:
        """Return the jobs that wait, and those that were being judged when the last service ended."""
        self._db.execute("UPDATE jobs SET state = 'queued' WHERE state = 'judging'")
        return [OpenJob(*row) for row in self._db.execute("SELECT id, place, due FROM jobs WHERE state = 'queued'")]

    def begin(self, id: str) -> Begun | None:
        """Begin a job; return None where it is not to be judged any more."""
        taken = "UPDATE jobs SET state = 'judging', begun = begun + 1 WHERE id = ? AND state = 'queued'"
        row = self._db.execute(f"{taken} RETURNING work, stage, begun", (id,)).fetchone()
        return None if row is None else Begun(zlib.decompress(row[0]).decode(), row[1], row[2])

    def put_back(self, id: str) -> None:
        """Have the job judged later: by this service, or by the next one."""
        self._db.execute("UPDATE jobs SET state = 'queued' WHERE id = ? AND state = 'judging'", (id,))

    def cancel(self, id: str) -> bool:
        return self._end(id, "cancelled")

    def finish(self, id: str, ending: Ending) -> bool:
        return self._end(
            id,
            "done",
            report=_packed(None if ending.report is None else json.dumps(ending.report)),
            verdict=_packed(ending.verdict),
            device=ending.device,
            error=ending.error and ending.error.model_dump_json(),
        )

    def _end(self, id: str, state: str, **found: object) -> bool:
        """End the job, and delete the candidate's text."""
        columns = {"state": state, "finished": time.time(), "work": None} | found
        names = ", ".join(f"{name} = ?" for name in columns)
        ended = self._db.execute(
            f"UPDATE jobs SET {names} WHERE id = ? AND state IN ('queued', 'judging')", (*columns.values(), id)
        )
        self._ended += 1
        if self._ended % TRIM_EVERY == 0:
            self._forget_oldest()
        return ended.rowcount == 1

    def _forget_oldest(self) -> None:
        """Delete the oldest ended jobs. A failure waits for the next time: it must not keep a job from ending."""
        with suppress(sqlite3.Error):
            self._db.execute(
                "DELETE FROM jobs WHERE state IN ('done', 'cancelled') AND seq <= "
                "(SELECT seq FROM jobs WHERE state IN ('done', 'cancelled') ORDER BY seq DESC LIMIT 1 OFFSET ?)",
                (self._keep,),
            )


def _store_error(what: str, error: sqlite3.Error) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without what SQLite adds to say where it failed
    remedy = REMEDIES.get(code, f"SQLite says: {error}; check the file, or give another --state folder")
    return (DiskError if code in OF_THE_DISK else StoreError)(f"{what}: {remedy}")


def _packed(text: str | None) -> bytes | None:
    return None if text is None else zlib.compress(text.encode())


def _digest(new: NewJob) -> str:
    return hashlib.sha256(f"{new.stage}\0{new.device}\0{new.priority}\0{new.work}".encode()).hexdigest()


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
