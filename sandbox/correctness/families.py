"""Values for a call: as the problem draws them, or changed into one of the families that come in turn. Pure.

The families are the entries of `problems/record/value_families.py`. They stand inside the timed set, so a
candidate can not tell a check from a timing.

Every change is made in place on one copy, since an input may take gigabytes.
"""

import random
from collections.abc import Callable, Iterator, Sequence

import torch

from kernelwright.problems import VALUE_FAMILIES
from kernelwright.problems.record.value_families import GROWTH, OFFSET, largest_magnitude, most
from kernelwright.sandbox.tensors.values import RawTensor, Values

DRAWN = "as drawn"
FAMILIES: tuple[str, ...] = tuple(VALUE_FAMILIES)


def vary(values: Values, family: str) -> Values:
    """The values changed into the family; integers, booleans and floats of 8 bits stay as they were drawn."""
    if family == DRAWN:
        return values
    return Values(values.tree, tuple(_varied(raw, VALUE_FAMILIES[family].change) for raw in values.tensors))


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
