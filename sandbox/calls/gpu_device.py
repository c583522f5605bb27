"""The judge's hold on one device: exclusive, flushed before each call, known to be idle, and its chains of calls."""

import ctypes
import math
import statistics
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Self

import torch

from kernelwright.sandbox.calls.gpu_buffers import Layout, OutputSampler, SharedDeviceMemory, Shown, poison, seen
from kernelwright.sandbox.calls.sessions import ANSWER_MS, Prepared
from kernelwright.sandbox.clocks import Clocks
from kernelwright.sandbox.locks import DeviceLock, WaitLimit
from kernelwright.sandbox.tensors import DeviceBytes, RawTensor, Values, words
from kernelwright.sandbox.verdict.errors import BrokenProblem, MachineError
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright_child import driver

FLUSH = 2
"""Bytes written between calls, as a multiple of the L2 cache's size, so that no data of a call remain in it."""
COVER = 8
"""Number of such writes before the judge's own work, so that even a slow host issues it in time."""
CALIBRATIONS = 20
PROBES, PROBE_PAUSE_S = 3, 2e-4
"""Probes of an idle device before each call, and the pause before each."""
WAIT_S = 600
LOOK_S = 0.05
"""Interval at which a waiting thread checks whether the lock is still wanted."""

# Calls that a child issues ahead, with inputs that the judge hands over one by one on its own clock.
#
# The child puts each call behind a wait for the judge's flag, and is stopped. For each call the judge's stream waits
# for the end of the previous one, copies its result, poisons its place, writes the next input, flushes the L2 cache by
# reads, records an event and writes the next flag. So launches are hidden, nothing can overlap or start early, and the
# time between events depends on no claim of the child. A done flag that comes too early shows poison. A kernel writes
# the inputs: while it runs, no kernel of another process does. See docs/decisions/gpu-clock.md.

FLAG_BYTES = 4096
ISSUE_S, ISSUE_FACTOR = 0.25, 10
"""Limit for issuing calls, as a time and a multiple of the earlier time. A later child waits for the device, so its
calls cannot be issued ahead."""
RUN_S = 10.0
"""Wall time limit of all calls of a chain on the device."""
POLL_S = 5e-5


