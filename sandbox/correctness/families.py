"""Families of input values: the problem's own draw, and what lazy kernels get wrong. Pure.

A kernel that is right only on a pleasant distribution is wrong. The families stand inside the timed set, so a
candidate can not tell a check from a timing. Each is there for a mistake that only it brings to light, which
`tests/sandbox/correctness/test_lazy_kernels.py` has as data.

Every change is made in place on one copy, since an input may take gigabytes.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence

import torch

from kernelwright.problems import VALUE_FAMILIES
from kernelwright.sandbox.tensors.values import RawTensor, Values

DRAWN = "as drawn"
FAMILIES: tuple[str, ...] = VALUE_FAMILIES
UP, DOWN, RAISED, LOWERED = 8, 1e-3, 100, 200
"""exp(-200) is zero in float32, where exp(-100) would be a denormal, which a right kernel may take for zero."""
DECADES = 3
"""Of mixed magnitude, to both sides of 1; in float16, which has few of them, one less."""
OUTLIER = 100
"""Times the largest magnitude that was drawn, or down to a half of that."""
ROW = 64
"""Elements at least of what is called a row where outliers are put."""


def _mixed_magnitude(x: torch.Tensor) -> None:
    decades = DECADES - 1 if x.dtype == torch.float16 else DECADES
    axis = next((axis for axis, size in enumerate(x.shape) if size > 1), None)
    if axis is None:
        x.mul_(10**decades)
        return
    powers = torch.logspace(-decades, decades, x.shape[axis], dtype=torch.float64, device=x.device)
    x.mul_(powers.to(x.dtype).view(-1, *[1] * (x.dim() - 1 - axis)))


def _zero_rows(x: torch.Tensor) -> None:
    if x.dim():
        x[::3] = 0


def _outliers(x: torch.Tensor) -> None:
    """In the second half, so that no sample of the first rows shows them: every other row begins with one.

    So does an index of axis 0, which is what a norm over several axes takes for a row. None stands elsewhere: a norm's
    weight there could make one so much larger than those that begin a row that it hides what is wrong with them.
    """
    largest = largest_magnitude(x)
    size = min(OUTLIER * largest if 0 < largest < math.inf else OUTLIER, most(x.dtype))
    rows = _rows(x)
    _set_magnitude(rows[len(rows) // 2 :: 2, 0], size)
    if x.dim() and x[0].numel() >= ROW:
        _set_magnitude(x.view(len(x), -1)[len(x) // 2 :, 0], size)


def _rows(x: torch.Tensor) -> torch.Tensor:
    """As a matrix whose rows are as many of the last axes as it takes for `ROW` elements."""
    width = 1
    for size in reversed(x.shape):
        width *= size
        if width >= ROW:
            break
    return x.view(-1, width)


def _set_magnitude(some: torch.Tensor, size: float) -> None:
    """From a half of it to the whole: what an outlier does to rounding differs with the bits of its fraction."""
    sizes = torch.linspace(size / 2, size, len(some), dtype=torch.float64, device=some.device)
    some.copy_(sizes.to(some.dtype).copysign_(some))


CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "scaled up by 8": lambda x: x.mul_(UP),
    "scaled down by 1000": lambda x: x.mul_(DOWN),
    "shifted by 100": lambda x: x.add_(RAISED),
    "shifted below zero": lambda x: x.sub_(LOWERED),
    "all negative": lambda x: x.abs_().neg_(),
    "with every other sign changed": lambda x: x.view(-1)[::2].neg_(),
    "with ties": lambda x: x.mul_(2).round_().div_(2),
    "with rows of zeros": _zero_rows,
    "of mixed magnitude": _mixed_magnitude,
    "with outliers": _outliers,
}
"""By name, the change that is made in place to a copy of each floating-point input that has elements."""
GROWTH, OFFSET = 10**DECADES, LOWERED
"""No family takes a value beyond so many times the largest that was drawn, and so much more."""


def most(dtype: torch.dtype) -> float:
    """No family takes a value beyond this, unless the problem draws such itself: its square is finite.

    256 in float16, about 1e19 in bfloat16 and float32.
    """
    return math.sqrt(torch.finfo(dtype).max)


def largest_magnitude(x: torch.Tensor) -> float:
    """Without a tensor of its own; NaN where there is one."""
    low, high = torch.aminmax(x)
    return float(torch.maximum(low.abs(), high.abs()))


def vary(values: Values, family: str) -> Values:
    """The values changed into the family; integers, booleans and floats of 8 bits stay as they were drawn."""
    if family == DRAWN:
        return values
    return Values(values.tree, tuple(_varied(raw, CHANGES[family]) for raw in values.tensors))


def _varied(raw: RawTensor, change: Callable[[torch.Tensor], object]) -> RawTensor:
    drawn = raw.tensor()
    # Torch computes nothing in floats of 8 bits.
    if not drawn.is_floating_point() or drawn.element_size() == 1 or not drawn.numel():
        return raw
    copy = raw.copied()
    tensor = copy.tensor()
    change(tensor)
    largest = largest_magnitude(drawn)
    bound = max(most(tensor.dtype), largest)
    if GROWTH * largest + OFFSET > bound:
        tensor.clamp_(-bound, bound)
    return copy


def schedule(rng: random.Random, families: Sequence[str] = FAMILIES) -> Iterator[str]:
    """Without end: the problem's own draw every other time, the families between in a shuffled order."""
    while True:
        for family in rng.sample(sorted(families), len(families)):
            yield DRAWN
            yield family
        if not families:
            yield DRAWN
