"""Which executor a user asked for, how it is opened, and how a run goes on where other devices are."""

import asyncio
import sys
from typing import Literal

from kernelwright.problems.problem import Record
from kernelwright.sandbox.pool.devices import own_cores
from kernelwright.sandbox.pool.local import LocalExecutor
from kernelwright.sandbox.pool.protocol import Executor, ExecutorError, choose_kind
from kernelwright.sandbox.verdict.memory import child_limit_bytes
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright_child import driver

NAMES = ("local", "ray")


class ExecutorChoice(Record):
    executor: Literal["local", "ray"] = "local"
    address: str | None = None
    """HOST:PORT of a Ray cluster's head; None for a cluster of this machine alone, made for the run."""
    devices: int | None = None
    """How many devices of this machine; None for all CUDA devices, or the whole processor."""
    kind: str | None = None
    """A part of the name of the devices to use; needed only where there are several kinds."""
    builders: int | None = None
    """Builds at once; None for one a core of this machine, or as many as a cluster offers."""
    server: str | None = None
    """Address of a running service that judges in place of all of these."""

    @property
    def is_here(self) -> bool:
        return self.executor == "local" and self.server is None


def executor_for(choice: ExecutorChoice, settings: Settings, at_once: bool = False) -> Executor:
    """The executor, not opened yet. Raises `ExecutorError` for choices that do not go together.

    `at_once`: this machine's processes start when it is opened, not when they are first needed.
    """
    if choice.server is not None:
        from kernelwright.sandbox.pool.remote import RemoteExecutor

        return RemoteExecutor(settings, choice.server)
    if choice.executor == "local":
        if choice.address is not None:
            raise ExecutorError(f"--address {choice.address} names a Ray cluster; add --executor ray, or leave it out")
        return LocalExecutor(settings, choice.builders or len(own_cores()), choice.devices, at_once)
    from kernelwright.sandbox.pool.ray.executor import RayExecutor

    return RayExecutor(settings, choice.address, choice.builders, choice.devices)


def settled(choice: ExecutorChoice, settings: Settings) -> ExecutorChoice:
    """The choice with the kind of device that it comes to, so that a run that is resumed stays with it.

    A cluster is asked. Where nothing is chosen it is left open.
    """
    if choice == ExecutorChoice():
        return choice

    async def kind() -> str:
        executor = executor_for(choice, settings)
        try:
            return choose_kind(await executor.open(), choice.kind)[0].kind
        finally:
            await executor.close()

    return choice.model_copy(update={"kind": asyncio.run(kind())})


def as_far_as_there(choice: ExecutorChoice, settings: Settings) -> tuple[ExecutorChoice, Settings]:
    """The choice and the settings with no more cores, memory and GPUs than this machine has; says so where it changes.

    On a GPU these only say how fast one gets on. What runs on a processor is measured on its cores: where one is
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
