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
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict

from problems import Problem, load_problem

if TYPE_CHECKING:
    from sandbox.settings import Settings

ENDING_S = 20.0
"""How long the helper may take to clean up before it is killed."""
LINE_BYTES = 256 * 2**20
Pair = tuple[str | Problem, str]
"""A problem, or its name, path or address; and the source of a candidate."""


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
        """Whether the candidate is right."""
        return self.report is not None and self.report["outcome"] == "passed"


class Judging:
    """Judges pairs of problem and source, at most `in_flight` at once. Use it as an asynchronous context."""

    def __init__(self, in_flight: int = 8, settings: "Settings | None" = None) -> None:
        if in_flight < 1:
            raise ValueError(f"in_flight is {in_flight}; it must be at least 1")
        self.in_flight = in_flight
        self.settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._turns = asyncio.Semaphore(in_flight)
        self._next = 0

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "kernelwright.judging_helper",
            str(self.in_flight),
            self.settings.model_dump_json() if self.settings else "{}",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parent.parent,
            limit=LINE_BYTES,
            start_new_session=True,
        )
        self._reader = asyncio.create_task(self._read(self._process))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(asyncio.ensure_future(self._end()))

    async def judge(self, problem: str | Problem, source: str) -> Judged:
        """One verdict. Raises `JudgingError` where the helper has ended."""
        return await self._judge(0, problem, source)

    async def judge_all(self, pairs: Iterable[Pair]) -> AsyncIterator[Judged]:
        """A result for each pair, as they finish; `index` says which pair it is."""
        tasks = [asyncio.create_task(self._judge(index, *pair)) for index, pair in enumerate(pairs)]
        try:
            for done in asyncio.as_completed(tasks):
                yield await done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _judge(self, index: int, problem: str | Problem, source: str) -> Judged:
        async with self._turns:
            try:
                found = problem if isinstance(problem, Problem) else load_problem(problem)
            except ValueError as error:
                return Judged(index=index, problem=str(problem), error=str(error))
            answer = await self._ask({"problem": found.model_dump(mode="json"), "source": source})
            return Judged(index=index, problem=found.name, **answer)

    async def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        if process is None or process.stdin is None or process.returncode is not None:
            raise JudgingError("the judging has ended; use it inside `async with Judging()`")
        number, self._next = self._next, self._next + 1
        self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            process.stdin.write(json.dumps(message | {"id": number}).encode() + b"\n")
            await process.stdin.drain()
            return await self._waiting[number]
        except (BrokenPipeError, ConnectionResetError):
            raise JudgingError("the judging's helper has ended; its words are on standard error") from None
        except asyncio.CancelledError:
            with contextlib.suppress(OSError, RuntimeError):
                process.stdin.write(json.dumps({"cancel": number}).encode() + b"\n")
            raise
        finally:
            self._waiting.pop(number, None)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            answer = json.loads(line)
            future = self._waiting.get(answer.pop("id"))
            if future is not None and not future.done():
                future.set_result(answer)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(JudgingError("the judging's helper has ended; its words are on standard error"))

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), ENDING_S)
        except TimeoutError:
            process.kill()
            await process.wait()
        if self._reader is not None:
            await self._reader


def judge_all(pairs: Iterable[Pair], in_flight: int = 8, settings: "Settings | None" = None) -> list[Judged]:
    """The same for a program that is not asynchronous: all results, in the order of the pairs."""

    async def gather() -> list[Judged]:
        async with Judging(in_flight, settings) as judging:
            return [result async for result in judging.judge_all(pairs)]

    return sorted(asyncio.run(gather()), key=lambda result: result.index)
