"""Device memory between judge and children: inputs that the judge owns and shares, outputs that children show.

Inputs lie in one allocation whose descriptor goes to the child; the values themselves only the judge has. Outputs lie
in the child's own memory: it names the allocation, the judge maps it. What a child says about places is checked for
form and bounds; a false place can only give wrong values.
"""

import logging
import math
import os
import secrets
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernelwright.sandbox.tensors import (
    ALIGNMENT,
    DeviceBytes,
    MemoryReadError,
    RawTensor,
    ShownBytes,
    require_plain,
    same_bytes,
)
from kernelwright.sandbox.verdict.errors import SandboxError
from kernelwright.sandbox.verdict.memory import gib
from kernelwright_child import driver
from kernelwright_child.gpu_memory import ArrayInterface

LOG = logging.getLogger("kernelwright.sandbox.calls")
Result = TypeVar("Result")
OUT_OF_MEMORY = 2
"""The driver's code for it."""

_relieving = threading.RLock()
"""Of two threads that are short of memory the second finds what the first has freed; no session is asked by both."""
_givers: list[tuple[int, Callable[[], None]]] = []


def register(giver: Callable[[], None], ordinal: int) -> Callable[[], None]:
    """Have `giver` called when memory of this device runs short; returns what takes it off the list again."""
    entry = ordinal, giver
    _givers.append(entry)
    return lambda: _givers.remove(entry)


def relieve() -> None:
    """Have all give back what they keep on the calling thread's device, this process first. Hold the device."""
    with _relieving:
        before = _free_bytes()
        free_cached_memory()
        here = torch.cuda.current_device() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
        asked = [giver for ordinal, giver in tuple(_givers) if ordinal == here]
        for giver in asked:
            _ask(giver)
    LOG.info("memory ran short on device %d: %d sessions were asked for theirs, %s", here, len(asked), _freed(before))


def _free_bytes() -> int | None:
    """Free bytes on the calling thread's device; None where torch has not used it."""
    return torch.cuda.mem_get_info()[0] if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]


def _freed(before: int | None) -> str:
    after = _free_bytes()
    return "what came of it is not known" if before is None or after is None else f"{gib(after - before)} came of it"


def _ask(giver: Callable[[], None]) -> None:
    """Ask one giver. Its errors are only logged: it may belong to another problem, or have just ended."""
    try:
        giver()
    except SandboxError as error:
        LOG.info("no memory was given back: %s", error)


def with_relief(work: Callable[[], Result]) -> Result:
    """Return the result of `work`; where memory is missing, try once more after `relieve`."""
    from kernelwright_child.driver import CudaError

    try:
        return work()
    except torch.OutOfMemoryError:
        pass
    except CudaError as error:
        if error.code != OUT_OF_MEMORY:
            raise
    relieve()
    return work()


