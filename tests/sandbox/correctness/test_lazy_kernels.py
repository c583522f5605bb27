"""Each family of values is there for a lazy kernel that only it brings to light."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F

from kernelwright.problems import Tolerance, input_distributions
from kernelwright.sandbox.correctness.compare import ExactCase, mismatch_shaken
from kernelwright.sandbox.correctness.families import DRAWN, FAMILIES, vary
from tests.support.tensors import packed

pytestmark = pytest.mark.slow


Function = Callable[[torch.Tensor], torch.Tensor]
DRAWS = 5
LANES = 32


class Lazy(NamedTuple):
    """A kernel that is right for what the problem draws, the reference and the draw."""

    kernel: Function
    reference: Function
    draw: Callable[[], torch.Tensor]


def mean_of_softplus(x: torch.Tensor, threshold: float) -> torch.Tensor:
    """Above the threshold the value itself is taken for its softplus."""
    return F.softplus(x, threshold=threshold).mean()


def batch_norm(x: torch.Tensor, epsilon: float) -> torch.Tensor:
    return F.batch_norm(x, None, None, training=True, eps=epsilon)


def running_maximum_from_zero(x: torch.Tensor) -> torch.Tensor:
    shares = (x - x.amax(-1, keepdim=True).clamp(min=0)).exp()
    return shares / shares.sum(-1, keepdim=True)


def place_by_lanes(x: torch.Tensor) -> torch.Tensor:
    """The first in each lane, and of these the one in the lowest lane: the wrong one of two in different lanes."""
    lanes = x.unflatten(1, (-1, LANES))
    tops, rounds = lanes.max(1)
    lane = tops.argmax(1, keepdim=True)
    return (rounds.gather(1, lane) * LANES + lane)[:, 0]


def normalised(x: torch.Tensor) -> torch.Tensor:
    return x * x.square().sum(-1, keepdim=True).rsqrt()


def negligible_rows_left_out(x: torch.Tensor) -> torch.Tensor:
    return F.normalize(x, dim=-1) * (x.abs().amax(-1, keepdim=True) >= 1e-3 * x.abs().max())


def variance_about_the_first(x: torch.Tensor) -> torch.Tensor:
    off = x - x[:, :1]
    mean = off.mean(-1, keepdim=True)
    return (off - mean) * (off.square().mean(-1, keepdim=True) - mean.square() + 1e-5).rsqrt()


def without_the_rest(x: torch.Tensor) -> torch.Tensor:
    """As vectors of eight have it."""
    return x[..., : x.shape[-1] // 8 * 8]


def layer_norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:])


def sampled_sum(x: torch.Tensor) -> torch.Tensor:
    """The ends of each row, and between them 30 of 32 elements, scaled up."""
    middle = x[..., 32:-32].unflatten(-1, (-1, 32))[..., :30].flatten(-2).sum(-1)
    return x[..., :32].sum(-1) + middle * 32 / 30 + x[..., -32:].sum(-1)


LAZY = {
    "scaled up by 8": Lazy(
        lambda x: mean_of_softplus(x, 5.0), lambda x: mean_of_softplus(x, 20.0), lambda: torch.randn(64, 512)
    ),
    "scaled down by 1000": Lazy(
        lambda x: batch_norm(x, 1e-12), lambda x: batch_norm(x, 1e-5), lambda: 3 * torch.randn(256, 64)
    ),
    "shifted by 100": Lazy(lambda x: x.amin(-1).clamp(max=0), lambda x: x.amin(-1), lambda: torch.randn(64, 512)),
    "shifted below zero": Lazy(
        running_maximum_from_zero, lambda x: torch.softmax(x, -1), lambda: 3 * torch.randn(64, 512)
    ),
    "all negative": Lazy(
        lambda x: F.max_pool1d(F.gelu(x), 8).clamp(min=0),
        lambda x: F.max_pool1d(F.gelu(x), 8),
        lambda: torch.rand(64, 512),
    ),
    "with every other sign changed": Lazy(
        lambda x: x / x.mean(-1, keepdim=True).abs(),
        lambda x: x / x.abs().mean(-1, keepdim=True),
        lambda: torch.rand(64, 511),
    ),
    "with ties": Lazy(place_by_lanes, lambda x: x.argmax(1), lambda: torch.randn(48, 96)),
    "with rows of zeros": Lazy(normalised, lambda x: F.normalize(x, dim=-1), lambda: torch.randn(64, 512)),
    "of mixed magnitude": Lazy(
        negligible_rows_left_out, lambda x: F.normalize(x, dim=-1), lambda: torch.randn(64, 512)
    ),
    "with outliers": Lazy(variance_about_the_first, layer_norm, lambda: torch.randn(512, 1024)),
    "with heavy ends": Lazy(
        lambda x: without_the_rest(x).amax(-1), lambda x: x.amax(-1), lambda: torch.randn(8, 100003)
    ),
    "with few large values": Lazy(sampled_sum, lambda x: x.sum(-1), lambda: 1 + 1e-6 * torch.rand(64, 4096)),
}


def is_caught(lazy: Lazy, family: str) -> bool:
    """By what the judge does with a call."""
    values = vary(packed(lazy.draw()), family)
    x = values.tensors[0].tensor()
    asked = ExactCase(values, lambda given: packed(lazy.reference(given.tensors[0].tensor().double())))
    return mismatch_shaken(packed(lazy.kernel(x)), asked, packed(lazy.reference(x)), Tolerance()) is not None


def test_every_family_has_its_lazy_kernel() -> None:
    assert set(LAZY) == set(FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_lazy_kernel_is_caught_by_its_family_and_by_no_other(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Large values at secret places fall on a row's end now and then
    monkeypatch.setattr(input_distributions, "SECRET", 1)
    torch.manual_seed(0)
    for _ in range(DRAWS):
        assert [family for family in (DRAWN, *FAMILIES) if is_caught(LAZY[name], family)] == [name]


REDUCED: dict[str, Function] = {
    "a sum": lambda x: x.sum(-1),
    "a norm": lambda x: x.square().sum(-1).sqrt(),
    "a variance": lambda x: x.var(-1),
    "a maximum": lambda x: x.amax(-1),
    "a minimum": lambda x: x.amin(-1),
    "the place of a maximum": lambda x: x.argmax(-1),
    "the place of a minimum": lambda x: x.argmin(-1),
}
SEEN: dict[str, Function] = {
    "over the last axis": lambda x: x,
    "over axis 0": lambda x: x.T,
    "over everything": lambda x: x.view(-1),
}


@pytest.mark.parametrize("name", REDUCED)
@pytest.mark.parametrize("way", SEEN)
@pytest.mark.parametrize("draw", [torch.rand, torch.randn, lambda *shape: -torch.rand(*shape)])
def test_a_reduction_that_forgets_a_remainder_is_caught(name: str, way: str, draw: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    lazy = Lazy(
        lambda x: REDUCED[name](without_the_rest(SEEN[way](x))),
        lambda x: REDUCED[name](SEEN[way](x)),
        lambda: draw(1004, 1003).contiguous(),
    )
    assert all(is_caught(lazy, "with heavy ends") for _ in range(DRAWS))


def test_a_maximum_that_starts_from_zero_is_caught_only_where_nothing_is_positive() -> None:
    torch.manual_seed(0)
    lazy = Lazy(
        lambda x: F.max_pool2d(x, 3).clamp(min=0), lambda x: F.max_pool2d(x, 3), lambda: torch.rand(4, 8, 24, 24)
    )
    caught = {family for family in (DRAWN, *FAMILIES) if is_caught(lazy, family)}
    assert caught == {"all negative", "shifted below zero"}
