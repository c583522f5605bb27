"""Naming the pattern in a wrong output: what a person would look for first, and what the next prompt needs. Pure."""

import itertools

import torch

SHOWN = 5
MANY = 0.02
"""A share of all elements that chance does not explain."""
LOST_PRECISION = "lost precision or a small term, not misplaced elements"
SMALL, MOST_RANKED = 0.01, 2**20
"""The share of their value by which half of the wrong elements are off at most then; and elements ranked for that."""
CLOSE = 0.02
"""A relation holds when what is left over is below this share of the error that it explains."""


def describe_pattern(got: torch.Tensor, want: torch.Tensor, bound: float) -> str:
    """A few lines about where and how `got` (any shape) leaves `want` by more than `bound`; the pattern first."""
    wrong = ~((got - want).abs() <= bound)
    count = int(wrong.sum())
    share = f"{count} of {wrong.numel()} elements are off ({100 * count / wrong.numel():.3g} %)"
    pattern = _whole(got, want, bound) or (2 * count > wrong.numel() and _by_slices(got, want, bound)) or where(wrong)
    found = pattern, _content(got, want, wrong), _filled(got, want), _small(got, want, wrong)
    lines = ["; ".join(text for text in found if text) or share]
    if lines[0] != share:
        lines.append(share)
    for index in torch.nonzero(wrong)[:SHOWN].tolist():
        place = tuple(index)
        lines.append(f"  at {index}: got {_number(got[place])}, want {_number(want[place])}")
    return "\n".join(lines)


def _number(value: torch.Tensor) -> str:
    return f"{float(value):.7g}"


def _whole(got: torch.Tensor, want: torch.Tensor, bound: float) -> str:
    if not got.count_nonzero():
        return "all elements are zero"
    if got.numel() > 1 and float(got.max()) == float(got.min()):
        return f"all elements are {_number(got.max())}"
    difference = got - want
    close = max(bound, CLOSE * float(difference.abs().max()))
    offset = difference.mean()
    if abs(offset) > bound and float((difference - offset).abs().max()) <= close:
        return f"all elements are off by the constant {_number(offset)}"
    factor = float((got * want).sum() / want.square().sum())
    if abs(factor) > 1e-3 and float((got - factor * want).abs().max()) <= close:
        return f"all elements are {factor:.6g} times what they should be"
    return _moved(got, want, close)


def _moved(got: torch.Tensor, want: torch.Tensor, close: float) -> str:
    if got.dim() >= 2 and got.shape[-1] == got.shape[-2] and _near(got.transpose(-1, -2), want, close):
        return "the last two axes are transposed"
    if got.dim() >= 2 and _near(got, want.transpose(-1, -2).reshape(got.shape), close):
        return "the values are right but lie as if the last two axes were transposed"
    for axis in range(got.dim()):
        if got.shape[axis] > 1 and _near(got.flip(axis), want, close):
            return f"axis {axis} is reversed"
        for step in (1, -1):
            if got.shape[axis] > 2 and _near(got.roll(step, axis), want, close):
                return f"axis {axis} is shifted by {-step}"
            if got.shape[axis] > 2 and _near(*_overlap(got, want, axis, step), close):
                return f"axis {axis} is shifted by {-step}, its edge lost"
    return ""


