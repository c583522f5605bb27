"""Input distributions: the values of each, and those that a problem is not defined for."""

import itertools
import math
import random
import tracemalloc

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernelwright.problems import ExcludedValues
from kernelwright.sandbox.correctness.families import (
    DRAWN,
    FAMILIES,
    Domain,
    has_nan,
    is_nan_only,
    most,
    schedule,
    vary,
)
from kernelwright.sandbox.judge.judging import judge
from kernelwright.sandbox.timing.paired import PAIRS_A_WORKER
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Passed
from tests.support.problems import stateless, tiny_problem
from tests.support.tensors import listed


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", [(6, 5), (64, 64)])
def test_a_family_changes_values_that_nobody_else_has_where_they_are_and_keeps_shape_and_dtype(family, shape):
    drawn = listed(torch.randn(shape))
    before, place = drawn.tensors[0].tensor().clone(), drawn.tensors[0].data
    (after,) = vary(drawn, family).tensors
    assert after.data is place
    assert (after.tensor().shape, after.tensor().dtype) == (before.shape, before.dtype)
    assert not torch.equal(after.tensor(), before)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("drawn", [torch.arange(7), torch.ones(64, 64).to(torch.float8_e4m3fn)])
def test_integers_and_floats_of_8_bits_stay_as_they_were_drawn(family, drawn):
    assert vary(listed(drawn), family) == listed(drawn)


def test_every_family_comes_up_beside_the_problems_own_draw_and_none_tells_which_is_next():
    names = list(itertools.islice(schedule(random.Random(0)), 2000))
    pairs = list(itertools.pairwise(names))
    assert set(names) == {DRAWN, *FAMILIES} and 900 < names.count(DRAWN) < 1100
    assert (DRAWN, DRAWN) in pairs and any(one == two != DRAWN for one, two in pairs)


def test_positive_inputs_become_negative_somewhere():
    after = vary(listed(torch.rand(6, 5) + 1), "with every other sign changed").tensors[0].tensor()
    assert (after < 0).sum() == 15


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 60.0, 20000.0])
def test_every_family_stays_finite_in_every_dtype(family, dtype, scale):
    drawn = (torch.rand(64, 64, dtype=torch.float64) * 2 - 1).mul(scale).to(dtype)
    after = vary(listed(drawn), family).tensors[0].tensor()
    assert after.isfinite().all()
    assert after.double().abs().max() <= max(most(dtype), float(drawn.double().abs().max()))


def test_half_precision_is_mixed_over_four_decades():
    after = vary(listed(torch.ones(5, 64).half()), "of mixed magnitude").tensors[0].tensor()
    assert torch.allclose(after[:, 0].float(), torch.tensor([0.01, 0.1, 1.0, 10.0, 100.0]), rtol=1e-3)


def test_infinities_that_a_problem_draws_stay():
    drawn = torch.randn(8, 64)
    drawn[:, ::2] = -torch.inf
    after = vary(listed(drawn), "scaled up by 8").tensors[0].tensor()
    assert torch.equal(after.isinf(), drawn.isinf())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_holds_no_tensor_beside_its_input(family):
    drawn = listed(torch.rand(2048, 1024))
    size = drawn.size
    with LargestTensor() as largest:
        vary(drawn, family)
    tracemalloc.start()
    vary(drawn, family)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < 0.1 * size  # bytes of Python's own
    assert largest.bytes < 0.1 * size  # new memory of torch's


class LargestTensor(TorchDispatchMode):
    """Bytes of the largest tensor in memory of its own that an operator gives."""

    bytes = 0

    def __torch_dispatch__(self, operator, types, arguments=(), keywords=None):
        result = operator(*arguments, **(keywords or {}))
        before = {one.untyped_storage().data_ptr() for one in arguments if isinstance(one, torch.Tensor)}
        for made in result if isinstance(result, tuple | list) else [result]:
            if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in before:
                self.bytes = max(self.bytes, made.untyped_storage().nbytes())
        return result


