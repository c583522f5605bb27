"""The metrics against cases worked out by hand, and against what must hold for any input."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.evals import metrics
from kernelwright.evals.metrics import Result, summarize
from tests.support.runs import failed, passed

RATIOS = st.floats(0.01, 100)
SPEEDUPS = st.one_of(st.none(), RATIOS)


def results_of(*speedups, compiled=None):
    flags = compiled or [speedup is not None for speedup in speedups]
    return [
        Result(problem=f"p{i}", family="even" if i % 2 == 0 else "odd", compiled=flag, speedup=speedup)
        for i, (speedup, flag) in enumerate(zip(speedups, flags, strict=True))
    ]


FOUR = results_of(2.0, 1.0, 0.6, None)


@pytest.mark.parametrize(
    ("p", "share"), [(0, 0.75), (0.5, 0.75), (0.8, 0.5), (1, 0.25), (1.5, 0.25), (2, 0.0), (5, 0.0)]
)
def test_fast_p_counts_failures_and_leaves_out_a_speedup_of_exactly_p(p, share):
    assert metrics.fast_p(FOUR, p) == share


def test_the_compile_rate_counts_what_was_built_and_wrong():
    assert metrics.compile_rate(results_of(2.0, None, None, compiled=[True, True, False])) == pytest.approx(2 / 3)


@given(st.lists(SPEEDUPS, min_size=1))
def test_fast_p_never_rises_with_p_and_starts_at_the_correct_rate(speedups):
    results = results_of(*speedups)
    shares = list(metrics.fast_curve(results).values())
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == sum(one is not None for one in speedups) / len(speedups)


@given(st.lists(SPEEDUPS, min_size=1), st.floats(0, 5))
def test_one_more_failure_never_raises_fast_p(speedups, p):
    assert metrics.fast_p(results_of(*speedups, None), p) <= metrics.fast_p(results_of(*speedups), p)


def test_the_geometric_mean_of_2_and_8_is_4():
    assert metrics.geometric_mean([2.0, 8.0]).value == pytest.approx(4.0)


def test_one_ratio_has_no_interval():
    found = metrics.geometric_mean([3.0])
    assert (found.value, found.low, found.high, found.count) == (pytest.approx(3.0), None, None, 1)


@given(st.lists(RATIOS, min_size=2, max_size=30))
def test_the_geometric_mean_of_inverses_is_the_inverse(ratios):
    inverse = metrics.geometric_mean([1 / ratio for ratio in ratios])
    assert inverse.value == pytest.approx(1 / metrics.geometric_mean(ratios).value)


@given(st.lists(RATIOS, min_size=20, max_size=40))
def test_the_interval_lies_within_the_ratios(ratios):
    found = metrics.geometric_mean(ratios)
    tolerance = 1e-9
    assert min(ratios) * (1 - tolerance) <= found.low <= found.high <= max(ratios) * (1 + tolerance)


@pytest.mark.parametrize("count", [3, 8, 19, 20, 40])
def test_the_interval_of_a_mean_holds_the_truth_in_about_95_of_100_samples(count):
    rng = random.Random(count)
    held = 0
    for _ in range(400):
        found = metrics.geometric_mean([math.exp(rng.gauss(0.5, 0.3)) for _ in range(count)])
        held += found.low <= math.exp(0.5) <= found.high
    assert 364 <= held <= 396


def test_the_interval_of_many_ratios_is_drawn_alike_each_time():
    found = metrics.geometric_mean([1 + number / 10 for number in range(24)])
    assert (found.low, found.high) == (
        pytest.approx(1.754527327997044, rel=1e-12),
        pytest.approx(2.3207745967011433, rel=1e-12),
    )


@pytest.mark.parametrize(("low", "credit"), [(None, 1.0), (0.7, 1.0), (1.6, 1.6)])
def test_a_failure_and_a_slower_kernel_are_credited_with_the_baseline(low, credit):
    assert metrics.credited(low) == credit


@pytest.mark.parametrize(
    ("samples", "correct", "k", "chance"),
    [(10, 0, 5, 0.0), (10, 10, 1, 1.0), (10, 3, 1, 0.3), (4, 2, 2, 5 / 6), (5, 1, 5, 1.0), (200, 20, 10, 0.6602)],
)
def test_pass_at_k_by_hand(samples, correct, k, chance):
    assert metrics.pass_at_k(samples, correct, k) == pytest.approx(chance, abs=1e-4)


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(case):
    samples, correct, k = case
    draws = list(itertools.combinations([True] * correct + [False] * (samples - correct), k))
    assert metrics.pass_at_k(samples, correct, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize(
    ("verdict", "built"),
    [(passed(2.0), True), (failed("check"), True), (failed("load"), True), (failed("build"), False)],
    ids=["passed", "check", "load", "build"],
)
def test_what_came_through_scan_and_build_counts_as_compiled(verdict, built):
    assert summarize(verdict).compiled == built


def test_the_roofline_fraction_is_floor_over_time():
    assert metrics.roofline_fraction(candidate_ms=2.0, floor_ms=0.5) == 0.25


@pytest.mark.parametrize(("candidate", "score"), [(4.0, 0.5), (1.0, 1.0), (0.5, 1.0), (2.0, 0.75), (7.0, 1 / 3)])
def test_the_speed_of_light_score_by_hand(candidate, score):
    assert metrics.speed_of_light_score(candidate, baseline_ms=4.0, floor_ms=1.0) == pytest.approx(score)


@pytest.mark.parametrize(
    ("metric", "arguments"),
    [
        (metrics.compile_rate, ([],)),
        (metrics.geometric_mean, ([1.0, 0.0],)),
        (metrics.pass_at_k, (3, 1, 4)),
        *((metrics.roofline_fraction, times) for times in ((0.0, 1.0), (1.0, 0.0), (-1.0, 1.0))),
        *((metrics.speed_of_light_score, (*times, 1.0)) for times in ((0.0, 4.0), (2.0, 1.0))),
        (metrics.sign_test, (-1, 0)),
    ],
)
def test_what_has_no_value_is_refused(metric, arguments):
    with pytest.raises(ValueError):
        metric(*arguments)


@given(st.floats(1, 50), st.floats(1.1, 50))
def test_the_score_falls_with_time_and_stays_between_0_and_1(candidate, baseline):
    score = metrics.speed_of_light_score(candidate, baseline, floor_ms=1.0)
    slower = metrics.speed_of_light_score(candidate * 1.5, baseline, floor_ms=1.0)
    assert 0 < slower < score <= 1


def test_one_unknown_cost_makes_the_sum_unknown():
    assert metrics.total_cost([0.5, None, 9.0]) is None and metrics.total_cost([0.5, 0.25]) == 0.75


@pytest.mark.parametrize(
    ("wins", "losses", "chance"), [(0, 0, 1.0), (5, 0, 0.0625), (8, 2, 0.109375), (3, 3, 1.0), (10, 0, 2 / 1024)]
)
def test_the_sign_test_by_hand(wins, losses, chance):
    assert metrics.sign_test(wins, losses) == pytest.approx(chance)


@given(st.integers(0, 200), st.integers(0, 200))
def test_the_sign_test_treats_both_sides_alike(wins, losses):
    assert metrics.sign_test(wins, losses) == metrics.sign_test(losses, wins) <= 1