def free_cached_memory() -> None:
    """Give back what torch keeps of this process's own device memory."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


POISON_WORD = 0x7FF87FF8
"""A NaN as float32 and float64 and, twice, as bfloat16; as float16 too. As an index it is far out of range."""
SHARED = "shared"
PROBES = 1024
"""Words of an output that are looked at within the clock; all are compared after it."""
OUTPUTS = 64
"""This many outputs are looked at before they are waited for."""


Layout = Sequence[tuple[str, Sequence[int]]]
"""Dtype and shape of each tensor."""


class SharedDeviceMemory:
    """Memory for inputs on the device, which children see. Several may: all that are trusted see one. Close it."""

    def __init__(self, layout: Layout, ordinal: int = 0) -> None:
        self._layout = [(dtype, tuple(shape)) for dtype, shape in layout]
        self._sizes = [math.prod(shape) * int(getattr(torch, dtype).itemsize) for dtype, shape in self._layout]
        self._offsets, end = [], 0
        for size in self._sizes:
            self._offsets.append(end)
            end += -(-size // ALIGNMENT) * ALIGNMENT
        self.specs: list[dict[str, Any]] = [
            {"dtype": dtype, "shape": list(shape), "offset": offset}
            for (dtype, shape), offset in zip(self._layout, self._offsets, strict=True)
        ]
        self._shared = with_relief(lambda: driver.Shared(ordinal, end))
        self.bytes, self.address = self._shared.bytes, self._shared.address
        self._staged: list[torch.Tensor] = []
        self.fd = self._shared.export()

    def is_for(self, layout: Layout) -> bool:
        return self._layout == [(dtype, tuple(shape)) for dtype, shape in layout]

    def stage(self, tensors: Iterable[RawTensor]) -> None:
        """Take the next values, which stay where they are: no child can see them."""
        staged = []
        for raw, size in zip(tensors, self._sizes, strict=True):
            if len(raw.data) != size:
                raise ValueError(f"{len(raw.data)} bytes for a place of {size}")
            staged.append(raw.data.tensor if isinstance(raw.data, DeviceBytes) else _on_device(raw.on_host))
        self._staged = staged

    def stage_nothing(self) -> None:
        """Let go of what was staged, whose memory others may need."""
        self._staged = []

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Within it something of the right size is staged, for learning what it takes to show it."""
        one = with_relief(lambda: torch.empty(max(self._sizes, default=0), dtype=torch.uint8, device="cuda"))
        self._staged = [one[:size] for size in self._sizes]
        try:
            yield
        finally:
            self._staged = []

    @property
    def places(self) -> list[torch.Tensor]:
        """Offsets at which children see each input, in bytes."""
        return [
            seen(self._shared.address + offset, size) for offset, size in zip(self._offsets, self._sizes, strict=True)
        ]

    def spoil(self, stream: driver.Stream) -> None:
        """Issue a fill of what the child sees with one random word: what waits for inputs to appear takes these."""
        stream.fill(self._shared.address, secrets.randbits(32), self.bytes // 4)

    def reveal(self, stream: driver.Stream) -> None:
        """Issue the copy of what was staged to where the child sees it."""
        for tensor, offset in zip(self._staged, self._offsets, strict=False):
            if tensor.numel():
                stream.copy(self._shared.address + offset, tensor.data_ptr(), tensor.numel())

    def taken(self) -> tuple[RawTensor, ...]:
        """A copy of what a trusted child has put where it sees inputs."""
        places = zip(self._layout, self._offsets, self._sizes, strict=True)
        return tuple(
            RawTensor(dtype, shape, copied(self._shared.address + offset, size))
            for (dtype, shape), offset, size in places
        )

    def shown(self, indices: Iterable[int]) -> list["Shown"]:
        """The places at which the child sees these inputs, as outputs."""
        found = []
        for index in indices:
            (dtype, shape), size = self._layout[index], self._sizes[index]
            stride = torch.empty(shape, device="meta").stride()
            found.append(Shown(dtype, shape, stride, self._shared.address + self._offsets[index], size))
        return found

    def changed(self) -> list[int]:
        """The indices of inputs in which what the child sees differs from what was staged."""
        places = enumerate(zip(self._staged, self._offsets, strict=False))
        there = self._shared.address
        return [index for index, (own, offset) in places if not same_bytes(seen(there + offset, len(own)), own)]

    def close(self) -> None:
        """Give both copies back; a child that still maps the shared one keeps it until it ends."""
        if self.fd >= 0:
            os.close(self.fd)
            self._staged = []
            self._shared.close()
            self.fd = -1


class Claim(BaseModel):
    """A child's word on where a device tensor lies."""

    model_config = ConfigDict(extra="forbid", strict=True)

    dtype: str
    shape: list[int] = Field(max_length=16)
    stride: list[int] = Field(max_length=16)
    """In elements."""
    handle: str = Field(pattern=r"^([0-9a-f]{128}|shared)?$")
    """Names the allocation, in hexadecimal digits, or says that it was shared; empty for a tensor without elements."""
    offset: int = Field(ge=0, lt=2**48)


class Shown(NamedTuple):
    """An output where it lies: mapped, and within its allocation."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    address: int
    bytes: int
    """From the first element to the end of the last."""

    @property
    def is_dense(self) -> bool:
        """Whether nothing else lies between its elements."""
        item_bytes: int = getattr(torch, self.dtype).itemsize
        return self.bytes == math.prod(self.shape) * item_bytes

    def laid(self, data: DeviceBytes) -> RawTensor:
        """The values in a copy of the bytes from first to last, made contiguous."""
        if not self.bytes:
            return RawTensor(self.dtype, self.shape, data)
        whole = data.tensor.view(getattr(torch, self.dtype)).as_strided(self.shape, self.stride)
        return RawTensor.laid(whole, data)


SPARE_PLACES = 16
"""Allocations that stay mapped beside those of the last call: results alternate with what lies between."""


class Allocations:
    """Allocations of one child that it has shown. Each is mapped once: later calls find it at no cost. Close it."""

    def __init__(self) -> None:
        self._mapped: dict[bytes, tuple[int, int]] = {}
        self.room: SharedDeviceMemory | None = None
        """Memory for outputs that cannot be mapped where they are."""

    def find(self, claim: dict[str, Any]) -> Shown:
        """The place that a claim names. Raises `MemoryReadError` where it is malformed, unknown or out of bounds."""
        try:
            said = Claim.model_validate(claim)
        except ValidationError as error:
            text = error.errors()[0]["msg"]
            raise MemoryReadError(f"the child described an output in a form that can not be read: {text}") from None
        require_plain(said.dtype, said.shape, said.stride)
        dtype = getattr(torch, said.dtype)
        shape, stride = tuple(said.shape), tuple(said.stride)
        if 0 in shape:
            return Shown(said.dtype, shape, stride, 0, 0)
        base, size = self._room_bounds() if said.handle == SHARED else self._map(bytes.fromhex(said.handle))
        extent = 1 + sum((count - 1) * step for count, step in zip(shape, stride, strict=True))
        if said.offset + extent * dtype.itemsize > size:
            raise MemoryReadError(f"an output of shape {said.shape} reaches beyond its allocation of {size} bytes")
        return Shown(said.dtype, shape, stride, base + said.offset, extent * dtype.itemsize)

    def _room_bounds(self) -> tuple[int, int]:
        if self.room is None:
            raise MemoryReadError("the child put an output into memory that was not shared")
        return self.room.address, self.room.bytes

    @property
    def count(self) -> int:
        return len(self._mapped)

    def _map(self, handle: bytes) -> tuple[int, int]:
        place = self._mapped.pop(handle, None)
        if place is None:
            try:
                base = driver.ipc_open(handle)
                place = base, driver.address_range(base)[1]
            except (driver.CudaError, ValueError) as error:
                raise MemoryReadError(f"the memory of an output can not be mapped: {error}") from None
        self._mapped[handle] = place  # the last is what was shown last
        return place

    def trim(self, used: int) -> None:
        """Unmap what was not shown for longest, beyond the `used` ones of the last call and some.

        What a child frees stays on the device while it is mapped here: one that takes new memory for each call would
        soon have all of it.
        """
        for handle in list(self._mapped)[: max(0, len(self._mapped) - used - SPARE_PLACES)]:
            driver.ipc_close(self._mapped.pop(handle)[0])

    def forget(self) -> None:
        """Unmap all: memory that a child has freed goes only when nobody maps it any more."""
        for base, _ in self._mapped.values():
            driver.ipc_close(base)
        self._mapped.clear()

    def close(self) -> None:
        self.forget()
        if self.room is not None:
            self.room.close()
            self.room = None


class OutputSample(NamedTuple):
    """Words of an output as they were at one moment, and where they lie: `first`, then every `pitch` bytes."""

    first: int
    pitch: int
    words: tuple[int, ...]

    def agrees(self, data: torch.Tensor) -> bool:
        """Whether later bytes of the same output still hold these words."""
        whole = data[: data.numel() // 4 * 4].view(torch.int32)
        found = whole[self.first // 4 :: self.pitch // 4][: len(self.words)]
        return [word & 0xFFFFFFFF for word in found.tolist()] == list(self.words)


class OutputSampler:
    """Looks at secret places of outputs in one small copy each; to be done before the clock is stopped. Close it.

    The places are an even comb with a fresh random start, so any stretch that is not written yet is hit, and nobody can
    write the right places first. What is seen must be what all of the output holds later: a child that says "done" too
    early has changed it meanwhile.
    """

    def __init__(self, stream: driver.Stream) -> None:
        self._stream = stream
        self._pinned = driver.Pinned(OUTPUTS * 4 * PROBES)

    def sample(self, outputs: Sequence[Shown]) -> list[OutputSample]:
        found = []
        for first in range(0, len(outputs), OUTPUTS):
            found += self._sample(outputs[first : first + OUTPUTS])
        return found

    def _sample(self, outputs: Sequence[Shown]) -> list[OutputSample]:
        combs = [comb(output.bytes, secrets.randbelow(2**31)) for output in outputs]
        for index, (output, (first, pitch, rows)) in enumerate(zip(outputs, combs, strict=True)):
            if rows:
                self._stream.gather(self._pinned.address + 4 * PROBES * index, output.address + first, pitch, rows)
        self._stream.wait()
        seen = self._pinned.read(4 * PROBES * len(outputs))
        words = [seen[4 * PROBES * index :][: 4 * rows] for index, (_, _, rows) in enumerate(combs)]
        return [
            OutputSample(first, pitch, struct.unpack(f"<{rows}I", data))
            for (first, pitch, rows), data in zip(combs, words, strict=True)
        ]

    def close(self) -> None:
        """Give the host's memory back."""
        self._pinned.close()


def comb(size: int, draw: int) -> tuple[int, int, int]:
    """First byte, pitch and number of the words to look at in an output of `size` bytes, for one random number."""
    words = size // 4
    rows = min(PROBES, words)
    if not rows:
        return 0, 4, 0
    pitch = words // rows
    return 4 * (draw % (words - (rows - 1) * pitch)), 4 * pitch, rows


def copied(address: int, size: int) -> DeviceBytes:
    """A copy of device memory that is the judge's alone."""
    own = with_relief(lambda: torch.empty(size, dtype=torch.uint8, device="cuda"))
    if size:
        driver.copy(own.data_ptr(), address, size)
    return DeviceBytes(own)


def fetch(output: Shown, in_place: bool = False) -> tuple[RawTensor, torch.Tensor]:
    """A copy of the values, made contiguous, on the device; and the bytes as they lay.

    With `in_place`, for a child that is trusted to leave them alone, the values where they are, if they are contiguous.
    """
    here = in_place and output.bytes > 0
    data = ShownBytes(seen(output.address, output.bytes)) if here else copied(output.address, output.bytes)
    return output.laid(data), data.tensor


def poison(output: Shown, stream: driver.Stream) -> None:
    """Make every element NaN (or a large number), so that an output that is not written again is seen to be wrong.

    Where other data may lie between the elements, nothing is done.
    """
    if not output.is_dense:
        return
    body = output.bytes // 4 if output.address % 4 == 0 else 0
    if body:
        stream.fill(output.address, POISON_WORD, body)
    if output.bytes - 4 * body:
        stream.fill_bytes(output.address + 4 * body, 0x7F, output.bytes - 4 * body)


def seen(address: int, size: int) -> torch.Tensor:
    """Device memory of this process as a tensor of bytes, without a copy, by torch's CUDA."""
    if not size:
        return torch.empty(0, dtype=torch.uint8, device="cuda")
    return torch.as_tensor(ArrayInterface(address, size), device="cuda")


def _on_device(data: bytearray) -> torch.Tensor:
    """Host bytes as a tensor on the device."""
    return torch.frombuffer(data, dtype=torch.uint8).to("cuda") if data else seen(0, 0)
