"""Tensors over the memory that the judge lends."""

import mmap
import os
from collections.abc import Sequence
from typing import Any

import torch


def lent_tensors(fd: int, specs: Sequence[dict[str, Any]]) -> list[torch.Tensor]:
    """One tensor for each spec (`dtype`, `shape`, `offset` in bytes), sharing the pages of the descriptor.

    The descriptor is closed: the mapping holds one of its own, and closes it when none of the tensors lives any more.
    """
    try:
        memory = mmap.mmap(fd, 0)
    finally:
        os.close(fd)
    return [_tensor(memory, spec) for spec in specs]


def _tensor(memory: mmap.mmap, spec: dict[str, Any]) -> torch.Tensor:
    dtype = getattr(torch, spec["dtype"])
    count = 1
    for size in spec["shape"]:
        count *= size
    if count == 0:
        return torch.empty(spec["shape"], dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=spec["offset"]).view(spec["shape"])
