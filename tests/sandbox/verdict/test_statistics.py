import random

import pytest

from kernelwright.sandbox.verdict.statistics import paired_ratio, ratio_interval
from kernelwright.sandbox.verdict.verdicts import Measurement, Pairing


def test_the_ratio_of_a_series_with_itself_is_one():
    assert paired_ratio([1.0, 2.0, 5.0], [1.0, 2.0, 5.0]) == 1.0


def test_a_slow_moment_that_hits_both_sides_of_a_pair_cancels():
    assert paired_ratio([2.0, 200.0, 2.0], [1.0, 100.0, 1.0]) == pytest.approx(2.0)


def test_the_interval_covers_the_true_ratio_in_about_95_of_100_experiments():
    rng = random.Random(1)
    covered = 0
    for _ in range(200):
        slow = [2.0 * rng.lognormvariate(0, 0.1) for _ in range(30)]
        fast = [rng.lognormvariate(0, 0.1) for _ in range(30)]
        low, high = ratio_interval(slow, fast)
        covered += low <= 2.0 <= high
    assert covered >= 180


def test_the_interval_covers_the_true_ratio_also_where_processes_differ():
    rng = random.Random(1)
    covered = 0
    for _ in range(200):
        groups = [group for group in range(5) for _ in range(4)]
        dealt = [rng.lognormvariate(0, 0.05) for _ in range(5)]
        slow = [2.0 * dealt[group] * rng.lognormvariate(0, 0.05) for group in groups]
        low, high = ratio_interval(slow, [1.0] * 20, groups)
        covered += low <= 2.0 <= high
    assert covered >= 180


def test_groups_may_differ_in_size():
    low, high = ratio_interval([2.0] * 5, [1.0] * 5, [0, 0, 0, 1, 1])
    assert (low, high) == (pytest.approx(2.0), pytest.approx(2.0))


def test_the_interval_can_be_recomputed_from_the_samples():
    samples = [1.0, 1.1, 0.9, 1.3], [0.5, 0.6, 0.4, 0.5]
    assert ratio_interval(*samples) == ratio_interval(*samples)


def test_series_of_different_length_are_refused():
    with pytest.raises(ValueError, match="equally long"):
        paired_ratio([1.0], [1.0, 2.0])


def measurement(candidate, *baselines):
    pairings = tuple(
        Pairing(baseline=f"b{i}", candidate_ms=tuple(candidate), baseline_ms=tuple(times))
        for i, times in enumerate(baselines)
    )
    return Measurement(pairings=pairings, threads=1)


def test_the_better_baseline_counts():
    found = measurement([1.0] * 8, [4.0] * 8, [2.0] * 8)
    assert (found.speedup, found.closest.baseline) == (2.0, "b1")


@pytest.mark.parametrize(
    ("baseline", "comparison"),
    [([2.0] * 8, "faster"), ([1.0] * 8, "same"), ([0.5] * 8, "slower"), ([0.2, 5.0] * 4, "too_noisy")],
)
def test_the_comparison_follows_the_interval(baseline, comparison):
    assert measurement([1.0] * 8, baseline).comparison == comparison
