"""Running a problem to see what it is worth: where its device is, and no longer than it takes."""

from contextlib import closing

from kernelwright.evals.formats.checking import Examined
from kernelwright.problems import Problem
from kernelwright.problems.record.source import lint_source
from kernelwright.sandbox.calls.backend import device_held
from kernelwright.sandbox.calls.reference import ReferenceSession
from kernelwright.sandbox.calls.reference_part import PartOfReference
from kernelwright.sandbox.correctness.compare import PLAIN, mismatch, tolerance_of
from kernelwright.sandbox.correctness.lint import Finding, TimedResult, examine, status_of
from kernelwright.sandbox.jail.own_process import give_back_freed_memory
from kernelwright.sandbox.pool.judges import within_memory
from kernelwright.sandbox.tensors.values import Values
from kernelwright.sandbox.verdict.errors import UnsupportedHere, UnsupportedProblem
from kernelwright.sandbox.verdict.settings import Settings

NOT_HANDED_OVER = (
    "{name} can not be judged: a second model of its class with the same weights and buffers answers otherwise, so no "
    "candidate could be right; register what the constructor draws as a parameter or a buffer that is part of the state"
)


class _Reweighted:
    """A reference with other weights, in the process that has its own."""

    def __init__(self, subject: ReferenceSession | PartOfReference) -> None:
        self._subject = subject

    def call(self, values: Values) -> TimedResult:
        with self._subject.reweighted():
            return self._subject.call(values)


def examine_problem(problem: Problem, settings: Settings) -> Examined:
    """What a run in the jail tells of a problem. Raises what its reference is refused for, and `MachineError`."""
    try:
        with device_held(settings):
            findings = within_memory(problem, lambda: _findings(problem, settings))
    finally:
        _give_back(settings)
    status = status_of(findings)
    kinds = dict.fromkeys(finding.kind for finding in findings if finding.weak)
    return Examined(status.status, (*status.why, *lint_source(problem.source)), tuple(kinds))


def _findings(problem: Problem, settings: Settings) -> list[Finding]:
    with closing(ReferenceSession(problem, settings)) as reference:
        with reference.subject() as subject:
            reweighted = _Reweighted(subject) if reference.weights.tensors else None
            findings = examine(subject, tolerance_of(problem), _limit_bytes(settings), reweighted)
        if "random" in {finding.kind for finding in findings}:
            return findings
        return findings + _handed_over(reference, problem)


def _handed_over(reference: ReferenceSession, problem: Problem) -> list[Finding]:
    """Raise `UnsupportedProblem` where a model of the same class with the same weights answers otherwise.

    Such a one is all that a candidate can be. Where there is no room for a second model that is told.
    """
    try:
        _refuse_what_is_not_handed_over(reference, problem)
    except UnsupportedHere as error:
        return [Finding("untried", f"whether a second model answers alike was not tried: {error}", weak=False)]
    return []


def _refuse_what_is_not_handed_over(reference: ReferenceSession, problem: Problem) -> None:
    values = reference.draw()
    first = reference.keep(reference.call(values).output)
    reference.construct_again()
    again = reference.call(values).output
    if mismatch(again, first, first, tolerance_of(problem), PLAIN) is not None:
        raise UnsupportedProblem(NOT_HANDED_OVER.format(name=problem.name))


def _limit_bytes(settings: Settings) -> int:
    """What values may take where they are."""
    if not settings.gpu:
        return settings.memory_bytes
    from kernelwright.sandbox.calls.device import device_of

    return device_of(settings).total_bytes()


def _give_back(settings: Settings) -> None:
    """Leave no memory of this problem to the next one's account."""
    if settings.gpu:
        from kernelwright.sandbox.calls.memory_relief import free_cached_memory

        free_cached_memory()
    else:
        give_back_freed_memory()
