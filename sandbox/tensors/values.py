"""Values as the judge holds them: raw bytes and a tree, never an object that a child made."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from kernelwright.sandbox.tensors.strides import is_shared

LOOK_BYTES = 2**28
"""Device memory is compared in pieces: torch notes the outcome for each element before it says whether all are same."""

PLAIN_DTYPES = frozenset(
    {
        *("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "bool"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
    }
)
"""By torch's names, the dtypes whose elements torch can copy, widen and compare; the others are bits without meaning,
parts of a byte, or quantized, which raw bytes can not say."""


class DeviceBytes:
    """Bytes in device memory that only the judge has."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Over a contiguous tensor of bytes."""
        self.tensor = tensor

    def __len__(self) -> int:
        return self.tensor.numel()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceBytes) and same_bytes(self.tensor, other.tensor)

    __hash__ = None  # type: ignore[assignment]  # as of a bytearray


class ShownBytes(DeviceBytes):
    """Device bytes where a trusted child has them: gone when it is asked for something else, unless they are owned."""

    def own(self) -> None:
        """Be a copy from now on, for all who hold this."""
        if self._is_shown:
            self.tensor, self._is_shown = self.tensor.clone(), False

    _is_shown = True


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of bytes are equal; takes little memory beside them."""
    if one.numel() != other.numel():
        return False
    return all(torch.equal(*pair) for pair in _word_pieces(one, other))


def _word_pieces(one: torch.Tensor, other: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Both in pieces: as words of 8 bytes where they lie on such, the rest as bytes."""
    even = all(tensor.data_ptr() % 8 == 0 and tensor.storage_offset() % 8 == 0 for tensor in (one, other))
    body = one.numel() // 8 * 8 if even else 0
    for start in range(0, body, LOOK_BYTES):
        stop = min(start + LOOK_BYTES, body)
        yield one[start:stop].view(torch.int64), other[start:stop].view(torch.int64)
    for start in range(body, one.numel(), LOOK_BYTES // 8):
        yield one[start : start + LOOK_BYTES // 8], other[start : start + LOOK_BYTES // 8]


class RawTensor(NamedTuple):
    """The bytes of a contiguous tensor, with what is needed to read them."""

    dtype: str
    shape: tuple[int, ...]
    data: bytearray | DeviceBytes
    is_shared: bool = False
    """Whether several elements lay in one place where a child had them."""

    @classmethod
    def laid(cls, tensor: torch.Tensor, data: bytearray | DeviceBytes) -> "RawTensor":
        """What a child has laid over these bytes, made contiguous."""
        if tensor.is_contiguous():
            return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)
        return cls.of(tensor)._replace(is_shared=is_shared(tensor.shape, tensor.stride()))

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "RawTensor":
        """The bytes of a tensor, made contiguous; on a device they stay there."""
        tensor = tensor.detach()
        name, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        if tensor.is_cuda or tensor.is_contiguous():
            flat = tensor.contiguous().reshape(-1).view(torch.uint8)
            return cls(name, shape, DeviceBytes(flat) if tensor.is_cuda else bytearray(flat.numpy().data))
        data = bytearray(tensor.numel() * tensor.element_size())
        torch.frombuffer(data, dtype=tensor.dtype).view(shape).copy_(tensor)
        return cls(name, shape, data)

    @property
    def on_host(self) -> bytearray:
        """The bytes, where they are the host's."""
        assert isinstance(self.data, bytearray)
        return self.data

    def copied(self) -> "RawTensor":
        data = self.data
        return self._replace(data=DeviceBytes(data.tensor.clone()) if isinstance(data, DeviceBytes) else data[:])

    def tensor(self) -> torch.Tensor:
        """The values as a tensor over the same bytes, where they are; treat it as read-only."""
        dtype = getattr(torch, self.dtype)
        if isinstance(self.data, DeviceBytes):
            return self.data.tensor.view(dtype).view(self.shape)
        if not self.data:
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(self.data, dtype=dtype).view(self.shape)


class Values(NamedTuple):
    """Arguments or a result: a tree of `kernelwright_child.wire`, and the bytes of its tensors."""

    tree: dict[str, Any]
    tensors: tuple[RawTensor, ...]
    seed: int | None = None
    """Of arguments: under which a call makes its own draws; None where they are left to chance."""

    def copied(self) -> "Values":
        """The same in memory of its own, for values that are a part of larger ones."""
        return self._replace(tensors=tuple(raw.copied() for raw in self.tensors))

    def owned(self) -> "Values":
        """The same, once all that a child only shows is a copy."""
        for raw in self.tensors:
            if isinstance(raw.data, ShownBytes):
                raw.data.own()
        return self

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(len(raw.data) for raw in self.tensors)
