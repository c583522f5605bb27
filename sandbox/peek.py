"""Reading a child's memory from outside: how outputs come back as raw bytes.

The judge copies bytes with `process_vm_readv(2)` while the child is stopped. A false address can only make the read
fail or give wrong values; nothing is executed, mapped or unpickled. It costs the child no time inside a timed call.
"""

import ctypes
import errno
import os
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox.errors import MachineError
from sandbox.values import RawTensor

_libc = ctypes.CDLL(None, use_errno=True)
CHUNK_BYTES = 2**30
"""The kernel moves at most 2 GiB less a page a call."""


class _Segment(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class PeekError(Exception):
    """What the child described can not be read; the text says why."""


class Described(BaseModel):
    """A child's claim of where a tensor lies. Checked for form here, for truth by reading."""

    model_config = ConfigDict(extra="forbid", strict=True)

    dtype: str
    shape: list[int] = Field(max_length=16)
    stride: list[int] = Field(max_length=16)
    """In elements."""
    address: int = Field(ge=0, lt=2**63)


def read_tensor(pid: int, claim: dict[str, Any], limit_bytes: int) -> RawTensor:
    """The values at the claimed place, made contiguous. `PeekError` where the claim is malformed or unreadable."""
    try:
        place = Described.model_validate(claim)
    except ValidationError as error:
        raise PeekError(
            f"the child described an output in a form that can not be read: {error.errors()[0]['msg']}"
        ) from None
    dtype = getattr(torch, place.dtype, None)
    if not isinstance(dtype, torch.dtype) or len(place.shape) != len(place.stride):
        raise PeekError(f"the child described an output of dtype {place.dtype!r} and shape {place.shape}")
    if min([*place.shape, *place.stride, 0]) < 0:
        raise PeekError(f"the child described an output of shape {place.shape} and stride {place.stride}")
    if 0 in place.shape:
        return RawTensor(place.dtype, tuple(place.shape), bytearray())
    extent = 1 + sum((size - 1) * stride for size, stride in zip(place.shape, place.stride, strict=True))
    if extent * dtype.itemsize > limit_bytes:
        raise PeekError(
            f"an output of shape {place.shape} and stride {place.stride} spans more than {limit_bytes} bytes"
        )
    data = read_bytes(pid, place.address, extent * dtype.itemsize)
    whole = torch.frombuffer(data, dtype=dtype).as_strided(place.shape, place.stride)
    if not whole.is_contiguous():
        return RawTensor.of(whole)
    return RawTensor(place.dtype, tuple(place.shape), data)


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
    return PeekError(f"the described output lies outside the memory of process {pid} ({os.strerror(number)})")
