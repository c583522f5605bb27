"""Families of input values: the problem's own draw, and what lazy kernels get wrong. Pure.

A kernel that is right only on a pleasant distribution is wrong. The families stand inside the timed set, so a
candidate can not tell a check from a timing.
"""

import random
from collections.abc import Callable, Iterator

import torch

from sandbox.values import RawTensor, Values

DRAWN = "as drawn"


def _second_half_cubed(x: torch.Tensor) -> torch.Tensor:
    flat = x.reshape(-1).clone()
    half = flat.numel() // 2
    flat[half:] = flat[half:] ** 3
    return flat.view(x.shape)


def _zero_rows(x: torch.Tensor) -> torch.Tensor:
    rows = x.clone()
    if rows.dim():
        rows[::3] = 0
    return rows


def _mixed_magnitude(x: torch.Tensor) -> torch.Tensor:
    if not x.dim():
        return x
    powers = torch.logspace(-3, 3, x.shape[0], dtype=torch.float64, device=x.device).to(x.dtype)
    return x * powers.view(-1, *[1] * (x.dim() - 1))


def _every_other_negated(x: torch.Tensor) -> torch.Tensor:
    flat = x.reshape(-1).clone()
    flat[::2].neg_()
    return flat.view(x.shape)


FAMILIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "scaled up by 8": lambda x: x * 8,
    "scaled down by 1000": lambda x: x * 1e-3,
    "shifted by 100": lambda x: x + 100,
    "with a heavy tail in the second half": _second_half_cubed,
    "with every other sign changed": _every_other_negated,
    "with ties": lambda x: (x * 2).round() / 2,
    "with rows of zeros": _zero_rows,
    "of mixed magnitude": _mixed_magnitude,
}
"""By name, the change that is made to each floating-point input."""


def vary(values: Values, family: str) -> Values:
    """The values changed into the family; integers and booleans stay as they were drawn."""
    if family == DRAWN:
        return values
    return Values(values.tree, tuple(_varied(raw, FAMILIES[family]) for raw in values.tensors))


def _varied(raw: RawTensor, change: Callable[[torch.Tensor], torch.Tensor]) -> RawTensor:
    tensor = raw.tensor()
    return RawTensor.of(change(tensor).to(tensor.dtype)) if tensor.is_floating_point() else raw


def schedule(rng: random.Random) -> Iterator[str]:
    """Without end: the problem's own draw every other time, the families between in a shuffled order."""
    while True:
        for family in rng.sample(sorted(FAMILIES), len(FAMILIES)):
            yield DRAWN
            yield family
