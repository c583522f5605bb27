"""Outputs of 16 bits: kernels that add in float32 are right, those that add in 16 bits or round once more are not."""

import pytest
import torch
from torch.nn import functional as F

from kernelwright.problems import Tolerance
from kernelwright.sandbox.correctness.compare import MANY, is_right_anyhow, mismatch
from tests.support.tensors import packed

pytestmark = pytest.mark.slow


DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
LOWER = {torch.bfloat16: torch.float8_e4m3fn, torch.float16: torch.bfloat16}
EACH_TERM, EACH_EIGHTH = 1, 8


def refused(got, near, want):
    return mismatch(packed(got), packed(want), packed(near), Tolerance())


def in_steps(count, step, dtype, partial):
    """A sum that is rounded to this dtype after each step."""
    total = None
    for start in range(0, count, step):
        more = partial(slice(start, start + step))
        total = (more if total is None else total.float() + more).to(dtype)
    return total.float()


def product(step):
    def run(a, b):
        dtype, a, b = a.dtype, a.float(), b.float()
        return (a @ b if not step else in_steps(a.shape[1], step, dtype, lambda part: a[:, part] @ b[part])).to(dtype)

    return run


def row_sum(x, dtype, step):
    return x.sum(-1) if not step else in_steps(x.shape[-1], step, dtype, lambda part: x[..., part].sum(-1))


def softmax(step):
    def run(x):
        powers = torch.exp(x.float() - x.float().amax(-1, keepdim=True))
        return (powers / row_sum(powers, x.dtype, step).unsqueeze(-1)).to(x.dtype)

    return run


def norm(step):
    def run(x):
        off = x.float() - x.float().mean(-1, keepdim=True)
        variance = row_sum(off.square(), x.dtype, step).unsqueeze(-1) / x.shape[-1]
        return (off / (variance + 1e-5).sqrt()).to(x.dtype)

    return run


def mean(step):
    return lambda x: (row_sum(x.float(), x.dtype, step) / x.shape[-1]).to(x.dtype)


def convolution(step):
    def run(x, weight):
        patches = F.unfold(x.float(), 3).transpose(1, 2).to(x.dtype)
        flat = product(step)(patches.reshape(-1, patches.shape[-1]), weight.view(len(weight), -1).t())
        return flat.view(len(x), -1, len(weight)).transpose(1, 2).reshape(len(x), len(weight), 10, 10)

    return run


PROBLEMS = {
    "product": (torch.matmul, product, (128, 1024), (1024, 96)),
    "softmax": (lambda x: torch.softmax(x, -1), softmax, (256, 4096)),
    "norm": (lambda x: F.layer_norm(x, x.shape[-1:]), norm, (256, 1024)),
    "mean": (lambda x: x.mean(-1), mean, (256, 4096)),
    "convolution": (F.conv2d, convolution, (2, 128, 12, 12), (32, 128, 3, 3)),
}
EVERY = pytest.mark.parametrize("name", PROBLEMS)
SEEDS = pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])


def posed(name, dtype, seed):
    """Inputs, the reference's result and the one in float64, and a kernel by how often it rounds its sum."""
    reference, kernel, *shapes = PROBLEMS[name]
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    return inputs, reference(*inputs), reference(*(value.double() for value in inputs)), kernel


@EVERY
@DTYPES
@SEEDS
def test_sums_in_float32_are_right(name, dtype, seed):
    inputs, near, want, kernel = posed(name, dtype, seed)
    assert not refused(near, near, want)
    assert not refused(kernel(None)(*inputs), near, want)


@EVERY
@DTYPES
@SEEDS
def test_sums_that_are_rounded_after_every_term_are_wrong(name, dtype, seed):
    inputs, near, want, kernel = posed(name, dtype, seed)
    got = kernel(EACH_TERM)(*inputs)
    assert refused(got, near, want)
    assert not is_right_anyhow(packed(got), packed(near), Tolerance())


@pytest.mark.parametrize("name", ["product", "softmax", "mean", "convolution"])
@DTYPES
@SEEDS
def test_long_sums_that_are_rounded_after_every_eighth_term_are_wrong(name, dtype, seed):
    inputs, near, want, kernel = posed(name, dtype, seed)
    assert refused(kernel(EACH_EIGHTH)(*inputs), near, want)


@EVERY
@DTYPES
@SEEDS
def test_a_result_that_was_rounded_to_the_next_lower_precision_is_wrong(name, dtype, seed):
    _, near, want, _ = posed(name, dtype, seed)
    got = near.to(LOWER[dtype]).to(dtype)
    assert refused(got, near, want)
    assert not is_right_anyhow(packed(got), packed(near), Tolerance())


@DTYPES
@SEEDS
def test_a_softmax_and_a_norm_that_round_between_their_steps_are_right(dtype, seed):
    (x,), near, want, _ = posed("softmax", dtype, seed)
    powers = torch.exp(x - x.amax(-1, keepdim=True))
    assert not refused(powers / powers.sum(-1, keepdim=True), near, want)
    (x,), near, want, _ = posed("norm", dtype, seed)
    off = x - x.mean(-1, keepdim=True)
    assert not refused(off / torch.sqrt(off.square().mean(-1, keepdim=True) + 1e-5), near, want)


@DTYPES
def test_of_few_elements_chance_is_allowed_for(dtype):
    step = torch.finfo(dtype).eps
    for count, right in ((MANY - 1, True), (MANY, False)):
        want = torch.linspace(1, 1.9, count, dtype=torch.float64).to(dtype).double()
        assert (refused((want + 2.2 * step).to(dtype), want.to(dtype), want) is None) is right


@DTYPES
def test_a_wider_tolerance_of_a_problem_counts_at_16_bits_too(dtype):
    want = torch.rand(1000, dtype=torch.float64) + 1
    near, wide = want.to(dtype), Tolerance(factor=80, reason="to try it")
    off = near + 8 * torch.finfo(dtype).eps
    assert refused(off, near, want)
    assert mismatch(packed(off), packed(want), packed(near), wide) is None


@EVERY
@DTYPES
@SEEDS
def test_what_is_right_whatever_float64_says_is_right(name, dtype, seed):
    """Noise around the reference's result, from far below what is allowed to far above it."""
    _, near, want, _ = posed(name, dtype, seed)
    for share in (0.05, 0.2, 0.5, 1, 2):
        noise = share * torch.finfo(dtype).eps * near.float() * torch.randn(near.shape)
        got = (near.float() + noise).to(dtype)
        if is_right_anyhow(packed(got), packed(near), Tolerance()):
            assert not refused(got, near, want)
