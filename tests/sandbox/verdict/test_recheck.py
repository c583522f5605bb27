"""A record says what its samples say, and a forged one is found out."""

import pytest

from kernelwright.sandbox.verdict.report import RecordError, recheck, report
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


FORGED = dict.fromkeys(("speedup", "speedup_low", "speedup_high", "candidate_ms"), 9.0)
FORGED |= {"against": "torch.compile default", "comparison": "faster", "baselines_ms": {"eager": 4.0}}


@pytest.mark.parametrize("key", FORGED)
def test_a_forged_fact_is_named_with_the_true_one(key):
    assert recheck(record(**{key: FORGED[key]})) == {key: (FORGED[key], record()[key])}


def test_a_record_from_before_baselines_were_named_still_agrees():
    old = record()
    del old["against"]
    assert recheck(old) == {}


def test_a_failed_verdict_has_nothing_to_compute():
    failed = report(Failed(stage="check", reason="wrong", evidence=EVIDENCE))
    with pytest.raises(RecordError, match="only a passed verdict"):
        recheck(failed)


def test_a_record_without_samples_is_refused_in_one_sentence():
    with pytest.raises(RecordError, match="samples cannot be read"):
        recheck(record(samples=[{"baseline": "eager"}]))
