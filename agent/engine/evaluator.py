"""Verdicts for the search's engine from an executor."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from kernelwright.agent.engine.steps import Evaluator
from kernelwright.problems import Problem
from kernelwright.sandbox.machine.fact_store import Store
from kernelwright.sandbox.pool.dispatch import Dispatcher
from kernelwright.sandbox.pool.executor_choice import ExecutorChoice, executor_for
from kernelwright.sandbox.pool.protocol import Unjudged, Work
from kernelwright.sandbox.verdict.errors import BrokenProblem, MachineError, UnsupportedProblem
from kernelwright.sandbox.verdict.settings import SCREEN, CompileMode, JudgingEffort, Settings
from kernelwright.sandbox.verdict.verdicts import Candidate, Passed, Verdict


class ExecutorEvaluator:
    """The engine's `Evaluator` on a dispatcher. Its device's conditions are those of every verdict."""

    def __init__(self, dispatcher: Dispatcher, compiled: Sequence[CompileMode] = (), kept: Store | None = None) -> None:
        """`compiled`: modes of torch.compile that the executor's settings name. `kept`: where what was measured of a
        problem under the same conditions is looked for first.
        """
        self._dispatcher, self._compiled, self._kept = dispatcher, compiled, kept

    async def evaluate(
        self, problem: Problem, candidate: Candidate, *, fresh: bool = False, beat: float | None = None
    ) -> Verdict:
        """The verdict; `MachineError` or `BrokenProblem` where none is possible."""
        effort: JudgingEffort | None = "rank" if fresh else None
        return await self._verdict(Work(problem=problem, candidate=candidate, fresh=fresh, effort=effort, beat=beat))

    async def measure(self, problem: Problem) -> Verdict:
        work = measuring(problem, self._compiled)
        key = {"problem": work.problem.digest, "conditions": self._dispatcher.devices[0].conditions.alike}
        known = self._kept.get(key) if self._kept else None
        if known is not None:
            return Passed.model_validate(known)
        try:
            found = await self._verdict(work, settles=False)  # a candidate may do with less memory
        finally:
            self.release(work.problem)  # candidates are judged by other settings, and so beside other processes
        if self._kept and isinstance(found, Passed):
            self._kept.put(key, found.model_dump(mode="json"))
        return found

    async def _verdict(self, work: Work, settles: bool = True) -> Verdict:
        try:
            return (await self._dispatcher.judge(work, settles=settles)).verdict
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
        self._dispatcher.executor.release(problem)


def measuring(problem: Problem, compiled: Sequence[CompileMode]) -> Work:
    """What finds out how long PyTorch takes: the reference, screened, or judged as briefly beside torch.compile.

    PyTorch's own operators are what is measured, whatever a candidate may use.
    """
    return Work(
        problem=problem.model_copy(update={"operators": "any"}),
        candidate=Candidate(source=f"{problem.source}\n\nModelNew = Model\n"),
        effort=None if compiled else "screen",
        asks=SCREEN | {"compiled": list(compiled), "baselines": ["shipped"], "effort": "search"} if compiled else {},
    )


@asynccontextmanager
async def evaluating(choice: ExecutorChoice, settings: Settings, kept: Store | None = None) -> AsyncIterator[Evaluator]:
    """What judges for a search: an executor's workers. Where nothing is chosen there is one device of this machine.

    `kept`: see `ExecutorEvaluator`.
    """
    chosen = ExecutorChoice(devices=1) if choice == ExecutorChoice() else choice
    async with Dispatcher(executor_for(chosen, settings), chosen.kind) as dispatcher:
        yield ExecutorEvaluator(dispatcher, settings.compiled, kept)
