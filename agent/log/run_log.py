"""`RunLog`: the record of a run on disk, append-only.

One SQLite file in WAL mode holds a table of events and a content-addressed table of blobs; `header.json` beside it
says what the run is. Nothing is ever changed or removed: triggers refuse it. A transaction that has been committed
survives the end of this process at any point; the last few may be lost where the machine itself loses power.
"""

import hashlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from kernelwright.agent.log.events import Body, Event, OfAttempt, OfProblem, RunLogError, RunStarted
from kernelwright.agent.log.header import Header, Setting, read_header, write_header
from kernelwright.agent.log.outline import PromptOutline
from kernelwright.agent.log.records import Reply
from kernelwright.agent.log.run_lock import RunLock
from kernelwright.problems import Problem
from kernelwright.prompts import Prompt

DATABASE = "run.db"
BUSY_S = 60.0
PAGE = 500
"""Events that are read at a time."""
APPLICATION_ID = 0x6B77_7267
"""Marks the file as ours, so that any other SQLite file is told apart."""
BODY: TypeAdapter[Body] = TypeAdapter(Body)
SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, time TEXT NOT NULL, kind TEXT NOT NULL,
    problem TEXT, attempt INTEGER, payload TEXT NOT NULL
);
CREATE INDEX events_of_problem ON events (problem, seq);
CREATE UNIQUE INDEX steps_happen_once ON events (problem, attempt, kind)
    WHERE kind IN ('asked', 'replied', 'asked_again', 'replied_again', 'extracted', 'not_extracted', 'noted', 'judged',
        'confirmed');
CREATE TABLE blobs (sha256 TEXT PRIMARY KEY, bytes BLOB NOT NULL);
CREATE TRIGGER events_not_replaced BEFORE INSERT ON events WHEN EXISTS (SELECT 1 FROM events WHERE seq = NEW.seq)
    BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE TRIGGER blobs_not_replaced BEFORE INSERT ON blobs WHEN EXISTS (SELECT 1 FROM blobs WHERE sha256 = NEW.sha256)
    BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
