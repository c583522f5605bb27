"""Intervals from few worker pairs, tried on made-up machines: how often they miss, whenever one looks."""

import math
import random

import pytest

from kernelwright.sandbox.timing.paired import is_enough_to_choose
from kernelwright.sandbox.verdict.statistics import (
    GPU_LEAST,
    GPU_UNKNOWN,
    LEAST,
    UNKNOWN,
    WRONG,
    KnownSpread,
    known_spread,
    paired_ratio,
    ratio_interval,
    spread_of_launches,
    student,
    worker_interval,
)
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


TRIALS = 1000
PAIRS = 4
LOOKS = 5


class Machine:
    """Ratios as it gives them: each worker pair is off by its own luck, and each call by noise of some kind."""

    def __init__(self, between, noise, within=0.015, seed=0):
        self.between, self.within, self.noise = between, within, noise
        self.rng = random.Random(seed)

    def worker(self, speedup, pairs=PAIRS):
        luck = self.rng.gauss(0, self.between)
        return [speedup * math.exp(luck + self.within * self.call()) for _ in range(pairs)]

    def call(self):
        heavy = self.noise == "heavy tails" and self.rng.random() < 0.1
        skewed = self.noise == "slow moments" and self.rng.random() < 0.15
        return self.rng.gauss(0, 1) * (8 if heavy else 1) + (6 * self.rng.random() if skewed else 0)

    def known(self, looks, references=20):
        """From two calls of each pair of the reference's processes, as a placebo has."""
        return known_spread([math.log(math.prod(self.worker(1.0, 2))) / 2 for _ in range(references)], looks)


def measured(workers, known, placebo=None):
    ratios = [ratio for worker in workers for ratio in worker]
    numbers = tuple(number for number, worker in enumerate(workers) for _ in worker)
    pairing = Pairing(baseline="eager", candidate_ms=(1.0,) * len(ratios), baseline_ms=tuple(ratios), workers=numbers)
    return Measurement(pairings=(pairing,), threads=1, known_spread=known, placebo=placebo)


def searched(machine, speedup, known, beat=None):
    """What a search knows when it stops: it looks after each worker pair."""
    workers = []
    while True:
        workers.append(machine.worker(speedup))
        found = measured(workers, known)
        if len(workers) == LOOKS or is_enough_to_choose(found, beat, 0.03):
            return found


MACHINES = [
    pytest.param(between, noise, id=f"{between:.1%} between processes, {noise}")
    for between in (0.0, 0.005, 0.01, 0.02, 0.03)
    for noise in ("normal", "heavy tails", "slow moments")
]


def misses(found, speedup):
    return sum(not one.interval.low <= speedup <= one.interval.high for one in found)


@pytest.mark.parametrize(("between", "noise"), MACHINES)
def test_a_screen_of_the_reference_itself_is_called_faster_in_less_than_one_of_a_hundred(between, noise):
    machine = Machine(between, noise)
    known = machine.known(looks=1)
    found = [measured([machine.worker(1.0)], known) for _ in range(TRIALS)]
    assert sum(one.comparison == "faster" for one in found) <= 0.01 * TRIALS
    assert misses(found, 1.0) <= WRONG * TRIALS


@pytest.mark.parametrize(("between", "noise"), MACHINES)
def test_a_search_of_the_reference_itself_is_called_faster_in_less_than_one_of_a_hundred(between, noise):
    machine = Machine(between, noise, seed=1)
    known = machine.known(LOOKS)
    found = [searched(machine, 1.0, known) for _ in range(TRIALS)]
    assert sum(one.comparison == "faster" for one in found) <= 0.01 * TRIALS
    assert misses(found, 1.0) <= WRONG * TRIALS


