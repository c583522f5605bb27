"""What draws and what only adds up in another order are told apart."""

import gc
import itertools
import weakref

import pytest
import torch

from kernelwright.problems import Tolerance
from kernelwright.sandbox.correctness.compare import is_right_anyhow, mismatch
from kernelwright.sandbox.correctness.lint import draws
from kernelwright.sandbox.tensors import RawTensor, Values, flatten
from kernelwright_child.models import BLOCK, near
from tests.support.tensors import packed

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


def test_changed_weights_are_of_their_kind_and_near_their_own_values():
    assert not (near(torch.ones(1000), 1) == 1).any()
    assert (near(torch.zeros(1000), 1) != 0).float().mean() > 0.99
    assert (near(torch.rand(1000) + 1e-3, 1) > 0).all()
    weights = torch.randn(1000, dtype=torch.float64)  # no type to convert from
    assert 0.01 < (near(weights, 1) - weights).abs().max() < 0.1 * weights.abs().max() + 0.1
    assert near(torch.tensor([0.0, -torch.inf]), 1)[1] == -torch.inf
    assert not torch.equal(near(weights, 1), near(weights, 2))


NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])])
def test_large_weights_change_as_small_ones_do_and_the_same_for_a_seed(device):
    weights = torch.randn(3, BLOCK[device] + 7)
    weights[2, 5] = torch.inf
    found, again = (near(weights, 1, device) for _ in range(2))
    assert torch.equal(found, again) and found.shape == weights.shape and found[2, 5] == torch.inf
    finite = weights.isfinite()
    moved = (found - weights)[finite] / weights[finite].square().mean().sqrt()
    assert 0.024 < moved.mean() < 0.026
    assert (moved != 0).float().mean() > 0.99
    first, second = near(torch.zeros(2, BLOCK[device]), 1, device)
    assert not torch.equal(first, second), "every block draws its own"


TREES = {
    "a tensor": {"t": 0},
    "a list": {"l": [{"t": 0}, {"v": 1.5}]},
    "a dict": {"d": [["a", {"t": 0}], ["b", {"p": [{"t": 0}]}]]},
}


class Watched(bytearray):
    """Bytes that can be referred to weakly."""


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("look", ["flatten", "quick", "whole"])
def test_a_result_that_was_looked_at_is_let_go_without_a_collection(name, look):
    looks = {
        "flatten": flatten,
        "quick": lambda values: is_right_anyhow(values, values, Tolerance()),
        "whole": lambda values: mismatch(values, values, values, Tolerance()),
    }
    data = Watched(torch.ones(64).numpy().tobytes())
    values, kept = Values(TREES[name], (RawTensor("float32", (64,), data),)), weakref.ref(data)
    gc.disable()
    try:
        looks[look](values)
        del values, data
        assert kept() is None
    finally:
        gc.enable()
