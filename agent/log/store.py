"""`RunLog`: the record of a run on disk, append-only, with its header, its lock and the journal of a search.

One SQLite file in WAL mode holds a table of events and a content-addressed table of blobs; `header.json` describes the
run. Nothing is ever changed or removed: triggers refuse it. A transaction that has been committed survives the end of
this process at any point; the last few may be lost where the machine itself loses power.

One process at a time continues a run, and others may read it meanwhile. The lock ends with the process that holds it,
so a run that was killed can be resumed immediately.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any, Self

from pydantic import AwareDatetime, JsonValue, TypeAdapter, ValidationError

from kernelwright.agent.compat import READABLE, SectionSpan
from kernelwright.agent.log import events
from kernelwright.agent.log.events import Body, Event, RunLogError
from kernelwright.agent.log.records import PromptOutline, Reply, SectionDigest
from kernelwright.agent.log.view import View, fold
from kernelwright.problems import Problem
from kernelwright.problems.problem import Record, first_fault
from kernelwright.prompts import Prompt, Section
from kernelwright.sandbox.locks import close_in_forks, open_everybodys, try_lock, unlock
from kernelwright.sandbox.storage import is_there, write_atomically
from kernelwright.sandbox.verdict.errors import MachineError

FORMAT = 2  # raised whenever a record that is stored changes so that older code cannot read it
HEADER, DATABASE, LOCK = "header.json", "run.db", "lock"


class Setting(Record):
    config: dict[str, JsonValue]  # all options, so that a resumed run does the same; never a key
    device: str
    versions: dict[str, str]  # of python, torch, the compiler, the driver and kernelwright
    commit: str | None = None  # of kernelwright's own checkout; None outside one


class Header(Setting):
    format: int = FORMAT
    run_id: str
    started: AwareDatetime
    problems: dict[str, str]  # name to digest; the log holds each complete record as a blob under its digest


def read_header(folder: Path) -> Header:
    """Read the header of the run in `folder`. Raises `RunLogError`."""
    path = folder / HEADER
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        version = found.get("format") if isinstance(found, dict) else None
        if version in READABLE:
            return Header.model_validate(found)
    except (FileNotFoundError, NotADirectoryError) as error:
        why = f"there is no folder {folder}; give the folder of a run"
        if folder.exists():
            why = f"{folder} is not the folder of a run, since it holds no {HEADER}; give one of `kernelwright run`"
        raise RunLogError(why) from error
    except OSError as error:
        raise RunLogError(f"cannot read {path} ({error.strerror}); check its permissions") from error
    except ValidationError as error:
        raise RunLogError(f"{path} is damaged at {first_fault(error).key!r}; restore it or start a new run") from error
    except ValueError as error:
        raise RunLogError(f"{path} is not valid JSON; the file is damaged, restore it or start a new run") from error
    what = f"{folder} is in format {version!r}, and this version of kernelwright reads formats up to {FORMAT}"
    raise RunLogError(f"{what}; use the version that wrote it")


LOG = logging.getLogger("kernelwright.agent.log")
HOLDER = re.compile(r"(\d+) ([\w.-]+)")
HOLDER_BYTES = 300


class RunLock:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: FileIO | None = None

    def take(self) -> None:
        """Lock the run. Raises `RunLogError`, which names the other process, where one holds it.

        Where the file system has no locks, or the file cannot be made, nothing is locked, and a warning is logged.
        """
        if self._file is not None:
            return
        try:
            with contextlib.ExitStack() as stack:
                file = stack.enter_context(FileIO(open_everybodys(self._folder / LOCK), "r+"))
                close_in_forks(file)
                if not try_lock(file.fileno()):
                    raise RunLogError(self._refusal(file))
                with contextlib.suppress(OSError):  # on a full disk nobody is named, rather than an earlier one
                    file.truncate(0)
                    file.write(f"{os.getpid()} {socket.gethostname()}".encode())
                stack.pop_all()
                self._file = file
        except (MachineError, OSError) as error:
            LOG.warning("other processes are not kept from continuing %s: %s", self._folder, error)

    def release(self) -> None:
        """Unlock the run immediately: a new fork may still have the file open."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                unlock(self._file.fileno())
            self._file.close()
            self._file = None

    def _refusal(self, file: FileIO) -> str:
        found = HOLDER.fullmatch(os.pread(file.fileno(), HOLDER_BYTES, 0).decode(errors="replace"))
        holder, remedy = f"process {found[1]}" if found else "another process", "wait until it has ended, or end it"
        if found is not None and found[2] != socket.gethostname():
            holder += f" on {found[2]}"
            remedy += f"; if that machine is gone, delete {self._folder / LOCK}"
        return f"{holder} goes on with the run in {self._folder}; {remedy}"