@pytest.mark.parametrize("noise", ["normal", "heavy tails", "slow moments"])
@pytest.mark.parametrize("between", [0.0, 0.003, 0.006, 0.01])
@pytest.mark.parametrize("references", [0, 20])
def test_on_a_gpu_a_search_of_the_reference_itself_is_not_called_faster_either(between, noise, references):
    machine = Machine(between, noise, within=0.01, seed=4)
    ratios = [math.log(math.prod(machine.worker(1.0, 2))) / 2 for _ in range(references)]
    known = known_spread(ratios, LOOKS, unknown=GPU_UNKNOWN, least=GPU_LEAST)
    found = [searched(machine, 1.0, known) for _ in range(TRIALS // 2)]
    assert sum(one.comparison == "faster" for one in found) <= 0.01 * len(found)
    assert misses(found, 1.0) <= WRONG * len(found)


@pytest.mark.parametrize(
    ("speedup", "beat"), [(0.5, None), (0.9, None), (1.2, None), (3.0, None), (2.0, 3.0), (3.1, 3.0)]
)
@pytest.mark.parametrize("between", [0.0, 0.01, 0.03])
def test_what_a_search_says_holds_whatever_made_it_stop(speedup, beat, between):
    machine = Machine(between, "heavy tails", seed=2)
    known = machine.known(LOOKS)
    found = [searched(machine, speedup, known, beat) for _ in range(TRIALS // 5)]
    assert misses(found, speedup) <= WRONG * len(found)


@pytest.mark.parametrize("between", [0.01, 0.03])
def test_where_nothing_is_known_of_the_reference_it_holds_too(between):
    machine, nothing = Machine(between, "heavy tails", seed=3), known_spread([], LOOKS)
    assert sum(searched(machine, 1.0, nothing).comparison == "faster" for _ in range(TRIALS)) <= 0.01 * TRIALS


@pytest.mark.parametrize(
    "problems", [[0.003, 0.005, 0.01, 0.01, 0.02, 0.03, 0.05], [0.005] * 9 + [0.06]], ids=["mixed", "one that is bad"]
)
def test_what_is_usual_of_other_problems_may_be_assumed_of_a_new_one(problems):
    """Whichever of the problems the new one is like: it is hardly ever called faster than itself."""
    rng = random.Random(7)

    def machine():
        return Machine(rng.choice(problems), "heavy tails", seed=rng.random())

    def usual():
        others = [math.log(math.prod(machine().worker(1.0, 2))) / 2 for _ in range(96)]
        return known_spread([], LOOKS, others)

    found = [searched(machine(), 1.0, usual()) for _ in range(TRIALS)]
    assert sum(one.comparison == "faster" for one in found) <= 0.01 * TRIALS
    assert misses(found, 1.0) <= WRONG * TRIALS


def test_where_processes_differ_too_much_what_is_clearly_better_is_measured_no_further():
    """Five pairs would not tell either how much better; whether it is better at all is worth all of them."""
    machine = Machine(0.3, "normal", seed=9)
    known = machine.known(LOOKS)
    better, alike = ([searched(machine, speedup, known) for _ in range(50)] for speedup in (8.0, 1.0))
    assert sum(len(set(one.closest.workers)) == 2 for one in better) > 40
    assert sum(len(set(one.closest.workers)) == LOOKS for one in alike) > 40
    assert misses(better, 8.0) <= 3


def test_what_more_pairs_may_make_a_claim_goes_on_until_it_is_one():
    machine, known = Machine(0.05, "normal", seed=10), KnownSpread(sd=0.13, degrees=11, looks=LOOKS)
    found = [searched(machine, 4.0, known) for _ in range(50)]
    assert all(one.comparison == "faster" for one in found)
    assert {len(set(one.closest.workers)) for one in found} == {3}


def test_on_a_device_where_processes_hardly_differ_one_pair_shows_what_is_better_by_far():
    usual = known_spread([], LOOKS, [0.01 * (-1) ** at for at in range(40)])
    machine = Machine(0.005, "normal", seed=8)
    found = [searched(machine, 2.2, usual) for _ in range(50)]
    assert sum(len(set(one.closest.workers)) == 1 for one in found) > 45
    assert misses(found, 2.2) == 0


def test_what_is_clearly_slower_or_clearly_below_the_best_ends_at_the_first_look():
    machine = Machine(0.01, "normal", seed=4)
    known = machine.known(LOOKS)
    for speedup, beat in ((0.7, None), (2.0, 3.0)):
        found = [searched(machine, speedup, known, beat) for _ in range(100)]
        assert sum(len(set(one.closest.workers)) == 1 for one in found) > 90


def test_what_is_better_by_far_needs_no_narrow_interval():
    """Before anything is known of the machine: twice as fast is enough after two pairs, a tenth faster is not."""
    machine, unknown = Machine(0.005, "normal", seed=6), known_spread([], LOOKS)
    far, near = ([searched(machine, speedup, unknown) for _ in range(50)] for speedup in (2.0, 1.1))
    assert all(len(set(one.closest.workers)) == 2 for one in far)
    assert all(len(set(one.closest.workers)) > 2 for one in near)
    assert sum(one.interval.low <= 2.0 <= one.interval.high for one in far) >= 49


def test_what_is_near_the_best_goes_on_until_it_is_told_apart_or_known_as_well_as_may_be():
    machine = Machine(0.02, "normal", seed=5)
    known = machine.known(LOOKS)
    found = [searched(machine, 3.0, known, beat=3.0) for _ in range(50)]
    assert all(len(set(one.closest.workers)) == LOOKS or one.interval.half_width < 0.03 for one in found)


def test_a_baseline_that_differs_from_itself_ends_nothing():
    machine = Machine(0.0, "normal")
    known = machine.known(LOOKS)
    off = Pairing(baseline="eager again", candidate_ms=(1.0, 1.0), baseline_ms=(1.3, 1.3), workers=(0, 0))
    found = measured([machine.worker(0.3)], known, off)
    assert found.comparison == "too_noisy" and not is_enough_to_choose(found, None, 0.03)


def test_one_noisy_process_is_not_taken_for_a_sure_one():
    """Calls that spread far more than they used to say how little a median of four of them tells."""
    quiet = KnownSpread(sd=LEAST, degrees=10, looks=1)
    ratios = [0.8, 1.3, 1.0, 1.6]
    found = worker_interval(ratios, [1.0] * 4, (), quiet)
    assert found.half_width > 0.25


def test_the_speedup_lies_in_its_interval():
    quiet = KnownSpread(sd=LEAST, degrees=10, looks=1)
    ratios, groups = [1.0] * 4 + [1.0, 1.0, 3.0, 3.0], [0] * 4 + [1] * 4
    found = measured([ratios[:4], ratios[4:]], quiet)
    assert groups == list(found.closest.workers)
    assert found.interval.low <= found.speedup <= found.interval.high


def test_a_spread_is_expected_before_it_is_seen_and_then_it_is_what_was_seen():
    assert known_spread([], 5) == KnownSpread(sd=UNKNOWN, degrees=4, looks=5)
    rng = random.Random(0)
    seen = known_spread([rng.gauss(0, 0.02) for _ in range(32)], 5)
    assert seen.sd == pytest.approx(0.02, rel=0.4) and seen.degrees > 10
    assert known_spread([0.0] * 32, 5).sd == LEAST
    assert known_spread([], 5, [0.001] * 10).sd == UNKNOWN == known_spread([], 5, [0.2] * 40).sd
    assert known_spread([], 5, [0.001] * 40) == KnownSpread(sd=LEAST, degrees=4, looks=5)


def test_an_hour_of_a_busy_machine_does_not_widen_all_that_follows():
    quiet = [0.01 * (-1) ** at for at in range(20)]
    assert known_spread([*quiet, *[0.4] * 12], 5).sd < 2 * known_spread(quiet, 5).sd


@pytest.mark.parametrize(
    ("probability", "degrees", "point"),
    [
        (0.6, 5, 0.2672),
        (0.75, 1, 1.0),
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 4, 2.7764),
        (0.975, 5, 2.5706),
        (0.995, 9, 3.2498),
        (0.95, 30, 1.6973),
    ],
)
def test_the_points_of_students_t_are_those_of_the_tables(probability, degrees, point):
    assert student(probability, degrees) == pytest.approx(point, abs=1e-4)


@pytest.mark.parametrize(
    ("sides", "raised"),
    [
        ([(17.0, 2.8), (0.02, 3.0)], True),  # 1,500 kernels against a graph of them
        ([(0.02, 3.0), (17.0, 2.8)], True),
        ([(0.02, 0.004), (0.03, 0.005)], False),  # one short kernel each
        ([(5.0, 3.0), (4.0, 3.0)], False),  # the host is late, the kernels are long
    ],
)
def test_programs_of_many_small_kernels_differ_more_from_process_to_process(sides, raised):
    known = KnownSpread(sd=0.007, degrees=4, looks=2, least=0.005)
    wider = spread_of_launches(known, [{"host_time_ms": host, "gpu_time_ms": gpu} for host, gpu in sides])
    assert (wider.sd > known.sd) is raised
    once = worker_interval([3.09] * 4, [2.75] * 4, [0] * 4, wider)
    assert (once.low < 1) is raised
