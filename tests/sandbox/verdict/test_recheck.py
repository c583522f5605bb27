"""A record says what its samples say, and a forged one is found out."""

import pytest

from kernelwright.sandbox.verdict.recheck import RecordError, recheck
from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.verdicts import Failed, Measurement, Pairing, Passed
from tests.support.search import EVIDENCE


def record(**changes):
    eager = Pairing(
        baseline="eager",
        candidate_ms=(1.0, 1.1, 0.9, 1.0, 1.2, 1.0),
        baseline_ms=(2.0, 2.1, 2.2, 1.9, 2.0, 2.0),
        workers=(0, 0, 1, 1, 2, 2),
    )
    measurement = Measurement(pairings=(eager,), threads=2, protocol_ms=(0.1,), placebo=eager)
    return report(Passed(measurement=measurement, evidence=EVIDENCE)) | changes


def test_an_honest_record_agrees_with_its_samples():
    assert recheck(record()) == {}


@pytest.mark.parametrize("key", ["speedup", "speedup_low", "speedup_high", "candidate_ms"])
def test_a_forged_number_is_named_with_the_true_one(key):
    true = record()[key]
    assert recheck(record(**{key: 9.0})) == {key: (9.0, true)}


def test_a_record_that_names_another_baseline_than_the_better_one_is_found_out():
    assert recheck(record(against="torch.compile default")) == {"against": ("torch.compile default", "eager")}


def test_a_record_from_before_baselines_were_named_still_agrees():
    old = record()
    del old["against"]
    assert recheck(old) == {}


def test_a_forged_comparison_is_named():
    assert recheck(record(comparison="faster")) == {"comparison": ("faster", "too_noisy")}


def test_a_forged_baseline_is_named():
    assert "baselines_ms" in recheck(record(baselines_ms={"eager": 4.0}))


def test_a_failed_verdict_has_nothing_to_compute():
    failed = report(Failed(stage="check", reason="wrong", evidence=EVIDENCE))
    with pytest.raises(RecordError, match="only a passed verdict"):
        recheck(failed)


def test_a_record_without_samples_is_refused_in_one_sentence():
    with pytest.raises(RecordError, match="samples can not be read"):
        recheck(record(samples=[{"baseline": "eager"}]))
