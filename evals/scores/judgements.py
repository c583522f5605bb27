"""`Judgements`: verdicts on disk outside of a run, each under the digest of all that it depends on.

One SQLite file, append-only, shared by processes. A batch of files keeps its verdicts in one, with problems and
sources; a verified leaderboard its second measurements. Files of several shards or machines are merged by copying rows.
"""

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import AwareDatetime, ValidationError

from kernelwright.agent.log.events import RunLogError
from kernelwright.evals.figures import Measured, measured
from kernelwright.problems.record.base import Record, first_fault
from kernelwright.sandbox.pool.executor import Conditions
from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.verdicts import Verdict

BUSY_S = 60.0
RETRY_S = 0.01
SCHEMA = """
CREATE TABLE IF NOT EXISTS judgements (
    key TEXT PRIMARY KEY, problem_digest TEXT NOT NULL, candidate_digest TEXT NOT NULL,
    record TEXT NOT NULL, report TEXT NOT NULL, measured TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS judgements_of ON judgements (problem_digest, candidate_digest);
CREATE TABLE IF NOT EXISTS texts (sha256 TEXT PRIMARY KEY, text TEXT NOT NULL);
""" + "".join(
    f"CREATE TRIGGER IF NOT EXISTS {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
    "BEGIN SELECT RAISE(ABORT, 'judgements are append-only'); END;\n"
    for table in ("judgements", "texts")
    for verb in ("UPDATE", "DELETE")
)


class JudgementsError(RunLogError):
    """A file of judgements that cannot be used; the message is one sentence with the remedy."""


class Judgement(Record):
    problem: str
    problem_digest: str
    candidate: str
    """Where the candidate came from: a file, or an attempt of a run."""
    candidate_digest: str
    conditions: Conditions
    time: AwareDatetime
    verdict: Verdict

    @property
    def key(self) -> str:
        return self.conditions.key(self.problem_digest, self.candidate_digest)


class Known(NamedTuple):
    report: dict[str, Any]
    measured: Measured


class Judgements:
    """The file at `path`, made where it is missing. Use it as a context, and from one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise JudgementsError(
                f"cannot make the folder {path.parent} ({error.strerror}); choose another one"
            ) from error
        with _sqlite_errors(path):
            self._connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
            _to_wal(self._connection)
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.executescript(SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def add(self, judgement: Judgement) -> Known:
        """Commit a judgement, unless one of its key is there; the first of a key stays. What can be said of it."""
        found = Known(report(judgement.verdict), measured(judgement.verdict))
        row = (
            judgement.key,
            judgement.problem_digest,
            judgement.candidate_digest,
            judgement.model_dump_json(),
            json.dumps(found.report),
            found.measured.model_dump_json(),
        )
        with self._writing():
            self._connection.execute("INSERT OR IGNORE INTO judgements VALUES (?, ?, ?, ?, ?, ?)", row)
        return found

    def keep(self, *texts: str) -> None:
        """Keep texts under their digests: the record of a problem, the source of a candidate."""
        rows = [(hashlib.sha256(text.encode()).hexdigest(), text) for text in texts]
        with self._writing():
            self._connection.executemany("INSERT OR IGNORE INTO texts VALUES (?, ?)", rows)

    def known_like(self, problem_digest: str, candidate_digest: str, conditions: Iterable[Conditions]) -> Known | None:
        """What the file keeps of the latest judgement of a candidate under conditions like one of these."""
        like = {one.alike for one in conditions}
        query = "SELECT json_extract(record, '$.conditions'), report, measured FROM judgements"
        query += " WHERE problem_digest = ? AND candidate_digest = ? ORDER BY rowid DESC"
        with _sqlite_errors(self.path):
            rows = self._connection.execute(query, (problem_digest, candidate_digest)).fetchall()
        for under, report_, measured_ in rows:
            if Conditions.model_validate_json(under).alike in like:
                return Known(json.loads(report_), Measured.model_validate_json(measured_))
        return None

    def conditions(self) -> list[Conditions]:
        with _sqlite_errors(self.path):
            rows = self._connection.execute("SELECT DISTINCT json_extract(record, '$.conditions') FROM judgements")
            return [Conditions.model_validate_json(row[0]) for row in rows]

    def merge(self, others: Iterable[Path]) -> int:
        """Take over what other files hold and this one does not; how many were new."""
        added = 0
        for other in others:
            if not other.is_file():
                raise JudgementsError(f"there is no file {other} to merge; give the --out folder of another shard")
            rows, texts = rows_of(other, "*"), rows_of(other, "*", "texts")
            with self._writing():
                before = self._connection.total_changes
                self._connection.executemany("INSERT OR IGNORE INTO judgements VALUES (?, ?, ?, ?, ?, ?)", rows)
                added += self._connection.total_changes - before
                self._connection.executemany("INSERT OR IGNORE INTO texts VALUES (?, ?)", texts)
        return added

    @staticmethod
    def read(path: Path) -> list[Judgement]:
        """All judgements of the file at `path`, which may be one that cannot be written."""
        with _sqlite_errors(path):
            return [Judgement.model_validate_json(row[0]) for row in rows_of(path, "record")]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with _sqlite_errors(self.path), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield


def _to_wal(connection: sqlite3.Connection) -> None:
    """Have a file written ahead. Where another process changes the mode SQLite gives up at once: asked again."""
    end = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
        time.sleep(RETRY_S)


def rows_of(path: Path, columns: str, table: str = "judgements") -> list[tuple[Any, ...]]:
    """What a file that may not be written holds; no texts in one of an older release. Raises `JudgementsError`."""
    with _sqlite_errors(path), closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as source:
        if table == "texts" and not source.execute("SELECT 1 FROM sqlite_master WHERE name = 'texts'").fetchone():
            return []
        return source.execute(f"SELECT {columns} FROM {table} ORDER BY rowid").fetchall()


@contextmanager
def _sqlite_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise JudgementsError(f"cannot use {path} (SQLite says: {error}); check the file and its folder") from error
    except ValidationError as error:
        raise JudgementsError(f"{path} is damaged at {first_fault(error).key!r}; score into another folder") from error
