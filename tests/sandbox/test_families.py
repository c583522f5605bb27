import itertools
import random

import pytest
import torch

from sandbox.families import DRAWN, FAMILIES, schedule, vary
from sandbox.values import RawTensor, Values


def values(*tensors):
    return Values({"l": []}, tuple(RawTensor.of(tensor) for tensor in tensors))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_changes_values_and_keeps_shape_and_dtype(family):
    before = torch.randn(6, 5)
    after = vary(values(before), family).tensors[0].tensor()
    assert (after.shape, after.dtype) == (before.shape, before.dtype)
    assert not torch.equal(after, before)


@pytest.mark.parametrize("family", FAMILIES)
def test_integers_stay_as_they_were_drawn(family):
    labels = torch.arange(7)
    assert torch.equal(vary(values(labels), family).tensors[0].tensor(), labels)


def test_every_family_comes_up_in_turn_with_the_problems_own_draw():
    names = list(itertools.islice(schedule(random.Random(0)), 2 * len(FAMILIES)))
    assert set(names[1::2]) == set(FAMILIES)
    assert set(names[::2]) == {DRAWN}
