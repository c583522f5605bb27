"""The judge's hold on one device: exclusive, flushed before every call, and known to be idle when it should be."""

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

from kernelwright.sandbox.calls.buffers import Glancer, Lent, Shown, poison
from kernelwright.sandbox.clocks import Clocks
from kernelwright.sandbox.locks import DeviceLock, WaitLimit
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright_child import driver

if TYPE_CHECKING:
    from kernelwright.sandbox.calls.dealing import Dealer
from kernelwright.sandbox.calls.buffers import Layout
from kernelwright.sandbox.clocks import ClockSample
from kernelwright.sandbox.tensors import Values
from kernelwright.sandbox.verdict.errors import BrokenProblem

FLUSH = 2
"""Times the L2 cache's size: as much is written between calls, so that nothing of them is left in it."""
COVER = 8
"""Times that it is written before the judge's own work is timed, which is issued meanwhile, by a slow host too."""
CALIBRATIONS = 20
LATE_MS, LATE_SHARE = 0.03, 0.25
"""Excess over an idle device that the judge's own work may take: the larger of a time and a share."""
PROBES, PROBE_PAUSE_S = 3, 2e-4
"""Probes before each call of whether the device answers at once."""
ANSWER_MS = 0.4
"""An idle device does a little work for the judge within this time, on the host's clock."""
WAIT_S = 600
LOOK_S = 0.05
"""Interval at which a thread that waits for the lock looks whether it is still wanted."""


class Prepared(NamedTuple):
    """Times of the judge's own work before a call, in ms."""

    taken_ms: float
    """On the device's clock."""
    idle_ms: float
    """The same on an idle device."""
    answer_ms: float = 0.0
    """The longest that the device took to do next to nothing, on the host's clock, before the inputs appeared."""

    @property
    def was_idle(self) -> bool:
        """False where something else ran meanwhile.

        Contexts of different processes have the device in turns of a millisecond or two. Work of a child that stands
        still (queued before, or a kernel that stays) makes the judge wait for its turn, which the host's clock sees.
        Where a turn of the judge's ends within its own work, that work takes longer, which the device's clock sees.
        """
        in_time = self.taken_ms - self.idle_ms <= max(LATE_MS, LATE_SHARE * self.idle_ms)
        return in_time and self.answer_ms <= ANSWER_MS


