"""Verdicts on disk outside of a run, and what a leaderboard reads of runs and scores alike.

A `VerdictStore` is one SQLite file, append-only, shared by processes: each verdict under the digest of all that it
depends on, with its report and summary. `scores.db` in the folder of a score also holds problems and sources,
`verified.db` in the folder of a run its re-evaluations. `log_of` gives either folder as the log of a run. A run's
summary is kept next to its log in `derived.json`, which may be deleted.
"""

import hashlib
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Self, get_args

from pydantic import AwareDatetime, ValidationError

from kernelwright.agent.log import events
from kernelwright.agent.log.events import Event, RunLogError
from kernelwright.agent.log.records import Ask, Attempt, FoundCandidate, PromptOutline, Reply, Usage
from kernelwright.agent.log.store import HEADER, Header, RunLog
from kernelwright.agent.log.store import SCHEMA as LOG_SCHEMA
from kernelwright.agent.log.view import View, fold
from kernelwright.agent.steering import known_sum
from kernelwright.evals.metrics import BUILT, Effort, VerdictSummary, kernel_label, level_of, summarize, total_cost
from kernelwright.problems import Problem
from kernelwright.problems.problem import Record, first_fault
from kernelwright.prompts import Target
from kernelwright.sandbox.authenticity.scan import candidate_of
from kernelwright.sandbox.pool.executor import Conditions
from kernelwright.sandbox.storage import write_atomically
from kernelwright.sandbox.verdict.judge_version import JUDGE_FIELD, JUDGE_VERSION, judged_by
from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.settings import AT_EFFORT
from kernelwright.sandbox.verdict.verdicts import Failed, Verdict

DATABASE, VERIFIED, DERIVED = "scores.db", "verified.db", "derived.json"
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
    """A file of verdicts that cannot be used; the message is one sentence with the remedy."""


class Judgement(Record):
    """A verdict with its conditions, as it is stored."""

    problem: str
    problem_digest: str
    candidate: str
    """Origin of the candidate: a file, or an attempt of a run."""
    candidate_digest: str
    conditions: Conditions
    time: AwareDatetime
    verdict: Verdict

    @property
    def key(self) -> str:
        return self.conditions.key(self.problem_digest, self.candidate_digest)


Known = tuple[dict[str, Any], VerdictSummary]
"""Report and summary of a verdict."""


class VerdictStore:
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
        """Commit a judgement; of several with one key the first stays. Return the report and summary of this one."""
        reported = report(judgement.verdict)
        summary = summarize(judgement.verdict, reported)
        row = (
            judgement.key,
            judgement.problem_digest,
            judgement.candidate_digest,
            judgement.model_dump_json(),
            json.dumps(reported),
            summary.model_dump_json(),
        )
        with self._writing():
            self._connection.execute("INSERT OR IGNORE INTO judgements VALUES (?, ?, ?, ?, ?, ?)", row)
        return reported, summary

    def keep(self, *texts: str) -> None:
        """Keep texts under their digests: the record of a problem, the source of a candidate."""
        with self._writing():
            rows = ((source_digest(text), text) for text in texts)
            self._connection.executemany("INSERT OR IGNORE INTO texts VALUES (?, ?)", rows)

    def known_like(self, problem_digest: str, candidate_digest: str, conditions: Iterable[Conditions]) -> Known | None:
        """Report and summary of the latest judgement of a candidate under conditions like one of these."""
        like = {one.alike for one in conditions}
        query = "SELECT json_extract(record, '$.conditions'), report, measured FROM judgements"
        query += " WHERE problem_digest = ? AND candidate_digest = ? ORDER BY rowid DESC"
        with _sqlite_errors(self.path):
            rows = self._connection.execute(query, (problem_digest, candidate_digest)).fetchall()
        for under, reported, summary in rows:
            if Conditions.model_validate_json(under).alike in like:
                return json.loads(reported), VerdictSummary.model_validate_json(summary)
        return None

    def conditions(self) -> list[Conditions]:
        with _sqlite_errors(self.path):
            rows = self._connection.execute("SELECT DISTINCT json_extract(record, '$.conditions') FROM judgements")
            return [Conditions.model_validate_json(row[0]) for row in rows]

    def merge(self, others: Iterable[Path]) -> int:
        """Copy what other files hold and this one does not; return the number of new judgements."""
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
        """Read all judgements of a file, which may be one that cannot be written."""
        with _sqlite_errors(path):
            return [Judgement.model_validate_json(row[0]) for row in rows_of(path, "record")]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with _sqlite_errors(self.path), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield


