"""What a measurement says against each baseline, and against the fastest of all."""

import math
import statistics

import pytest

from kernelwright.sandbox.verdict.gpu_timing import (
    CALLS_MS,
    CHAIN_MS,
    CHAIN_SHARE,
    CHAIN_SHORT_MS,
    ClockCheck,
    DeviceRecord,
)
from kernelwright.sandbox.verdict.report import RecordError, recheck, report
from kernelwright.sandbox.verdict.verdicts import AS_SHIPPED, COMPILED, EAGER, Failed, Measurement, Pairing, Passed
from tests.support.search import EVIDENCE


def pairing(baseline, speedup):
    return Pairing(baseline=baseline, candidate_ms=(1.0,) * 4, baseline_ms=(speedup,) * 4)


def on_device(**facts):
    return DeviceRecord(
        device="NVIDIA H200", architecture="9.0", driver="570", switches={}, bound_ms={}, device_ms={}, **facts
    )


def measured(device=None, **speedups):
    names = {"shipped": AS_SHIPPED, "compiled": "torch.compile default", "tuned": "torch.compile max-autotune"}
    pairings = tuple(pairing(names.get(short, short), speedup) for short, speedup in speedups.items())
    return Measurement(pairings=pairings, threads=1, on_device=device)


ALL = {"eager": 4.0, "shipped": 2.0, "compiled": 1.5, "tuned": 1.25}


def test_the_speedup_is_against_the_fastest_of_all_and_all_are_told_the_fastest_first():
    found = measured(on_device(), **ALL)
    assert (found.speedup, found.closest.baseline) == (1.25, "torch.compile max-autotune")
    assert list(found.speedups.values()) == [1.25, 1.5, 2.0, 4.0]


@pytest.mark.parametrize(
    ("found", "baseline", "speedup"),
    [
        (measured(on_device(), **ALL), EAGER, 4.0),
        (measured(on_device(), **ALL), AS_SHIPPED, 2.0),
        (measured(on_device(), **ALL), "torch.compile default", 1.5),
        (measured(on_device(), **ALL), COMPILED, 1.25),
        (measured(eager=2.0), COMPILED, None),
        (measured(eager=2.0), AS_SHIPPED, 2.0),
        (measured(on_device(shipped_is_eager=True), eager=2.0), AS_SHIPPED, 2.0),
        (measured(on_device(), eager=2.0, compiled=1.5), AS_SHIPPED, None),
    ],
    ids=["eager", "shipped", "a mode", "the fastest mode", "none", "a processor", "no switch changes it", "unknown"],
)
def test_the_speedup_against_one_baseline(found, baseline, speedup):
    assert found.speedup_against(baseline) == speedup


def test_the_report_has_all_of_them():
    found = report(Passed(measurement=measured(on_device(), **ALL), evidence=EVIDENCE))
    assert found["against"] == "torch.compile max-autotune" and found["speedups"]["eager"] == 4.0
    assert [found[f"speedup_{name}"] for name in ("eager", "shipped", "compiled")] == [4.0, 2.0, 1.25]


@pytest.mark.parametrize("key", ["speedup_eager", "speedup_shipped", "speedup_compiled"])
def test_a_forged_one_is_found_out_and_a_missing_one_is_of_an_older_record(key):
    found = report(Passed(measurement=measured(on_device(), **ALL), evidence=EVIDENCE))
    assert recheck(found | {key: 9.0}) == {key: (9.0, found[key])}
    del found[key], found["speedups"]
    assert recheck(found) == {}


def record(**changes):
    eager = Pairing(
        baseline="eager",
        candidate_ms=(1.0, 1.1, 0.9, 1.0, 1.2, 1.0),
        baseline_ms=(2.0, 2.1, 2.2, 1.9, 2.0, 2.0),
        workers=(0, 0, 1, 1, 2, 2),
    )
    measurement = Measurement(pairings=(eager,), threads=2, protocol_ms=(0.1,), placebo=eager)
    return report(Passed(measurement=measurement, evidence=EVIDENCE)) | changes


FORGED = dict.fromkeys(("speedup", "speedup_low", "speedup_high", "candidate_ms"), 9.0)
FORGED |= {"against": "torch.compile default", "comparison": "faster", "baselines_ms": {"eager": 4.0}}


@pytest.mark.parametrize("key", FORGED)
def test_a_forged_fact_is_named_with_the_true_one(key):
    assert recheck(record(**{key: FORGED[key]})) == {key: (FORGED[key], record()[key])}


def test_an_honest_record_agrees_with_its_samples_also_from_before_baselines_were_named():
    old = record()
    assert recheck(old) == {}
    del old["against"]
    assert recheck(old) == {}


def test_a_failed_verdict_has_nothing_to_compute():
    failed = report(Failed(stage="check", reason="wrong", evidence=EVIDENCE))
    with pytest.raises(RecordError, match="only a passed verdict"):
        recheck(failed)


def test_a_record_without_samples_is_refused_in_one_sentence():
    with pytest.raises(RecordError, match="samples cannot be read"):
        recheck(record(samples=[{"baseline": "eager"}]))


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
