"""Many candidates judged from Python, as in a training loop; and the executors that a user can choose.

    async with JudgePool(concurrency=8) as pool:
        async for result in pool.judge_many([(problem, source), ...]):
            reward = result.report["speedup_low"] or 0.0 if result.report else 0.0

The work is done on one device of this machine, by processes next to the caller's; with `Where` on more devices, on a
Ray cluster, or by a running service. The caller's process imports no torch, and runs neither a candidate nor a
reference. Builds run side by side, and one candidate at a time is timed on a device. Leaving the context, also by an
exception or a cancellation, ends these processes and everything that they started.
"""

import asyncio
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterable
from functools import wraps
from typing import Any, Literal, ParamSpec, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict

from kernelwright.problems import Problem
from kernelwright.problems.problem import Record
from kernelwright.sandbox.authenticity.scan import (
    GivenProblem,
    GivenSource,
    Pair,
    candidate_given,
    checked_pairs,
    checked_problem,
    checked_source,
    problem_of,
)
from kernelwright.sandbox.machine import child_limit_bytes
from kernelwright.sandbox.pool.client import RefusedJob, RemoteExecutor, ServiceClient, chosen_for_jobs, job_request
from kernelwright.sandbox.pool.dispatcher import Dispatcher
from kernelwright.sandbox.pool.executor import (
    Executor,
    ExecutorError,
    LocalExecutor,
    Unjudged,
    Work,
    choose_kind,
    own_cores,
)
from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright_child import driver

ExecutorName = Literal["local", "ray"]
NAMES = get_args(ExecutorName)


class Where(Record):
    """The place of judging: this machine, a Ray cluster, or a running service."""

    executor: ExecutorName = "local"
    address: str | None = None
    """HOST:PORT of a Ray cluster's head; None for a cluster of this machine alone, made for the run."""
    devices: int | None = None
    """Number of devices of this machine; None for all CUDA devices, or the complete processor."""
    kind: str | None = None
    """A part of the name of the devices to use; needed only where there are several kinds."""
    builders: int | None = None
    """Builds at a time; None for one a core of this machine, or as many as a cluster offers."""
    server: str | None = None
    """Address of a running service, which judges in place of all of these."""

    @property
    def is_here(self) -> bool:
        return self.executor == "local" and self.server is None


def executor_for(choice: Where, settings: JudgeSettings, at_once: bool = False) -> Executor:
    """Return the executor, not opened yet. Raises `ExecutorError` for choices that contradict each other.

    `at_once`: this machine's processes start when it is opened, not when they are first needed.
    """
    if choice.server is not None:
        return RemoteExecutor(settings, choice.server)
    if choice.executor == "local":
        if choice.address is not None:
            raise ExecutorError(f"--address {choice.address} names a Ray cluster; add --executor ray, or leave it out")
        return LocalExecutor(settings, choice.builders or len(own_cores()), choice.devices, at_once)
    from kernelwright.sandbox.pool.ray import RayExecutor

    return RayExecutor(settings, choice.address, choice.builders, choice.devices)


def settled(choice: Where, settings: JudgeSettings) -> Where:
    """Return the choice with its kind of device, so that a resumed run stays with that one; a cluster is asked.

    Where nothing is chosen, it stays open.
    """
    if choice == Where():
        return choice

    async def kind() -> str:
        executor = executor_for(choice, settings)
        try:
            return choose_kind(await executor.open(), choice.kind)[0].kind
        finally:
            await executor.close()

    return choice.model_copy(update={"kind": asyncio.run(kind())})


