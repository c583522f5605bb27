"""The run's record as it ships: every attempt with reply, source and verdicts, raw samples and all, as one file.

Lines of JSON, compressed, with the same bytes for the same record. Prompts are left out, since they hold texts of the
benchmark: their digests stay, and the prompts can be rendered again.
"""

import gzip
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AwareDatetime, BaseModel, ValidationError

from bench.results.tags import tags
from kernelwright.agent.log.events import MeasuredProblem
from kernelwright.agent.log.records import Attempt, Usage
from kernelwright.agent.log.store import Header, RunLog
from kernelwright.agent.log.view import View, fold
from kernelwright.agent.steering import tally
from kernelwright.evals.metrics import VerdictSummary, summarize
from kernelwright.evals.verdict_store import JudgedKernel, Judgement, ProblemSummary, RunSummary, counts_of, run_summary
from kernelwright.problems import Problem, ProblemError
from kernelwright.problems.formats.reading import safe_name
from kernelwright.problems.problem import Record, first_fault
from kernelwright.prompts.brief import estimated_tokens
from kernelwright.sandbox.storage import write_atomically
from kernelwright.sandbox.verdict.judge_version import JUDGE_FIELD, judged_by
from kernelwright.sandbox.verdict.verdicts import SAME_WITHIN, Measurement, Passed, TimingClock, Verdict

L = TypeVar("L", bound=BaseModel)


class Answered(Record):
    """An attempt, with the texts that its record names by digest."""

    attempt: Attempt
    reply: str | None
    """The text of the model; None without one."""
    source: str | None
    """The candidate; None where the reply held none."""
    prompt_tokens: int
    reply_tokens: int
    """As the provider says; where it does not, estimated from the length of the text."""

    @property
    def digest(self) -> str:
        """sha256 of its candidate; empty without one."""
        return self.attempt.candidate.digest if self.attempt.candidate else ""


class Searched(Record):
    """A problem of a run, and all that came of it. A line of the file."""

    run: str
    """Its name and when it began: two runs may have one name."""
    problem: str
    address: str
    """As its benchmark says, such as `level1/5`; else its name."""
    title: str
    dtype: str
    """`float32` for a problem that is not cast."""
    stopped: str | None
    """Why the search ended; None where answers are still to come, or the machine failed and it is to be resumed."""
    facts: ProblemSummary
    header: dict[str, Any]
    """The header of the run: its options, device, versions, commit."""
    ended: AwareDatetime
    """Of the last event."""
    measured: MeasuredProblem | None
    """Short measurement of PyTorch before the first answer."""
    attempts: tuple[Answered, ...]
    source_sha256: str | None = None
    """Of the problem's file, as 64 hex digits; None in a record from before it was kept."""

    @property
    def best(self) -> Answered | None:
        """The answer that holds the best kernel."""
        digest = self.facts.best.candidate_digest if self.facts.best else None
        return next((answered for answered in self.attempts if answered.digest == digest), None)

    @property
    def place(self) -> tuple[str, str, int, str]:
        """For an order that is the same everywhere: by dtype as they are listed, level, number."""
        level, _, number = self.address.partition("/")
        as_they_come_first = "" if self.dtype == "float32" else self.dtype
        return as_they_come_first, level, int(number) if number.isdecimal() else 0, self.run


def searched(folder: Path) -> list[Searched]:
    """Return the record of each problem of a run. Raises `RunLogError`, and `ProblemError` for a simulated run."""
    facts = {one.problem: one for one in run_summary(folder).problems}
    with RunLog.open(folder) as log:
        if log.header.device == "simulated":
            raise ProblemError(f"{folder} played a made-up landscape; give a run whose candidates were judged")
        return [_searched(log, log.problem(name), facts[name]) for name in log.header.problems]


def _searched(log: RunLog, problem: Problem, facts: ProblemSummary) -> Searched:
    events = list(log.events(problem.name))
    view = fold(problem.name, events)
    return Searched(
        run=f"{log.header.run_id} of {log.header.started:%Y-%m-%d %H:%M}",
        problem=problem.name,
        address=problem.origin.id if problem.origin else problem.name,
        title=problem.origin.title.removesuffix(".py") if problem.origin else problem.name,
        source_sha256=hashlib.sha256(problem.source.encode()).hexdigest(),
        dtype=problem.dtype or "float32",
        stopped=None if view.fault == "machine" else view.stopped,
        facts=facts,
        header=_header(log.header),
        ended=view.last_event or log.header.started,
        measured=view.measured,
        attempts=tuple(_answered(log, attempt) for attempt in view.attempts),
    )


