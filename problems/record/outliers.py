"""Where outliers are put: rows that begin with one, and rows that end with one. Pure."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ROW = 64
"""Elements at least of what is called a row."""
LAST = 4
"""The last element of all is so many times as far out as the others."""


def begin_far_out(x: "torch.Tensor", size: float) -> None:
    """In the second half, so that no sample of the first rows shows them: every other row begins with an outlier.

    So does an index of axis 0, which is what a norm over several axes takes for a row. None stands elsewhere: a norm's
    weight there could make one so much larger than those that begin a row that it hides what is wrong with them.
    """
    rows = _rows(x)
    _set_magnitude(rows[len(rows) // 2 :: 2, 0], size)
    if x.dim() and x[0].numel() >= ROW:
        _set_magnitude(x.view(len(x), -1)[len(x) // 2 :, 0], size)


def _set_magnitude(some: "torch.Tensor", size: float) -> None:
    """From a half of it to the whole: what an outlier does to rounding differs with the bits of its fraction."""
    import torch

    sizes = torch.linspace(size / 2, size, len(some), dtype=torch.float64, device=some.device)
    some.copy_(sizes.to(some.dtype).copysign_(some))


def end_far_out(x: "torch.Tensor", times: float) -> None:
    """In the second half rows, and indices of axis 0, end above all that was drawn or below it, in turn.

    Above is half of `times` the largest magnitude, or more. No value gets a sign that was not drawn: where all are
    positive, below is the smallest divided by as much. The last two of all are farther out, so that a remainder that is
    left out is missed over the last axis, over axis 0 and over everything. Which of these two is above differs from
    draw to draw; where all have one sign, the last is the one of the larger magnitude.
    """
    import torch

    rows, whole = _rows(x), x.view(-1)
    low, high = map(float, torch.aminmax(x))
    above, largest = int(whole[-1] > whole[0] if low < 0 < high else high > 0), max(-low, high)
    ends = [(rows[len(rows) // 2 :, -1], times), (whole[-2:], LAST * times)]
    if x.dim() and x[0].numel() >= ROW:
        ends.insert(1, (x.view(len(x), -1)[len(x) // 2 :, -1], times))
    for end, most in ends:
        far = torch.linspace(most / 2, most, len(end), dtype=torch.float64, device=x.device)
        for some, edge, sign in ((slice(above, None, 2), high, 1), (slice(1 - above, None, 2), low, -1)):
            unit = sign * largest if 0 < largest < math.inf else sign
            end[some] = (unit * far[some] if edge * sign > 0 else edge / far[some]).to(x.dtype)


def _rows(x: "torch.Tensor") -> "torch.Tensor":
    """As a matrix whose rows are as many of the last axes as it takes for `ROW` elements."""
    width = 1
    for size in reversed(x.shape):
        width *= size
        if width >= ROW:
            break
    return x.view(-1, width)
