"""`results/index.json`: what the page is drawn from. One row a problem and dtype, derived from the records alone."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AwareDatetime, ValidationError

from bench.results.records import Answered, Searched, read_lines
from bench.results.tags import tags
from kernelwright.agent.log.view import View
from kernelwright.agent.steering import tally
from kernelwright.evals.metrics import VerdictSummary, summarize
from kernelwright.evals.verdict_store import Judgement, ProblemSummary, RunSummary
from kernelwright.problems import ProblemError
from kernelwright.problems.formats.reading import safe_name
from kernelwright.problems.problem import Record, first_fault
from kernelwright.sandbox.storage import write_atomically
from kernelwright.sandbox.verdict.judge_version import JUDGE_FIELD, judged_by
from kernelwright.sandbox.verdict.verdicts import Measurement, Passed, TimingClock

RECORDS, AGAIN, INDEX, KERNELS = "records.jsonl.gz", "again.jsonl.gz", "index.json", "kernels"
TAKEN_BACK = "refused by a later judge"
WHY = 160
"""Letters of a reason that the index keeps; the records have all of it."""


class Turn(Record):
    """One attempt, flat."""

    number: int
    role: str
    idea: str
    parent: int | None
    outcome: str
    why: str
    """The deciding line of a failure."""
    first: float | None
    """By its first verdict, the speedup against the fastest baseline; None unless that found it right."""
    speedup: float | None
    """By the verdict that counts; None unless it is right and no faster than anything can be."""
    standing: float | None
    """What the search ranks it by: the speedup, or the lower end of its interval where that is too noisy to compare."""
    candidate_digest: str | None
    counts: bool
    """Whether a candidate was asked for: tuning and advice are no answers."""
    prompt_tokens: int
    reply_tokens: int

    @property
    def is_open(self) -> bool:
        """Whether its answer or its verdict is still to come."""
        return self.outcome in ("not answered yet", "not judged yet")


class SecondJudging(Record):
    """What a later judge said of the kept kernel, with new processes and seeds."""

    time: AwareDatetime
    device: str
    judge_version: Annotated[str, JUDGE_FIELD]
    torch: str
    measured: VerdictSummary
    meets: bool
    """Whether it is right and its interval has a point in common with that of the run."""

    @property
    def refused(self) -> bool:
        """Whether it counts no more: wrong after all, or faster than anything can be."""
        return not self.measured.passed or self.measured.is_impossible


class Kept(Record):
    """A row: a problem in a dtype, and what came of it."""

    address: str
    problem: str
    title: str
    dtype: str
    run: str
    stopped: str | None
    device: str
    """The one that its best kernel was measured on, by its own name; that of the run where nothing is right."""
    kernel: str | None
    """The file of its best kernel, in the folder of results; None where nothing was right."""
    facts: ProblemSummary
    reference: VerdictSummary | None
    """PyTorch's times before the first answer, by a brief look; None where there was none."""
    tries: tuple[Turn, ...]
    ideas: dict[str, tuple[int, int]]
    """By idea, how often it was tried and won, as the search itself counts."""
    samples: int | None = None
    """Paired samples behind the best speedup, from `worker_pairs` pairs of processes; None where nothing is right."""
    worker_pairs: int | None = None
    clock: TimingClock | None = None
    """Of the best kernel's times."""
    copy_ms: float | None = None
    """Time of a copy of the bytes that the problem has to move, on that device; None where it was not measured."""
    tags: tuple[str, ...] = ()
    """What rules find in the best kernel's source: `bench.results.tags`."""
    again: SecondJudging | None = None

    @property
    def answers(self) -> tuple[Turn, ...]:
        """What came of the candidates that were asked for, as far as it is known."""
        return tuple(turn for turn in self.tries if turn.counts and not turn.is_open)

    @property
    def is_begun(self) -> bool:
        """Whether an answer was judged, or none will be."""
        return bool(self.answers) or self.stopped is not None

    @property
    def tokens(self) -> int:
        """Of prompts and answers together, as far as they were answered."""
        return sum(turn.prompt_tokens + turn.reply_tokens for turn in self.tries if not turn.is_open)


class Index(Record):
    """The whole file."""

    format: int = 1
    runs: dict[str, dict[str, Any]]
    """By name, the header of the run (everything chosen, device, versions, commit) with `ended`."""
    rows: tuple[Kept, ...]

    def run_summary(self, row: Kept) -> RunSummary:
        """A row as evals' boards take it."""
        return facts_of(row.run, self.runs[row.run], row.facts)


def facts_of(run: str, header: dict[str, Any], facts: ProblemSummary) -> RunSummary:
    """What evals' boards ask of a run, of one problem of it."""
    search = header["config"]["search"]
    return RunSummary(
        run=run,
        folder="",
        device=header["device"],
        model=search["model"],
        strategy=search["strategy"],
        target=search["target"],
        judge_version=judged_by(header["versions"]),
        problems=(facts,),
    )


def read_index(folder: Path) -> Index:
    """The index of a folder of results. Raises `ProblemError`, also where there is none yet."""
    path = folder / INDEX
    if not path.exists():
        raise ProblemError(
            f"{folder} holds no run yet; make one as {folder / 'README.md'} says, then take it over with "
            "`python -m bench.results keep RUN...`"
        )
    try:
        return Index.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ProblemError(
            f"{path} is damaged at {first_fault(error).key!r}; restore it, or keep the runs again"
        ) from None


