"""The judge's hold on one device: exclusive, flushed before every call, and known to be idle when it should be."""

import statistics
from typing import NamedTuple, Self

from sandbox.errors import MachineError
from sandbox.gpu import driver
from sandbox.gpu.buffers import Glancer, Lent, Shown, poison
from sandbox.gpu.clocks import Clocks
from sandbox.gpu.lock import DeviceLock

FLUSH = 2
"""Times the L2 cache's size: as much is written between calls, so that nothing of them is left in it."""
CALIBRATIONS = 20
LATE_MS, LATE_SHARE = 0.03, 0.25
"""How much longer than on an idle device the judge's own work may take: the larger of a time and a share."""


class Prepared(NamedTuple):
    """What the judge's own work before a call took on the device's clock, and what it takes on an idle one, in ms."""

    taken_ms: float
    idle_ms: float

    @property
    def was_idle(self) -> bool:
        """False where something else ran meanwhile.

        Contexts of different processes share the device's units in turns, never at once, so work of a child that
        stands still (queued before, or a kernel that stays) makes the judge's own take longer.
        """
        return self.taken_ms - self.idle_ms <= max(LATE_MS, LATE_SHARE * self.idle_ms)


class Device:
    """One device for one judge. Use it as a context, from one thread; children are others' processes."""

    def __init__(self, ordinal: int = 0, wait_s: float = 600) -> None:
        """Waits for the device's lock. Raises `MachineError` where there is no device, or it stays taken."""
        self.ordinal = ordinal
        try:
            self.uuid = driver.device_uuid(ordinal)
            self._lock = DeviceLock(self.uuid, wait_s)
            self._context = driver.Context(ordinal)
        except driver.CudaError as error:
            raise MachineError(f"no CUDA device {ordinal} can be used ({error}); see `kernelwright doctor`") from None
        self.name, self.architecture = self._context.name, self._context.architecture
        self.clocks = Clocks(self.uuid)
        self.stream = driver.Stream()
        self._events = driver.Event(), driver.Event()
        self._flush_bytes = FLUSH * max(self._context.attribute("l2_bytes"), 2**20)
        self._flush = driver.allocate(self._flush_bytes)
        self.glancer = Glancer(self.stream)
        self._idle_ms: dict[int, float] = {}
        self._turn = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def calibrate(self, lent: Lent) -> None:
        """Learn what `prepare` takes while no child has work: call it before the candidate's source has run."""
        taken = [self._prepare(lent, ()) for _ in range(CALIBRATIONS)]
        self._idle_ms[lent.bytes] = statistics.median(taken[CALIBRATIONS // 4 :])

    def prepare(self, lent: Lent, outputs: tuple[Shown, ...] = ()) -> Prepared:
        """All that goes before a call, while the child stands still: the clock may start when this returns.

        Poisons where the last outputs lie, shows the staged inputs, gives pinned cache lines back and flushes the L2
        cache. Needs `calibrate` for inputs of this size.
        """
        return Prepared(self._prepare(lent, outputs), self._idle_ms[lent.bytes])

    def _prepare(self, lent: Lent, outputs: tuple[Shown, ...]) -> float:
        start, end = self._events
        self._context.reset_persisting_l2()
        for output in outputs:
            poison(output, self.stream)
        self.stream.wait()
        self.stream.record(start)
        lent.reveal(self.stream)
        self._turn += 1
        self.stream.fill(self._flush, self._turn, self._flush_bytes // 4)
        self.stream.record(end)
        self.stream.wait()
        return end.since(start)

    def free_bytes(self) -> int:
        """Device memory that nobody has."""
        return self._context.free_bytes()[0]

    def close(self) -> None:
        """Give everything back, the lock last."""
        if self._flush:
            self.glancer.close()
            driver.free(self._flush)
            for event in self._events:
                event.close()
            self.stream.close()
            self.clocks.close()
            self._context.close()
            self._lock.close()
            self._flush = 0
