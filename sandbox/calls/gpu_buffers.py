"""Device memory between judge and children: inputs that the judge shares, and outputs that children describe.

Inputs lie in one allocation whose descriptor goes to the child; the judge alone holds their values before a call.
Outputs lie in the child's memory: it names the allocation, and the judge maps it. A child's description is checked for
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
from pydantic import Field

from kernelwright.sandbox.machine import gib
from kernelwright.sandbox.tensors import (
    DeviceBytes,
    MemoryReadError,
    RawTensor,
    ShownBytes,
    TensorClaim,
    placed,
    same_bytes,
)
from kernelwright.sandbox.verdict.errors import SandboxError
from kernelwright_child import driver
from kernelwright_child.gpu_memory import ArrayInterface

LOG = logging.getLogger("kernelwright.sandbox.calls")
Result = TypeVar("Result")
OUT_OF_MEMORY = 2

_relieving = threading.RLock()
"""Serialises relief: a second thread finds the memory that the first freed, and no session gets two questions."""
_givers: list[tuple[int, Callable[[], None]]] = []


def register(giver: Callable[[], None], ordinal: int) -> Callable[[], None]:
    """Call `giver` when memory of this device runs short; return a function that removes it."""
    entry = ordinal, giver
    _givers.append(entry)
    return lambda: _givers.remove(entry)


def relieve() -> None:
    """Free cached memory on the calling thread's device, of this process and all givers. Hold the device."""
    with _relieving:
        before = _free_bytes()
        free_cached_memory()
        here = torch.cuda.current_device() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
        asked = [giver for ordinal, giver in tuple(_givers) if ordinal == here]
        for giver in asked:
            try:
                giver()
            except SandboxError as error:  # it may belong to another problem, or have just ended
                LOG.info("no memory was freed: %s", error)
        after = _free_bytes()
    freed = "an unknown amount" if before is None or after is None else gib(after - before)
    LOG.info(
        "memory ran short on device %d: %d sessions were asked to free theirs, %s came free", here, len(asked), freed
    )


def _free_bytes() -> int | None:
    return torch.cuda.mem_get_info()[0] if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]


def with_relief(work: Callable[[], Result]) -> Result:
    """Return the result of `work`; where memory is missing, try again after `relieve`."""
    try:
        return work()
    except torch.OutOfMemoryError:
        pass
    except driver.CudaError as error:
        if error.code != OUT_OF_MEMORY:
            raise
    relieve()
    return work()


