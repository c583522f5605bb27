"""The input distributions that a problem is judged on besides its own draw: one entry of `DISTRIBUTIONS` each.

A kernel that is correct only on a pleasant distribution is wrong. Each entry reveals a mistake that no other does: see
`tests/sandbox/correctness/test_lazy_kernels.py`. Problems may exclude entries, prompts describe them, and the judge
makes their values. So torch is imported where a change is made, and not to read a problem.
"""

import math
import random
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

ROW = 64
"""Elements at least of what is called a row."""
BLOCK = 256
"""Elements that have one outlier where few are."""
SECRET = secrets.randbits(62)
"""Of this process: the same values are changed alike in it, and a candidate's process does not know it."""
LAST = 4
"""Factor by which the very last element lies farther out than the others."""


def begin_far_out(x: "torch.Tensor") -> None:
    """Begin every other row of the second half with an outlier, so that no sample of the first rows shows one.

    So does one secret row of the first half, for a kernel that looks at the others only. Indices of axis 0, which a
    norm over several axes takes for rows, begin so too. There are none elsewhere: a norm's weight could make one so
    large that it hides errors at the beginning of a row.
    """
    rows, size = _rows(x), _outlier(x)
    _set_magnitude(rows[len(rows) // 2 :: 2, 0], size)
    _set_magnitude(rows[_secret(x, len(rows) // 2) : len(rows) // 2, 0][:1], size)
    if x.dim() and x[0].numel() >= ROW:
        _set_magnitude(x.view(len(x), -1)[len(x) // 2 :, 0], size)


def _seed(x: "torch.Tensor") -> int:
    """Return a secret seed: the same for the same values."""
    return hash((SECRET, float(x.view(-1)[0]), float(x.view(-1)[-1]))) % 2**62


def _secret(x: "torch.Tensor", below: int) -> int:
    """Draw an index by the secret seed."""
    return random.Random(_seed(x)).randrange(max(1, below))


def _set_magnitude(some: "torch.Tensor", size: float) -> None:
    """Set magnitudes from `size / 2` to `size`: the effect of an outlier on rounding depends on its fraction's bits."""
    import torch

    sizes = torch.linspace(size / 2, size, len(some), dtype=torch.float64, device=some.device)
    some.copy_(sizes.to(some.dtype).copysign_(some))


def end_far_out(x: "torch.Tensor") -> None:
    """Make rows in the second half, and indices of axis 0, end alternately above and below all drawn values.

    One secret row of the first half ends so too. Above is half of `OUTLIER` times the largest magnitude, or more. No
    value gets a sign that was not drawn: where all are positive, below is the smallest divided by as much. The last two
    of all are farther out. So a skipped remainder shows over the last axis, over axis 0 and over everything. Which of
    these two is above differs from draw to draw; where all have one sign, the last is the one of the larger magnitude.
    """
    import torch

    rows, whole = _rows(x), x.view(-1)
    low, high = map(float, torch.aminmax(x))
    above, largest = int(whole[-1] > whole[0] if low < 0 < high else high > 0), max(-low, high)
    ends = [(rows[len(rows) // 2 :, -1], OUTLIER), (whole[-2:], LAST * OUTLIER)]
    if x.dim() and x[0].numel() >= ROW:
        ends.insert(1, (x.view(len(x), -1)[len(x) // 2 :, -1], OUTLIER))
    lone = _secret(x, len(rows) // 2)
    ends.insert(1, (rows[lone : len(rows) // 2, -1][:1], OUTLIER))
    for end, most in ends:
        far = torch.linspace(most / 2, most, len(end), dtype=torch.float64, device=x.device)
        for some, edge, sign in ((slice(above, None, 2), high, 1), (slice(1 - above, None, 2), low, -1)):
            unit = sign * largest if 0 < largest < math.inf else sign
            end[some] = (unit * far[some] if edge * sign > 0 else edge / far[some]).to(x.dtype)


def few_far_out(x: "torch.Tensor") -> None:
    """Set one outlier in each `BLOCK` elements of the second half, at positions drawn from a secret seed.

    One block of the first half has one as well. A sum of them is wrong where a part is left out and the rest scaled up,
    as a sample of even values is not. The first and the last element of a block are none, since these may be those of a
    row.
    """
    import torch

    flat = x.view(-1)
    width = min(BLOCK, len(flat))
    starts = torch.arange(len(flat) // width // 2, len(flat) // width, device=x.device).mul_(width)
    lone = [_secret(x, len(flat) // width // 2) * width] if len(starts) > 1 else []
    starts = torch.cat([torch.tensor(lone, dtype=starts.dtype, device=x.device), starts])
    draw = torch.Generator(x.device).manual_seed(_seed(x))
    inner = (1, width - 1) if width > 2 else (0, 1)
    places = starts.add_(torch.randint(*inner, (len(starts),), generator=draw, device=x.device))
    far = flat[places]
    _set_magnitude(far, _outlier(x))
    flat[places] = far


def _rows(x: "torch.Tensor") -> "torch.Tensor":
    """View it as a matrix whose rows hold at least `ROW` elements: as many of the last axes as needed."""
    width = 1
    for size in reversed(x.shape):
        width *= size
        if width >= ROW:
            break
    return x.view(-1, width)


UP, DOWN, RAISED, LOWERED = 8, 1e-3, 100, 200
"""exp(-200) is zero in float32, where exp(-100) would be a denormal, which a correct kernel may flush to zero."""
DECADES = 3
"""Of mixed magnitude, to both sides of 1; in float16, which has few of them, one less."""
OUTLIER = 100
"""Times the largest magnitude that was drawn, or down to a half of that."""


class InputDistribution(NamedTuple):
    """A change to all floating-point inputs."""

    words: str
    """Its description in prompts; empty where prompts do not mention it, as recorded ones do not."""
    change: Callable[["torch.Tensor"], object]
    """Made in place, on a copy of an input that has elements."""


def most(dtype: "torch.dtype") -> float:
    """Return the largest value of any distribution, unless the problem draws larger ones itself: its square is finite.

    256 in float16, about 1e19 in bfloat16 and float32.
    """
    import torch

    return math.sqrt(torch.finfo(dtype).max)


def largest_magnitude(x: "torch.Tensor") -> float:
    """Return the largest magnitude, without a temporary tensor; NaN where there is one."""
    import torch

    low, high = torch.aminmax(x)
    return float(torch.maximum(low.abs(), high.abs()))


def _mixed_magnitude(x: "torch.Tensor") -> None:
    import torch

    decades = DECADES - 1 if x.dtype == torch.float16 else DECADES
    axis = next((axis for axis, size in enumerate(x.shape) if size > 1), None)
    if axis is None:
        x.mul_(10**decades)
        return
    powers = torch.logspace(-decades, decades, x.shape[axis], dtype=torch.float64, device=x.device)
    x.mul_(powers.to(x.dtype).view(-1, *[1] * (x.dim() - 1 - axis)))


def _outlier(x: "torch.Tensor") -> float:
    largest = largest_magnitude(x)
    return min(OUTLIER * largest if 0 < largest < math.inf else OUTLIER, most(x.dtype))


DISTRIBUTIONS: dict[str, InputDistribution] = {
    "scaled up by 8": InputDistribution("8 times as large", lambda x: x.mul_(UP)),
    "scaled down by 1000": InputDistribution("a thousandth", lambda x: x.mul_(DOWN)),
    "shifted by 100": InputDistribution("100 added", lambda x: x.add_(RAISED)),
    "shifted below zero": InputDistribution("200 taken off", lambda x: x.sub_(LOWERED)),
    "all negative": InputDistribution("all negative", lambda x: x.abs_().neg_()),
    "with every other sign changed": InputDistribution("every other sign changed", lambda x: x.view(-1)[::2].neg_()),
    "with ties": InputDistribution("rounded to halves, so with ties", lambda x: x.mul_(2).round_().div_(2)),
    "with rows of zeros": InputDistribution(
        "every third index of axis 0 zero", lambda x: x[::3].zero_() if x.dim() else None
    ),
    "of mixed magnitude": InputDistribution("axis 0 scaled from 1e-3 to 1e3 (fp16: 1e-2 to 1e2)", _mixed_magnitude),
    "with outliers": InputDistribution(
        "outliers of 50 to 100 times the largest magnitude where rows begin", begin_far_out
    ),
    "with heavy ends": InputDistribution("rows that end 50 to 100 times above or below all other values", end_far_out),
    "with few large values": InputDistribution("", few_far_out),
}
"""By the name that problems and records use."""
GROWTH, OFFSET = 10**DECADES, LOWERED
"""No distribution has a value beyond `GROWTH` times the largest that was drawn, plus `OFFSET`."""
