"""Calls that a child issues ahead and the judge deals inputs to, one after another, by its own clock.

The child puts each call behind a wait for the judge's flag, and is stopped. For each call the judge's stream waits
until the one before is done, copies its result, poisons its place, writes the next input, flushes the L2 cache by
reads, stamps an event and writes the next flag. So launches are hidden, nothing can overlap or start early, and the
time from stamp to stamp rests on no word of the child. A done flag that comes too early shows poison. Inputs are
written by a kernel: while it runs no kernel of another process does. See docs/decisions/gpu-clock.md.
"""

import ctypes
import time
from collections.abc import Collection, Sequence

import torch

from kernelwright.sandbox.calls.buffers import Shown, poison, seen
from kernelwright.sandbox.tensors import DeviceBytes, RawTensor, Values
from kernelwright_child import driver

FLAG_BYTES = 4096
ISSUE_S, ISSUE_FACTOR = 0.25, 10
"""A child that has not issued its calls after this time, or this many times what they took to issue before, is waiting
for the device: its calls cannot be issued ahead."""
RUN_S = 10.0
"""Wall time for the device to run all calls of a chain."""
POLL_S = 5e-5


class Flags:
    """Two words of device memory that judge and child share. Close it."""

    def __init__(self, ordinal: int) -> None:
        self._shared = driver.Shared(ordinal, FLAG_BYTES)
        self.bytes, self.begun = self._shared.bytes, self._shared.address
        self.done = self.begun + driver.DONE_OFFSET
        driver.call("cuMemsetD32_v2", ctypes.c_uint64(self.begun), ctypes.c_uint(0), ctypes.c_size_t(FLAG_BYTES // 4))
        self.fd = self._shared.export()
        self.last = 0
        """Number of the last call that was asked for."""

    def close(self) -> None:
        self._shared.close()


class Dealer:
    """The events, flags and copies with which the judge deals on one device. Needs torch loaded."""

    def __init__(self, stream: driver.Stream, flush_address: int, flush_bytes: int) -> None:
        self.stream = stream
        self._torch_stream = torch.cuda.ExternalStream(self.stream.handle)  # type: ignore[no-untyped-call]
        self._flush = seen(flush_address, flush_bytes).view(torch.int64)
        self._sink = torch.zeros((), dtype=torch.int64, device="cuda")
        self._rescue = driver.Stream()
        self._gate = driver.Pinned(64)
        self._word = ctypes.cast(self._gate.address, ctypes.POINTER(ctypes.c_uint32))
        self._word[0] = 0
        self._turns = 0
        self._stamps: list[driver.CudaEvent] = []
        self._is_loaded = False

    def load(self) -> None:
        """Run once every kernel of a turn: one that is first loaded behind a wait would hang."""
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

    def deal(self, flags: Flags, places: Sequence[torch.Tensor], turns: "list[Turn]") -> list[float] | None:
        """Run a chain whose calls are issued; ms from stamp to stamp. None where it did not end within `RUN_S`."""
        first = flags.last - (len(turns) - 1) + 1
        while len(self._stamps) < len(turns):
            self._stamps.append(driver.CudaEvent())
        self._turns += 1
        driver.wait_value(self.stream.handle, self._gate.address, self._turns)
        try:
            with torch.cuda.stream(self._torch_stream):
                for number, (turn, stamp) in enumerate(zip(turns, self._stamps, strict=False)):
                    if number:
                        driver.wait_value(self.stream.handle, flags.done, first + number - 1)
                    turn.take(self.stream)
                    for place, raw in zip(places, turn.next.tensors, strict=False):
                        assert isinstance(raw.data, DeviceBytes)
                        copy_by_kernel(place, raw.data.tensor)
                    torch.sum(self._flush, dim=0, out=self._sink)
                    self.stream.record(stamp)
                    if number < len(turns) - 1:
                        driver.write_value(self.stream.handle, flags.begun, first + number)
        finally:
            self._word[0] = self._turns
        limit = time.monotonic() + RUN_S
        while not self.stream.is_done:
            if time.monotonic() > limit:
                self.release(flags, flags.begun, flags.done)
                return None
            time.sleep(POLL_S)
        return [late.since(early) for early, late in zip(self._stamps, self._stamps[1 : len(turns)], strict=False)]

    def release(self, flags: Flags, *words: int) -> None:
        """Let everything pass that waits for these words, or else for inputs, from another stream than the chain's."""
        for word in words or (flags.begun,):
            driver.write_value(self._rescue.handle, word, flags.last)
        self._rescue.wait()

    def close(self) -> None:
        for stamp in self._stamps:
            stamp.close()
        self._rescue.close()
        self._gate.close()


class Turn:
    """The work between two calls: take the result of the one before, make the next input ready."""

    def __init__(self, following: Values, before: Values | None = None, shown: Sequence[Shown] = ()) -> None:
        """`before`: the inputs of the call before, where they are compared with what it left of them."""
        self.next, self._before, self._shown = following, before, shown
        self.own = [torch.empty(output.bytes, dtype=torch.uint8, device="cuda") for output in shown]
        self._seen = [seen(output.address, output.bytes) for output in shown]
        self._same: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def watch(self, places: Sequence[torch.Tensor], changes: Collection[int] = ()) -> None:
        """Compare what lies in these places with the inputs of the call before, but for those that it may change."""
        pairs = zip(places, self._before.tensors if self._before else (), strict=False)
        for place, raw in (pair for index, pair in enumerate(pairs) if index not in changes):
            assert isinstance(raw.data, DeviceBytes)
            room = torch.empty(place.numel() // 8 + 8, dtype=torch.bool, device="cuda")
            self._same.append((place, raw.data.tensor, room, torch.ones(2, dtype=torch.bool, device="cuda")))

    def take(self, stream: driver.Stream) -> None:
        for place, data, room, said in self._same:
            _compare(place, data, room, said)
        for output, there, own in zip(self._shown, self._seen, self.own, strict=True):
            copy_by_kernel(own, there)
            poison(output, stream)

    @property
    def inputs_kept(self) -> bool:
        """Whether the inputs were the same; once all has run."""
        return all(bool(said.all()) for *_, said in self._same)

    def values(self) -> tuple[RawTensor, ...]:
        """The results that were taken, made contiguous."""
        return tuple(output.laid(DeviceBytes(own)) for output, own in zip(self._shown, self.own, strict=True))


def copy_by_kernel(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy bytes by a kernel on the current stream, never by a copy engine."""
    for one, other in _words(target, source):
        torch.bitwise_xor(other, 0, out=one)


def _compare(one: torch.Tensor, other: torch.Tensor, room: torch.Tensor, said: torch.Tensor) -> None:
    """Write whether two tensors of bytes are the same, for the body and the last bytes, without a wait."""
    for number, (mine, theirs) in enumerate(_words(one, other)):
        noted = room[: mine.numel()]
        torch.eq(mine, theirs, out=noted)
        torch.all(noted, dim=0, out=said[min(number, len(said) - 1)])


def _words(one: torch.Tensor, other: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Both as words of 8 bytes where they lie on such, and the rest as bytes."""
    even = all(tensor.data_ptr() % 8 == 0 and tensor.storage_offset() % 8 == 0 for tensor in (one, other))
    body = one.numel() // 8 * 8 if even else 0
    pairs = [(one[:body].view(torch.int64), other[:body].view(torch.int64))] if body else []
    return pairs + ([(one[body:], other[body:])] if body < one.numel() else [])
