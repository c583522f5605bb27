"""How far a result moves with its inputs: what rounding may do where terms cancel. Pure but for the asking.

A result that is small because large terms cancel keeps the rounding of these terms, whichever way they are added; its
own magnitude says nothing about that. An output that is the exact result of inputs off by a few units in the last place
is as right as its dtype allows: backward error, see Higham, Accuracy and Stability of Numerical Algorithms, 1.5.
"""

import random
from collections.abc import Callable
from typing import NamedTuple

import torch

from kernelwright.problems import Tolerance
from kernelwright.sandbox.correctness.compare import PLAIN, Checks, Shares, Truth, Wrong, mismatch, mismatch_with, real
from kernelwright.sandbox.correctness.distance import Moved
from kernelwright.sandbox.tensors.trees import flatten
from kernelwright.sandbox.tensors.values import RawTensor, Values

DRAWS = 6
"""One draw may leave a result where it was by chance."""


class ExactCase(NamedTuple):
    """Inputs, and who knows the result in float64."""

    inputs: Values
    exact: Callable[[Values], Values]
    defines_nan: bool = True
    """Whether the values lie in the problem's domain, so that a NaN of the reference has to be met."""


def mismatch_shaken(
    got: Values, asked: ExactCase, near: Values, tolerance: Tolerance, shares: Shares | None = None
) -> Wrong | None:
    """As `mismatch`; where an output is too far off, the reference is asked again on shaken inputs.

    `near` is the reference as it stands on the same inputs. `shares`, an empty one, is filled as in `Checks`.
    """
    want = asked.exact(asked.inputs)
    wrong = mismatch(got, want, near, tolerance, PLAIN._replace(undefined=asked.defines_nan, shares=shares))
    if wrong is None or not wrong.by_distance:
        return wrong
    want.owned()  # whoever is asked for others may show them where these are
    truth = Truth(want, near, tuple(Moved(real(raw.tensor())) for raw in flatten(want).tensors))
    beyond_doubt = PLAIN._replace(undefined=asked.defines_nan, generous=True)
    for draw in range(DRAWS):
        _note_moves(asked, truth.moved, tolerance.floor_ulp)
        if draw == 0 and mismatch_with(got, truth, tolerance, beyond_doubt):
            break
    if shares is not None:
        shares.clear()
    return mismatch_with(got, truth, tolerance, Checks(undefined=asked.defines_nan, shares=shares))


def _note_moves(asked: ExactCase, moved: tuple[Moved, ...], units: float) -> None:
    """By output, how far it moves once; one draw after the other, since each result may take much memory."""
    found = flatten(asked.exact(shake(asked.inputs, units)))
    for output, raw in zip(moved, found.tensors, strict=True):
        output.note(real(raw.tensor()))


def shake(values: Values, units: float) -> Values:
    """Each floating-point element off by up to so many units in the last place of float32, evenly distributed.

    Of float64 where it has that dtype; 16 bits do not hold so small a change and stay as they are. Were each off by
    exactly so much, up or down, then two elements whose difference counts would move alike in every other draw.
    """
    draw = random.SystemRandom()
    return Values(values.tree, tuple(_shaken(raw, units, draw.getrandbits(60)) for raw in values.tensors))


def _shaken(raw: RawTensor, units: float, seed: int) -> RawTensor:
    tensor = raw.tensor()
    if not tensor.is_floating_point():
        return raw
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    step = units * torch.finfo(dtype).eps
    generator = torch.Generator(tensor.device).manual_seed(seed)
    drawn = torch.rand(tensor.shape, generator=generator, device=tensor.device, dtype=dtype)
    return RawTensor.of((tensor * (1 + step * (2 * drawn - 1))).to(tensor.dtype))
