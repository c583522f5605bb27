"""The child's side of device memory: lent inputs as tensors, and where outputs lie. Both without a copy."""

from collections.abc import Sequence
from typing import Any

import torch

from sandbox.child.wire import WireError
from sandbox.gpu import driver


class _Bytes:
    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


class Borrowed:
    """Memory that the judge lends by descriptor, and the tensors in it. Keep it as long as they are used."""

    def __init__(self, fd: int, size: int, specs: Sequence[dict[str, Any]]) -> None:
        """`size`: all bytes of the allocation; `specs`: dtype, shape, and offset in bytes of each tensor."""
        torch.zeros(1, device="cuda")  # makes the device's primary context and takes it
        self._shared = driver.Shared(torch.cuda.current_device(), size, fd)
        self._whole = torch.as_tensor(_Bytes(self._shared.address, self._shared.bytes), device="cuda")
        self.tensors = [self._tensor(spec) for spec in specs]

    def _tensor(self, spec: dict[str, Any]) -> torch.Tensor:
        dtype = getattr(torch, spec["dtype"])
        count = 1
        for size in spec["shape"]:
            count *= size
        if count == 0:
            return torch.empty(spec["shape"], dtype=dtype, device="cuda")
        data = self._whole[spec["offset"] : spec["offset"] + count * dtype.itemsize]
        return data.view(dtype).view(spec["shape"])


def describe(tensor: torch.Tensor) -> tuple[dict[str, Any], torch.Tensor]:
    """Where a device tensor lies, for the judge to map; and the tensor to keep alive until it has done so.

    Memory that no other process can map (of cudaMallocAsync, managed, or lent by the judge) is copied first, which is
    part of the call's time.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        raise WireError(f"a {type(tensor).__name__} of layout {tensor.layout} is no plain tensor")
    if tensor.device.type != "cuda":
        raise WireError(f"a tensor on {tensor.device} was returned where one on cuda is wanted")
    if not tensor.numel():
        return _said(tensor, "", 0), tensor
    try:
        return _placed(tensor), tensor
    except driver.CudaError:
        copied = tensor.clone(memory_format=torch.contiguous_format)
        torch.cuda.synchronize()
        return _placed(copied), copied


_handles: dict[tuple[int, int], str] = {}
"""By first address and size: naming an allocation takes a system call, which belongs to no later call's time."""


def _placed(tensor: torch.Tensor) -> dict[str, Any]:
    base, size = driver.address_range(tensor.data_ptr())
    if (base, size) not in _handles:
        _handles[base, size] = driver.ipc_handle(base).hex()
    return _said(tensor, _handles[base, size], tensor.data_ptr() - base)


def _said(tensor: torch.Tensor, handle: str, offset: int) -> dict[str, Any]:
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "handle": handle,
        "offset": offset,
    }