class Flags:
    """Two words of device memory that judge and child share, to be closed."""

    def __init__(self, ordinal: int) -> None:
        self._shared = driver.Shared(ordinal, FLAG_BYTES)
        self.bytes, self.begun = self._shared.bytes, self._shared.address
        self.done = self.begun + driver.DONE_OFFSET
        driver.call("cuMemsetD32_v2", ctypes.c_uint64(self.begun), ctypes.c_uint(0), ctypes.c_size_t(FLAG_BYTES // 4))
        self.fd = self._shared.export()
        self.last = 0

    def close(self) -> None:
        self._shared.close()


class Dealer:
    """The events, flags and copies with which the judge runs chains on one device. Needs torch loaded."""

    def __init__(self, stream: driver.Stream, flush_address: int, flush_bytes: int) -> None:
        self.stream = stream
        self._torch_stream = torch.cuda.ExternalStream(self.stream.handle)  # type: ignore[no-untyped-call]
        self._flush = seen(flush_address, flush_bytes).view(torch.int64)
        self._sink = torch.zeros((), dtype=torch.int64, device="cuda")
        self._rescue = driver.Stream()
        self._gate = driver.Pinned(64)
        self._word = ctypes.cast(self._gate.address, ctypes.POINTER(ctypes.c_uint32))
        self._word[0] = 0
        self._chains = 0
        self._stamps: list[driver.CudaEvent] = []
        self._is_loaded = False

    def load(self) -> None:
        """Run every kernel of a handover once: loading one behind a wait would hang."""
        if self._is_loaded:
            return
        here = torch.zeros(64, dtype=torch.uint8, device="cuda")
        with torch.cuda.stream(self._torch_stream):
            for count in (1, 4, 64):
                copy_by_kernel(here[:count], here[:count].clone())
                _compare(here[:count], here[:count], torch.empty(64, dtype=torch.bool, device="cuda"), here[:1].bool())
            torch.sum(self._flush, dim=0, out=self._sink)
        driver.synchronize()
        self._is_loaded = True

    def deal(self, flags: Flags, places: Sequence[torch.Tensor], handovers: "list[Handover]") -> list[float] | None:
        """Run a chain of issued calls; return the ms between events, None where it did not end within `RUN_S`."""
        first = flags.last - (len(handovers) - 1) + 1
        while len(self._stamps) < len(handovers):
            self._stamps.append(driver.CudaEvent())
        self._chains += 1
        driver.wait_value(self.stream.handle, self._gate.address, self._chains)
        try:
            with torch.cuda.stream(self._torch_stream):
                for number, (handover, stamp) in enumerate(zip(handovers, self._stamps, strict=False)):
                    if number:
                        driver.wait_value(self.stream.handle, flags.done, first + number - 1)
                    handover.take(self.stream)
                    for place, raw in zip(places, handover.next.tensors, strict=False):
                        assert isinstance(raw.data, DeviceBytes)
                        copy_by_kernel(place, raw.data.tensor)
                    torch.sum(self._flush, dim=0, out=self._sink)
                    self.stream.record(stamp)
                    if number < len(handovers) - 1:
                        driver.write_value(self.stream.handle, flags.begun, first + number)
        finally:
            self._word[0] = self._chains
        limit = time.monotonic() + RUN_S
        while not self.stream.is_done:
            if time.monotonic() > limit:
                self.release(flags, flags.begun, flags.done)
                return None
            time.sleep(POLL_S)
        return [late.since(early) for early, late in zip(self._stamps, self._stamps[1 : len(handovers)], strict=False)]

    def release(self, flags: Flags, *words: int) -> None:
        """Release all waits for these words, or by default for inputs, from another stream."""
        for word in words or (flags.begun,):
            driver.write_value(self._rescue.handle, word, flags.last)
        self._rescue.wait()

    def close(self) -> None:
        for stamp in self._stamps:
            stamp.close()
        self._rescue.close()
        self._gate.close()


class Handover:
    """The work between two calls: take the previous result, and prepare the next input."""

    def __init__(
        self, following: Values, before: Values | None, shown: Sequence[Shown], old: Sequence[torch.Tensor]
    ) -> None:
        """`before`: the previous call's inputs, if they are checked. `old`: copies that those of `shown` replace."""
        self.next, self._before, self._shown = following, before, shown
        self.own = old or [torch.empty(output.bytes, dtype=torch.uint8, device="cuda") for output in shown]
        self._seen = [seen(output.address, output.bytes) for output in shown]
        self._same: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def watch(self, places: Sequence[torch.Tensor], rooms: Sequence[torch.Tensor], changes: Collection[int]) -> None:
        """Compare these places with the previous call's inputs, but not `changes`. `rooms`: a bool a word, for each."""
        pairs = zip(places, rooms, self._before.tensors if self._before else (), strict=False)
        for place, room, raw in (pair for index, pair in enumerate(pairs) if index not in changes):
            assert isinstance(raw.data, DeviceBytes)
            self._same.append((place, raw.data.tensor, room, torch.ones(2, dtype=torch.bool, device="cuda")))

    def take(self, stream: driver.Stream) -> None:
        for place, data, room, said in self._same:
            _compare(place, data, room, said)
        for output, there, own in zip(self._shown, self._seen, self.own, strict=True):
            copy_by_kernel(own, there)
            poison(output, stream)

    @property
    def inputs_kept(self) -> bool:
        return all(bool(said.all()) for *_, said in self._same)

    def values(self) -> tuple[RawTensor, ...]:
        return tuple(output.laid(DeviceBytes(own)) for output, own in zip(self._shown, self.own, strict=True))


def copy_by_kernel(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy bytes by a kernel on the current stream, never by a copy engine."""
    for one, other in words(target, source):
        torch.bitwise_xor(other, 0, out=one)


def _compare(one: torch.Tensor, other: torch.Tensor, room: torch.Tensor, said: torch.Tensor) -> None:
    """Write the equality of two tensors of bytes, for the body and the last bytes, without a wait."""
    for number, (mine, theirs) in enumerate(words(one, other)):
        noted = room[: mine.numel()]
        torch.eq(mine, theirs, out=noted)
        torch.all(noted, dim=0, out=said[min(number, len(said) - 1)])


class CudaDevice:
    """One device for one process. Use it within `hold`."""

    _wait_s = WAIT_S

    def __init__(self, ordinal: int) -> None:
        """Open the device without its lock. Raises `MachineError` for a missing device."""
        self.ordinal = ordinal
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
        self.sampler = OutputSampler(self.stream)
        self.limit_bytes: int | None = None
        """Limit of usable memory; None for all."""
        self._idle_ms: dict[int, float] = {}
        self._calibrated: set[int] = set()
        """Calibrated sizes since the device is held."""
        self._guests: set[int] = set()
        """Threads for which the holding thread waits, and which may use the device."""
        self.wakes = False
        """Whether a call begins with a tiny kernel before its first event; see `DeviceTiming`."""
        self._flush_word = 0
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
        """Hold the device alone among all judges of this machine and all threads of this one; may be nested.

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
        """Use the device in a thread for which the holding thread waits."""
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
            torch.cuda.set_device(self.ordinal)

    def calibrate(self, shared: SharedDeviceMemory) -> None:
        """Measure the time of `prepare` on an idle device: call it before the candidate's source runs.

        Once per size while the device is held, so that all processes of a candidate have the same calibration.
        """
        if shared.bytes in self._calibrated:
            return
        with shared.dummy_values():
            taken = [self._prepare(shared) for _ in range(CALIBRATIONS)]
        self._idle_ms[shared.bytes] = statistics.median(taken[CALIBRATIONS // 4 :])
        self._calibrated.add(shared.bytes)

    def prepare(self, shared: SharedDeviceMemory, outputs: tuple[Shown, ...] = ()) -> Prepared:
        """Prepare a call while the child is stopped: the clock may start on return.

        Poisons the last outputs, overwrites the last inputs, probes for an idle device, shows the staged inputs,
        releases pinned cache lines and flushes the L2 cache. `calibrate` for this size of inputs must come first.
        """
        driver.synchronize()
        for output in outputs:
            poison(output, self.stream)
        shared.overwrite(self.stream)
        self.stream.wait()
        answer = self._longest_answer_ms()
        if answer > ANSWER_MS:  # a busy host is late once; work on the device delays every probe
            answer = min(answer, self._longest_answer_ms())
        return Prepared(self._prepare(shared), self._idle_ms.get(shared.bytes, math.inf), answer)

    def is_busy(self) -> bool:
        return self._longest_answer_ms(4 * PROBES) > ANSWER_MS

    def _longest_answer_ms(self, probes: int = PROBES) -> float:
        return max(self._answer_ms() for _ in range(probes))

    def _answer_ms(self) -> float:
        """Return the ms of a little work, after a pause in which another waiting context gets its slice."""
        time.sleep(PROBE_PAUSE_S)
        start = time.perf_counter_ns()
        self.stream.fill(self._flush, 0, 1)
        self.stream.wait()
        return (time.perf_counter_ns() - start) / 1e6

    def _prepare(self, shared: SharedDeviceMemory) -> float:
        start, end = self._events
        self._context.reset_persisting_l2()
        self._flush_word += 1
        # The device is busy with this while the rest is issued, so that the host's speed is not part of the time.
        for _ in range(COVER):
            self.stream.fill(self._flush, -self._flush_word % 2**32, self._flush_bytes // 4)
        self.stream.record(start)
        shared.show_staged(self.stream)
        self.stream.fill(self._flush, self._flush_word, self._flush_bytes // 4)
        self.stream.record(end)
        self.stream.wait()
        return end.since(start)

    @cached_property
    def chain_obstacle(self) -> str:
        """Reason why calls cannot be issued ahead on this device; empty where they can."""
        return driver.chain_obstacle(self.ordinal)

    @cached_property
    def dealer(self) -> Dealer:
        return Dealer(self.stream, self._flush, self._flush_bytes)

    def free_bytes(self) -> int:
        """Return the free device memory that may be used."""
        free, total = self._context.free_bytes()
        return max(0, free - (total - self.total_bytes()))

    def used_bytes(self) -> int:
        free, total = self._context.free_bytes()
        return total - free

    def total_bytes(self) -> int:
        """Return the device memory that may be used: all, or `limit_bytes` if that is less."""
        total = self._context.free_bytes()[1]
        return total if self.limit_bytes is None else min(total, self.limit_bytes)

    def close(self) -> None:
        if self._flush:
            self.make_current()
            self.sampler.close()
            if "dealer" in self.__dict__:
                self.dealer.close()
            driver.free(self._flush)
            for event in self._events:
                event.close()
            self.stream.close()
            self.clocks.close()
            self._context.close()
            self._flush = 0


def device_of(settings: JudgeSettings) -> CudaDevice:
    """Return the device of these settings, opened when first needed, with their memory limit."""
    device = _opened(settings.ordinal)
    device.limit_bytes = settings.device_memory_bytes
    return device


_opened = cache(CudaDevice)


class SharedInputs:
    """One allocation for all references of a problem, made when the layout is known, to be closed."""

    def __init__(self) -> None:
        self._memory: SharedDeviceMemory | None = None

    def for_layout(self, layout: Layout, device: CudaDevice) -> SharedDeviceMemory:
        """Return the memory; all references must have the same layout."""
        if self._memory is None:
            device.make_current()
            self._memory = SharedDeviceMemory(layout, device.ordinal)
            device.calibrate(self._memory)
        if not self._memory.is_for(layout):
            raise BrokenProblem(
                "get_inputs returns tensors of another shape or dtype under another seed; let it keep them"
            )
        return self._memory

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None