class CudaDevice:
    """One device for one process. Calls on it belong between `hold` and its end; children are others' processes."""

    def __init__(self, ordinal: int = 0, wait_s: float = WAIT_S) -> None:
        """Takes no lock yet; `wait_s` is for `hold`. Raises `MachineError` where there is no device."""
        self.ordinal = ordinal
        self._wait_s = wait_s
        try:
            self.uuid = driver.device_uuid(ordinal)
            self._context = driver.Context(ordinal)
            self.name, self.architecture = self._context.name, self._context.architecture
            self.clocks = Clocks(self.uuid)
            self.stream = driver.Stream()
            self._events = driver.CudaEvent(), driver.CudaEvent()
            self._flush_bytes = FLUSH * max(self._context.attribute("l2_bytes"), 2**20)
            self._flush = driver.allocate(self._flush_bytes)
        except driver.CudaError as error:
            raise MachineError(f"no CUDA device {ordinal} can be used ({error}); see `kernelwright doctor`") from None
        self.glancer = Glancer(self.stream)
        self.limit_bytes: int | None = None
        """Of memory that may be used; None for all."""
        self._idle_ms: dict[int, float] = {}
        self._calibrated: set[int] = set()
        """Sizes for which that was learned since the device is held."""
        self._guests: set[int] = set()
        """Threads that use it as the one that holds it, which waits for them."""
        self.wakes = False
        """Whether a call begins with a tiny kernel, behind which its first event lies: see `DeviceTiming`."""
        self._turn = 0
        self._threads = threading.RLock()
        self._lock: DeviceLock | None = None
        self._holds = 0

    def __enter__(self) -> Self:
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        self.close()

    @contextmanager
    def hold(self, stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Have the device alone, among all judges of this machine and all threads of this one; may be nested.

        Raises `MachineError` where another process keeps it, and where the waiting is `stopped`.
        """
        if threading.get_ident() in self._guests:
            self.make_current()
            yield
            return
        self._take(stopped)
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def as_guest(self) -> Iterator[None]:
        """In a thread that the one that holds the device waits for: within it this one has it too."""
        here = threading.get_ident()
        self._guests.add(here)
        try:
            self.make_current()
            yield
        finally:
            self._guests.discard(here)

    def _take(self, stopped: Callable[[], bool] = lambda: False) -> None:
        while not self._threads.acquire(timeout=LOOK_S):
            if stopped():
                raise MachineError(f"the judging was stopped before its turn on device {self.uuid} came")
        try:
            self.make_current()
            if self._holds == 0:
                self._lock = DeviceLock(self.uuid, WaitLimit(self._wait_s, stopped))
                self._calibrated.clear()
            self._holds += 1
        except BaseException:
            self._threads.release()
            raise

    def _leave(self) -> None:
        self._holds -= 1
        if self._holds == 0 and self._lock is not None:
            self._lock.close()
            self._lock = None
        self._threads.release()

    def make_current(self) -> None:
        """Use the device's context from the calling thread, also through torch."""
        self._context.make_current()
        if self.ordinal:
            import torch

            torch.cuda.set_device(self.ordinal)

    def calibrate(self, lent: Lent) -> None:
        """Learn what `prepare` takes while no child has work: call it before the candidate's source has run.

        Once for each size while the device is held: later processes of a candidate are measured against what was
        learned before the first of them ran.
        """
        if lent.bytes in self._calibrated:
            return
        with lent.rehearsal():
            taken = [self._prepare(lent) for _ in range(CALIBRATIONS)]
        self._idle_ms[lent.bytes] = statistics.median(taken[CALIBRATIONS // 4 :])
        self._calibrated.add(lent.bytes)

    def prepare(self, lent: Lent, outputs: tuple[Shown, ...] = ()) -> Prepared:
        """All that goes before a call, while the child is stopped: the clock may start when this returns.

        Poisons where the last outputs lie, makes the inputs of the last call unusable, looks whether the device is
        idle, shows the staged inputs, gives pinned cache lines back and flushes the L2 cache. Without `calibrate` for
        inputs of this size it is not known what that takes on an idle device.
        """
        driver.synchronize()
        for output in outputs:
            poison(output, self.stream)
        lent.spoil(self.stream)
        self.stream.wait()
        answer = self._longest_answer_ms()
        if answer > ANSWER_MS:  # a busy host is late once; work on the device makes us wait again
            answer = min(answer, self._longest_answer_ms())
        return Prepared(self._prepare(lent), self._idle_ms.get(lent.bytes, math.inf), answer)

    def is_busy(self) -> bool:
        """Whether something else runs on the device right now."""
        return self._longest_answer_ms(4 * PROBES) > ANSWER_MS

    def _longest_answer_ms(self, probes: int = PROBES) -> float:
        return max(self._answer_ms() for _ in range(probes))

    def _answer_ms(self) -> float:
        """Time in ms to do next to nothing, once another context that waits has had the time to get its slice."""
        time.sleep(PROBE_PAUSE_S)
        start = time.perf_counter_ns()
        self.stream.fill(self._flush, 0, 1)
        self.stream.wait()
        return (time.perf_counter_ns() - start) / 1e6

    def _prepare(self, lent: Lent) -> float:
        start, end = self._events
        self._context.reset_persisting_l2()
        self._turn += 1
        # The device is at this while all that follows is issued: how fast the host is shall not be in the time.
        for _ in range(COVER):
            self.stream.fill(self._flush, -self._turn % 2**32, self._flush_bytes // 4)
        self.stream.record(start)
        lent.reveal(self.stream)
        self.stream.fill(self._flush, self._turn, self._flush_bytes // 4)
        self.stream.record(end)
        self.stream.wait()
        return end.since(start)

    @cached_property
    def chain_obstacle(self) -> str:
        """Why calls cannot be issued ahead on this device; empty where they can."""
        return driver.chain_obstacle(self.ordinal)

    @cached_property
    def dealer(self) -> "Dealer":
        """The dealer of inputs to calls that were issued ahead."""
        from kernelwright.sandbox.calls.dealing import Dealer

        return Dealer(self.stream, self._flush, self._flush_bytes)

    def free_bytes(self) -> int:
        """Device memory that nobody has, as far as it may be used."""
        free, total = self._context.free_bytes()
        return max(0, free - (total - self.total_bytes()))

    def used_bytes(self) -> int:
        """Device memory that all processes together have."""
        free, total = self._context.free_bytes()
        return total - free

    def total_bytes(self) -> int:
        """All device memory that may be used: what there is, or `limit_bytes` if that is less."""
        total = self._context.free_bytes()[1]
        return total if self.limit_bytes is None else min(total, self.limit_bytes)

    def close(self) -> None:
        if self._flush:
            self.make_current()
            self.glancer.close()
            if "dealer" in self.__dict__:
                self.dealer.close()
            driver.free(self._flush)
            for event in self._events:
                event.close()
            self.stream.close()
            self.clocks.close()
            self._context.close()
            self._flush = 0


def device_of(settings: Settings) -> CudaDevice:
    """The one that these settings name, opened when first needed; they say how much of its memory may be used."""
    device = _opened(settings.ordinal)
    device.limit_bytes = settings.device_memory_bytes
    return device


def first_device() -> CudaDevice:
    """The first that this process may see, opened when first needed."""
    return _opened(0)


@cache
def _opened(ordinal: int) -> CudaDevice:
    return CudaDevice(ordinal)


CLOCKS, CLOCKS_MS = 0.02, 0.05
"""By how much, of the time and at least, the kernel's clock of a process may be off the judge's in one call."""


class Witnessed(NamedTuple):
    """Observations of one call on the device, besides its time on the judge's clock."""

    device_ms: float | None
    """Time of the device's events, as the worker reports it. A hint."""
    prepared: Prepared
    clocks: ClockSample | None
    made_twice: bool = False
    """Whether a candidate made it once more on the same values, after one for which memory was missing: the first may
    have done the work."""


class Timed(NamedTuple):
    """One call's result, its time on the judge's clock, and the processor time of all threads of the child."""

    output: Values
    milliseconds: float
    cpu_ms: float
    device: Witnessed | None = None
    """Further observations of a call on a GPU."""


def beyond_threads(settings: Settings, milliseconds: float, cpu_ms: float) -> str:
    """Say how a candidate's call used more processor time than its threads can; empty where it did not.

    A child that is timed has a core a thread, and all threads that it starts stay there, however many they are. So it
    takes moving them to other cores.
    """
    threads = settings.threads
    if threads >= len(settings.cores) or cpu_ms <= threads * (milliseconds * (1 + CLOCKS) + CLOCKS_MS):
        return ""
    used = f"{cpu_ms:.2f} ms of processor time in a call of {milliseconds:.2f} ms"
    return f"the candidate used {used}, more than --threads {threads} allows"


class SharedInputs:
    """One allocation for all references of a problem, made when its layout is known. Close it."""

    def __init__(self) -> None:
        self._lent: Lent | None = None

    def for_layout(self, layout: Layout, device: CudaDevice) -> Lent:
        """The memory; all references have one layout, since those that see it would go on seeing it."""
        if self._lent is None:
            device.make_current()
            self._lent = Lent(layout, device.ordinal)
            device.calibrate(self._lent)
        if not self._lent.is_for(layout):
            raise BrokenProblem("get_inputs gives tensors of another shape or dtype under another seed; let it not")
        return self._lent

    def close(self) -> None:
        if self._lent is not None:
            self._lent.close()
            self._lent = None
