"""What a leaderboard needs of a run or a score, derived from its folded log; that of a run is kept beside it.

`derived.json` in the run's folder holds what was found, with the last event that it rests on; it may be deleted, and is
made again when the run has grown or the judge version has changed. Where the folder cannot be written nothing is kept.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import ValidationError

from kernelwright.agent.log.events import Event, RunLogError
from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import View, fold
from kernelwright.agent.steering import known_sum
from kernelwright.evals.figures import BUILT, Effort, Measured, kernel_label, measured, total_cost
from kernelwright.evals.scores.score_log import folders_in, is_score, logs_by_device
from kernelwright.evals.scores.scoring import DATABASE, level_of
from kernelwright.problems import Problem
from kernelwright.problems.problem import Record
from kernelwright.sandbox.storage import write_atomically
from kernelwright.sandbox.verdict.judge_version import JUDGE_FIELD, JUDGE_VERSION, judged_by
from kernelwright.sandbox.verdict.verdicts import Failed

DERIVED = "derived.json"
FORMAT = 7


class Kernel(Record):
    attempt: str
    record: str
    """The event of the run's log, or the key in the file of judgements."""
    candidate_digest: str
    judge_version: Annotated[str | None, JUDGE_FIELD]
    """The judge version of its verdict, in older records a digest of sources. None where the record does not say."""
    measured: Measured


class ProblemFacts(Record):
    problem: str
    digest: str
    family: str
    level: str | None
    size: str
    attempts: int
    passed: int
    compiled: int
    outcomes: dict[str, int]
    """How many finished attempts ended in each way: `passed`, a stage, or `no candidate`."""
    cost_usd: float | None
    tokens: int | None
    """Input and output, of all replies; None where one does not tell."""
    first_correct: Effort | None
    to_best: Effort | None
    best: Kernel | None


class RunFacts(Record):
    run: str
    folder: str
    device: str
    model: str
    strategy: str
    target: str
    judge_version: Annotated[str | None, JUDGE_FIELD]
    problems: tuple[ProblemFacts, ...]


class Derived(Record):
    format: int
    judge_version: str
    last_event: int
    facts: RunFacts


def run_facts(folder: Path) -> RunFacts:
    """The facts of the run in `folder`, from what was kept if it still holds. Raises `RunLogError`."""
    with RunLog.open(folder) as log:
        last = log.last_seq()
        kept = _kept(folder, last)
        if kept is not None:
            return kept.model_copy(update={"folder": str(folder), "run": log.header.run_id})
        found = _read(log)
    derived = Derived(format=FORMAT, judge_version=str(JUDGE_VERSION), last_event=last, facts=found)
    with suppress(OSError):
        write_atomically(folder / DERIVED, derived.model_dump_json())
    return found


def _kept(folder: Path, last: int) -> RunFacts | None:
    try:
        derived = Derived.model_validate_json((folder / DERIVED).read_bytes())
    except (OSError, ValidationError):
        return None
    whole = (derived.format, derived.judge_version, derived.last_event) == (FORMAT, str(JUDGE_VERSION), last)
    return derived.facts if whole else None


def _read(log: RunLog) -> RunFacts:
    header = log.header
    search = header.config.get("search", header.config)
    config: dict[str, Any] = search if isinstance(search, dict) else {}
    return RunFacts(
        run=header.run_id,
        folder=str(log.folder),
        device=header.device,
        model=str(config.get("model", "unknown")),
        strategy=str(config.get("strategy", "unknown")),
        target=str(config.get("target", "unknown")),
        judge_version=judged_by(header.versions),
        problems=tuple(_problem_facts(log, name) for name in header.problems),
    )


def _problem_facts(log: RunLog, name: str) -> ProblemFacts:
    problem, events = log.problem(name), list(log.events(name))
    view = fold(name, events)
    finished = [attempt for attempt in view.attempts if attempt.finished and attempt.counts]
    outcomes = Counter(_outcome(attempt) for attempt in finished)
    first = next((attempt for attempt in finished if attempt.passed), None)
    replies = [reply.usage for attempt in view.attempts for reply in attempt.replies]
    return ProblemFacts(
        problem=name,
        digest=problem.digest,
        family=problem.family,
        level=level_of(name),
        size=problem.size,
        attempts=len(finished),
        passed=outcomes["passed"],
        compiled=sum(count for outcome, count in outcomes.items() if outcome in BUILT or outcome == "passed"),
        outcomes=dict(outcomes),
        cost_usd=total_cost([usage.cost_usd for usage in replies]),
        tokens=known_sum(count for usage in replies for count in (usage.input_tokens, usage.output_tokens)),
        first_correct=_effort(view, first),
        to_best=_effort(view, view.best),
        best=None if view.best is None else _kernel(log, problem, view.best, events),
    )


def _outcome(attempt: Attempt) -> str:
    if attempt.ruling is None:
        return "no candidate"
    return attempt.ruling.stage if isinstance(attempt.ruling, Failed) else "passed"


def _effort(view: View, until: Attempt | None) -> Effort | None:
    """Finished attempts up to and with one, and what all replies until then cost, advice included."""
    if until is None:
        return None
    before = view.attempts[: until.number]
    costs = [reply.usage.cost_usd for attempt in before for reply in attempt.replies]
    return Effort(attempts=sum(one.finished and one.counts for one in before), cost_usd=total_cost(costs))


def _kernel(log: RunLog, problem: Problem, best: Attempt, events: Iterable[Event]) -> Kernel:
    """The best kernel; its record is the event of the verdict that counts, for a score the key of the judgement.

    A verdict that names no judge version has the run's, unless a later process went on with the run.
    """
    assert best.ruling is not None and best.candidate is not None, "only a candidate that passed is ranked"
    kind = "judged" if best.confirmed is None else "confirmed"
    events = list(events)
    seqs = [one.seq for one in events if one.kind == kind and getattr(one.body, "attempt", None) == best.number]
    went_on = any(one.kind == "resumed" and one.seq < seqs[-1] for one in events)
    label = kernel_label(best.ruling, log.text(best.candidate.digest), problem)
    key = best.reply.provider_request_id if best.reply and best.reply.provider == DATABASE else None
    return Kernel(
        attempt=str(best.number),
        record=f"{DATABASE} {key[:12]}" if key else f"event {seqs[-1]}",
        candidate_digest=best.candidate.digest,
        judge_version=judged_by(best.ruling.evidence.versions, None if went_on else judged_by(log.header.versions)),
        measured=measured(best.ruling).model_copy(update={"authenticity": label}),
    )


def all_facts(folders: Iterable[Path], leave_out: Callable[[RunLogError], None] | None = None) -> Iterator[RunFacts]:
    """The facts of every run and score in, or right under, the folders. Raises `RunLogError` for a folder with none.

    A score has those of each device apart. Of several under a folder `leave_out` is told of those that can not be read;
    without it that is raised too.
    """
    for folder in folders:
        for each in folders_in(folder):
            try:
                yield from map(_read, logs_by_device(each)) if is_score(each) else [run_facts(each)]
            except RunLogError as error:
                if leave_out is None or each == folder:
                    raise
                leave_out(error)
