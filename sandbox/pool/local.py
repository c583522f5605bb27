"""The executor of this machine, and its processes, which answer JSON lines with JSON lines, many at once.

Nothing that such a process does leaves a question unanswered. Where it ends, closes a pipe, writes what is no answer or
stops in the middle of one, it is lost: whoever waits hears of it within about a second, and it is killed.
"""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import ValidationError

from kernelwright.problems import Problem
from kernelwright.sandbox.machine import CHILD_ROOT
from kernelwright.sandbox.pool.devices import (
    CUDA_VISIBLE,
    WorkerOptions,
    given,
    local_devices,
    own_cores,
    settings_on,
    visible_device,
)
from kernelwright.sandbox.pool.protocol import Answer, Device, Lost, Product, Question, Stage, Work
from kernelwright.sandbox.verdict.settings import Settings

LINE_BYTES = 256 * 2**20
CHUNK_BYTES = 2**16
ENDING_S = 20.0
"""How long it may take to clean up before it is killed."""
KILLED_S = 5.0
"""How long a killed process may take to be gone; one that hangs in the kernel is left to itself."""
LOOK_S = 0.2
HALF_LOOKS = 4
"""Looks at an answer of which a part has come and nothing more comes: its writer has been stopped. Looks and not
seconds, for where this process was busy meanwhile, the rest may be there unread."""
ROOT = CHILD_ROOT
"""`-m` finds our packages there, which lie beside the child's."""


class Ended(Exception):
    """The process was lost before it answered: the text says how. Its own words are on standard error."""


class LineProcess:
    """One process, from `start` to `close`.

    Every question gets an `id`, which its answer repeats. Where whoever asks is cancelled, `{"cancel": id}` is sent.
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
            cwd=ROOT,
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
        """Its answer. Raises `Ended`."""
        if self.has_ended:
            raise Ended("the process has ended")
        number = next(self._numbers)
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        try:
            self.tell(message | {"id": number})
            return await answered
        except asyncio.CancelledError:
            if not self.has_ended:
                self.tell({"cancel": number})
            raise
        finally:
            self._waiting.pop(number, None)

    def tell(self, message: dict[str, Any]) -> None:
        """Say something that has no answer.

        Nobody waits until the pipe has room: a process that does not read must not keep us from hearing its end.
        """
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
        except (ValueError, RecursionError):  # of json, for a line that is none
            self.lose("the process wrote what is no answer")
        self.lose("the process has ended")

    def _take(self, line: bytearray) -> None:
        said = json.loads(line)
        if not isinstance(said, dict) or not isinstance(said.get("id"), int):
            raise ValueError("no answer to a question")
        answered = self._waiting.get(said.pop("id"))
        if answered is not None and not answered.done():
            answered.set_result(said)

    async def _watch(self) -> None:
        """See what reading alone does not show: its end while others hold its pipe, and a writer that has stopped."""
        looks = seen = 0
        while self._process.returncode is None:
            await asyncio.sleep(LOOK_S)
            looks = looks + 1 if self._half and self._chunks == seen else 0
            seen = self._chunks
            if looks >= HALF_LOOKS:
                self.lose("the process stopped in the middle of an answer")
            if self._input.is_closing() and not self._closing:
                self.lose("the process no longer listens")
        await asyncio.wait([self._reader], timeout=LOOK_S)  # what it has written before its end
        self.lose("the process has ended")

    def lose(self, why: str) -> None:
        """Believe nothing more of it: tell whoever waits, and kill it. Once only."""
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
        # There is no other way to let go of a pipe that somebody else still holds.
        self._process._transport.close()  # type: ignore[attr-defined]
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        await asyncio.sleep(0)  # in which it does


SERVING = "kernelwright.sandbox.pool.serving"
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
        return self._process.pid if self._process is not None else None

    @property
    def asked(self) -> int:
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
        process, self._process = self._process, None
        if process is not None:
            await process.close()


class LocalExecutor:
    """See `Executor`. Processes start when first needed, so that a batch without new work starts none."""

    def __init__(
        self, settings: Settings, builders: int, devices: int | Sequence[Device] | None = None, at_once: bool = False
    ) -> None:
        """`devices`: how many (None: every CUDA device, or the whole processor), or devices that are declared.

        `at_once`: processes start when it is opened, to be ready for the first candidate.
        """
        self.builders = builders
        self.takes_turns = not settings.gpu
        self._settings, self._wanted, self._at_once = settings, devices, at_once
        self._pool = [] if settings.gpu else [WorkerProcess(WorkerOptions(chosen=given(settings)), builders)]
        self._supervisors: dict[str, WorkerProcess] = {}

    async def open(self) -> tuple[Device, ...]:
        """The devices; nothing is started unless that was asked for."""
        wanted = self._wanted
        devices = local_devices(self._settings, wanted) if wanted is None or isinstance(wanted, int) else tuple(wanted)
        timed = sum(settings_on(given(self._settings), device.cores).threads for device in devices)
        self.takes_turns = not self._settings.gpu and timed >= len(own_cores())
        if self.takes_turns and len(devices) == 1:
            self._pool = []
        self._supervisors = {device.name: self._supervisor(device, len(devices)) for device in devices}
        if self._at_once:
            await asyncio.gather(*(process.start() for process in (*self._supervisors.values(), *self._pool)))
        return devices

    def _supervisor(self, device: Device, count: int) -> WorkerProcess:
        alone = count == 1 and not self._settings.gpu
        order = WorkerOptions(chosen=given(self._settings), device=device, alone=alone)
        if not self._settings.gpu:
            return WorkerProcess(order, 1 if self._pool else self.builders)
        return WorkerProcess(order, 1 + -(-self.builders // count), {CUDA_VISIBLE: visible_device(device.ordinal)})

    @property
    def pids(self) -> dict[str, int | None]:
        """The processes by the names of their devices, and those of build pools under `builds/N`."""
        named = {name: process.pid for name, process in self._supervisors.items()}
        return named | {f"builds/{number}": process.pid for number, process in enumerate(self._pool)}

    async def build(self, work: Work) -> Answer | Product:
        pool = min(self._pool or self._supervisors.values(), key=lambda process: process.asked)
        answer = await pool.ask(Question(stage="build", work=work))
        return answer if answer.product is None else Product(answer.product)

    async def run(self, stage: Stage, work: Work, product: Product, device: Device) -> Answer:
        return await self._supervisors[device.name].ask(Question(stage=stage, work=work))

    async def revive(self, device: Device) -> bool:
        return True

    def release(self, problem: Problem) -> None:
        for process in (*self._supervisors.values(), *self._pool):
            process.release(problem)

    async def close(self) -> None:
        await asyncio.gather(*(process.close() for process in (*self._supervisors.values(), *self._pool)))
