"""The executor of this machine: a supervisor process for each device, and a process that is the build pool.

What runs on a GPU is built by the supervisors, beside the timing: the judge needs the device's references for a build,
and a build has nothing on the device. Where the processor is one device, its supervisor builds too: it either builds or
times, and a second process would import torch and start references only to wait.
"""

import asyncio
from collections.abc import Sequence

from kernelwright.problems import Problem
from kernelwright.sandbox.pool.protocol import Answer, Device, Product, Question, Stage, Work
from kernelwright.sandbox.pool.workers.devices import (
    CUDA_VISIBLE,
    given,
    local_devices,
    own_cores,
    settings_on,
    visible_device,
)
from kernelwright.sandbox.pool.workers.process import WorkerProcess
from kernelwright.sandbox.pool.workers.worker_options import WorkerOptions
from kernelwright.sandbox.verdict.settings import Settings


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
