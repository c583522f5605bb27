"""Values as the judge holds them: raw bytes and a tree, never an object that a child made."""

from typing import Any, NamedTuple

import torch


class RawTensor(NamedTuple):
    """The bytes of a contiguous tensor, with what is needed to read them."""

    dtype: str
    shape: tuple[int, ...]
    data: bytearray

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "RawTensor":
        """The bytes of a CPU tensor, made contiguous."""
        flat = tensor.detach().contiguous().reshape(-1)
        data = bytearray(flat.view(torch.uint8).numpy().data) if flat.numel() else bytearray()
        return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)

    def tensor(self) -> torch.Tensor:
        """The values as a CPU tensor over the same bytes; treat it as read-only."""
        dtype = getattr(torch, self.dtype)
        if not self.data:
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(self.data, dtype=dtype).view(self.shape)


class Values(NamedTuple):
    """Arguments or a result: a tree of `sandbox.child.wire`, and the bytes of its tensors."""

    tree: dict[str, Any]
    tensors: tuple[RawTensor, ...]

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(len(raw.data) for raw in self.tensors)