def _overlap(got: torch.Tensor, want: torch.Tensor, axis: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The overlap of two tensors when one is shifted along an axis."""
    length = got.shape[axis] - 1
    starts = (0, 1) if step > 0 else (1, 0)
    return got.narrow(axis, starts[0], length), want.narrow(axis, starts[1], length)


def _by_slices(got: torch.Tensor, want: torch.Tensor, bound: float) -> str:
    """A constant or a factor for each index of an axis: a missing bias, a missing weight or norm."""
    close = max(bound, CLOSE * float((got - want).abs().max()))
    for axis in range(got.dim()):
        others = [other for other in range(got.dim()) if other != axis]
        if not others or got.shape[axis] < 2 or got.numel() // got.shape[axis] < 3:
            continue
        difference = got - want
        if _near(difference, difference.mean(others, keepdim=True), close):
            return f"each index of axis {axis} is off by a constant of its own"
        factor = (got * want).sum(others, keepdim=True) / want.square().sum(others, keepdim=True)
        if not ((factor == 0) | ((factor - 1).abs() < CLOSE)).all() and _near(got, factor * want, close):
            return f"each index of axis {axis} is off by a factor of its own"
    return ""


def _near(a: torch.Tensor, b: torch.Tensor, close: float) -> bool:
    return float((a - b).abs().max()) <= close


def _content(got: torch.Tensor, want: torch.Tensor, wrong: torch.Tensor) -> str:
    """The common property of the wrong elements, where some are right."""
    if wrong.all() or not wrong.any():
        return ""
    if not (wrong & (got != 0)).any():
        return "the wrong elements are zero"
    for name, test in (("negative", want < 0), ("positive", want > 0), ("zero", want == 0)):
        if not (wrong & ~test).any() and not (test & ~wrong).any():
            return f"wrong exactly where the right value is {name}"
    return ""


def _small(got: torch.Tensor, want: torch.Tensor, wrong: torch.Tensor) -> str:
    """Errors far below the values themselves: an element in a wrong place would be off by about its own size."""
    shares = ((got[wrong] - want[wrong]) / want[wrong]).abs()
    share = float(shares[:: 1 + len(shares) // MOST_RANKED].median()) if len(shares) else 1.0
    said = f"{LOST_PRECISION}: half of the wrong ones are off by at most {share:.2g} of their value"
    return said if share < SMALL else ""


def _filled(got: torch.Tensor, want: torch.Tensor) -> str:
    """Places that nothing contributes to, such as those between the strides of a transposed convolution."""
    zeros = want == 0
    total, filled = int(zeros.sum()), int((zeros & (got != 0)).sum())
    if total < MANY * want.numel() or filled < total / 2:
        return ""
    share = f"{100 * total / want.numel():.3g} % of all"
    return f"{filled} of {total} elements that must be exactly zero ({share}) are not"


def where(wrong: torch.Tensor) -> str:
    """Wrong elements that fill only certain indices of an axis: a tail, a border, every n-th; else an empty string.

    Of several axes, the one that the smallest share of is wrong.
    """
    if wrong.all():
        return "every element is wrong"
    found: list[tuple[float, str]] = []
    for axis in range(wrong.dim()):
        others = [other for other in range(wrong.dim()) if other != axis]
        hit = wrong.sum(dim=others) if others else wrong.long()
        indices = torch.nonzero(hit).flatten().tolist()
        if 0 < len(indices) < wrong.shape[axis]:
            share = len(indices) / wrong.shape[axis]
            found.append((share, f"{_indices(indices, wrong.shape[axis])} of axis {axis}"))
    return min(found, default=(0.0, ""), key=lambda item: item[0])[1]


def _indices(indices: list[int], size: int) -> str:
    first, last = indices[0], indices[-1]
    if len(indices) == 1:
        place = "the last" if first == size - 1 else "the first" if first == 0 else f"of {size}"
        return f"wrong only at index {first} ({place})"
    steps = {b - a for a, b in itertools.pairwise(indices)}
    if steps == {1}:
        if last == size - 1 and 2 * len(indices) > size:
            return f"right only at the first {first} of {size} indices"
        edge = " (the tail)" if last == size - 1 else " (the head)" if first == 0 else ""
        return f"wrong only at indices {first} to {last}{edge}"
    if len(steps) == 1:
        (step,) = steps
        return f"wrong only at one index in {step}, from {first} to {last}"
    listed = ", ".join(map(str, indices[:SHOWN]))
    return f"wrong only at {len(indices)} of {size} indices ({listed}{', ...' if len(indices) > SHOWN else ''})"
