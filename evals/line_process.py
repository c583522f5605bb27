"""A process of ours beside this one that answers JSON lines with JSON lines, many at once."""

import asyncio
import contextlib
import itertools
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

LINE_BYTES = 256 * 2**20
ENDING_S = 20.0
"""How long it may take to clean up before it is killed."""
ROOT = Path(__file__).resolve().parent.parent


class Ended(Exception):
    """The process ended before it answered; its words are on standard error."""


class LineProcess:
    """One process, from `start` to `close`.

    Every question gets an `id`, which its answer repeats. Where whoever asks is cancelled, `{"cancel": id}` is sent.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process, self._input, self._output = process, process.stdin, process.stdout
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count()
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Self:
        """Run `python -m MODULE ARGUMENTS` in a session of its own, with `environment` added to ours."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | dict(environment or {}),
            limit=LINE_BYTES,
            start_new_session=True,
        )
        return cls(process)

    @property
    def has_ended(self) -> bool:
        """Whether it will answer nothing more."""
        return self._reader.done() or self._process.returncode is not None

    @property
    def pid(self) -> int | None:
        """The process's number; None after its end."""
        return None if self.has_ended else self._process.pid

    @property
    def asked(self) -> int:
        """Questions that it has not answered yet."""
        return len(self._waiting)

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Its answer. Raises `Ended`."""
        if self.has_ended:
            raise Ended("the process has ended")
        number = next(self._numbers)
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        try:
            self._tell(message | {"id": number})
            await self._input.drain()
            return await answered
        except (BrokenPipeError, ConnectionResetError):
            raise Ended("the process has ended") from None
        except asyncio.CancelledError:
            with contextlib.suppress(OSError, RuntimeError):
                self._tell({"cancel": number})
            raise
        finally:
            self._waiting.pop(number, None)

    def _tell(self, message: dict[str, Any]) -> None:
        self._input.write(json.dumps(message).encode() + b"\n")

    async def _read(self) -> None:
        while line := await self._output.readline():
            said = json.loads(line)
            answered = self._waiting.get(said.pop("id"))
            if answered is not None and not answered.done():
                answered.set_result(said)
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(Ended("the process has ended"))

    async def close(self) -> None:
        """End its input, so that it ends itself with all that it started; kill it where that takes too long."""
        with contextlib.suppress(OSError):
            self._input.close()
        try:
            await asyncio.wait_for(self._process.wait(), ENDING_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._reader
