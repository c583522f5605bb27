"""Naming the pattern in a wrong output: what a person would look for first, and what the next prompt needs. Pure."""

import itertools

import torch

SHOWN = 5


def describe_pattern(got: torch.Tensor, want: torch.Tensor, bound: float) -> str:
    """A few lines about where and how `got` (any shape) leaves `want` by more than `bound`; the pattern first."""
    wrong = ~((got - want).abs() <= bound)
    count = int(wrong.sum())
    share = f"{count} of {wrong.numel()} elements are off ({100 * count / wrong.numel():.3g} %)"
    lines = [_whole(got, want, bound) or _where(wrong) or share]
    if lines[0] != share:
        lines.append(share)
    for index in torch.nonzero(wrong)[:SHOWN].tolist():
        place = tuple(index)
        lines.append(f"  at {index}: got {_number(got[place])}, want {_number(want[place])}")
    return "\n".join(lines)


def _number(value: torch.Tensor) -> str:
    return f"{float(value):.7g}"


def _whole(got: torch.Tensor, want: torch.Tensor, bound: float) -> str:
    """A relation that holds for the whole tensor."""
    if not got.count_nonzero():
        return "all elements are zero"
    if got.numel() > 1 and float(got.max()) == float(got.min()):
        return f"all elements are {_number(got.max())}"
    difference = got - want
    close = max(bound, 0.02 * float(difference.abs().max()))
    offset = difference.mean()
    if abs(offset) > bound and float((difference - offset).abs().max()) <= close:
        return f"all elements are off by the constant {_number(offset)}"
    factor = float((got * want).sum() / want.square().sum())
    if abs(factor) > 1e-3 and float((got - factor * want).abs().max()) <= close:
        return f"all elements are {factor:.6g} times what they should be"
    return _moved(got, want, close)


def _moved(got: torch.Tensor, want: torch.Tensor, close: float) -> str:
    """The right values in the wrong places."""
    if got.dim() >= 2 and got.shape[-1] == got.shape[-2] and _near(got.transpose(-1, -2), want, close):
        return "the last two axes are transposed"
    for axis in range(got.dim()):
        if got.shape[axis] > 1 and _near(got.flip(axis), want, close):
            return f"axis {axis} is reversed"
        for step in (1, -1):
            if got.shape[axis] > 2 and _near(got.roll(step, axis), want, close):
                return f"axis {axis} is shifted by {-step}"
    return ""


def _near(a: torch.Tensor, b: torch.Tensor, close: float) -> bool:
    return float((a - b).abs().max()) <= close


def _where(wrong: torch.Tensor) -> str:
    """Wrong elements that fill only certain indices of one axis: a tail, a border, every n-th."""
    if wrong.all():
        return "every element is wrong"
    for axis in range(wrong.dim()):
        others = [other for other in range(wrong.dim()) if other != axis]
        hit = wrong.sum(dim=others) if others else wrong.long()
        indices = torch.nonzero(hit).flatten().tolist()
        if 0 < len(indices) < wrong.shape[axis]:
            return f"wrong only at {_indices(indices, wrong.shape[axis])} of axis {axis}"
    return ""


def _indices(indices: list[int], size: int) -> str:
    first, last = indices[0], indices[-1]
    if len(indices) == 1:
        return f"index {first} ({'the last' if first == size - 1 else 'the first' if first == 0 else f'of {size}'})"
    steps = {b - a for a, b in itertools.pairwise(indices)}
    if steps == {1}:
        edge = " (the tail)" if last == size - 1 else " (the head)" if first == 0 else ""
        return f"indices {first} to {last}{edge}"
    if len(steps) == 1:
        return f"every {steps.pop()}th index from {first} to {last}"
    listed = ", ".join(map(str, indices[:SHOWN]))
    return f"{len(indices)} of {size} indices ({listed}{', ...' if len(indices) > SHOWN else ''})"
