"""Candidates with their addresses, and what came of them."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from pydantic import AwareDatetime

from kernelwright.agent.log.ranking import ranked, standing_of
from kernelwright.problems import Problem
from kernelwright.problems.record.base import Record
from kernelwright.sandbox.authenticity.languages import candidate_of
from kernelwright.sandbox.verdict.verdicts import Candidate, Passed, Verdict

BENCH_ID = re.compile(r"level(\d+)/(\d+)")


class Sample(Record):
    """One candidate, and what it is for."""

    target: str
    """The problem as its benchmark names it: `level1/3`, a definition; else the problem's name."""
    number: int = 0
    """Which sample of that problem."""
    candidate: Candidate
    name: str = ""
    """Its own name, where the format has one."""
    author: str = ""

    @property
    def bench_id(self) -> tuple[int, int] | None:
        """Level and number, for a problem of KernelBench."""
        match = BENCH_ID.fullmatch(self.target)
        return (int(match[1]), int(match[2])) if match else None


class Samples(Record):
    """What a reader found."""

    format: str
    samples: tuple[Sample, ...]
    refused: tuple[tuple[str, str], ...] = ()
    """What can not be used, and why."""
    notes: tuple[str, ...] = ()
    """Fields and files that are not known, or known and not used."""


class Outcome(NamedTuple):
    """A candidate and the verdict that counts, with the circumstances."""

    sample: Sample
    verdict: Verdict
    problem: Problem
    device: str
    time: AwareDatetime | None = None
    facts: dict[str, object] | None = None
    """What more a run knows: model, role, tokens, cost."""

    @property
    def passed(self) -> bool:
        """Whether the candidate is right."""
        return isinstance(self.verdict, Passed)

    @property
    def standing(self) -> float | None:
        """The speedup to rank by; None unless it passed."""
        return standing_of(self.verdict)


def best_of(outcomes: Iterable[Outcome]) -> dict[str, Outcome]:
    """By problem, the best outcome where one passed: for those of a run, that of the attempt which is its best."""
    by_problem: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_problem.setdefault(outcome.problem.name, []).append(outcome)
    standing = {name: ranked(found, lambda outcome: outcome.standing) for name, found in by_problem.items()}
    return {name: found[0] for name, found in standing.items() if found}


def sample_of(target: str, source: str, number: int = 0, name: str = "", author: str = "") -> Sample:
    """The sample of a source, with the language that it asks for."""
    return Sample(target=target, number=number, candidate=candidate_of(source), name=name, author=author)


def target_of(problem: Problem) -> str:
    """How candidates for a problem are addressed: by level and number, by definition, else by the problem's name."""
    if problem.origin is None:
        return problem.name
    if problem.origin.format in ("flashinfer", "sol-execbench"):
        return problem.origin.title
    return problem.origin.id