def _header(header: Header) -> dict[str, Any]:
    found: dict[str, Any] = header.model_dump(mode="json")
    del found["problems"]  # each line has its own
    return found


def _answered(log: RunLog, attempt: Attempt) -> Answered:
    reply = log.reply(attempt.reply_digest).text if attempt.reply_digest else None
    usage = attempt.reply.usage if attempt.reply else Usage()
    asked, said = usage.input_tokens, usage.output_tokens
    return Answered(
        attempt=attempt,
        reply=reply,
        source=log.text(attempt.candidate.digest) if attempt.candidate else None,
        prompt_tokens=estimated_tokens(log.prompt(attempt.prompt).text) if asked is None else asked,
        reply_tokens=estimated_tokens(reply or "") if said is None else said,
    )


def write_lines(path: Path, lines: Iterable[BaseModel]) -> None:
    """Write a compressed file of lines, whole or not at all, with no time and no name in it."""
    write_compressed(path, "".join(line.model_dump_json() + "\n" for line in lines))


def write_compressed(path: Path, text: str) -> None:
    """Write a compressed text, whole or not at all, with no time and no name in it."""
    scrap = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        scrap.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
        os.replace(scrap, path)  # noqa: PTH105 - a reader sees the old file or the new one
    finally:
        scrap.unlink(missing_ok=True)


def read_lines(path: Path, parse: Callable[[bytes], L]) -> Iterator[L]:
    """Read the lines of such a file; none without a file. Raises `ProblemError` for one that cannot be read."""
    if not path.exists():
        return
    try:
        with gzip.open(path) as file:
            for line in file:
                yield parse(line)
    except (OSError, EOFError, ValidationError) as error:
        raise ProblemError(
            f"{path} cannot be read ({type(error).__name__}); restore it from the repository, or make it again"
        ) from None


RECORDS, AGAIN, INDEX, KERNELS = "records.jsonl.gz", "again.jsonl.gz", "index.json", "kernels"
TAKEN_BACK = "refused by a later judge"
WHY = 160
"""Letters of a reason that the index keeps; the records have all of it."""


class Trial(Record):
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
    """The speedup, or the lower end of its interval where that is too noisy to compare: the search ranks by it."""
    candidate_digest: str | None
    counts: bool
    """False for tuning and advice, which are no answers."""
    prompt_tokens: int
    reply_tokens: int

    @property
    def is_open(self) -> bool:
        """True while its answer or its verdict is missing."""
        return self.outcome in ("not answered yet", "not judged yet")


class SecondJudging(Record):
    """A later verdict on the kept kernel, with new processes and seeds."""

    time: AwareDatetime
    device: str
    judge_version: Annotated[str, JUDGE_FIELD]
    torch: str
    measured: VerdictSummary
    meets: bool
    """True where it is right and its interval has a point in common with that of the run."""

    @property
    def refused(self) -> bool:
        """True where it no longer counts: wrong after all, or faster than anything can be."""
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
    tries: tuple[Trial, ...]
    ideas: dict[str, tuple[int, int]]
    """By idea, how often it was tried and won, as the search itself counts."""
    samples: int | None = None
    """Paired samples behind the best speedup, from `worker_pairs` pairs of processes; None where nothing is right."""
    worker_pairs: int | None = None
    clock: TimingClock | None = None
    """Of the best kernel's times."""
    copy_ms: float | None = None
    """Time of a copy of the bytes that the problem has to move, on that device; None where it was not measured."""
    faster_than_any: bool = False
    """Whether the best kernel is judged faster, and its interval against each baseline, less accurate ones too, is
    above 1."""
    tags: tuple[str, ...] = ()
    """Findings in the best kernel's source, by `bench.results.tags`."""
    again: SecondJudging | None = None

    @property
    def answers(self) -> tuple[Trial, ...]:
        """The attempts at a candidate that have a result."""
        return tuple(trial for trial in self.tries if trial.counts and not trial.is_open)

    @property
    def is_begun(self) -> bool:
        """True where an answer was judged, or none will be."""
        return bool(self.answers) or self.stopped is not None

    @property
    def tokens(self) -> int:
        """Of prompts and answers together, as far as they were answered."""
        return sum(trial.prompt_tokens + trial.reply_tokens for trial in self.tries if not trial.is_open)


