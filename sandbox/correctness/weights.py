"""Other weights of the same kind: so that nothing known of a constructor's values helps a candidate. Pure."""

import math
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from kernelwright.sandbox.tensors.values import RawTensor

BLOCK = 2**15
"""So few values that torch gives their operations no threads of its own, and that they stay in a core's cache."""
RELATIVE, SHIFT = 0.1, 0.05
"""A weight is scaled by up to 10 % and raised by up to 5 % of its tensor's root mean square (of 1 where all are 0)."""


def changed(
    names: Sequence[str], tensors: Sequence[RawTensor], changing: Collection[str], seed: int
) -> list[RawTensor]:
    """Each floating tensor that is named in `changing` with other values near its own; the others as they are.

    What constructors set to one and zero is no longer one and zero, so a candidate that leaves out such a weight is
    wrong; what is positive stays positive (a running variance); infinities stay.
    """
    rng = torch.Generator().manual_seed(seed)
    pairs = zip(names, tensors, torch.randint(2**62, (len(tensors),), generator=rng).tolist(), strict=True)
    return [_changed(raw, own) if name in changing else raw for name, raw, own in pairs]


def _changed(raw: RawTensor, seed: int) -> RawTensor:
    """In blocks, several at a time: the largest weights have a thousand million values, which take long to draw."""
    flat = raw.tensor().view(-1)
    if not flat.is_floating_point() or not flat.numel():
        return raw
    data = bytearray(flat.numel() * flat.element_size())
    made = torch.frombuffer(data, dtype=flat.dtype)
    starts = range(0, flat.numel(), BLOCK)
    with ThreadPoolExecutor(torch.get_num_threads() if len(starts) > 1 else 1) as pool:
        sums = [sum(part) for part in zip(*pool.map(lambda at: _squares(flat[at : at + BLOCK]), starts), strict=True)]
        shift = SHIFT * (math.sqrt(sums[0] / (sums[1] or 1)) or 1.0)
        for _ in pool.map(lambda at: _fill(made[at : at + BLOCK], flat[at : at + BLOCK], shift, seed + at), starts):
            pass
    return raw._replace(data=data)


def _squares(part: torch.Tensor) -> tuple[float, int]:
    """The sum of squares of what is finite, and how many values are."""
    norm = float(torch.linalg.vector_norm(part, dtype=torch.float64))
    if math.isfinite(norm):
        return norm**2, part.numel()
    finite = part[part.isfinite()].double()
    return float(finite.square().sum()), finite.numel()


def _fill(made: torch.Tensor, part: torch.Tensor, shift: float, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    factor = torch.rand(part.shape, generator=rng).mul_(2 * RELATIVE).add_(1 - RELATIVE)
    made.copy_(part.double().mul_(factor).add_(torch.rand(part.shape, generator=rng), alpha=shift))
