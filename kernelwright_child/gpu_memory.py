"""The child's side of device memory: shared inputs as tensors, and descriptions of outputs, both without a copy."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from kernelwright_child import driver
from kernelwright_child.wire import NoRoom, refuse_unplain, resolved

SHARED = "shared"
"""The handle of an output in the memory that the judge shares for outputs."""
ALIGNMENT = 64


class ArrayInterface:
    """Device bytes for other libraries without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self._address, self._size = address, size

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self._size,), "typestr": "|u1", "data": (self._address, False), "version": 3}


class MappedMemory:
    """Memory that the judge shares by descriptor, with the tensors in it. Keep it as long as they are used."""

    def __init__(self, fd: int, size: int, specs: Sequence[dict[str, Any]]) -> None:
        """`size`: all bytes of the allocation; `specs`: dtype, shape, and offset in bytes of each tensor."""
        torch.zeros(1, device="cuda")  # makes the device's primary context and takes it
        self._shared = driver.Shared(torch.cuda.current_device(), size, fd)
        self._whole = torch.as_tensor(ArrayInterface(self._shared.address, self._shared.bytes), device="cuda")
        self.tensors = [self._tensor(spec) for spec in specs]

    def close(self) -> None:
        self.tensors = []
        del self._whole
        self._shared.close()

    def _tensor(self, spec: dict[str, Any]) -> torch.Tensor:
        dtype = getattr(torch, spec["dtype"])
        count = math.prod(spec["shape"])
        if count == 0:
            return torch.empty(spec["shape"], dtype=dtype, device="cuda")
        data = self._whole[spec["offset"] : spec["offset"] + count * dtype.itemsize]
        return data.view(dtype).view(spec["shape"]).data  # separate version counters


class Spill:
    """Shared memory for outputs that the judge cannot map, filled from the start in each call."""

    def __init__(self) -> None:
        self._memory: MappedMemory | None = None
        self.takes_all = False
        """Whether the judge can map no memory of this process."""
        self._used = 0

    def use(self, memory: MappedMemory) -> None:
        self._memory = memory

    def clear(self) -> None:
        self._used = 0

    def take(self, tensor: torch.Tensor) -> dict[str, Any]:
        """Copy an output here and describe it, as part of the call's time."""
        size = tensor.numel() * tensor.element_size()
        room = self._memory.tensors[0] if self._memory is not None else None
        if room is None or self._used + size > room.numel():
            raise NoRoom(size)
        offset, self._used = self._used, self._used + -(-size // ALIGNMENT) * ALIGNMENT
        copied = room[offset : offset + size].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        torch.cuda.synchronize()
        return _said(copied, SHARED, offset)


def describe(
    tensor: torch.Tensor, spill: Spill | None = None, waits: bool = True
) -> tuple[dict[str, Any], torch.Tensor]:
    """Describe a device tensor for the judge to map; return the tensor to keep alive until then too.

    Memory that no other process can map (of cudaMallocAsync, managed, or shared by the judge; or all, where the driver
    forbids it) is copied first, as part of the call's time. Unless it `waits`, it raises `NoRoom` instead.
    """
    refuse_unplain(tensor, "cuda")
    if not waits:
        if tensor.is_conj() or tensor.is_neg() or (spill is not None and spill.takes_all):
            raise NoRoom(tensor.nbytes)
        try:
            return (_placed(tensor) if tensor.numel() else _said(tensor, "", 0)), tensor
        except driver.CudaError:
            raise NoRoom(tensor.nbytes) from None
    plain = resolved(tensor)
    if plain is not tensor:
        torch.cuda.synchronize()
        tensor = plain
    if not tensor.numel():
        return _said(tensor, "", 0), tensor
    if spill is not None and spill.takes_all:
        return spill.take(tensor), tensor
    try:
        return _placed(tensor), tensor
    except driver.CudaError:
        if spill is not None:
            return spill.take(tensor), tensor
        copied = tensor.clone(memory_format=torch.contiguous_format)
        torch.cuda.synchronize()
        return _placed(copied), copied


_handles: dict[int, str] = {}
"""Handles by allocation number, since making one takes a system call.

An address would not do: memory that was freed and allocated again has the same address and another handle.
"""


def forget() -> None:
    _handles.clear()


def _placed(tensor: torch.Tensor) -> dict[str, Any]:
    base, _ = driver.address_range(tensor.data_ptr())
    number = driver.allocation_id(base)
    if number not in _handles:
        _handles[number] = driver.ipc_handle(base).hex()
    return _said(tensor, _handles[number], tensor.data_ptr() - base)


def _said(tensor: torch.Tensor, handle: str, offset: int) -> dict[str, Any]:
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "handle": handle,
        "offset": offset,
    }