def _to_wal(connection: sqlite3.Connection) -> None:
    """Enable write-ahead logging. SQLite does not wait for another process that changes the mode, so retry."""
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
    """Read rows of a file that may be read-only; one of an older release has no texts. Raises `JudgementsError`."""
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


def source_digest(source: str) -> str:
    """Return the digest of the candidate with that source, without detecting its language."""
    return hashlib.sha256(source.encode()).hexdigest()


NO_PROMPT = source_digest("")


def is_score(folder: Path) -> bool:
    return (folder / DATABASE).is_file() and not (folder / HEADER).exists()


def folders_in(folder: Path) -> list[Path]:
    """Return the folder where it is a run or a score, else those right under it. Raises `RunLogError` for none."""
    if is_score(folder) or (folder / HEADER).exists():
        return [folder]
    found = sorted({path.parent for name in (HEADER, DATABASE) for path in folder.glob(f"*/{name}")})
    if not found:
        what = f"{folder} holds no run and no score" if folder.exists() else f"there is no folder {folder}"
        raise RunLogError(f"{what}; give the folder of one, or one that holds some")
    return found


def last_judgement(folder: Path) -> int | None:
    """Return the number of a score's last judgement, which grows with each; None for a run."""
    return int(rows_of(folder / DATABASE, "max(rowid)")[0][0] or 0) if is_score(folder) else None


def devices_of(folder: Path) -> list[str | None]:
    """Return the devices of a score's verdicts, for `log_of`; for a run None alone."""
    if not is_score(folder):
        return [None]
    return [row[0] for row in rows_of(folder / DATABASE, "DISTINCT json_extract(record, '$.conditions.device')")]


def log_of(folder: Path, device: str | None = None, more: Mapping[str, str] | None = None) -> RunLog:
    """Open the log of a run, or that of a score with the verdicts on one device, or on all. Raises `RunLogError`.

    In the log of a score each source is an attempt, in the order in which it was judged first. Of several judgements
    that of the current judge version and the most effort counts, the latest of equals. Cost, tokens and prompt are
    unknown. The log is in memory. `more`: by digest, texts that a score of an older release has not kept.
    """
    if not is_score(folder):
        return RunLog.open(folder)
    found = VerdictStore.read(folder / DATABASE)
    texts = {**(more or {}), **dict(rows_of(folder / DATABASE, "sha256, text", "texts"))}
    chosen: dict[tuple[str, str, str], Judgement] = {}
    names: dict[str, str] = {}
    for one in found:
        key = (one.problem_digest, one.candidate_digest, one.conditions.device)
        if device not in (None, one.conditions.device) or not texts.keys() >= {*key[:2]}:
            continue
        chosen[key] = max(one, chosen.get(key, one), key=_weight)
        is_taken = one.problem in names.values()
        names.setdefault(one.problem_digest, f"{one.problem}@{one.problem_digest[:8]}" if is_taken else one.problem)
    if not chosen:
        why = "verdict whose source was kept" if found else "verdict yet"
        raise RunLogError(f"{folder} holds no {why}; the same `kernelwright score` again adds what is missing")
    memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    memory.executescript(LOG_SCHEMA)
    log, counts = RunLog(folder, _header(folder, list(chosen.values()), names, texts), memory), Counter[str]()
    log.append(events.RunStarted(run_id=log.header.run_id), [texts[digest] for digest in names])
    for one in chosen.values():
        counts[one.problem_digest] += 1
        of = {"problem": names[one.problem_digest], "attempt": counts[one.problem_digest]}
        log.extend(_attempt(one, of, log.header.run_id, texts[one.candidate_digest]), one.time)
    for digest, count in counts.items():
        log.append(events.Stopped(problem=names[digest], reason=f"{count} scored"))
    return log


def _weight(one: Judgement) -> tuple[bool, int]:
    return one.conditions.judge_version == str(JUDGE_VERSION), [*AT_EFFORT].index(one.verdict.evidence.effort)


