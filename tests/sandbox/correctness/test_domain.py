"""Values that a problem is not defined for are found by its float64 reference, and only they."""

import math

import pytest
import torch

from kernelwright.problems import ExcludedValues
from kernelwright.sandbox.correctness.families import DRAWN, FAMILIES, Domain, has_nan, is_nan_only, vary
from kernelwright.sandbox.judge.judging import judge
from kernelwright.sandbox.timing.paired import PAIRS_A_WORKER
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Passed
from tests.support.problems import tiny_problem
from tests.support.tensors import listed

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


def test_what_is_defined_in_a_part_is_judged_on():
    assert "with every other sign changed" in domain_of(torch.log, lambda: torch.rand(64, 64) + 0.1).families


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
    source = f"""
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return {forward}

def get_inputs():
    return [torch.rand(64, 512) + 0.1]

def get_init_inputs():
    return []
"""
    return tiny_problem(source, name="p", size="file", **more)


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
    """A kernel that is wrong on one family alone is refused, however few calls are timed."""
    once = JudgeSettings(warm_up=1, worker_pairs=1, min_pairs=4, max_pairs=4)
    exact = problem("x * 2")
    wrong = exact.source.replace("class Model(", "class ModelNew(").replace("return x * 2", MARKED[family])
    found = judge(exact, Candidate(source=wrong), once)
    assert isinstance(found, Failed), found
    assert found.reason.endswith(f"(on inputs {family})")


ONLY = "return torch.zeros_like(x) if {} else x * 2"
MARKED = {
    "scaled up by 8": ONLY.format("x.min() > 0 and 2 < x.max() < 10"),
    "scaled down by 1000": ONLY.format("0 < x.min() and x.max() < 0.1"),
    "shifted by 100": ONLY.format("x.min() > 50"),
    "shifted below zero": ONLY.format("x.max() < -50"),
    "all negative": ONLY.format("-50 < x.max() < 0"),
    "with every other sign changed": ONLY.format("x.min() < 0 < x.max()"),
    "with ties": ONLY.format("len(x.unique()) < 5"),
    "with rows of zeros": ONLY.format("(x[0] == 0).all() and x.max() > 0.6 and len(x.unique()) > 9"),
    "of mixed magnitude": ONLY.format("x[-1].max() > 200 and x[-1].min() > 50"),
    "with outliers": ONLY.format(
        "50 < x.max() < 200 and x[0].max() < 2 and x[-2].max() < 200 and x.median() < 2 and x[-1, 0] > 50"
    ),
    "with heavy ends": ONLY.format("x[-1].max() > 300 and x[-1].min() < 2"),
    "with few large values": ONLY.format(
        "x.max() > 40 and x[:, 0].max() < 2 and x[:, -1].max() < 2 and x.median() < 2"
    ),
}
