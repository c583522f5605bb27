"""Running a problem to see what it is worth: where its device is, and no longer than it takes."""

from contextlib import closing

from kernelwright.evals.formats.checking import Examined
from kernelwright.problems import Problem
from kernelwright.problems.record.lint import lint_source
from kernelwright.sandbox.calls.backend import device_held
from kernelwright.sandbox.calls.reference import ReferenceSession
from kernelwright.sandbox.calls.reference_part import PartOfReference
from kernelwright.sandbox.correctness.compare import tolerance_of
from kernelwright.sandbox.correctness.lint import Finding, TimedResult, examine, status_of
from kernelwright.sandbox.jail.own_process import give_back_freed_memory
from kernelwright.sandbox.pool.memory_errors import within_memory
from kernelwright.sandbox.tensors.values import Values
from kernelwright.sandbox.verdict.settings import Settings


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
    with closing(ReferenceSession(problem, settings)) as reference, reference.subject() as subject:
        reweighted = _Reweighted(subject) if reference.weights.tensors else None
        return examine(subject, tolerance_of(problem), _limit_bytes(settings), reweighted)


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
