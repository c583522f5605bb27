"""Verdicts made by hand, for writers."""

from datetime import UTC, datetime

from kernelwright.evals.formats.samples import Outcome, sample_of, target_of
from kernelwright.problems import Problem
from kernelwright.problems.formats import read_collection
from kernelwright.sandbox.verdict.verdicts import Authenticity, Evidence, Failed, Measurement, Pairing, Passed
from tests.problems.foreign import PLAIN, write_trace_set, write_tree

CANDIDATE = PLAIN.replace("class Model(", "class ModelNew(")
DEVICE = "a processor"
TIME = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def evidence():
    return Evidence(
        jail=("none",), seconds={}, authenticity=Authenticity(label="custom"), problem_status=None,
        versions={"torch": "2.13"},
    )  # fmt: skip


def passed(speedup: float = 2.0) -> Passed:
    candidate = (1.0, 1.5, 1.0, 1.25)
    eager = tuple(speedup * 2 * ms for ms in candidate)
    compiled = tuple(speedup * ms for ms in candidate)
    pairings = (
        Pairing(baseline="eager", candidate_ms=candidate, baseline_ms=eager),
        Pairing(baseline="default", candidate_ms=candidate, baseline_ms=compiled),
    )
    return Passed(measurement=Measurement(pairings=pairings, threads=2), evidence=evidence())


def failed(stage: str = "check") -> Failed:
    return Failed(stage=stage, reason=f"wrong at {stage}", log="the log", evidence=evidence())


def outcome(problem: Problem, verdict, number: int = 0, source: str = CANDIDATE) -> Outcome:
    return Outcome(sample_of(target_of(problem), source, number), verdict, problem, DEVICE, TIME)


def tree_problems(root) -> dict[str, Problem]:
    return {entry.id: entry.problem for entry in read_collection(write_tree(root)).entries if entry.problem}


def trace_problem(root) -> Problem:
    (entry,) = read_collection(write_trace_set(root)).entries
    return entry.problem
