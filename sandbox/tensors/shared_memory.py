"""Memory that the judge owns and lends to children by descriptor."""

import ctypes
import fcntl
import mmap
import os
from collections.abc import Iterable, Sequence
from typing import Any

from kernelwright.sandbox.tensors.values import RawTensor

_libc = ctypes.CDLL(None)
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