""" + "".join(
    f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
    "BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;\n"
    for table in ("events", "blobs")
    for verb in ("UPDATE", "DELETE")
)
REMEDIES = {
    sqlite3.SQLITE_FULL: "there is no space left; free some, then go on with `kernelwright resume`",
    sqlite3.SQLITE_BUSY: "another process has held it for a minute; end that one, or wait for it",
    sqlite3.SQLITE_LOCKED: "another process has held it for a minute; end that one, or wait for it",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; restore it or start a new run",
    sqlite3.SQLITE_NOTADB: "it is no SQLite file; restore it or start a new run",
    sqlite3.SQLITE_READONLY: "it may not be written; check the permissions of the folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check that it exists, and its permissions",
    sqlite3.SQLITE_IOERR: "the disk or file system failed; check its space and health, and put runs on a local disk",
    sqlite3.SQLITE_CONSTRAINT: "that step is already in the record; let only one process go on with a run",
}


class RunLog:
    """The log of one run. Open it with `create` or `open`; safe to share among threads; use it as a context."""

    def __init__(self, folder: Path, header: Header, connection: sqlite3.Connection) -> None:
        self.folder = folder
        self.header = header
        self._connection = connection
        self._lock = threading.RLock()
        self.run_lock = RunLock(folder)

    @classmethod
    def create(cls, folder: Path, problems: Sequence[Problem], setting: Setting) -> Self:
        """Start a run in `folder`, which must be new or empty; its name is the run's id.

        The header comes last, so a folder with a header is whole. Nobody else goes on with it until it is closed.
        Raises `RunLogError`.
        """
        names = [problem.name for problem in problems]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise RunLogError(f"two problems of the run are named {twice[0]!r}; rename one, or run them apart")
        digests = {problem.name: problem.digest for problem in problems}
        header = Header(**dict(setting), run_id=folder.resolve().name, started=datetime.now(UTC), problems=digests)
        _make_folder(folder)
        log = cls(folder, header, _connect(folder / DATABASE, "rwc"))
        try:
            log.run_lock.take()
            log._lay_out()
            log.append(RunStarted(run_id=header.run_id), blobs=[problem.record for problem in problems])
            write_header(folder, header)
        except OSError as error:
            log.close()
            raise RunLogError(
                f"cannot write to {folder} ({error.strerror}); make room or choose another folder"
            ) from error
        except BaseException:
            log.close()
            raise
        return log

    @classmethod
    def open(cls, folder: Path, *, alone: bool = False) -> Self:
        """Read the run in `folder`; `alone`, go on with it too. `RunLogError` where it can not be read, or held."""
        header = read_header(folder)
        log = cls(folder, header, _connect(folder / DATABASE, "rw"))
        try:
            (found,) = log._rows("PRAGMA application_id")
            if found[0] != APPLICATION_ID:
                raise RunLogError(f"{folder / DATABASE} was not made by kernelwright; give the folder of a run")
            if alone:
                log.run_lock.take()
        except BaseException:
            log.close()
            raise
        return log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; what was appended is already committed."""
        self._connection.close()
        self.run_lock.release()

    def append(self, body: Body, blobs: Iterable[str] = ()) -> Event:
        """Commit one event, together with the texts that it speaks of by digest; return it as it was logged."""
        return self.extend([(body, blobs)])[0]

    def extend(self, entries: Sequence[tuple[Body, Iterable[str]]]) -> list[Event]:
        """Commit several events, each with its texts, all of them or none; return them as they were logged."""
        with self._writing() as connection:
            time = datetime.now(UTC)  # with the lock held: times are in the order of the events
            return [_insert(connection, time, body, blobs) for body, blobs in entries]

    def digest(self) -> str:
        """sha256 over all that was logged, apart from times and the run's own name: equal for a run and its replay."""
        whole = hashlib.sha256()
        for event in self.events(after=1):
            whole.update(event.body.model_dump_json().encode())
            whole.update(b"\n")
        return whole.hexdigest()

    def events(self, problem: str | None = None, after: int = 0) -> Iterator[Event]:
        """The events in order: all, or those of one problem; `after` leaves out those up to that seq."""
        query = "SELECT seq, time, payload FROM events WHERE seq > ?1 AND (?2 IS NULL OR problem = ?2) ORDER BY seq"
        while rows := self._rows(f"{query} LIMIT {PAGE}", (after, problem)):
            for seq, time, payload in rows:
                yield self._event(seq, time, payload)
                after = seq

    def last_seq(self) -> int:
        """Place of the last event."""
        return int(self._rows("SELECT coalesce(max(seq), 0) FROM events")[0][0])

    def stopped(self, after: int = 0) -> list[tuple[int, str]]:
        """Place and problem of each end of a search behind `after`."""
        return self._rows("SELECT seq, problem FROM events WHERE kind = 'stopped' AND seq > ? ORDER BY seq", (after,))

    def blob(self, digest: str) -> bytes:
        """The bytes with that sha256; `RunLogError` where the run holds none, or others in their place."""
        found = self._rows("SELECT bytes FROM blobs WHERE sha256 = ?", (digest,))
        if not found:
            raise RunLogError(f"{self.folder / DATABASE} holds no blob {digest}; check the digest")
        data = bytes(found[0][0])
        if hashlib.sha256(data).hexdigest() != digest:
            raise RunLogError(f"blob {digest} of {self.folder / DATABASE} is damaged; start a new run")
        return data

    def text(self, digest: str) -> str:
        """The blob with that digest as text: a prompt, or a candidate's source."""
        return self.blob(digest).decode()

    def prompt(self, outline: PromptOutline) -> Prompt:
        """The prompt of an attempt, in its sections."""
        return outline.filled(self.text(outline.digest))

    def reply(self, digest: str) -> Reply:
        """The reply of an attempt, by its `reply_digest`."""
        return Reply.model_validate_json(self.blob(digest))

    def problem(self, name: str) -> Problem:
        """A problem of the run as it was when the run started; `RunLogError` for a name that it does not have."""
        digest = self.header.problems.get(name)
        if digest is None:
            there = ", ".join(sorted(self.header.problems))
            raise RunLogError(f"the run in {self.folder} has no problem {name!r}; there are: {there}")
        return Problem.model_validate_json(self.blob(digest))

    def _event(self, seq: int, time: str, payload: str) -> Event:
        try:
            return Event(seq=seq, time=datetime.fromisoformat(time), body=BODY.validate_json(payload))
        except (ValidationError, ValueError, TypeError) as error:
            raise RunLogError(
                f"event {seq} of {self.folder / DATABASE} cannot be read; the file is damaged, start a new run"
            ) from error

    def _lay_out(self) -> None:
        with self._translated():
            (mode,) = self._connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise RunLogError(
                    f"the file system of {self.folder} cannot hold a run; choose a folder on a local disk"
                )
            self._connection.executescript(SCHEMA)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """The one way to write. IMMEDIATE, since a lock that is taken for reading cannot wait to become one for
        writing: among several writers most transactions would fail at once.
        """
        with self._lock, self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._lock, self._translated():
            return self._connection.execute(query, tuple(values)).fetchall()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _log_error(self.folder / DATABASE, error) from error


def _insert(connection: sqlite3.Connection, time: datetime, body: Body, blobs: Iterable[str]) -> Event:
    for text in blobs:
        data = text.encode()
        connection.execute(
            "INSERT INTO blobs SELECT ?1, ?2 WHERE NOT EXISTS (SELECT 1 FROM blobs WHERE sha256 = ?1)",
            (hashlib.sha256(data).hexdigest(), data),
        )
    problem = body.problem if isinstance(body, OfProblem) else None
    attempt = body.attempt if isinstance(body, OfAttempt) else None
    seq = connection.execute(
        "INSERT INTO events (time, kind, problem, attempt, payload) VALUES (?, ?, ?, ?, ?)",
        (time.isoformat(timespec="microseconds"), body.kind, problem, attempt, body.model_dump_json()),
    ).lastrowid
    assert seq is not None
    return Event(seq=seq, time=time, body=body)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = any(folder.iterdir())
    except OSError as error:
        raise RunLogError(f"cannot make the folder {folder} ({error.strerror}); choose another one") from error
    if taken:
        raise RunLogError(f"{folder} is not empty; choose another folder, or go on with `kernelwright resume {folder}`")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?mode={mode}"
    try:
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error as error:
        raise _log_error(path, error) from error
    return connection


def _log_error(path: Path, error: sqlite3.Error) -> RunLogError:
    code = getattr(error, "sqlite_errorcode", 0)
    remedy = REMEDIES.get(code & 0xFF, f"SQLite says: {error}; check the file, or start a new run")
    return RunLogError(f"cannot use {path}: {remedy}")
