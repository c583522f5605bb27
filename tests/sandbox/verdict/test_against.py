"""What a measurement says against each baseline, and against the fastest of all."""

import pytest

from kernelwright.sandbox.verdict.gpu_timing import DeviceRecord
from kernelwright.sandbox.verdict.report import recheck, report
from kernelwright.sandbox.verdict.verdicts import AS_SHIPPED, COMPILED, EAGER, Measurement, Pairing, Passed
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


def test_the_speedup_against_one_baseline_is_asked_for_by_its_name():
    found = measured(on_device(), **ALL)
    assert [found.speedup_against(name) for name in (EAGER, AS_SHIPPED, "torch.compile default")] == [4.0, 2.0, 1.5]


def test_against_torch_compile_the_fastest_mode_counts():
    assert measured(on_device(), **ALL).speedup_against(COMPILED) == 1.25


def test_what_was_not_measured_is_none():
    assert measured(eager=2.0).speedup_against(COMPILED) is None


def test_on_a_processor_eager_is_eager_as_shipped():
    assert measured(eager=2.0).speedup_against(AS_SHIPPED) == 2.0


def test_on_a_device_eager_is_eager_as_shipped_where_the_record_says_so():
    assert measured(on_device(shipped_is_eager=True), eager=2.0).speedup_against(AS_SHIPPED) == 2.0


def test_a_record_of_a_device_that_says_nothing_of_the_switches_does_not_know():
    assert measured(on_device(), eager=2.0, compiled=1.5).speedup_against(AS_SHIPPED) is None


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
