"""What draws and what only adds up in another order are told apart."""

import itertools

import pytest
import torch

from kernelwright.problems import Tolerance
from kernelwright.sandbox.correctness.lint import draws
from kernelwright.sandbox.tensors import RawTensor, Values


def packed(tensor):
    return Values({"t": 0}, (RawTensor.of(tensor),))


SPARSE = torch.zeros(16, 128)
SPARSE[:, 5] = torch.linspace(-1e-3, -1, 16)
"""Each row rests on one element, as where a minimum with zero has cut off all others."""


def never():
    raise AssertionError("nothing more had to be asked")


def drawn(other, again=never):
    return draws(packed(SPARSE + other), packed(SPARSE), Tolerance(), again)


def rounding(seed):
    """Of sums of about 1 in no fixed order, whatever they end at."""
    return 6e-8 * torch.randn(16, 128, generator=torch.Generator().manual_seed(seed))


def test_rounding_near_zero_is_no_draw():
    seeds = itertools.count(2)
    assert not drawn(rounding(1), lambda: packed(SPARSE + rounding(next(seeds))))


def test_rounding_that_comes_out_alike_now_and_then_is_no_draw():
    seeds = itertools.chain([2, 2, 2], itertools.count(3))
    assert not drawn(rounding(1), lambda: packed(SPARSE + rounding(next(seeds))))


def test_a_small_part_that_repeats_itself_when_seeded_is_drawn():
    alike = packed(SPARSE + rounding(2))
    assert drawn(rounding(1), lambda: alike)


@pytest.mark.parametrize("share", [0.5, 1e-3])
def test_what_moves_the_whole_is_drawn_and_nothing_more_is_asked(share):
    assert drawn(share * torch.randn(16, 128, generator=torch.Generator().manual_seed(1)))


def test_equal_results_are_not_drawn():
    assert not drawn(torch.zeros(16, 128))