def free_cached_memory() -> None:
    """Free the device memory that torch caches in this process."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


POISON_WORD = 0x7FF87FF8
"""A NaN as float32 and float64 and, twice, as bfloat16; as float16 too. As an index it is far out of range."""
SHARED = "shared"
PROBES = 1024
"""Words of an output that are sampled within the timed call; all are compared after it."""
OUTPUTS = 64
"""Outputs that are sampled before each wait."""


Layout = Sequence[tuple[str, Sequence[int]]]
"""Dtype and shape of each tensor."""


class SharedDeviceMemory:
    """Device memory for inputs that children see, to be closed. All trusted children may see one."""

    def __init__(self, layout: Layout, ordinal: int = 0) -> None:
        self._layout = [(dtype, tuple(shape)) for dtype, shape in layout]
        self._sizes = [math.prod(shape) * int(getattr(torch, dtype).itemsize) for dtype, shape in self._layout]
        self.specs, self._offsets, end = placed(self._layout, self._sizes)
        self._shared = with_relief(lambda: driver.Shared(ordinal, end))
        self.bytes, self.address = self._shared.bytes, self._shared.address
        self._staged: list[torch.Tensor] = []
        self.fd = self._shared.export()

    def is_for(self, layout: Layout) -> bool:
        return self._layout == [(dtype, tuple(shape)) for dtype, shape in layout]

    def stage(self, tensors: Iterable[RawTensor]) -> None:
        """Take the next values in their own memory, which no child can see."""
        staged = []
        for raw, size in zip(tensors, self._sizes, strict=True):
            if len(raw.data) != size:
                raise ValueError(f"{len(raw.data)} bytes for a place of {size}")
            staged.append(raw.data.tensor if isinstance(raw.data, DeviceBytes) else _on_device(raw.on_host))
        self._staged = staged

    def stage_nothing(self) -> None:
        self._staged = []

    @contextmanager
    def dummy_values(self) -> Iterator[None]:
        """Stage dummy values within the block, to measure the time to show them."""
        one = with_relief(lambda: torch.empty(max(self._sizes, default=0), dtype=torch.uint8, device="cuda"))
        self._staged = [one[:size] for size in self._sizes]
        try:
            yield
        finally:
            self._staged = []

    @property
    def places(self) -> list[torch.Tensor]:
        """The bytes of each input as children see them."""
        return [
            seen(self._shared.address + offset, size) for offset, size in zip(self._offsets, self._sizes, strict=True)
        ]

    def overwrite(self, stream: driver.Stream) -> None:
        """Issue a fill of the shared inputs with a random word, for code that waits for inputs to appear."""
        stream.fill(self._shared.address, secrets.randbits(32), self.bytes // 4)

    def show_staged(self, stream: driver.Stream) -> None:
        """Issue the copy of the staged values to the shared memory."""
        for tensor, offset in zip(self._staged, self._offsets, strict=False):
            if tensor.numel():
                stream.copy(self._shared.address + offset, tensor.data_ptr(), tensor.numel())

    def taken(self) -> tuple[RawTensor, ...]:
        places = zip(self._layout, self._offsets, self._sizes, strict=True)
        return tuple(
            RawTensor(dtype, shape, copied(self._shared.address + offset, size))
            for (dtype, shape), offset, size in places
        )

    def shown(self, indices: Iterable[int]) -> list["Shown"]:
        found = []
        for index in indices:
            (dtype, shape), size = self._layout[index], self._sizes[index]
            stride = torch.empty(shape, device="meta").stride()
            found.append(Shown(dtype, shape, stride, self._shared.address + self._offsets[index], size))
        return found

    def changed(self) -> list[int]:
        places = enumerate(zip(self._staged, self._offsets, strict=False))
        there = self._shared.address
        return [index for index, (own, offset) in places if not same_bytes(seen(there + offset, len(own)), own)]

    def close(self) -> None:
        """Free both copies; a child that maps the shared one keeps it until it ends."""
        if self.fd >= 0:
            os.close(self.fd)
            self._staged = []
            self._shared.close()
            self.fd = -1


class DeviceTensor(TensorClaim):
    handle: str = Field(pattern=r"^([0-9a-f]{128}|shared)?$")
    """The allocation in hexadecimal digits, or `shared`; empty for a tensor without elements."""
    offset: int = Field(ge=0, lt=2**48)


class Shown(NamedTuple):
    """An output in mapped memory, within its allocation."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    address: int
    bytes: int
    """From the first element to the end of the last."""

    @property
    def itemsize(self) -> int:
        return int(getattr(torch, self.dtype).itemsize)

    @property
    def is_dense(self) -> bool:
        """True if its elements fill their memory without gaps."""
        return self.bytes == math.prod(self.shape) * self.itemsize

    def laid(self, data: DeviceBytes) -> RawTensor:
        if not self.bytes:
            return RawTensor(self.dtype, self.shape, data)
        whole = data.tensor.view(getattr(torch, self.dtype)).as_strided(self.shape, self.stride)
        return RawTensor.laid(whole, data)


SPARE_PLACES = 16
"""Allocations that stay mapped besides those of the last call, since results alternate among them."""


