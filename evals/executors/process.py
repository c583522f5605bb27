"""A worker in a process of its own on this machine, and the line between it and the driver."""

import asyncio
import contextlib
import itertools
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evals.executors.order import Order
from evals.executors.protocol import Answer, Lost, Question

LINE_BYTES = 256 * 2**20
ENDING_S = 20.0
"""How long a worker may take to clean up before it is killed."""
ROOT = Path(__file__).resolve().parent.parent.parent


class WorkerProcess:
    """Starts at the first question, and again at the first one after it was lost.

    Questions may overlap; the process answers as many at once as it has threads.
    """

    def __init__(self, order: Order, threads: int, environment: Mapping[str, str] | None = None) -> None:
        self._order, self._threads = order, threads
        self._environment = dict(environment or {})
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count()
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The process's number; None before the first question and after the end."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def asked(self) -> int:
        """Questions that it has not answered yet."""
        return len(self._waiting)

    async def ask(self, question: Question) -> Answer:
        """The worker's answer. Raises `Lost` where its process ends before that."""
        async with self._starting:
            process = self._process or await self._start()
        number = next(self._numbers)
        answered = self._waiting[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "question": question.model_dump(mode="json")}
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            await process.stdin.drain()
            return Answer.model_validate(await answered)
        except (BrokenPipeError, ConnectionResetError):
            raise Lost("the worker's process has ended") from None
        finally:
            self._waiting.pop(number, None)

    async def _start(self) -> asyncio.subprocess.Process:
        command = (sys.executable, "-m", "evals.executors.serving", str(self._threads), self._order.model_dump_json())
        self._process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | self._environment,
            limit=LINE_BYTES,
            start_new_session=True,
        )
        self._reader = asyncio.create_task(self._read(self._process))
        return self._process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            said = json.loads(line)
            answered = self._waiting.get(said["id"])
            if answered is not None and not answered.done():
                answered.set_result(said["answer"])
        if self._process is process:
            self._process = None
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(Lost("the worker's process has ended"))

    async def close(self) -> None:
        """End the process with all that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), ENDING_S)
        except TimeoutError:
            process.kill()
            await process.wait()
        if self._reader is not None:
            await self._reader