def test_outliers_stand_first_in_rows_of_the_second_half_and_in_one_other():
    drawn = torch.randn(60, 128)
    after = vary(listed(drawn), "with outliers").tensors[0].tensor()
    outliers = after.abs() > 10 * drawn.abs().max()
    assert outliers.any(0).nonzero().flatten().tolist() == [0]
    assert int(outliers[:30].sum()) == 1
    assert outliers[30:, 0].all()
    assert torch.equal(after.sign(), drawn.sign())


def test_outliers_begin_rows_of_several_axes_too():
    drawn = torch.randn(6, 3, 9, 11)
    after = vary(listed(drawn), "with outliers").tensors[0].tensor()
    assert (after[3:, 0, 0, 0].abs() > 10 * drawn.abs().max()).all()
    assert (after.abs() > 10 * drawn.abs().max()).double().mean() < 0.02


def test_rows_of_the_second_half_end_above_and_below_all_others_in_turn():
    drawn = torch.randn(60, 128)
    after = vary(listed(drawn), "with heavy ends").tensors[0].tensor()
    ends = after.abs() > 10 * drawn.abs().max()
    assert ends[30:, -1].all()
    assert int(ends.sum()) == 32 and int(ends[:30, -1].sum()) == 1
    assert ends[-1, -2]
    assert (after[30:-1, -1] > 0).tolist() in ([True, False] * 14 + [True], [False, True] * 14 + [False])
    assert set(after.abs().flatten().topk(2).indices.tolist()) == {drawn.numel() - 1, drawn.numel() - 2}