def as_far_as_there(choice: Where, settings: JudgeSettings) -> tuple[Where, JudgeSettings]:
    """Return both with no more cores, memory and GPUs than this machine has; print a line where they change.

    On a GPU these only decide how long a run takes. On a processor candidates are measured on its cores: where one is
    missing, `ExecutorError` is raised.
    """
    if not choice.is_here:
        return choice, settings
    there = own_cores()
    missing = sorted(set(settings.cores) - set(there))
    if not settings.gpu:
        if missing:
            raise ExecutorError(
                f"the run is measured on {len(settings.cores)} cores and this machine lacks {len(missing)} of them "
                f"(core {missing[0]}); go on where it began, or start a new run here"
            )
        return choice, settings
    devices = choice.devices and min(choice.devices, driver.device_count() or choice.devices)
    if not missing and devices == choice.devices:
        return choice, settings
    cores = there if missing else settings.cores
    memory_bytes = min(settings.memory_bytes, child_limit_bytes())
    limits = {"cores": cores, "threads": min(settings.threads, len(cores)), "memory_bytes": memory_bytes}
    began = f"{_count(len(settings.cores), 'core')} and {_count(choice.devices or 1, 'device')}"
    now = f"{_count(len(cores), 'core')} and {_count(devices or 1, 'device')}"
    print(f"kernelwright: going on with {now}; the run began with {began}", file=sys.stderr, flush=True)
    return choice.model_copy(update={"devices": devices}), settings.model_copy(update=limits)


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


class JudgingError(RuntimeError):
    """The judging cannot go on; the message is one sentence."""


class Judged(BaseModel):
    """Result of one pair: exactly one of `report` and `error`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    index: int
    """Its position among the pairs, from 0."""
    problem: str
    """The problem's name; its given form where it cannot be loaded."""
    report: dict[str, Any] | None = None
    """The object of `kernelwright judge --json`, with all its keys."""
    error: str | None = None
    """Why a verdict is not possible: the problem or the machine cannot be used. Not the candidate's fault."""

    @property
    def passed(self) -> bool:
        return self.report is not None and self.report["outcome"] == "passed"


CONCURRENCY = 8
P = ParamSpec("P")
R = TypeVar("R")


def _takes_in_flight(call: Callable[P, R]) -> Callable[P, R]:
    """Accept `in_flight`, the old name of `concurrency`."""

    @wraps(call)
    def wrapper(*given: P.args, **named: P.kwargs) -> R:
        if "in_flight" in named:
            warnings.warn("in_flight is now concurrency", DeprecationWarning, stacklevel=2)
            named["concurrency"] = named.pop("in_flight")
        return call(*given, **named)

    return wrapper


