"""A worker in a process of its own on this machine."""

import asyncio
from collections.abc import Mapping

from pydantic import ValidationError

from kernelwright.problems import Problem
from kernelwright.sandbox.pool.protocol import Answer, Lost, Question
from kernelwright.sandbox.pool.workers.line_process import Ended, LineProcess
from kernelwright.sandbox.pool.workers.worker_options import WorkerOptions

SERVING = "kernelwright.sandbox.pool.workers.serving"
"""The module that the process runs."""


class WorkerProcess:
    """Starts at the first question, and again at the first one after it was lost.

    Questions may overlap; the process answers as many at once as it has threads.
    """

    def __init__(self, order: WorkerOptions, threads: int, environment: Mapping[str, str] | None = None) -> None:
        self._order, self._threads = order, threads
        self._environment = environment
        self._process: LineProcess | None = None
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The process's number; None before the first question and after the end."""
        return self._process.pid if self._process is not None else None

    @property
    def asked(self) -> int:
        """Questions that it has not answered yet."""
        return self._process.asked if self._process is not None else 0

    async def ask(self, question: Question) -> Answer:
        """The worker's answer. Raises `Lost` where its process ends before that, or says what is none."""
        process = await self.start()
        try:
            said = await process.ask({"question": question.model_dump(mode="json")})
            return Answer.model_validate(said.get("answer"))
        except Ended as error:
            raise Lost(f"its worker was lost: {error}") from None
        except ValidationError:
            process.lose("the process wrote what is no answer")
            raise Lost("its worker was lost: the process wrote what is no answer") from None

    def release(self, problem: Problem) -> None:
        """Let it end what it keeps for a problem; nothing where it is not running."""
        if self._process is not None and not self._process.has_ended:
            self._process.tell({"release": problem.digest})

    async def start(self) -> LineProcess:
        """The process, which has just been started where it was not running; asking does this too."""
        async with self._starting:
            if self._process is not None and self._process.has_ended:
                await self._process.close()
                self._process = None
            if self._process is None:
                arguments = str(self._threads), self._order.model_dump_json()
                self._process = await LineProcess.start(SERVING, *arguments, environment=self._environment)
            return self._process

    async def close(self) -> None:
        """End the process with all that it started."""
        process, self._process = self._process, None
        if process is not None:
            await process.close()
