"""What the judge's own clock says of a candidate on a GPU, and what it lets be called faster."""

import math
import statistics

import pytest

from kernelwright.sandbox.verdict.gpu_timing import CALLS_MS, CHAIN_MS, CHAIN_SHARE, CHAIN_SHORT_MS, ClockCheck
from kernelwright.sandbox.verdict.verdicts import Measurement, Pairing
from tests.sandbox.verdict.test_against import on_device


def check(call_ms, method="chain", **facts):
    return ClockCheck(method=method, candidate_ms=(call_ms + 0.3,) * 3, empty_ms=(0.3,) * 3, **facts)


def test_the_time_is_what_a_call_takes_beyond_an_empty_one():
    assert check(0.05, empty_gpu_ms=0.002).time_ms == pytest.approx(0.052)
    assert check(-0.1).time_ms == 0.0


@pytest.mark.parametrize(("call_ms", "least_ms"), [(1.0, 1.0 - CHAIN_SHARE), (0.01, 0.01 - CHAIN_MS), (0.001, 0.0)])
def test_a_chain_is_off_by_a_share_or_some_microseconds(call_ms, least_ms):
    assert check(call_ms).least_ms == pytest.approx(least_ms)
    assert check(call_ms).most_ms == pytest.approx(call_ms + CHAIN_SHORT_MS)


def test_what_copy_engines_could_give_is_bounded_by_a_whole_link():
    assert check(0.05, moves_data=True).most_ms == pytest.approx(0.05 + CHAIN_SHORT_MS + 0.3)


def test_single_calls_are_off_by_a_fixed_time():
    found = check(1.0, "calls")
    assert (found.least_ms, found.most_ms) == pytest.approx((1.0 - CALLS_MS, 1.0 + CALLS_MS))


@pytest.mark.parametrize(("call_ms", "comparison"), [(0.05, "faster"), (0.099, "unconfirmed")])
def test_what_the_judges_clock_does_not_support_is_not_faster(call_ms, comparison):
    pairing = Pairing(baseline="eager", candidate_ms=(0.05,) * 8, baseline_ms=(0.1,) * 8)
    found = Measurement(pairings=(pairing,), threads=1, clock="gpu", on_device=on_device(check=check(call_ms)))
    assert (found.comparison, found.timing_clock) == (comparison, "gpu_time")


@pytest.mark.parametrize("told", [[1e-4, 1e-4, 0.2, 0.2], [0.01] * 4, [1e-6, 0.3, 1e-6, 0.3]])
def test_no_mixture_of_told_times_is_faster_than_the_judges_clock_supports(told):
    found = check(0.15).model_copy(update={"candidate_ms": (0.45,) * 4})
    times = found.supported(told)
    assert statistics.median(map(math.log, times)) >= math.log(found.least_ms) - 1e-9
    assert min(times) >= found.least_ms * (1 - 1e-9)


def test_where_a_time_is_missing_the_longest_that_is_possible_counts():
    found = check(0.15)
    assert found.supported([0.1, None]) == (found.most_ms,) * 2
