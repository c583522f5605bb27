"""Candidates with their addresses, and what came of them in a run or in a batch, from the record alone."""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pydantic import AwareDatetime

from kernelwright.agent.log.records import Attempt, ranked, standing_of
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.evals.scores.judgements import Judgements
from kernelwright.evals.scores.scoring import DATABASE, Collected, read_source, source_digest
from kernelwright.problems import Problem
from kernelwright.problems.problem import Record
from kernelwright.sandbox.authenticity.scan import candidate_of
from kernelwright.sandbox.verdict.verdicts import Candidate, Passed, Verdict

BENCH_ID = re.compile(r"level(\d+)/(\d+)")


class Sample(Record):
    target: str
    """The problem as its benchmark names it: `level1/3`, a definition; else the problem's name."""
    number: int = 0
    candidate: Candidate
    name: str = ""
    author: str = ""

    @property
    def bench_id(self) -> tuple[int, int] | None:
        match = BENCH_ID.fullmatch(self.target)
        return (int(match[1]), int(match[2])) if match else None


class Samples(Record):
    format: str
    samples: tuple[Sample, ...]
    refused: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    """Fields and files that are not known, or known and not used."""


class Outcome(NamedTuple):
    sample: Sample
    verdict: Verdict
    problem: Problem
    device: str
    time: AwareDatetime | None = None
    facts: dict[str, object] | None = None
    """What more a run knows: model, role, tokens, cost."""

    @property
    def passed(self) -> bool:
        return isinstance(self.verdict, Passed)

    @property
    def standing(self) -> float | None:
        return standing_of(self.verdict)


def best_of(outcomes: Iterable[Outcome]) -> dict[str, Outcome]:
    """By problem, the best outcome where one passed: for those of a run, that of the attempt which is its best."""
    by_problem: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_problem.setdefault(outcome.problem.name, []).append(outcome)
    standing = {name: ranked(found, lambda outcome: outcome.standing) for name, found in by_problem.items()}
    return {name: found[0] for name, found in standing.items() if found}


def sample_of(target: str, source: str, number: int = 0, name: str = "", author: str = "") -> Sample:
    return Sample(target=target, number=number, candidate=candidate_of(source), name=name, author=author)


def target_of(problem: Problem) -> str:
    """How candidates for a problem are addressed: by level and number, by definition, else by the problem's name."""
    if problem.origin is None:
        return problem.name
    if problem.origin.format in ("flashinfer", "sol-execbench"):
        return problem.origin.title
    return problem.origin.id


FILE_NUMBER = "sample_"


def run_outcomes(folder: Path) -> list[Outcome]:
    """Every attempt of a run that has a verdict, each with the one that counts, in the order of problems and attempts.

    Raises `RunLogError`.
    """
    outcomes = []
    with RunLog.open(folder) as log:
        judged = [event for event in log.events() if event.kind in ("judged", "confirmed")]
        times = {(event.problem, event.attempt): event.time for event in judged}
        for name in log.header.problems:
            problem = log.problem(name)
            for attempt in fold(name, log.events(name)).attempts:
                if attempt.candidate is None or attempt.ruling is None:
                    continue
                candidate = Candidate(source=log.text(attempt.candidate.digest), language=attempt.candidate.language)
                # KernelBench counts samples from 0.
                sample = Sample(target=target_of(problem), number=attempt.number - 1, candidate=candidate)
                time = times.get((name, attempt.number), log.header.started)
                facts = _facts(log, attempt)
                outcomes.append(Outcome(sample, attempt.ruling, problem, log.header.device, time, facts))
    return outcomes


def _facts(log: RunLog, attempt: Attempt) -> dict[str, object]:
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
    outcomes: dict[tuple[str, str], Outcome] = {}
    left: dict[str, None] = {}
    for judgement in Judgements.read(folder / DATABASE):
        problem = problems.problems.get(judgement.problem)
        source = None
        with suppress(OSError):
            source = read_source(candidates / judgement.candidate)
        if problem is None:
            left[f"the problem {judgement.problem} is not among those given"] = None
        elif source is None or source_digest(source) != judgement.candidate_digest:
            left[f"{judgement.candidate} is no longer what was judged"] = None
        else:
            # A problem of a tree is addressed by level and number, also where its file does not say so.
            level, _, stem = judgement.problem.rpartition("/")
            bench = f"{level.rpartition('/')[2].replace('_', '')}/{stem.partition('_')[0]}"
            target = bench if BENCH_ID.fullmatch(bench) and problem.origin is None else target_of(problem)
            sample = Sample(target=target, number=_number(judgement.candidate), candidate=candidate_of(source))
            about = judgement.verdict, problem, judgement.conditions.device, judgement.time
            outcomes[judgement.problem, judgement.candidate] = Outcome(sample, *about)
    return _renumbered(list(outcomes.values())), list(left)


def _number(file: str) -> int:
    digits = Path(file).stem.partition(FILE_NUMBER)[2].partition("_")[0]
    return int(digits) if digits.isdigit() else 0


def _renumbered(outcomes: list[Outcome]) -> list[Outcome]:
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