def _header(folder: Path, judged: list[Judgement], names: dict[str, str], texts: dict[str, str]) -> Header:
    languages = {candidate_of(texts[one.candidate_digest]).language for one in judged}
    name = folder.resolve().name
    search = {"model": name, "strategy": "score", "target": ", ".join(sorted(languages))}
    return Header(
        config={"search": search, "judging": json.loads(judged[-1].conditions.settings)},
        device=", ".join(dict.fromkeys(one.conditions.device for one in judged)),
        versions=judged[-1].verdict.evidence.versions,
        run_id=name,
        started=min(one.time for one in judged),
        problems={name: digest for digest, name in names.items()},
    )


def _attempt(one: Judgement, of: dict[str, Any], model: str, source: str) -> list[tuple[events.Body, list[str]]]:
    language = candidate_of(source).language
    target = language if language in get_args(Target) else "cpp"
    ask = Ask(**of, role="propose", target=target, parent=None, idea=one.candidate, directive="", model=model)
    prompt = PromptOutline(role="propose", target=target, digest=NO_PROMPT, stable_digest=NO_PROMPT, sections=())
    request = {"request_digest": "", "temperature": None, "max_tokens": None, "sample": 0}
    unknown = {"text": "", "finish_reason": None, "usage": Usage(), "latency_s": None}
    reply = Reply(**unknown, model=model, provider=DATABASE, provider_request_id=one.key)
    found = FoundCandidate(digest=one.candidate_digest, language=language, how=f"the file {one.candidate}")
    return [
        (events.Asked(**of, ask=ask, prompt=prompt, **request), [""]),
        (events.Replied(**of, reply_digest=reply.digest, reply=reply.facts), [reply.model_dump_json()]),
        (events.CandidateExtracted(**of, candidate=found), [source]),
        (events.JudgedAttempt(**of, verdict=one.verdict), []),
    ]


FORMAT = 7
"""Of `derived.json`: another one is made again."""


class JudgedKernel(Record):
    """A kernel with the summary of one verdict on it, and the place of its record."""

    attempt: str
    """Its attempt in the run; of a re-evaluation also the run."""
    record: str
    """The event of the run's log, or the key in a `VerdictStore`."""
    candidate_digest: str
    judge_version: Annotated[str | None, JUDGE_FIELD]
    """The judge version of its verdict, in older records a digest of sources. None where the record does not say."""
    measured: VerdictSummary

    @classmethod
    def verified(cls, one: Judgement) -> Self:
        return cls(
            attempt=one.candidate,
            record=f"{VERIFIED} {one.key[:12]}",
            candidate_digest=one.candidate_digest,
            judge_version=one.conditions.judge_version,
            measured=summarize(one.verdict),
        )


class ProblemSummary(Record):
    """One problem of a run: its attempts in numbers, and its best kernel."""

    problem: str
    digest: str
    family: str
    level: str | None
    size: str
    attempts: int
    passed: int
    compiled: int
    outcomes: dict[str, int]
    """The number of finished attempts by outcome: `passed`, a stage, or `no candidate`."""
    cost_usd: float | None
    tokens: int | None
    """Input and output, of all replies; None where one does not report them."""
    first_correct: Effort | None
    to_best: Effort | None
    best: JudgedKernel | None


class RunSummary(Record):
    """All that a leaderboard needs of a run, or of a score on one device."""

    run: str
    folder: str
    device: str
    model: str
    strategy: str
    target: str
    judge_version: Annotated[str | None, JUDGE_FIELD]
    problems: tuple[ProblemSummary, ...]


def run_summary(folder: Path) -> RunSummary:
    """Return the summary of a run, from `derived.json` where it is as new as the log and of this judge version.

    Otherwise it is derived again and kept, unless the folder cannot be written. Raises `RunLogError`.
    """
    with RunLog.open(folder) as log:
        state = {"format": FORMAT, "judge_version": str(JUDGE_VERSION), "last_event": log.last_seq()}
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            kept = json.loads((folder / DERIVED).read_bytes())
            if state.items() <= kept.items():
                here = {"folder": str(folder), "run": log.header.run_id}
                return RunSummary.model_validate(kept["facts"] | here)
        found = _derived(log)
    with suppress(OSError):
        text = json.dumps(state | {"facts": found.model_dump(mode="json")}, separators=(",", ":"))
        write_atomically(folder / DERIVED, text)
    return found