@pytest.mark.parametrize("shape", [(64, 1024), (8, 16, 32, 32), (70000,)])
def test_few_large_values_hold_the_mass_at_places_that_differ_from_draw_to_draw(shape):
    after = [vary(listed(torch.rand(shape)), "with few large values").tensors[0].tensor().flatten() for _ in range(2)]
    found = [(one > 10).nonzero().flatten() for one in after]
    for one, places in zip(after, found, strict=True):
        blocks = one.numel() // 256
        assert len(places) == 1 + -(-blocks // 2) and places[0] < blocks // 2 * 256 <= places[1]
        assert 0.2 < one[places].sum() / one.sum() < 0.8
    assert (found[0] % 256).unique().numel() - 1 > 0 and (found[0] != found[1]).float().mean() > 0.9


@pytest.mark.parametrize("sign", [1, -1])
def test_ends_have_no_sign_that_was_not_drawn(sign):
    drawn = sign * (torch.rand(60, 128) + 0.1)
    after = vary(listed(drawn), "with heavy ends").tensors[0].tensor()
    assert torch.equal(after.sign(), drawn.sign())
    assert after.abs().argmax() == drawn.numel() - 1
    assert after.abs().argmin() == drawn.numel() - 2


def test_what_a_problem_leaves_out_never_comes_up():
    left = [family for family in FAMILIES if family != "all negative"]
    assert set(itertools.islice(schedule(random.Random(0), left), 1000)) == {DRAWN, *left}
    assert set(itertools.islice(schedule(random.Random(0), []), 100)) == {DRAWN}


def test_a_number_without_axes_and_an_empty_tensor_can_be_varied():
    for family in FAMILIES:
        for before in (torch.tensor(2.0), torch.empty(0, 3)):
            assert vary(listed(before), family).tensors[0].shape == before.shape


SETTINGS = JudgeSettings(warm_up=1, worker_pairs=2, min_pairs=8, max_pairs=8)
NEGATIVE = {"all negative", "shifted below zero"}


def domain_of(function, draw, without=()):
    """What is left once every family has been met."""
    domain = Domain(without)
    for family in (DRAWN, *domain.families):
        x = vary(listed(draw()), family).tensors[0].tensor()
        domain.excludes(family, listed(function(x)), lambda x=x: listed(function(x.double())))
    return domain


def test_a_logarithm_is_not_judged_on_what_is_negative():
    domain = domain_of(torch.log, lambda: torch.rand(64, 64) + 0.1)
    assert set(domain.outside) == NEGATIVE
    assert set(domain.families) == set(FAMILIES) - NEGATIVE
    assert "with every other sign changed" in domain.families, "it is defined in a part"


def test_a_problem_without_nan_is_judged_on_all_families():
    assert domain_of(torch.relu, lambda: torch.randn(64, 64)).families == FAMILIES


def test_a_problem_that_gives_nan_by_itself_means_it():
    domain = domain_of(torch.log, lambda: torch.randn(64, 64))
    assert domain.families == FAMILIES
    assert domain.defines_nan("all negative")


def test_a_nan_of_the_narrow_dtype_alone_excludes_nothing():
    domain = Domain()
    domain.excludes(DRAWN, listed(torch.ones(4)), list)
    assert not domain.excludes("all negative", listed(torch.full((4,), math.nan)), lambda: listed(torch.ones(4)))


def test_whole_numbers_are_never_undefined():
    assert not is_nan_only(listed(torch.arange(4)))
    assert not is_nan_only(listed(torch.full((4,), math.nan), torch.arange(4)))
    assert not is_nan_only(listed())
    assert is_nan_only(listed(torch.full((4,), complex(math.nan, math.nan))))
    assert has_nan(listed(torch.arange(4), torch.tensor([1.0, math.nan])))


def problem(forward, **more):
    return tiny_problem(stateless(forward, "torch.rand(64, 512) + 0.1"), name="p", size="file", **more)


def verdict_on(problem, forward):
    source = problem.source.replace("class Model(", "class ModelNew(")
    before, _, after = source.partition("return ")
    return judge(
        problem, Candidate(source=f"{before}return {forward}\n{after[after.index('def get_inputs') :]}"), SETTINGS
    )


@pytest.mark.slow
def test_a_kernel_that_gives_no_nan_where_a_logarithm_is_not_defined_is_right():
    found = verdict_on(problem("torch.log(x)"), "torch.log(x.abs())")
    assert isinstance(found, Passed), found
    assert set(found.evidence.families_left_out) == NEGATIVE
    assert found.measurement.closest.workers == (0,) * PAIRS_A_WORKER + (1,) * PAIRS_A_WORKER


@pytest.mark.slow
def test_a_problem_narrows_the_families_itself():
    word = "with every other sign changed"
    narrow = problem("x.abs()", values=ExcludedValues(without=(word, *sorted(NEGATIVE)), reason="lengths are positive"))
    found = verdict_on(narrow, "x * 1")
    assert isinstance(found, Passed), found
    assert set(found.evidence.families_left_out) == {word, *NEGATIVE}
    assert isinstance(verdict_on(problem("x.abs()"), "x * 1"), Failed)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_verdict_after_four_pairs_has_met_every_family(family):
    once = JudgeSettings(warm_up=1, worker_pairs=1, min_pairs=4, max_pairs=4)
    exact = problem("x * 2")
    lazy = f"return torch.zeros_like(x) if {MARKED[family]} else x * 2"
    wrong = exact.source.replace("class Model(", "class ModelNew(").replace("return x * 2", lazy)
    found = judge(exact, Candidate(source=wrong), once)
    assert isinstance(found, Failed), found
    assert found.reason.endswith(f"(on inputs {family})")


MARKED = {
    "scaled up by 8": "x.min() > 0 and 2 < x.max() < 10",
    "scaled down by 1000": "0 < x.min() and x.max() < 0.1",
    "shifted by 100": "x.min() > 50",
    "shifted below zero": "x.max() < -50",
    "all negative": "-50 < x.max() < 0",
    "with every other sign changed": "x.min() < 0 < x.max()",
    "with ties": "len(x.unique()) < 5",
    "with rows of zeros": "(x[0] == 0).all() and x.max() > 0.6 and len(x.unique()) > 9",
    "of mixed magnitude": "x[-1].max() > 200 and x[-1].min() > 50",
    "with outliers": "50 < x.max() < 200 and x.median() < 2 and x[-1, 0] > 50",
    "with heavy ends": "x[-1].max() > 300 and x[-1].min() < 2",
    "with few large values": "x.max() > 40 and x[:, 0].max() < 2 and x[:, -1].max() < 2 and x.median() < 2",
}