def write_index(folder: Path) -> Index:
    """Derive the index from the records in the folder, and write it."""
    index = indexed(records_in(folder), list(read_lines(folder / AGAIN, Judgement.model_validate_json)))
    text = json.dumps(index.model_dump(mode="json"), indent=1, sort_keys=True)
    write_atomically(folder / INDEX, text + "\n")
    return index


def records_in(folder: Path) -> list[Searched]:
    """What was kept of runs."""
    return list(read_lines(folder / RECORDS, Searched.model_validate_json))


def indexed(found: Iterable[Searched], again: Sequence[Judgement]) -> Index:
    """The index of records and second judgings. Pure."""
    ordered = sorted(found, key=lambda one: one.place)
    runs = {one.run: one.header | {"ended": _ended(one.run, ordered)} for one in ordered}
    return Index(runs=runs, rows=tuple(_row(one, again) for one in ordered))


def _ended(run: str, found: Sequence[Searched]) -> str:
    return max(one.ended for one in found if one.run == run).isoformat()


def _row(one: Searched, again: Sequence[Judgement]) -> Kept:
    best = one.facts.best
    attempts = tuple(answered.attempt for answered in one.attempts)
    second = _second(one.facts, again)
    refused = best.candidate_digest if best and second and second.refused else None
    measurement = _best_measurement(one)
    tried, won = tally(View(problem=one.problem, attempts=attempts), one.header["config"]["search"]["gain"])
    return Kept(
        address=one.address,
        problem=one.problem,
        title=one.title,
        dtype=one.dtype,
        run=one.run,
        stopped=one.stopped,
        device=measurement.on_device.device if measurement and measurement.on_device else str(one.header["device"]),
        kernel=kernel_file(one) if best else None,
        facts=one.facts,
        reference=summarize(one.measured.verdict) if one.measured and one.measured.verdict else None,
        tries=tuple(_turn(answered, refused) for answered in one.attempts),
        ideas={idea: (count, won[idea]) for idea, count in sorted(tried.items())},
        samples=len(measurement.closest.candidate_ms) if measurement else None,
        worker_pairs=len(set(measurement.closest.workers)) or 1 if measurement else None,
        clock=measurement.timing_clock if measurement else None,
        copy_ms=_copy_ms(one, measurement),
        tags=_tags(one),
        again=second,
    )


def _best_measurement(one: Searched) -> Measurement | None:
    """The measurement of the best kernel."""
    digest = one.facts.best.candidate_digest if one.facts.best else ""
    for attempt in (answered.attempt for answered in one.attempts):
        if attempt.candidate and attempt.candidate.digest == digest and isinstance(attempt.ruling, Passed):
            return attempt.ruling.measurement
    return None


def _copy_ms(one: Searched, measurement: Measurement | None) -> float | None:
    reference = one.measured.verdict if one.measured else None
    if measurement is None and isinstance(reference, Passed):
        measurement = reference.measurement
    return measurement.floor.copy_ms if measurement and measurement.floor else None


def _tags(one: Searched) -> tuple[str, ...]:
    best = one.facts.best
    sources = {
        answered.attempt.candidate.digest: answered.source for answered in one.attempts if answered.attempt.candidate
    }
    source = sources.get(best.candidate_digest) if best else None
    if best is None or source is None:
        return ()
    taken, least = best.measured.candidate_ms, best.measured.floor_ms
    return tags(source, one.dtype, taken is not None and least is not None and taken < least)


def kernel_file(one: Searched) -> str:
    """Where the best kernel of a problem lies, within the folder of results."""
    return f"{KERNELS}/{one.dtype}/{safe_name(one.address.replace('/', '-'))}.py"


def _turn(answered: Answered, refused: str | None) -> Turn:
    attempt = answered.attempt
    digest = attempt.candidate.digest if attempt.candidate else None
    taken_back = digest is not None and digest == refused
    counts = attempt.ruling is not None and not summarize(attempt.ruling).is_impossible and not taken_back
    return Turn(
        number=attempt.number,
        role=attempt.ask.role,
        idea=attempt.ask.idea,
        parent=attempt.ask.parent,
        outcome=TAKEN_BACK if taken_back else attempt.outcome,
        why=_shortened(attempt.detail.strip().partition("\n")[0]),
        first=attempt.verdict.measurement.speedup if isinstance(attempt.verdict, Passed) else None,
        speedup=attempt.speedup if counts else None,
        standing=attempt.standing if counts else None,
        candidate_digest=digest,
        counts=attempt.counts,
        prompt_tokens=answered.prompt_tokens,
        reply_tokens=answered.reply_tokens,
    )


def _shortened(text: str) -> str:
    return text if len(text) <= WHY else f"{text[: WHY - 3]}..."


def _second(facts: ProblemSummary, again: Sequence[Judgement]) -> SecondJudging | None:
    """The latest judging of the best kernel."""
    if facts.best is None:
        return None
    kernel = facts.digest, facts.best.candidate_digest
    mine = [one for one in again if (one.problem_digest, one.candidate_digest) == kernel]
    if not mine:
        return None
    last = max(mine, key=lambda one: one.time)
    figures = summarize(last.verdict)
    return SecondJudging(
        time=last.time,
        device=last.conditions.device,
        judge_version=last.conditions.judge_version,
        torch=last.conditions.torch,
        measured=figures,
        meets=meet(facts.best.measured, figures),
    )


def meet(first: VerdictSummary, second: VerdictSummary) -> bool:
    """Whether both are right, and their intervals have a point in common."""
    ends = (first.low, first.high, second.low, second.high)
    if any(end is None for end in ends):
        return False
    return max(first.low or 0, second.low or 0) <= min(first.high or 0, second.high or 0)
