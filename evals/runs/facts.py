"""What a leaderboard needs of a run, read from its log without folding every event, and kept beside it.

`derived.json` in the run's folder holds what was found, with the last event that it rests on; it may be deleted, and is
made again when the run has grown or the harness has changed. Where the folder cannot be written nothing is kept.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelwright.agent.log.events import RunLogError
from kernelwright.agent.log.header import Header, read_header
from kernelwright.agent.log.ranking import ranked, standing_of
from kernelwright.agent.log.run_log import RunLog
from kernelwright.evals.figures.measured import BUILT, Measured, measured
from kernelwright.evals.figures.metrics import Effort, total_cost
from kernelwright.evals.runs.steps import Reader, Steps, reading
from kernelwright.evals.scores.collecting import level_of
from kernelwright.problems import Problem
from kernelwright.sandbox.machine.atomic import write_atomically
from kernelwright.sandbox.pool.harness import harness_digest
from kernelwright.sandbox.verdict.record import Record

DERIVED = "derived.json"
FORMAT = 3
HARNESS = "harness"
"""The key under which the versions of a run or verdict name the digest of the harness."""


class Kernel(Record):
    """A passing candidate, with where its record stands."""

    attempt: str
    """Number of the attempt, or the candidate's file."""
    record: str
    """The event of the run's log, or the key in the file of judgements."""
    candidate_digest: str
    harness: str | None
    """Digest of the harness that judged it; None where the record does not tell."""
    measured: Measured


class ProblemFacts(Record):
    """What one run came to on one problem."""

    problem: str
    digest: str
    family: str
    level: str | None
    size: str
    attempts: int
    """Finished ones."""
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
    """What a run, or a batch of files, came to."""

    run: str
    folder: str
    device: str
    model: str
    strategy: str
    target: str
    harness: str | None
    problems: tuple[ProblemFacts, ...]


class Derived(Record):
    """The contents of `derived.json`."""

    format: int
    harness: str
    last_event: int
    facts: RunFacts


def run_facts(folder: Path) -> RunFacts:
    """The facts of the run in `folder`, from what was kept if it still holds. Raises `RunLogError`."""
    header = read_header(folder)
    with reading(folder) as reader:
        last = reader.last_event()
        kept = _kept(folder, last)
        if kept is not None:
            return kept.model_copy(update={"folder": str(folder), "run": header.run_id})
        found = _read(folder, header, reader)
    derived = Derived(format=FORMAT, harness=harness_digest(), last_event=last, facts=found)
    with suppress(OSError):
        write_atomically(folder / DERIVED, derived.model_dump_json())
    return found


def _kept(folder: Path, last: int) -> RunFacts | None:
    try:
        derived = Derived.model_validate_json((folder / DERIVED).read_bytes())
    except (OSError, ValidationError):
        return None
    whole = (derived.format, derived.harness, derived.last_event) == (FORMAT, harness_digest(), last)
    return derived.facts if whole else None


def _read(folder: Path, header: Header, reader: Reader) -> RunFacts:
    search = header.config.get("search", header.config)
    config: dict[str, Any] = search if isinstance(search, dict) else {}
    harness = header.versions.get(HARNESS)
    with RunLog.open(folder) as log:
        problems = [log.problem(name) for name in header.problems]
    steps = reader.steps()
    return RunFacts(
        run=header.run_id,
        folder=str(folder),
        device=header.device,
        model=str(config.get("model", "unknown")),
        strategy=str(config.get("strategy", "unknown")),
        target=str(config.get("target", "unknown")),
        harness=harness,
        problems=tuple(_problem_facts(problem, steps[problem.name], reader, harness) for problem in problems),
    )


def _problem_facts(problem: Problem, steps: Steps, reader: Reader, harness: str | None) -> ProblemFacts:
    outcomes = steps.outcomes
    passing = [number for number, outcome in steps.asked.items() if outcome == "passed"]
    best = _best(problem.name, steps, reader, harness)
    whole = None not in steps.tokens
    return ProblemFacts(
        problem=problem.name,
        digest=problem.digest,
        family=problem.family,
        level=level_of(problem.name),
        size=problem.size,
        attempts=sum(outcomes.values()),
        passed=len(passing),
        compiled=sum(count for outcome, count in outcomes.items() if outcome in BUILT or outcome == "passed"),
        outcomes=outcomes,
        cost_usd=total_cost(list(steps.costs.values())),
        tokens=sum(filter(None, steps.tokens)) if whole else None,
        first_correct=steps.effort(min(passing)) if passing else None,
        to_best=steps.effort(int(best.attempt)) if best else None,
        best=best,
    )


def _best(name: str, steps: Steps, reader: Reader, harness: str | None) -> Kernel | None:
    """The kernel of the attempt that `View.best` is; None where there is none."""
    verdicts = {number: reader.verdict(steps.ruling(number).seq) for number in _eligible(steps)}
    number = next(iter(ranked(verdicts, lambda one: standing_of(verdicts[one]))), None)
    if number is None:
        return None
    record, verdict = steps.ruling(number).seq, verdicts[number]
    return Kernel(
        attempt=str(number),
        record=f"event {record}",
        candidate_digest=reader.candidate(name, number),
        harness=verdict.evidence.versions.get(HARNESS, harness),
        measured=measured(verdict),
    )


def _eligible(steps: Steps) -> list[int]:
    """The attempts, in order, of which one is the best if there is one.

    The log says after each verdict which attempt is the best; where its writer was killed in between, only the last
    verdict can be missing from that. A log that never says it, or ends with a second verdict, is read in whole.
    """
    first_ones = sorted(number for number in steps.judged if number not in steps.same_as)
    passing = [number for number in first_ones if steps.ruling(number).outcome == "passed"]
    seq, kept = steps.kept or (0, 0)
    if not kept or max((found.seq for found in steps.confirmed.values()), default=0) > seq:
        return passing
    later = [number for number in passing if steps.judged[number].seq > seq]
    last = sorted(later, key=lambda number: steps.judged[number].seq)[-1:]
    return sorted({kept, *last})


def all_facts(folders: Iterable[Path]) -> Iterator[RunFacts]:
    """The facts of every run in, or right under, the folders. Raises `RunLogError` for a folder with none."""
    for folder in folders:
        if (folder / "header.json").exists() or not folder.is_dir():
            yield run_facts(folder)
            continue
        inside = sorted(path.parent for path in folder.glob("*/header.json"))
        if not inside:
            raise RunLogError(f"{folder} holds no run; give the folder of a run, or one that holds some")
        for each in inside:
            yield run_facts(each)
