"""Memory of other processes: tensors read from a candidate's, and mappings shared with it."""

import ctypes
import errno
import fcntl
import math
import mmap
import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernelwright.sandbox.machine.logs import one_line
from kernelwright.sandbox.tensors.values import PLAIN_DTYPES, RawTensor
from kernelwright.sandbox.verdict.errors import MachineError

_libc = ctypes.CDLL(None, use_errno=True)
SHOWN = 4
CHUNK_BYTES = 2**30
"""The kernel moves at most 2 GiB less a page a call."""
MOST_ELEMENTS = 2**48
"""Above any real size, stride or extent, and far below where torch's own arithmetic overflows."""


class _Segment(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class MemoryReadError(Exception):
    """What the child described can not be read; the text says why, on one line, whatever the child's words are."""

    def __init__(self, reason: str) -> None:
        super().__init__(one_line(reason))


class Described(BaseModel):
    """A child's claim of where a tensor lies. Checked for form here, for truth by reading."""

    model_config = ConfigDict(extra="forbid", strict=True)

    dtype: str
    shape: list[int] = Field(max_length=16)
    stride: list[int] = Field(max_length=16)
    """In elements."""
    address: int = Field(ge=0, lt=2**63)


def read_tensors(pid: int, claims: list[Any], limit_bytes: int) -> tuple[RawTensor, ...]:
    """The values at the claimed places, made contiguous.

    `MemoryReadError` where a claim is malformed or unreadable, or where all together would take more than
    `limit_bytes`; that is found before anything is read.
    """
    places = [_place(claim) for claim in claims]
    if sum(map(_cost, places)) > limit_bytes:
        shapes = ", ".join(str(place.shape) for place in places[:SHOWN])
        raise MemoryReadError(f"a result of shapes {shapes} spans more than {limit_bytes} bytes")
    return tuple(_read(pid, place) for place in places)


def _place(claim: Any) -> Described:
    try:
        place = Described.model_validate(claim)
    except ValidationError as error:
        raise MemoryReadError(
            f"the child described an output in a form that can not be read: {error.errors()[0]['msg']}"
        ) from None
    require_plain(place.dtype, place.shape, place.stride)
    return place


def require_plain(dtype: str, shape: list[int], stride: list[int]) -> None:
    """Raise `MemoryReadError` for what is no strided tensor of a plain dtype and of a size that a tensor can have.

    Decides before torch is asked: with some dtypes (those of quantized tensors) it ends the process that asks.
    """
    if dtype not in PLAIN_DTYPES:
        raise MemoryReadError(f"the child described an output of dtype {one_line(dtype, 40)}; return a plain tensor")
    if len(shape) != len(stride):
        raise MemoryReadError(f"the child described an output of {len(shape)} axes with {len(stride)} strides")
    if not all(0 <= number < MOST_ELEMENTS for number in (*shape, *stride)):
        raise MemoryReadError(f"the child described an output of shape {shape} and stride {stride}")
    if max(_span(shape, stride), math.prod(max(1, size) for size in shape)) > MOST_ELEMENTS:
        raise MemoryReadError(
            f"the child described an output of shape {shape} and stride {stride}, which no memory can hold"
        )


def _span(shape: list[int], stride: list[int]) -> int:
    """Elements from the first to the last, those between them included."""
    return 1 + sum((max(1, size) - 1) * step for size, step in zip(shape, stride, strict=True))


def _extent(place: Described) -> int:
    return 0 if 0 in place.shape else _span(place.shape, place.stride)


def _cost(place: Described) -> int:
    """Bytes that reading takes: what is copied, or what it becomes where elements are repeated."""
    return max(_extent(place), math.prod(place.shape)) * int(getattr(torch, place.dtype).itemsize)


def _read(pid: int, place: Described) -> RawTensor:
    shape, extent = tuple(place.shape), _extent(place)
    if not extent:
        return RawTensor(place.dtype, shape, bytearray())
    dtype = getattr(torch, place.dtype)
    data = read_bytes(pid, place.address, extent * dtype.itemsize)
    try:
        whole = torch.frombuffer(data, dtype=dtype).as_strided(shape, place.stride)
        return RawTensor.laid(whole, data)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:  # NotImplementedError is a RuntimeError
        raise MemoryReadError(
            f"an output of dtype {place.dtype} and shape {place.shape} can not be read: {error}"
        ) from None


def read_bytes(pid: int, address: int, length: int) -> bytearray:
    """`length` bytes of another process's memory."""
    buffer = bytearray(length)
    done = 0
    while done < length:
        step = min(CHUNK_BYTES, length - done)
        local = _Segment(ctypes.addressof(ctypes.c_char.from_buffer(buffer, done)), step)
        remote = _Segment(address + done, step)
        got = _libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        if got <= 0:
            raise _failure(ctypes.get_errno(), pid)
        done += got
    return buffer


def _failure(number: int, pid: int) -> Exception:
    if number in (errno.EPERM, errno.ENOSYS):
        return MachineError(
            f"this machine does not let a parent read its child's memory ({os.strerror(number)}); "
            "allow process_vm_readv (in a container: --cap-add SYS_PTRACE, or a seccomp profile that permits it)"
        )
    if number == errno.ESRCH:
        return ProcessLookupError(number, f"process {pid} has ended")
    return MemoryReadError(f"the described output lies outside the memory of process {pid} ({os.strerror(number)})")


ALIGNMENT = 64
"""Tensors start at multiples of this many bytes: a cache line, and the widest vector register."""


class SharedMemory:
    """One shared mapping that holds a fixed list of tensors; sealed, so that its size can not be changed by a child."""

    def __init__(self, layout: Sequence[RawTensor]) -> None:
        self._offsets: list[int] = []
        self._sizes = [len(raw.data) for raw in layout]
        end = 0
        for size in self._sizes:
            self._offsets.append(end)
            end += -(-size // ALIGNMENT) * ALIGNMENT
        self.specs: list[dict[str, Any]] = [
            {"dtype": raw.dtype, "shape": list(raw.shape), "offset": offset}
            for raw, offset in zip(layout, self._offsets, strict=True)
        ]
        self.fd = os.memfd_create("lent", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, max(end, ALIGNMENT))
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._memory = mmap.mmap(self.fd, max(end, ALIGNMENT))
        self.write(layout)

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(self._sizes)

    def write(self, tensors: Iterable[RawTensor]) -> None:
        """Put new values in place; sizes must be those of the layout."""
        for raw, offset, size in zip(tensors, self._offsets, self._sizes, strict=True):
            if len(raw.data) != size:
                raise ValueError(f"{len(raw.data)} bytes for a place of {size}")
            self._memory[offset : offset + size] = raw.on_host

    def overwrite(self) -> None:
        """Leave nothing of the values: NaN, -1 or true is read in their place."""
        first = ctypes.c_char.from_buffer(self._memory)
        _libc.memset(ctypes.byref(first), 0xFF, ctypes.c_size_t(len(self._memory)))

    def changed(self, tensors: Sequence[RawTensor]) -> list[int]:
        """The indices of tensors whose bytes are no longer those given."""
        places = enumerate(zip(tensors, self._offsets, self._sizes, strict=True))
        return [index for index, (raw, *place) in places if _differs(self._memory, raw.on_host, *place)]

    def taken(self, index: int) -> RawTensor:
        """A copy of what lies in the place of a tensor now."""
        spec, start, size = self.specs[index], self._offsets[index], self._sizes[index]
        return RawTensor(spec["dtype"], tuple(spec["shape"]), bytearray(self._memory[start : start + size]))

    def close(self) -> None:
        """Give the memory back; children that still map it keep their own reference until they end."""
        self._memory.close()
        os.close(self.fd)


def _differs(memory: mmap.mmap, data: bytearray, offset: int, size: int) -> bool:
    """Compared where they lie: a slice of a mapping would be a copy of it."""
    if not size:
        return False
    mine, theirs = ctypes.c_char.from_buffer(memory, offset), ctypes.c_char.from_buffer(data)
    return bool(_libc.memcmp(ctypes.byref(mine), ctypes.byref(theirs), ctypes.c_size_t(size)))
