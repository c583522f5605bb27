"""Changed weights: near the constructor's, never its ones and zeros, and still of their kind."""

import torch

from kernelwright.sandbox.correctness.families import BLOCK, changed
from kernelwright.sandbox.tensors import RawTensor


def other(tensor, names=("w",), changing=("w",), seed=1):
    return changed(names, [RawTensor.of(tensor)], changing, seed)[0].tensor()


def test_changed_weights_are_of_their_kind_and_near_their_own_values():
    assert not (other(torch.ones(1000)) == 1).any()
    assert (other(torch.zeros(1000)) != 0).float().mean() > 0.99
    assert (other(torch.rand(1000) + 1e-3) > 0).all()
    weights = torch.randn(1000)
    assert (other(weights) - weights).abs().max() < 0.1 * weights.abs().max() + 0.1
    assert other(torch.tensor([0.0, -torch.inf]))[1] == -torch.inf


def test_integers_and_what_is_not_named_stay():
    assert other(torch.arange(5)).tolist() == [0, 1, 2, 3, 4]
    assert other(torch.ones(3), changing=()).tolist() == [1, 1, 1]


def test_another_seed_gives_other_weights():
    assert not torch.equal(other(torch.ones(9), seed=1), other(torch.ones(9), seed=2))


def test_large_weights_change_as_small_ones_do_and_the_same_for_a_seed():
    weights = torch.randn(3, BLOCK + 7)
    weights[2, 5] = torch.inf
    found = other(weights)
    assert torch.equal(found, other(weights)) and found.shape == weights.shape and found[2, 5] == torch.inf
    finite = weights.isfinite()
    moved = (found - weights)[finite] / weights[finite].square().mean().sqrt()
    assert 0.024 < moved.mean() < 0.026
    assert (moved != 0).float().mean() > 0.99
    first, second = other(torch.zeros(2, BLOCK))
    assert not torch.equal(first, second), "every block draws its own"