class JudgePool:
    """Judges pairs of problem and source, at most `concurrency` at a time. Use it as an asynchronous context."""

    @_takes_in_flight
    def __init__(
        self,
        concurrency: int = CONCURRENCY,
        settings: JudgeSettings | None = None,
        server: str | None = None,
        where: Where | None = None,
    ) -> None:
        """`where`: the devices, by default one of this machine. `server`: a running service that judges instead."""
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}; it must be at least 1")
        if server is not None and where is not None:
            raise ValueError("`server` and `where` name two places; give one of them")
        self.concurrency, self.settings = concurrency, settings
        self.server = server if where is None else where.server
        self._where = where
        self._service: ServiceClient | None = None
        self._dispatcher: Dispatcher | None = None
        self._is_started = False
        self._starting = asyncio.Lock()
        self._limit = asyncio.Semaphore(concurrency)

    async def __aenter__(self) -> Self:
        self.open()
        if self._dispatcher is not None:
            await self._started()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def open(self) -> Self:
        """Allow judgings; processes start with the first of them, or with the context."""
        if self.server is not None:
            self._service = ServiceClient(self.server)
            return self
        chosen = self.settings or JudgeSettings()
        where = self._where
        if where is not None:
            executor = executor_for(where, chosen, at_once=True)
        else:
            devices = None if ":" in chosen.device else 1
            executor = LocalExecutor(chosen, len(own_cores()), devices, at_once=True, one_process=True)
        # A problem that could not be judged is tried again: the next candidate may need less memory.
        self._dispatcher = Dispatcher(executor, where.kind if where else None, remembers_broken=False)
        self._is_started = False
        return self

    async def close(self) -> None:
        dispatcher, self._dispatcher, self._service = self._dispatcher, None, None
        if dispatcher is not None:
            await asyncio.shield(asyncio.ensure_future(dispatcher.__aexit__()))

    async def judge(self, problem: GivenProblem, source: GivenSource) -> Judged:
        """Return one verdict. Raises `JudgingError` where no device, or no service, is left to judge.

        Raises `ValueError` for something that is not a problem or not a source.
        """
        return await self._judge(0, checked_problem(problem), checked_source(source))

    async def judge_many(self, pairs: Iterable[Pair]) -> AsyncIterator[Judged]:
        """Yield a result for each pair, as they finish; `index` is the position of the pair.

        All pairs are checked before anything is judged: raises `ValueError`, which names the wrong one.
        """
        tasks = [asyncio.create_task(self._judge(index, *pair)) for index, pair in enumerate(checked_pairs(pairs))]
        try:
            for done in asyncio.as_completed(tasks):
                yield await done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def judge_all(self, pairs: Iterable[Pair]) -> AsyncIterator[Judged]:
        """Do the same as `judge_many`, under its old name."""
        warnings.warn("JudgePool.judge_all is now judge_many", DeprecationWarning, stacklevel=2)
        return self.judge_many(pairs)

    async def _started(self) -> Dispatcher:
        dispatcher = self._dispatcher
        if dispatcher is None:
            raise JudgingError("the judging has ended; use it inside `async with JudgePool()`")
        async with self._starting:
            if not self._is_started:
                try:
                    await dispatcher.__aenter__()
                except ExecutorError as error:
                    raise JudgingError(str(error)) from None
                self._is_started = True
        return dispatcher

    async def _judge(self, index: int, problem: Problem | str, source: GivenSource) -> Judged:
        async with self._limit:
            try:
                found = problem_of(problem)
            except ValueError as error:
                return Judged(index=index, problem=str(problem), error=str(error))
            candidate, why = candidate_given(source), None
            try:
                if self._service is not None:
                    given, why = await self._judge_there(self._service, found, candidate.source)
                else:
                    dispatcher = await self._started()
                    judged = await dispatcher.judge(Work(problem=found, candidate=candidate))
                    given = await asyncio.to_thread(report, judged.verdict)
            except (RefusedJob, Unjudged) as refused:
                given, why = None, str(refused)
            except ExecutorError as lost:
                raise JudgingError(str(lost)) from None
            return Judged(index=index, problem=found.name, report=given, error=why)

    async def _judge_there(
        self, service: ServiceClient, problem: Problem, source: str
    ) -> tuple[dict[str, Any] | None, str | None]:
        """Return the report, or why there is none. Without a device in the settings the service chooses it."""
        overrides = chosen_for_jobs(self.settings) if self.settings else {}
        named = self.settings is not None and "device" in self.settings.model_fields_set
        device = ("cuda" if self.settings.gpu else "cpu") if self.settings and named else None
        job = await service.judge(job_request(problem, source, overrides, device))
        why = (job["error"] or {}).get("message", "the job was cancelled") if job["report"] is None else None
        return job["report"], why


@_takes_in_flight
def judge_many(
    pairs: Iterable[Pair],
    concurrency: int = CONCURRENCY,
    settings: JudgeSettings | None = None,
    server: str | None = None,
    where: Where | None = None,
) -> list[Judged]:
    """Return all results, in the order of the pairs, to a program that is not asynchronous. Raises the same."""
    checked = checked_pairs(pairs)  # before a process is started

    async def gather() -> list[Judged]:
        async with JudgePool(concurrency, settings, server, where) as pool:
            return [result async for result in pool.judge_many(checked)]

    return sorted(asyncio.run(gather()), key=lambda result: result.index)
