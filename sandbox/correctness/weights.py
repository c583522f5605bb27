"""Other weights of the same kind: so that nothing known of a constructor's values helps a candidate. Pure."""

from collections.abc import Collection, Sequence

import torch

from kernelwright.sandbox.tensors.values import RawTensor

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
    pairs = zip(names, tensors, strict=True)
    return [_changed(raw, rng) if name in changing else raw for name, raw in pairs]


def _changed(raw: RawTensor, rng: torch.Generator) -> RawTensor:
    tensor = raw.tensor()
    if not tensor.is_floating_point() or not tensor.numel():
        return raw
    wide = tensor.double()
    finite = wide[wide.isfinite()]
    scale = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    factor = 1 + RELATIVE * (2 * torch.rand(wide.shape, generator=rng, dtype=torch.float64) - 1)
    shift = SHIFT * (scale or 1.0) * torch.rand(wide.shape, generator=rng, dtype=torch.float64)
    return RawTensor.of((wide * factor + shift).to(tensor.dtype))
