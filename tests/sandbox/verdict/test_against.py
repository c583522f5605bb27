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
