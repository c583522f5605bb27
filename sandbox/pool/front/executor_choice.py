"""Which executor a user asked for, and how it is opened."""

import asyncio
from typing import Literal

from kernelwright.problems.record.base import Record
from kernelwright.sandbox.pool.protocol import Executor, ExecutorError, choose_kind
from kernelwright.sandbox.pool.workers.devices import own_cores
from kernelwright.sandbox.pool.workers.local import LocalExecutor
from kernelwright.sandbox.verdict.settings import Settings

NAMES = ("local", "ray")


class ExecutorChoice(Record):
    """An executor, as a run's header keeps it."""

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
        """Whether this machine's own devices and tools are used."""
        return self.executor == "local" and self.server is None


def executor_for(choice: ExecutorChoice, settings: Settings, at_once: bool = False) -> Executor:
    """The executor, not opened yet. Raises `ExecutorError` for choices that do not go together.

    `at_once`: this machine's processes start when it is opened, not when they are first needed.
    """
    if choice.server is not None:
        from kernelwright.sandbox.pool.remote.remote_executor import RemoteExecutor

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
