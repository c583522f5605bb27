import random

import pytest

from kernelwright.sandbox.timing.paired import is_clearly_slower
from kernelwright.sandbox.verdict.verdicts import Measurement, Pairing

TRIALS = 60


def measured(speedup, workers=4, between=0.02, within=0.04, seed=0, placebo=1.0):
    """Four pairs for each worker; `between` processes and `within` them the logarithm of the ratio spreads so."""
    rng = random.Random(seed)
    ratios, numbers = [], []
    for number in range(workers):
        own = rng.gauss(0, between)
        ratios += [speedup * 2.718281828 ** (own + rng.gauss(0, within)) for _ in range(4)]
        numbers += [number] * 4
    pairing = Pairing(
        baseline="eager", candidate_ms=(1.0,) * len(ratios), baseline_ms=tuple(ratios), workers=tuple(numbers)
    )
    steady = Pairing(baseline="eager again", candidate_ms=(1.0,) * 6, baseline_ms=(placebo,) * 6)
    return Measurement(pairings=(pairing,), threads=1, placebo=steady)


def test_half_as_fast_is_clearly_slower():
    assert is_clearly_slower(measured(0.5))


@pytest.mark.parametrize("speedup", [1.0, 1.5, 4.0])
def test_what_is_as_fast_or_faster_is_measured_in_full(speedup):
    assert not is_clearly_slower(measured(speedup, between=0, within=0.001))


def test_what_a_few_processes_or_a_wide_spread_or_a_differing_baseline_leave_open_is_measured_on():
    assert not is_clearly_slower(measured(0.1, workers=3, between=0, within=0.001))
    assert not is_clearly_slower(measured(0.2, between=0.4, within=0.5))
    assert not is_clearly_slower(measured(0.5, placebo=1.1))


def test_a_width_that_five_processes_may_have_is_too_much_for_four():
    def pairs(workers):
        """Intervals of about the same width from either number."""
        ratios = [0.3 * 2.718281828 ** (0.3 * (number % 2) + 0.01 * turn) for number in range(4) for turn in range(4)]
        numbers = [index % workers for index in range(16)]
        pairing = Pairing(baseline="eager", candidate_ms=(1.0,) * 16, baseline_ms=tuple(ratios), workers=tuple(numbers))
        return Measurement(pairings=(pairing,), threads=1)

    assert pairs(5).interval.half_width == pytest.approx(pairs(4).interval.half_width, rel=0.1)
    assert is_clearly_slower(pairs(5))
    assert not is_clearly_slower(pairs(4))


@pytest.mark.parametrize("between", [0.01, 0.05, 0.2])
def test_looking_after_each_worker_never_calls_an_equal_candidate_slower(between):
    for seed in range(TRIALS):
        assert not any(is_clearly_slower(measured(1.0, workers, between, between, seed)) for workers in (4, 5, 6))


@pytest.mark.parametrize("speedup", [0.5, 0.2])
def test_what_ends_early_is_as_slow_as_it_is_said_to_be(speedup):
    """The reported interval, taken from few processes, still is right about as often as it says."""
    ended = [found for seed in range(TRIALS) if is_clearly_slower(found := measured(speedup, seed=seed))]
    right = sum(found.interval.low <= speedup <= found.interval.high for found in ended)
    assert len(ended) > TRIALS / 2
    assert right / len(ended) > 0.9
