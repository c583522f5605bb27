"""Where the elements of a strided tensor lie. Pure."""

import math
from collections.abc import Sequence

import torch


def is_shared(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether several elements lie in one place, as `expand` and overlapping windows have them."""
    if 0 in shape:
        return False
    reach, is_nested = 1, True
    for step, size in sorted((step, size) for size, step in zip(shape, stride, strict=True) if size > 1):
        is_nested = is_nested and step >= reach
        reach += (size - 1) * step
    count = math.prod(shape)
    if is_nested:
        return False
    if count > reach:
        return True
    # What lies between the elements of other axes need not meet them: it is counted.
    taken = torch.zeros(reach, dtype=torch.bool)
    taken.as_strided(tuple(shape), tuple(stride)).fill_(True)
    return int(taken.sum()) < count
