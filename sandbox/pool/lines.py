"""A process that answers JSON lines with JSON lines, many at once: both of its ends.

Nothing that such a process does leaves a question unanswered. It is lost where it ends, closes a pipe, stops in the
middle of an answer, or writes something else: then waiting questions fail within about a second, and it is killed.
"""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, Self

from kernelwright.sandbox.machine import CHILD_ROOT

LINE_BYTES = 256 * 2**20
CHUNK_BYTES = 2**16
ENDING_S = 20.0
"""Time to clean up before it is killed."""
KILLED_S = 5.0
"""Time for a killed process to end; one that hangs in the kernel is left alone."""
CHECK_S = 0.2
STALLED_CHECKS = 4
"""Checks that find part of an answer and nothing new: its writer has stopped. Not seconds, since this process may have
been busy meanwhile, and the rest may be there unread."""


class Ended(Exception):
    """The process was lost before it answered; the text says how. Its own output is on standard error."""


NO_ANSWER = "the process wrote something that is not an answer"


class LineProcess:
    """One process, from `start` to `close`.

    Every question gets an `id`, which its answer repeats. A question that is cancelled is followed by `{"cancel": id}`.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process, self._input, self._output = process, process.stdin, process.stdout
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:  # it has ended already
            self._pidfd = -1
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count()
        self._lost = False
        self._closing = False
        self._half = bytearray()
        """Of the line that is being read, what has come."""
        self._chunks = 0
        self._reader = asyncio.create_task(self._read())
        self._watcher = asyncio.create_task(self._watch())

    @classmethod
    async def start(cls, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Self:
        """Run `python -m MODULE ARGUMENTS` in a session of its own, with `environment` added to ours."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=CHILD_ROOT,
            env=os.environ | dict(environment or {}),
            start_new_session=True,
        )
        return cls(process)

    @property
    def has_ended(self) -> bool:
        return self._lost or self._process.returncode is not None

    @property
    def pid(self) -> int | None:
        return None if self.has_ended else self._process.pid

    @property
    def asked(self) -> int:
        return len(self._waiting)

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return its answer. Raises `Ended`."""
        if self.has_ended:
            raise Ended("the process has ended")
        number = next(self._numbers)
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        try:
            self.send(message | {"id": number})
            return await answered
        except asyncio.CancelledError:
            if not self.has_ended:
                self.send({"cancel": number})
            raise
        finally:
            self._waiting.pop(number, None)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message without an answer. It waits for no pipe: the end of a process that reads nothing must show."""
        with contextlib.suppress(OSError, RuntimeError):
            self._input.write(json.dumps(message).encode() + b"\n")

    async def _read(self) -> None:
        try:
            while chunk := await self._output.read(CHUNK_BYTES):
                self._chunks += 1
                *ends, rest = chunk.split(b"\n")
                for end in ends:
                    line, self._half = self._half + end, bytearray()
                    self._take(line)
                self._half += rest
                if len(self._half) > LINE_BYTES:
                    raise ValueError("the line is too long")
        except (ValueError, RecursionError):  # of json, for a line that is not JSON
            self.lose(NO_ANSWER)
        self.lose("the process has ended")

    def _take(self, line: bytearray) -> None:
        said = json.loads(line)
        if not isinstance(said, dict) or not isinstance(said.get("id"), int):
            raise ValueError(NO_ANSWER)
        answered = self._waiting.get(said.pop("id"))
        if answered is not None and not answered.done():
            answered.set_result(said)

    async def _watch(self) -> None:
        """Notice what reading does not show: its end while others hold its pipe, and a writer that has stopped."""
        stalled = seen = 0
        while self._process.returncode is None:
            await asyncio.sleep(CHECK_S)
            stalled = stalled + 1 if self._half and self._chunks == seen else 0
            seen = self._chunks
            if stalled >= STALLED_CHECKS:
                self.lose("the process stopped in the middle of an answer")
            if self._input.is_closing() and not self._closing:
                self.lose("the process no longer listens")
        await asyncio.wait([self._reader], timeout=CHECK_S)  # what it has written before its end
        self.lose("the process has ended")

    def lose(self, why: str) -> None:
        """Take no more answers: fail all waiting questions, and kill it. Further calls do nothing."""
        if self._lost:
            return
        self._lost = True
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(Ended(why))
        # By `Process.kill` its end could be collected here, before asyncio's own watcher, which then says so on stderr.
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            self._input.close()
        await asyncio.wait([self._watcher], timeout=ENDING_S)
        self.lose("the process was closed")
        await asyncio.wait([self._watcher], timeout=KILLED_S)
        for task in (self._reader, self._watcher):
            task.cancel()
        await asyncio.gather(self._reader, self._watcher, return_exceptions=True)
        # There is no other way to release a pipe that another process still holds.
        self._process._transport.close()  # type: ignore[attr-defined]
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        await asyncio.sleep(0)  # in which it does


class ProcessOnDemand:
    """A process that starts at the first question, and again at the first one after it was lost. Close it."""

    def __init__(self, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._command, self._environment = (module, *arguments), environment
        self._process: LineProcess | None = None
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def asked(self) -> int:
        """Questions that wait for an answer."""
        return self._process.asked if self._process is not None else 0

    async def started(self) -> LineProcess:
        async with self._starting:
            if self._process is not None and self._process.has_ended:
                await self.close()
            if self._process is None:
                self._process = await LineProcess.start(*self._command, environment=self._environment)
            return self._process

    def send(self, message: dict[str, Any]) -> None:
        """Send a message without an answer; do nothing where the process is not running."""
        if self._process is not None and not self._process.has_ended:
            self._process.send(message)

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.close()


class LineServer:
    """The end in the process: answers the lines of standard input."""

    def __init__(self, reply: Callable[[dict[str, Any]], dict[str, Any]], threads: int, out: IO[str]) -> None:
        """`threads`: how many answer at a time; with 0 the reading thread answers one line after the other."""
        self._reply, self._out = reply, out
        self._pool = ThreadPoolExecutor(threads) if threads else None
        self._writing = threading.Lock()
        self._cancelled: set[int | None] = set()

    def run(self) -> None:
        """Answer until the input ends."""
        for line in sys.stdin:
            if not line.endswith("\n"):
                break  # the asking process was killed while it wrote
            self.take(json.loads(line))

    def take(self, message: dict[str, Any]) -> None:
        if "cancel" in message:
            self._cancelled.add(message["cancel"])
        elif self._pool is None:
            self._answer(message)
        else:
            self._pool.submit(self._answer, message)

    def _answer(self, message: dict[str, Any]) -> None:
        number = message.pop("id", None)
        try:
            if number in self._cancelled:
                return
            line = json.dumps({"id": number} | self._reply(message))
            if number is not None:
                # An asking process that no longer reads has lost this one: it ends our input too, or kills us.
                with self._writing, contextlib.suppress(OSError):
                    self._out.write(line + "\n")
                    self._out.flush()
        finally:
            self._cancelled.discard(number)

    def stop(self, limit_s: float, end_children: Callable[[], None]) -> bool:
        """End what the threads wait for, so that each ends and cleans up; whether all did in time."""
        threads = self._pool._threads if self._pool is not None else ()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        end = time.monotonic() + limit_s
        while (running := any(thread.is_alive() for thread in threads)) and time.monotonic() < end:
            end_children()
            time.sleep(0.05)
        return not running


def answers_only() -> IO[str]:
    """Return standard output for answers alone: what this process prints goes to standard error from here on.

    Signals of the terminal are left to the asking process, which ends this one by closing its input.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out