class Index(Record):
    format: int = 1
    runs: dict[str, dict[str, Any]]
    """By name, the header of the run (everything chosen, device, versions, commit) with `ended`."""
    rows: tuple[Kept, ...]

    def run_summary(self, row: Kept) -> RunSummary:
        """Return a row as evals' boards take it."""
        return facts_of(row.run, self.runs[row.run], row.facts)


def facts_of(run: str, header: dict[str, Any], facts: ProblemSummary) -> RunSummary:
    """Return the summary of a run with one problem, for a board."""
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
    """Read the index of a folder of results. Raises `ProblemError`, also where there is none yet."""
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
    """Derive the index and the kept kernels from the records in the folder, and write them."""
    found, again = records_in(folder), judgings_in(folder)
    index = indexed(found, again)
    text = json.dumps(index.model_dump(mode="json"), indent=1, sort_keys=True)
    write_atomically(folder / INDEX, text + "\n")
    _write_kernels(folder, [rejudged(one, again)[0] for one in found])
    return index


def _write_kernels(folder: Path, found: Sequence[Searched]) -> None:
    """Write the best kernel of each problem; kernels that are none any more go away."""
    texts = {folder / kernel_file(one): one.best.source for one in found if one.best and one.best.source is not None}
    for path in (folder / KERNELS).rglob("*.py"):
        if path not in texts:
            path.unlink()
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)


def judgings_in(folder: Path) -> list[Judgement]:
    """Return all judgings of kept candidates, in the order of their times."""
    return sorted(read_lines(folder / AGAIN, Judgement.model_validate_json), key=lambda one: one.time)


def rejudged(one: Searched, again: Sequence[Judgement]) -> tuple[Searched, list[Judgement]]:
    """Return the record with the first later verdict wherever its own is outdated or not in full.

    What is the best follows from these. Beside it all further judgings of the best, in the order of their times. An
    outdated one counts only where there is no other.
    """
    mine: dict[str, list[Judgement]] = {}
    for later in again:
        if later.problem_digest == one.facts.digest:
            mine.setdefault(later.candidate_digest, []).append(later)
    first = {digest: min(judgings, key=lambda later: is_outdated(later.verdict)) for digest, judgings in mine.items()}
    attempts = [_later(answered, first.get(answered.digest)) for answered in one.attempts]
    pairs = zip(one.attempts, attempts, strict=True)
    used = {after.digest: first[after.digest] for before, after in pairs if after is not before}
    if not used:
        found = one
    else:
        view = View(problem=one.problem, attempts=tuple(answered.attempt for answered in attempts))
        facts = one.facts.model_copy(update=counts_of(view) | {"best": _judged_kernel(view.best, used)})
        found = one.model_copy(update={"attempts": tuple(attempts), "facts": facts})
    digest = found.facts.best.candidate_digest if found.facts.best else ""
    further = [later for later in mine.get(digest, []) if not is_outdated(later.verdict)]
    return found, [later for later in further if later is not used.get(digest)]


def _later(answered: Answered, judging: Judgement | None) -> Answered:
    """Return the answer with a later verdict, where its own is not in full by the present clock."""
    attempt = answered.attempt
    if judging is None or not attempt.passed or is_in_full(attempt):
        return answered
    is_old = is_outdated(attempt.ruling)
    changed = {"verdict": judging.verdict, "confirmed": None} if is_old else {"confirmed": judging.verdict}
    return answered.model_copy(update={"attempt": attempt.model_copy(update=changed)})


def _judged_kernel(best: Attempt | None, used: Mapping[str, Judgement]) -> JudgedKernel | None:
    if best is None or best.ruling is None or best.candidate is None:
        return None
    later = used.get(best.candidate.digest)
    return JudgedKernel(
        attempt=str(best.number),
        record="again" if later else "the run",
        candidate_digest=best.candidate.digest,
        judge_version=later.conditions.judge_version if later else judged_by(best.ruling.evidence.versions, None),
        measured=summarize(best.ruling),
    )


OLD_CLOCKS, TELLS_MOVED = ("events", "bound"), 7
"""The judge version that tells computed results from moved inputs also where these hold nearly every word."""


def is_outdated(verdict: Verdict | None) -> bool:
    """Return whether a verdict is by an older clock, or doubted only since its result was taken for moved inputs."""
    if not isinstance(verdict, Passed):
        return False
    found, version = verdict.measurement, judged_by(verdict.evidence.versions) or ""
    check = found.on_device.check if found.on_device else None
    is_doubted = check is not None and check.moves_data and found.comparison == "unconfirmed"
    told_apart = version.isdecimal() and int(version) >= TELLS_MOVED
    return found.timing_clock in OLD_CLOCKS or (is_doubted and not told_apart)


