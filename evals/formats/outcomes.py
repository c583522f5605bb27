"""The outcomes of a run, or of a batch of scored files, from the record alone."""

from collections.abc import Iterator
from pathlib import Path

from kernelwright.agent.log.events import RunLogError
from kernelwright.agent.log.header import HEADER
from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.run_log import RunLog
from kernelwright.agent.log.view import View, fold
from kernelwright.evals.formats.samples import BENCH_ID, Outcome, Sample, target_of
from kernelwright.evals.scores.collecting import Collected, read_source, source_digest
from kernelwright.evals.scores.judgements import Judgements
from kernelwright.evals.scores.scoring import DATABASE
from kernelwright.problems import Problem
from kernelwright.sandbox.authenticity.languages import candidate_of
from kernelwright.sandbox.verdict.verdicts import Candidate

FILE_NUMBER = "sample_"


def is_run(folder: Path) -> bool:
    """Whether the folder is that of a run."""
    return (folder / HEADER).is_file()


def run_outcomes(folder: Path) -> list[Outcome]:
    """Every attempt of a run that has a verdict, each with the one that counts, in the order of problems and attempts.

    Raises `RunLogError`.
    """
    with RunLog.open(folder) as log:
        return list(_outcomes(log))


def _outcomes(log: RunLog) -> Iterator[Outcome]:
    times = {
        (event.problem, getattr(event.body, "attempt", None)): event.time
        for event in log.events()
        if event.kind in ("judged", "confirmed")
    }
    for name in log.header.problems:
        problem = log.problem(name)
        view: View = fold(name, log.events(name))
        for attempt in view.attempts:
            if attempt.candidate is None or attempt.ruling is None:
                continue
            candidate = Candidate(source=log.text(attempt.candidate.digest), language=attempt.candidate.language)
            # KernelBench counts samples from 0.
            sample = Sample(target=target_of(problem), number=attempt.number - 1, candidate=candidate)
            time = times.get((name, attempt.number), log.header.started)
            yield Outcome(sample, attempt.ruling, problem, log.header.device, time, _facts(log, attempt))


def _facts(log: RunLog, attempt: Attempt) -> dict[str, object]:
    """What a row of a data set says of an attempt beside problem, candidate and verdict."""
    reply = attempt.reply
    usage = reply.usage if reply else None
    return {
        "run": log.header.run_id,
        "attempt": attempt.number,
        "confirmed": attempt.confirmed is not None,
        "role": attempt.ask.role,
        "parent": attempt.ask.parent,
        "idea": attempt.ask.idea,
        "model": reply.model if reply else attempt.ask.model,
        "input_tokens": usage.input_tokens if usage else None,
        "output_tokens": usage.output_tokens if usage else None,
        "cost_usd": usage.cost_usd if usage else None,
        "latency_s": reply.latency_s if reply else None,
    }


def score_outcomes(folder: Path, problems: Collected, candidates: Path) -> tuple[list[Outcome], list[str]]:
    """The verdicts of a scored batch whose candidate files are still as they were; and why others are left out."""
    if not (folder / DATABASE).is_file():
        raise RunLogError(f"{folder} is neither a run nor the --out of a score; give the folder of one")
    outcomes: dict[tuple[str, str], Outcome] = {}
    left: dict[str, None] = {}
    with Judgements(folder / DATABASE) as store:
        for judgement in store:
            problem = problems.problems.get(judgement.problem)
            source = _source(candidates / judgement.candidate)
            if problem is None:
                left[f"the problem {judgement.problem} is not among those given"] = None
            elif source is None or source_digest(source) != judgement.candidate_digest:
                left[f"{judgement.candidate} is no longer what was judged"] = None
            else:
                target = _target(judgement.problem, problem)
                sample = Sample(target=target, number=_number(judgement.candidate), candidate=candidate_of(source))
                key = (judgement.problem, judgement.candidate)
                device, time = judgement.conditions.device, judgement.time
                outcomes[key] = Outcome(sample, judgement.verdict, problem, device, time)
    return _renumbered(list(outcomes.values())), list(left)


def _source(path: Path) -> str | None:
    try:
        return read_source(path)
    except OSError:
        return None


def _target(name: str, problem: Problem) -> str:
    """A problem of a tree is addressed by level and number, also where its file does not say so."""
    level, _, stem = name.rpartition("/")
    bench = f"{level.rpartition('/')[2].replace('_', '')}/{stem.partition('_')[0]}"
    return bench if BENCH_ID.fullmatch(bench) and problem.origin is None else target_of(problem)


def _number(file: str) -> int:
    digits = Path(file).stem.partition(FILE_NUMBER)[2].partition("_")[0]
    return int(digits) if digits.isdigit() else 0


def _renumbered(outcomes: list[Outcome]) -> list[Outcome]:
    """The same with other numbers where two samples of one problem bear the same."""
    taken: set[tuple[str, str, int]] = set()
    found = []
    for outcome in outcomes:
        sample = outcome.sample
        number = sample.number
        while (outcome.problem.name, sample.target, number) in taken:
            number += 1
        taken.add((outcome.problem.name, sample.target, number))
        found.append(outcome._replace(sample=sample.model_copy(update={"number": number})))
    return found
