"""A verdict as one flat object with stable keys, for `--json` and for other programs."""

from typing import Any

from sandbox.verdict import Passed, Verdict


def report(verdict: Verdict) -> dict[str, Any]:
    """The contract of `judge --json`: keys are always all there; what does not apply or is not known is None.

    Times are medians in ms, `samples` the raw paired ones; `speedup` is against the better baseline, with the ends of
    its 95 % interval. `floor_ms` is None until a floor has been traced for the problem.
    """
    evidence = verdict.evidence
    keys = ("stage", "reason", "log", "speedup", "speedup_low", "speedup_high", "comparison", "candidate_ms")
    found: dict[str, Any] = {"outcome": verdict.outcome} | dict.fromkeys(keys)
    found |= {"baselines_ms": None, "floor_ms": None, "samples": None}
    if isinstance(verdict, Passed):
        found |= _measured(verdict)
    else:
        found |= {"stage": verdict.stage, "reason": verdict.reason, "log": verdict.log}
    status = evidence.problem_status
    return found | {
        "authenticity": evidence.authenticity.model_dump(mode="json"),
        "problem_status": status.model_dump(mode="json") if status else None,
        "jail": list(evidence.jail),
        "seconds": evidence.seconds,
        "versions": evidence.versions,
    }


def _measured(verdict: Passed) -> dict[str, Any]:
    measurement = verdict.measurement
    return {
        "speedup": measurement.speedup,
        "speedup_low": measurement.interval.low,
        "speedup_high": measurement.interval.high,
        "comparison": measurement.comparison,
        "candidate_ms": measurement.candidate_ms,
        "baselines_ms": measurement.baselines_ms,
        "samples": [pairing.model_dump(mode="json") for pairing in measurement.pairings],
    }
