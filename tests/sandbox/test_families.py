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


def test_positive_inputs_become_negative_somewhere():
    after = vary(values(torch.rand(6, 5) + 1), "with every other sign changed").tensors[0].tensor()
    assert (after < 0).sum() == 15


def test_every_family_stays_finite_in_half_precision():
    for family in FAMILIES:
        after = vary(values(torch.randn(64, 64).half()), family).tensors[0].tensor()
        assert after.isfinite().all(), family


def test_a_number_without_axes_and_an_empty_tensor_can_be_varied():
    for family in FAMILIES:
        for before in (torch.tensor(2.0), torch.empty(0, 3)):
            assert vary(values(before), family).tensors[0].shape == before.shape