def summaries(folders: Iterable[Path], leave_out: Callable[[RunLogError], None] | None = None) -> Iterator[RunSummary]:
    """Return the summaries of all runs and scores in, or right under, the folders; a score has one for each device.

    Raises `RunLogError` for a folder with none. Of several under a folder, `leave_out` is called for those that cannot
    be read; without it that is raised too.
    """
    for folder in folders:
        for each in folders_in(folder):
            try:
                if not is_score(each):
                    yield run_summary(each)
                    continue
                for device in devices_of(each):
                    with log_of(each, device) as log:
                        yield _derived(log)
            except RunLogError as error:
                if leave_out is None or each == folder:
                    raise
                leave_out(error)


def search_of(header: Header) -> dict[str, str]:
    """Model, strategy and target of a run; `unknown` where its header does not say."""
    search = header.config.get("search")
    config = search if isinstance(search, dict) else {}
    return {name: str(config.get(name, "unknown")) for name in ("model", "strategy", "target")}


def _derived(log: RunLog) -> RunSummary:
    return RunSummary(
        run=log.header.run_id,
        folder=str(log.folder),
        device=log.header.device,
        **search_of(log.header),
        judge_version=judged_by(log.header.versions),
        problems=tuple(_problem_summary(log, name) for name in log.header.problems),
    )


def _problem_summary(log: RunLog, name: str) -> ProblemSummary:
    problem, found = log.problem(name), list(log.events(name))
    view = fold(name, found)
    usages = [reply.usage for attempt in view.attempts for reply in attempt.replies]
    return ProblemSummary(
        problem=name,
        digest=problem.digest,
        family=problem.family,
        level=level_of(name),
        size=problem.size,
        cost_usd=total_cost([usage.cost_usd for usage in usages]),
        tokens=known_sum(count for usage in usages for count in (usage.input_tokens, usage.output_tokens)),
        **counts_of(view),
        best=None if view.best is None else _best_kernel(log, problem, view.best, found),
    )


def counts_of(view: View) -> dict[str, Any]:
    """Return what a `ProblemSummary` counts of the finished attempts and their verdicts, by its fields."""
    finished = [attempt for attempt in view.attempts if attempt.finished and attempt.counts]
    rulings = [attempt.ruling for attempt in finished]
    outcomes = Counter(one.stage if isinstance(one, Failed) else "passed" if one else "no candidate" for one in rulings)
    first = next((attempt for attempt in finished if attempt.passed), None)
    return {
        "attempts": len(finished),
        "passed": outcomes["passed"],
        "compiled": sum(count for outcome, count in outcomes.items() if outcome in BUILT or outcome == "passed"),
        "outcomes": dict(outcomes),
        "first_correct": _effort(view, first),
        "to_best": _effort(view, view.best),
    }


def _effort(view: View, until: Attempt | None) -> Effort | None:
    """Finished attempts up to and with one, and the cost of all replies until then, advice included."""
    if until is None:
        return None
    before = view.attempts[: until.number]
    costs = [reply.usage.cost_usd for attempt in before for reply in attempt.replies]
    return Effort(attempts=sum(one.finished and one.counts for one in before), cost_usd=total_cost(costs))


def _best_kernel(log: RunLog, problem: Problem, best: Attempt, found: list[Event]) -> JudgedKernel:
    """Return the best kernel; its record is the event of the verdict that counts, for a score the key of the judgement.

    A verdict that names no judge version has the run's, unless a later process resumed the run.
    """
    assert best.ruling is not None and best.candidate is not None, "only a candidate that passed is ranked"
    kind = "judged" if best.confirmed is None else "confirmed"
    seqs = [one.seq for one in found if one.kind == kind and getattr(one.body, "attempt", None) == best.number]
    resumed = any(one.kind == "resumed" and one.seq < seqs[-1] for one in found)
    label = kernel_label(best.ruling, log.text(best.candidate.digest), problem)
    key = best.reply.provider_request_id if best.reply and best.reply.provider == DATABASE else None
    return JudgedKernel(
        attempt=str(best.number),
        record=f"{DATABASE} {key[:12]}" if key else f"event {seqs[-1]}",
        candidate_digest=best.candidate.digest,
        judge_version=judged_by(best.ruling.evidence.versions, None if resumed else judged_by(log.header.versions)),
        measured=summarize(best.ruling).model_copy(update={"authenticity": label}),
    )
