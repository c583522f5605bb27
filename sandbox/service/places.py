"""Where the service judges: a dispatcher for the processor, one for the GPUs, or one for a cluster."""

from collections.abc import Callable

from kernelwright.sandbox.pool.dispatch import DeviceVerdict, Dispatcher, Step, Tally
from kernelwright.sandbox.pool.protocol import Device, Executor, ExecutorError, Stage, Work

AHEAD = 2
"""Jobs that are handed to a device's dispatcher beside those that build: one is timed, the next one is ready."""


class Place:
    """Devices of one sort, all of which may take a job. Open it, and close it."""

    def __init__(self, make_executor: Callable[[], Executor], kind: str | None = None) -> None:
        """`kind`: a part of the name of the devices to use, where there are several kinds."""
        self._make_executor, self._kind = make_executor, kind
        self._dispatcher: Dispatcher | None = None
        self.builders = 0
        self.is_lost = False
        """Whether it has to be opened again before anything is judged here."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """Those that are judged on; empty while it is closed."""
        return self._dispatcher.devices if self._dispatcher else ()

    @property
    def tally(self) -> Tally:
        """What was done since it was opened."""
        return self._dispatcher.tally if self._dispatcher else Tally()

    @property
    def room(self) -> int:
        """Jobs that may be handed to it at a time: what waits longer can still be overtaken, or taken back."""
        return 0 if self.is_lost else self.builders + AHEAD * len(self.devices)

    async def open(self) -> None:
        """Raises `ExecutorError` or `MachineError` where there is no device."""
        executor = self._make_executor()
        # What one client's candidate does to the memory of this machine must not end another's problem.
        dispatcher = Dispatcher(executor, self._kind, remembers_broken=False)
        await dispatcher.__aenter__()
        self._dispatcher, self.builders = dispatcher, executor.builders

    async def judge(self, work: Work, stage: Stage, on_step: Callable[[Step], None]) -> DeviceVerdict:
        """See `Dispatcher.judge`."""
        dispatcher = self._dispatcher
        if dispatcher is None:
            raise ExecutorError("no device is left")
        try:
            return await dispatcher.judge(work, stage, on_step)
        except ExecutorError:
            self.is_lost |= dispatcher is self._dispatcher  # else it has been opened again meanwhile
            raise

    async def close(self) -> None:
        dispatcher, self._dispatcher, self.builders = self._dispatcher, None, 0
        if dispatcher is not None:
            await dispatcher.__aexit__()

    async def reopen(self) -> None:
        """After all devices were lost; one asks at a time. Raises as `open` does, and is lost then."""
        await self.close()
        await self.open()
        self.is_lost = False
