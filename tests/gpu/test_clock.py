"""The clock of a device against those who cheat it, and for those who do not. Judged to choose, one worker each."""

import statistics

import pytest

from kernelwright.sandbox.verdict.gpu_timing import CALLS_MS, CHAIN_MS, CHAIN_SHARE, CHAIN_SHORT_MS
from kernelwright.sandbox.verdict.verdicts import Failed, Passed
from kernelwright_child import driver
from tests.gpu.clock_attacks import CLOCK_ATTACKS, HANGING, RELU, SLOW
from tests.gpu.clock_honest import CLOCK_HONEST
from tests.gpu.harness import SETTINGS, Judges

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(driver.device_count() == 0, reason="the driver sees no CUDA device"),
]
NOISE = 0.05
"""What two medians may be off by chance."""
OWN_CALLS_S = 15 + 10
"""The candidate's own calls while the device is held, and one that hangs; all else of these stages is the judge's."""


@pytest.fixture(scope="module")
def judges(device):
    with Judges(SETTINGS.at("search")) as found:
        yield found


def most(truth, baseline_ms, method):
    """The largest speedup that the clock's stated uncertainty allows; infinite where it is as long as the call."""
    least_ms = baseline_ms / truth - (2 * CALLS_MS if method == "calls" else CHAIN_SHORT_MS)
    least_ms -= max(CHAIN_MS, CHAIN_SHARE * least_ms) if method == "chain" else 0.0
    return (1 + NOISE) * baseline_ms / least_ms if least_ms > 0 else float("inf")


def timing_s(verdict):
    return sum(verdict.evidence.seconds.get(stage, 0.0) for stage in ("run", "check", "time"))


@pytest.mark.parametrize("name", CLOCK_ATTACKS)
def test_who_cheats_the_clock_is_not_faster(judges, name):
    attack = CLOCK_ATTACKS[name]
    verdict = judges.judged(attack.problem, attack.candidate.source)
    if isinstance(verdict, Failed):
        assert verdict.stage in ("run", "check", "time"), verdict.reason
        assert "Traceback" not in verdict.log, verdict.log  # then the attack is at fault
        return
    found = verdict.measurement
    base_ms = statistics.median(found.closest.baseline_ms)
    print(name, found.comparison, found.speedup, found.candidate_ms, base_ms, found.on_device.check)
    assert found.comparison != "faster"
    if attack.truth is not None:
        assert found.speedup <= most(attack.truth, base_ms, found.on_device.check.method)


@pytest.mark.parametrize("name", CLOCK_HONEST)
def test_who_is_honest_is_timed_as_it_is(judges, name):
    honest = CLOCK_HONEST[name]
    verdict = judges.judged(honest.problem, honest.source)
    assert isinstance(verdict, Passed), verdict.reason
    found, check = verdict.measurement, verdict.measurement.on_device.check
    base_ms = statistics.median(found.closest.baseline_ms)
    print(name, found.comparison, found.speedup, found.candidate_ms, base_ms, check)
    assert (found.clock, found.timing_clock) == ("gpu", "gpu_time")
    assert found.candidate_ms >= check.least_ms * (1 - 1e-9)
    assert check.method in ("chain", "calls")
    if honest.is_same:
        assert 1 / most(1.0, base_ms, check.method) <= found.speedup <= most(1.0, base_ms, check.method)


@pytest.mark.parametrize("name", ["reference_itself", "graph_with_static_buffers", "static_output", "legacy_stream"])
def test_who_waits_for_nothing_is_checked_by_a_chain(judges, name):
    honest = CLOCK_HONEST[name]
    assert judges.judged(honest.problem, honest.source).measurement.on_device.check.method == "chain"


def test_who_waits_for_the_device_is_checked_by_single_calls(judges):
    honest = CLOCK_HONEST["item_inside"]
    assert judges.judged(honest.problem, honest.source).measurement.on_device.check.method == "calls"


@pytest.mark.parametrize("name", HANGING)
def test_a_word_that_never_comes_holds_the_device_for_one_call(judges, name):
    verdict = judges.judged(RELU, HANGING[name])
    assert isinstance(verdict, Failed)
    assert verdict.stage in ("run", "check", "time")
    assert timing_s(verdict) < OWN_CALLS_S + 10


@pytest.mark.parametrize("name", SLOW)
def test_who_takes_seconds_is_timed_by_what_there_is(judges, name):
    verdict = judges.judged(RELU, SLOW[name])
    assert isinstance(verdict, Passed), verdict.reason
    found = verdict.measurement
    assert found.comparison != "faster"
    assert max(found.gpu_time_ms, found.host_time_ms or 0.0) > 1000
    assert timing_s(verdict) < OWN_CALLS_S + 60