class Allocations:
    """The described allocations of one child, each mapped once, to be closed."""

    def __init__(self) -> None:
        self._mapped: dict[bytes, tuple[int, int]] = {}
        self.room: SharedDeviceMemory | None = None
        """Shared memory for outputs that cannot be mapped."""

    def find(self, claim: dict[str, Any]) -> Shown:
        """Map the place of a claim. Raises `MemoryReadError` where it is malformed, unknown or out of bounds."""
        said = DeviceTensor.checked(claim)
        dtype = getattr(torch, said.dtype)
        shape, stride = tuple(said.shape), tuple(said.stride)
        if 0 in shape:
            return Shown(said.dtype, shape, stride, 0, 0)
        base, size = self._room_bounds() if said.handle == SHARED else self._map(bytes.fromhex(said.handle))
        extent = said.extent
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
                raise MemoryReadError(f"the memory of an output cannot be mapped: {error}") from None
        self._mapped[handle] = place  # the most recent one is last
        return place

    def trim(self, used: int) -> None:
        """Unmap the longest unused allocations, except `used` ones of the last call and some more.

        Freed memory of a child stays on the device while it is mapped here, so a child that allocates for each call
        would soon take all of it.
        """
        for handle in list(self._mapped)[: max(0, len(self._mapped) - used - SPARE_PLACES)]:
            driver.ipc_close(self._mapped.pop(handle)[0])

    def forget(self) -> None:
        """Unmap all, since freed memory of a child stays while it is mapped."""
        for base, _ in self._mapped.values():
            driver.ipc_close(base)
        self._mapped.clear()

    def close(self) -> None:
        self.forget()
        if self.room is not None:
            self.room.close()
            self.room = None


class OutputSample(NamedTuple):
    """Words of an output at one moment, from byte `first` on every `pitch` bytes."""

    first: int
    pitch: int
    words: tuple[int, ...]

    def agrees(self, data: torch.Tensor) -> bool:
        whole = data[: data.numel() // 4 * 4].view(torch.int32)
        found = whole[self.first // 4 :: self.pitch // 4][: len(self.words)]
        return [word & 0xFFFFFFFF for word in found.tolist()] == list(self.words)


class OutputSampler:
    """A sampler of secret places of outputs, used before the clock stops, to be closed.

    The places are an even comb with a new random start, so any unwritten stretch is hit, and no code can write the
    sampled places first. The complete output must later agree with the sample: a child that says "done" too early has
    changed it since.
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
        self._pinned.close()


def comb(size: int, draw: int) -> tuple[int, int, int]:
    """Return first byte, pitch and number of the sampled words of `size` bytes, for one random number."""
    words = size // 4
    rows = min(PROBES, words)
    if not rows:
        return 0, 4, 0
    pitch = words // rows
    return 4 * (draw % (words - (rows - 1) * pitch)), 4 * pitch, rows


def copied(address: int, size: int) -> DeviceBytes:
    own = with_relief(lambda: torch.empty(size, dtype=torch.uint8, device="cuda"))
    if size:
        driver.copy(own.data_ptr(), address, size)
    return DeviceBytes(own)


def fetch(output: Shown, in_place: bool = False) -> tuple[RawTensor, torch.Tensor]:
    """Return a contiguous copy of the values on the device, and their bytes in the child's layout.

    With `in_place`, for a trusted child, contiguous values are not copied.
    """
    here = in_place and output.bytes > 0
    data = ShownBytes(seen(output.address, output.bytes)) if here else copied(output.address, output.bytes)
    return output.laid(data), data.tensor


def poison(output: Shown, stream: driver.Stream) -> None:
    """Set every element to NaN (or a large number), so that an output that is not rewritten is wrong.

    Outputs with gaps stay, since other data may lie there.
    """
    if not output.is_dense:
        return
    body = output.bytes // 4 if output.address % 4 == 0 else 0
    if body:
        stream.fill(output.address, POISON_WORD, body)
    if output.bytes - 4 * body:
        stream.fill_bytes(output.address + 4 * body, 0x7F, output.bytes - 4 * body)


def seen(address: int, size: int) -> torch.Tensor:
    """View device memory of this process as a tensor of bytes, without a copy."""
    if not size:
        return torch.empty(0, dtype=torch.uint8, device="cuda")
    return torch.as_tensor(ArrayInterface(address, size), device="cuda")


def _on_device(data: bytearray) -> torch.Tensor:
    return torch.frombuffer(data, dtype=torch.uint8).to("cuda") if data else seen(0, 0)