def is_in_full(attempt: Attempt) -> bool:
    """Return whether its verdict is a full measurement that is not outdated."""
    return attempt.is_measured_in_full and not is_outdated(attempt.ruling)


def waiting(one: Searched, again: Sequence[Judgement]) -> list[Answered]:
    """Return the answers of a problem that are to be judged next.

    First those whose verdicts are outdated, since which is the best depends on them; then the best in full; then the
    best a second time.
    """
    now, further = rejudged(one, again)
    old = {answered.digest: answered for answered in now.attempts if is_outdated(answered.attempt.ruling)}
    if now.best is None or old:
        return list(old.values())
    return [] if further and is_in_full(now.best.attempt) else [now.best]


def records_in(folder: Path) -> list[Searched]:
    return list(read_lines(folder / RECORDS, Searched.model_validate_json))


def indexed(found: Iterable[Searched], again: Sequence[Judgement]) -> Index:
    """Return the index of records and second judgings. Pure."""
    ordered = sorted(found, key=lambda one: one.place)
    runs = {one.run: one.header | {"ended": _ended(one.run, ordered)} for one in ordered}
    return Index(runs=runs, rows=tuple(_row(one, again) for one in ordered))


def _ended(run: str, found: Sequence[Searched]) -> str:
    return max(one.ended for one in found if one.run == run).isoformat()


def _row(record: Searched, again: Sequence[Judgement]) -> Kept:
    one, further = rejudged(record, again)
    best = one.facts.best
    attempts = tuple(answered.attempt for answered in one.attempts)
    second = _second(best, further)
    refused = best.candidate_digest if best and second and second.refused else None
    measurement = one.best.attempt.measurement if one.best else None
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
        tries=tuple(_trial(answered, refused) for answered in one.attempts),
        ideas={idea: (count, won[idea]) for idea, count in sorted(tried.items())},
        samples=len(measurement.closest.candidate_ms) if measurement else None,
        worker_pairs=len(set(measurement.closest.workers)) or 1 if measurement else None,
        clock=measurement.timing_clock if measurement else None,
        copy_ms=_copy_ms(one, measurement),
        faster_than_any=measurement is not None and refused is None and _is_faster_than_any(measurement),
        tags=_tags(one),
        again=second,
    )


def _is_faster_than_any(found: Measurement) -> bool:
    lows = (found.interval_of(pairing).low for pairing in found.pairings)
    return found.comparison == "faster" and all(low > 1 + SAME_WITHIN for low in lows)


def _copy_ms(one: Searched, measurement: Measurement | None) -> float | None:
    reference = one.measured.verdict if one.measured else None
    if measurement is None and isinstance(reference, Passed):
        measurement = reference.measurement
    return measurement.floor.copy_ms if measurement and measurement.floor else None


def _tags(one: Searched) -> tuple[str, ...]:
    if one.facts.best is None or one.best is None or one.best.source is None:
        return ()
    taken, least = one.facts.best.measured.candidate_ms, one.facts.best.measured.floor_ms
    return tags(one.best.source, one.dtype, taken is not None and least is not None and taken < least)


def kernel_file(one: Searched) -> str:
    """Return the path of a problem's best kernel within the folder of results."""
    return f"{KERNELS}/{one.dtype}/{safe_name(one.address.replace('/', '-'))}.py"


def _trial(answered: Answered, refused: str | None) -> Trial:
    attempt = answered.attempt
    digest = attempt.candidate.digest if attempt.candidate else None
    taken_back = digest is not None and digest == refused
    counts = attempt.ruling is not None and not summarize(attempt.ruling).is_impossible and not taken_back
    return Trial(
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


def _second(best: JudgedKernel | None, further: Sequence[Judgement]) -> SecondJudging | None:
    """Return the latest of the further judgings of the best kernel."""
    if best is None or not further:
        return None
    last = further[-1]
    figures = summarize(last.verdict)
    return SecondJudging(
        time=last.time,
        device=last.conditions.device,
        judge_version=last.conditions.judge_version,
        torch=last.conditions.torch,
        measured=figures,
        meets=meet(best.measured, figures),
    )


def meet(first: VerdictSummary, second: VerdictSummary) -> bool:
    """Return whether both are right, and their intervals have a point in common."""
    ends = (first.low, first.high, second.low, second.high)
    if any(end is None for end in ends):
        return False
    return max(first.low or 0, second.low or 0) <= min(first.high or 0, second.high or 0)