BUSY_S = 60.0
PAGE = 500
APPLICATION_ID = 0x6B77_7267  # the mark that distinguishes the file from any other SQLite file
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
        """Start a run in `folder`, which must be new or empty, and lock it; its name is the run's id.

        The header comes last, so a folder with a header is complete. Raises `RunLogError`.
        """
        names = [problem.name for problem in problems]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise RunLogError(f"two problems of the run are named {twice[0]!r}; rename one, or run them separately")
        digests = {problem.name: problem.digest for problem in problems}
        header = Header(**dict(setting), run_id=folder.resolve().name, started=datetime.now(UTC), problems=digests)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            taken = any(folder.iterdir())
        except OSError as error:
            raise RunLogError(f"cannot make the folder {folder} ({error.strerror}); choose another one") from error
        if taken:
            go_on = f"go on with `kernelwright resume {folder}`"
            raise RunLogError(f"{folder} is not empty; choose another folder, or {go_on}")
        log = cls(folder, header, _connect(folder / DATABASE, "rwc"))
        try:
            log.run_lock.take()
            with log._translated():
                (mode,) = log._connection.execute("PRAGMA journal_mode = WAL").fetchone()
                if mode != "wal":
                    raise RunLogError(f"the file system of {folder} cannot hold a run; choose a folder on a local disk")
                log._connection.executescript(SCHEMA)
            log.append(events.RunStarted(run_id=header.run_id), blobs=[problem.record for problem in problems])
            write_atomically(folder / HEADER, header.model_dump_json(indent=2) + "\n")
        except BaseException as error:
            log.close()
            if isinstance(error, OSError):
                why = f"cannot write to {folder} ({error.strerror}); make room or choose another folder"
                raise RunLogError(why) from error
            raise
        return log

    @classmethod
    def open(cls, folder: Path, *, alone: bool = False) -> Self:
        """Open the run in `folder`; `alone` locks it, to continue it. Raises `RunLogError`."""
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
        self._connection.close()
        self.run_lock.release()

    def append(self, body: Body, blobs: Iterable[str] = ()) -> Event:
        return self.extend([(body, blobs)])[0]

    def extend(self, entries: Sequence[tuple[Body, Iterable[str]]], time: datetime | None = None) -> list[Event]:
        """Commit several events, each with its texts, all of them or none; return them as they were logged."""
        with self._lock, self._translated(), self._connection:
            # For writing at once: a lock for reading cannot wait to become one for writing.
            self._connection.execute("BEGIN IMMEDIATE")
            time = time or datetime.now(UTC)  # with the lock held: times are in the order of the events
            return [_insert(self._connection, time, body, blobs) for body, blobs in entries]

    def digest(self) -> str:
        """Hash all events without times and the run's own name: equal for a run and its replay."""
        whole = hashlib.sha256()
        for event in self.events(after=1):
            whole.update(event.body.model_dump_json().encode())
            whole.update(b"\n")
        return whole.hexdigest()

    def events(self, problem: str | None = None, after: int = 0) -> Iterator[Event]:
        """Yield the events in order: all, or those of one problem; `after` skips those up to that seq."""
        query = "SELECT seq, time, payload FROM events WHERE seq > ?1 AND (?2 IS NULL OR problem = ?2) ORDER BY seq"
        while rows := self._rows(f"{query} LIMIT {PAGE}", (after, problem)):
            for seq, time, payload in rows:
                try:
                    event = Event(seq=seq, time=datetime.fromisoformat(time), body=BODY.validate_json(payload))
                except (ValueError, TypeError) as error:
                    why = f"event {seq} of {self.folder / DATABASE} cannot be read; the file is damaged"
                    raise RunLogError(f"{why}, start a new run") from error
                yield event
                after = seq

    def last_seq(self) -> int:
        return int(self._rows("SELECT coalesce(max(seq), 0) FROM events")[0][0])

    def stopped(self, after: int = 0) -> list[tuple[int, str]]:
        return self._rows("SELECT seq, problem FROM events WHERE kind = 'stopped' AND seq > ? ORDER BY seq", (after,))

    def blob(self, digest: str) -> bytes:
        """Read the bytes with that sha256. Raises `RunLogError` where they are missing or damaged."""
        found = self._rows("SELECT bytes FROM blobs WHERE sha256 = ?", (digest,))
        if not found:
            raise RunLogError(f"{self.folder / DATABASE} holds no blob {digest}; check the digest")
        data = bytes(found[0][0])
        if hashlib.sha256(data).hexdigest() != digest:
            raise RunLogError(f"blob {digest} of {self.folder / DATABASE} is damaged; start a new run")
        return data

    def text(self, digest: str) -> str:
        return self.blob(digest).decode()

    def prompt(self, outline: PromptOutline) -> Prompt:
        """Read the prompt of an outline in its sections."""

        def text(one: SectionDigest | SectionSpan) -> str:
            if isinstance(one, SectionSpan):
                return self.text(outline.digest)[one.start : one.end]
            return self.text(one.digest)

        sections = tuple(Section(name=one.name, text=text(one), stable=one.stable) for one in outline.sections)
        return Prompt(role=outline.role, target=outline.target, sections=sections)

    def reply(self, digest: str) -> Reply:
        return Reply.model_validate_json(self.blob(digest))

    def problem(self, name: str) -> Problem:
        """Read a problem of the run as it was at the start. Raises `RunLogError` for an unknown name."""
        digest = self.header.problems.get(name)
        if digest is None:
            there = ", ".join(sorted(self.header.problems))
            raise RunLogError(f"the run in {self.folder} has no problem {name!r}; there are: {there}")
        return Problem.model_validate_json(self.blob(digest))

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
    event = Event(seq=0, time=time, body=body)
    seq = connection.execute(
        "INSERT INTO events (time, kind, problem, attempt, payload) VALUES (?, ?, ?, ?, ?)",
        (time.isoformat(timespec="microseconds"), body.kind, event.problem, event.attempt, body.model_dump_json()),
    ).lastrowid
    return event.model_copy(update={"seq": seq})


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    if is_there(path) and not os.access(path, os.W_OK) and not is_there(path.with_name(f"{path.name}-wal")):
        mode = "ro&immutable=1"  # on a read-only disk SQLite cannot make what it otherwise has beside the file
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


class Journal:
    """The writer of one problem's events, with the view that they fold into."""

    def __init__(self, problem: str, log: RunLog, on_event: Callable[[Event], None] = lambda event: None) -> None:
        self._log = log
        self.view: View = fold(problem, log.events(problem))
        self._on_event = on_event
        self._resumes = bool(self.view.attempts)

    def write(self, body: Body, blobs: Iterable[str] = ()) -> None:
        self.write_all([(body, blobs)])

    def write_reply(self, attempt: int, reply: Reply, again: bool = False) -> None:
        """Log the answer to an attempt; `again`: to the request to continue."""
        kind = events.RepliedAgain if again else events.Replied
        event = kind(problem=self.view.problem, attempt=attempt, reply_digest=reply.digest, reply=reply.facts)
        self.write(event, blobs=[reply.model_dump_json()])

    def write_all(self, entries: Sequence[tuple[Body, Iterable[str]]]) -> None:
        """Commit several, all of them or none. `Resumed` comes before the first step of a search that continues."""
        if self._resumes:
            self._resumes = False
            entries = [(events.Resumed(problem=self.view.problem), ()), *entries]
        for event in self._log.extend(entries):
            self.view = self.view.after(event)
            self._on_event(event)
