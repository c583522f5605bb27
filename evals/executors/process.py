"""A worker in a process of its own on this machine."""

import asyncio
from collections.abc import Mapping

from evals.executors.order import Order
from evals.executors.protocol import Answer, Lost, Question
from evals.line_process import Ended, LineProcess


class WorkerProcess:
    """Starts at the first question, and again at the first one after it was lost.

    Questions may overlap; the process answers as many at once as it has threads.
    """

    def __init__(self, order: Order, threads: int, environment: Mapping[str, str] | None = None) -> None:
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
        """The worker's answer. Raises `Lost` where its process ends before that."""
        process = await self.start()
        try:
            said = await process.ask({"question": question.model_dump(mode="json")})
        except Ended:
            raise Lost("the worker's process has ended") from None
        return Answer.model_validate(said["answer"])

    async def start(self) -> LineProcess:
        """The process, which has just been started where it was not running; asking does this too."""
        async with self._starting:
            if self._process is None or self._process.has_ended:
                arguments = str(self._threads), self._order.model_dump_json()
                self._process = await LineProcess.start(
                    "evals.executors.serving", *arguments, environment=self._environment
                )
            return self._process

    async def close(self) -> None:
        """End the process with all that it started."""
        process, self._process = self._process, None
        if process is not None:
            await process.close()
