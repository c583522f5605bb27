"""Many candidates judged from Python: the reward of a training loop, say.

    async with Judging(in_flight=8) as judging:
        async for result in judging.judge_all([(problem, source), ...]):
            reward = result.report["speedup_low"] or 0.0 if result.report else 0.0

The work is done by one process beside the caller's, which imports torch and starts the jailed children; the caller's
process runs neither a candidate nor a reference. Builds run side by side and timing one at a time, since two timings
would disturb each other. When the context is left, by an exception or a cancellation too, that process is ended and
everything that it started ends with it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict

from kernelwright.problems import Problem
from kernelwright.sandbox.judge.given import (
    GivenProblem,
    GivenSource,
    Pair,
    candidate_given,
    checked_pairs,
    checked_problem,
    checked_source,
    problem_of,
)
from kernelwright.sandbox.pool.devices import WorkerOptions
from kernelwright.sandbox.pool.local import WorkerProcess
from kernelwright.sandbox.pool.protocol import Answer, ExecutorError, Lost, Question, Work
from kernelwright.sandbox.pool.remote import RefusedJob, ServiceClient, chosen_for_jobs, job_request
from kernelwright.sandbox.verdict.report import report

if TYPE_CHECKING:
    from kernelwright.sandbox.verdict.settings import Settings


class JudgingError(RuntimeError):
    """The judging can not go on; the message is one sentence."""


class Judged(BaseModel):
    """What came of one pair. Exactly one of `report` and `error` is there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    index: int
    """Its place among the pairs, from 0."""
    problem: str
    """The problem's name; what was given where it can not be loaded."""
    report: dict[str, Any] | None = None
    """The object of `kernelwright judge --json`: its keys are always all there."""
    error: str | None = None
    """Why there is no verdict: the problem or the machine can not be used. Not the candidate's fault."""

    @property
    def passed(self) -> bool:
        return self.report is not None and self.report["outcome"] == "passed"


class Judging:
    """Judges pairs of problem and source, at most `in_flight` at once. Use it as an asynchronous context."""

    def __init__(self, in_flight: int = 8, settings: "Settings | None" = None, server: str | None = None) -> None:
        """`server`: address of a running service, which judges in place of a process beside this one."""
        if in_flight < 1:
            raise ValueError(f"in_flight is {in_flight}; it must be at least 1")
        self.in_flight = in_flight
        self.settings = settings
        self.server = server
        self._service: ServiceClient | None = None
        self._worker: WorkerProcess | None = None
        self._turns = asyncio.Semaphore(in_flight)

    async def __aenter__(self) -> Self:
        if self.server is not None:
            self._service = ServiceClient(self.server)
            return self
        chosen = self.settings.model_dump(mode="json", exclude_unset=True) if self.settings else {}
        self._worker = WorkerProcess(WorkerOptions(chosen=chosen), self.in_flight)
        await self._worker.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(asyncio.ensure_future(self._end()))

    async def judge(self, problem: GivenProblem, source: GivenSource) -> Judged:
        """One verdict. Raises `JudgingError` where the process that judges ended before it.

        Raises `ValueError` for what is no problem or no source.
        """
        return await self._judge(0, checked_problem(problem), checked_source(source))

    async def judge_all(self, pairs: Iterable[Pair]) -> AsyncIterator[Judged]:
        """A result for each pair, as they finish; `index` says which pair it is.

        All are looked at before anything is judged: raises `ValueError` for what is no pair, and says which one.
        """
        tasks = [asyncio.create_task(self._judge(index, *pair)) for index, pair in enumerate(checked_pairs(pairs))]
        try:
            for done in asyncio.as_completed(tasks):
                yield await done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _judge(self, index: int, problem: Problem | str, source: GivenSource) -> Judged:
        async with self._turns:
            try:
                found = problem_of(problem)
            except ValueError as error:
                return Judged(index=index, problem=str(problem), error=str(error))
            candidate = candidate_given(source)
            if self._service is not None:
                return await self._served(self._service, index, found, candidate.source)
            answer = await self._ask(Question(stage="time", work=Work(problem=found, candidate=candidate)))
            if answer.verdict is None:
                return Judged(index=index, problem=found.name, error=answer.trouble)
            return Judged(index=index, problem=found.name, report=await asyncio.to_thread(report, answer.verdict))

    async def _served(self, service: ServiceClient, index: int, problem: Problem, source: str) -> Judged:
        asks = chosen_for_jobs(self.settings) if self.settings else {}
        named = self.settings is not None and "device" in self.settings.model_fields_set
        device = ("cuda" if self.settings.gpu else "cpu") if self.settings and named else None
        try:
            job = await service.judge(job_request(problem, source, asks, device))
        except RefusedJob as error:
            return Judged(index=index, problem=problem.name, error=str(error))
        except ExecutorError as error:
            raise JudgingError(str(error)) from None
        why = (job["error"] or {}).get("message", "the job was cancelled") if job["report"] is None else None
        return Judged(index=index, problem=problem.name, report=job["report"], error=why)

    async def _ask(self, question: Question) -> Answer:
        if self._worker is None:
            raise JudgingError("the judging has ended; use it inside `async with Judging()`")
        try:
            return await self._worker.ask(question)
        except Lost:
            raise JudgingError("the process that judges has ended; its words are on standard error") from None

    async def _end(self) -> None:
        worker, self._worker, self._service = self._worker, None, None
        if worker is not None:
            await worker.close()


def judge_all(
    pairs: Iterable[Pair], in_flight: int = 8, settings: "Settings | None" = None, server: str | None = None
) -> list[Judged]:
    """The same for a program that is not asynchronous: all results, in the order of the pairs. Raises the same."""
    checked = checked_pairs(pairs)  # before a process is started

    async def gather() -> list[Judged]:
        async with Judging(in_flight, settings, server) as judging:
            return [result async for result in judging.judge_all(checked)]

    return sorted(asyncio.run(gather()), key=lambda result: result.index)
