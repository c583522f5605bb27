"""Verdicts for the engine: the sandbox's judge behind two awaitables.

Builds run beside each other and beside timing where there are cores to spare; timing is serial for each device, since
two timings at once would disturb each other. Where the candidate itself runs on the processor and takes all of its
cores, a build beside its timing would disturb it too, so there they take turns.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator
from typing import Any

from problems import Problem
from sandbox.exhausted import within_memory
from sandbox.judge import Judge
from sandbox.machine import require_tools
from sandbox.settings import Settings
from sandbox.stages import Built
from sandbox.verdict import Candidate, Passed, Verdict

SCREENING: dict[str, Any] = {
    "min_pairs": 4,
    "max_pairs": 4,
    "worker_pairs": 1,
    "compiled": (),
    "sanitize": False,
    "profile": False,
}
"""What the settings become for a screening: enough to see whether a candidate is right, and about how fast.

No tools: they cost some ten seconds a candidate, and nobody reads what they say of a variant that is not judged.
"""


class LocalEvaluator:
    """Judges on this machine. Close it."""

    def __init__(self, settings: Settings | None = None, builders: int | None = None) -> None:
        self._settings = settings or Settings()
        self._judges: dict[str, Judge] = {}
        cores = len(os.sched_getaffinity(0))
        self._builds = asyncio.Semaphore(builders or max(1, cores // 2))
        self._device = asyncio.Lock()
        self._spare = self._settings.gpu or self._settings.threads < cores

    async def evaluate(self, problem: Problem, candidate: Candidate, *, fresh: bool = False) -> Verdict:
        """The verdict; `MachineError` or `BrokenProblem` where none is possible."""
        require_tools(candidate.language)
        if fresh:
            return await self._judged_apart(problem, candidate, self._settings)
        return await self._judged(await self._judge_for(problem), candidate)

    async def screen(self, problem: Problem, candidates: list[Candidate]) -> list[float | None]:
        """Median ms of a few pairs each, all against one reference; None where one failed."""
        judge = Judge(problem, self._settings.model_copy(update=SCREENING))
        try:
            verdicts = [await self._judged(judge, candidate) for candidate in candidates]
        finally:
            await asyncio.to_thread(judge.close)
        return [one.measurement.candidate_ms if isinstance(one, Passed) else None for one in verdicts]

    def release(self, problem: Problem) -> None:
        """End the problem's reference child; a later candidate starts a new one."""
        judge = self._judges.pop(problem.digest, None)
        if judge is not None:
            judge.close()

    def close(self) -> None:
        """End all children. A judging that still runs in its thread ends with an error that nobody waits for."""
        for judge in self._judges.values():
            judge.close()
        self._judges.clear()

    async def _judge_for(self, problem: Problem) -> Judge:
        """The problem's judge with its reference started, by one of several that ask at once."""
        async with self._device:
            if problem.digest not in self._judges:
                self._judges[problem.digest] = judge = Judge(problem, self._settings)
                await asyncio.to_thread(within_memory, problem, lambda: judge.reference)
            return self._judges[problem.digest]

    async def _judged_apart(self, problem: Problem, candidate: Candidate, settings: Settings) -> Verdict:
        judge = Judge(problem, settings)
        try:
            return await self._judged(judge, candidate)
        finally:
            await asyncio.to_thread(judge.close)

    async def _judged(self, judge: Judge, candidate: Candidate) -> Verdict:
        async with self._build_turn():
            built = await _built(judge, candidate)
        try:
            await self._device.acquire()
        except BaseException:
            built.close()
            raise
        try:
            return await asyncio.to_thread(within_memory, judge.problem, lambda: judge.evaluate(built))
        finally:
            self._device.release()

    @contextlib.asynccontextmanager
    async def _build_turn(self) -> AsyncIterator[None]:
        async with self._builds if self._spare else self._device:
            yield


async def _built(judge: Judge, candidate: Candidate) -> Built:
    """Build in a thread. That can not be stopped: where nobody waits for it any more, it closes what it has made."""
    choosing, made, abandoned = threading.Lock(), list[Built](), threading.Event()

    def build() -> Built:
        built = within_memory(judge.problem, lambda: judge.build(candidate))
        with choosing:
            made.append(built)
            late = abandoned.is_set()
        if late:
            built.close()
        return built

    try:
        return await asyncio.to_thread(build)
    except asyncio.CancelledError:
        with choosing:
            abandoned.set()
            in_time = list(made)
        for built in in_time:
            built.close()
        raise
