"""Values for a call: as the problem draws them, or changed into one of the families that come in turn. Pure.

The families are the entries of `problems/record/value_families.py`. They stand inside the timed set, so a
candidate can not tell a check from a timing.

Every change is made in place, on one copy at most, since an input may take gigabytes.
"""

import random
from collections.abc import Callable, Iterator, Sequence

import torch

from kernelwright.problems import VALUE_FAMILIES
from kernelwright.problems.record.value_families import GROWTH, OFFSET, largest_magnitude, most
from kernelwright.sandbox.tensors.values import RawTensor, Values

DRAWN = "as drawn"
FAMILIES: tuple[str, ...] = tuple(VALUE_FAMILIES)


def vary(values: Values, family: str, in_place: bool = False) -> Values:
    """The values changed into the family; integers, booleans and floats of 8 bits stay as they were drawn.

    `in_place`: those that were given are changed; without, they stay as they are.
    """
    if family == DRAWN:
        return values
    change = VALUE_FAMILIES[family].change
    return Values(values.tree, tuple(_varied(raw, change, in_place) for raw in values.tensors))


def _varied(raw: RawTensor, change: Callable[[torch.Tensor], object], in_place: bool) -> RawTensor:
    tensor = raw.tensor()
    # Torch computes nothing in floats of 8 bits.
    if not tensor.is_floating_point() or tensor.element_size() == 1 or not tensor.numel():
        return raw
    if not in_place:
        raw = raw.copied()
        tensor = raw.tensor()
    largest = largest_magnitude(tensor)
    change(tensor)
    bound = max(most(tensor.dtype), largest)
    if GROWTH * largest + OFFSET > bound:
        tensor.clamp_(-bound, bound)
    return raw


def schedule(rng: random.Random, families: Sequence[str] = FAMILIES) -> Iterator[str]:
    """Without end: the problem's own draw every other time, the families between in a shuffled order."""
    while True:
        for family in rng.sample(sorted(families), len(families)):
            yield DRAWN
            yield family
        if not families:
            yield DRAWN
