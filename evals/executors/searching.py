"""Verdicts for the search's engine from an executor."""

from evals.executors.dispatch import Dispatcher
from evals.executors.protocol import Unjudged, Work
from problems import Problem
from sandbox.errors import BrokenProblem, MachineError, UnsupportedProblem
from sandbox.verdict import Candidate, Passed, Verdict


class ExecutorEvaluator:
    """The engine's `Evaluator` on a dispatcher. Its device's conditions are those of every verdict."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def evaluate(self, problem: Problem, candidate: Candidate, *, fresh: bool = False) -> Verdict:
        """The verdict; `MachineError` or `BrokenProblem` where none is possible."""
        work = Work(problem=problem, candidate=candidate, fresh=fresh)
        try:
            return (await self._dispatcher.judge(work)).verdict
        except Unjudged as error:
            broken = UnsupportedProblem if error.unsupported else BrokenProblem
            raise (broken if error.whole_problem else MachineError)(str(error)) from None

    async def screen(self, problem: Problem, candidates: list[Candidate]) -> list[float | None]:
        """Median ms of a check of each, one after the other; None where one failed."""
        return [await self._checked_ms(Work(problem=problem, candidate=candidate)) for candidate in candidates]

    async def _checked_ms(self, work: Work) -> float | None:
        try:
            verdict = (await self._dispatcher.judge(work, "check")).verdict
        except Unjudged:
            return None
        return verdict.measurement.candidate_ms if isinstance(verdict, Passed) else None

    def release(self, problem: Problem) -> None:
        """End the problem's reference processes; a later candidate starts new ones."""
        self._dispatcher.executor.release(problem)
