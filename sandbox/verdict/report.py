"""A verdict as one flat object with stable keys, for `--json` and for other programs."""

from typing import Any

from kernelwright.sandbox.verdict.verdicts import AS_SHIPPED, COMPILED, EAGER, Measurement, Passed, Verdict

USUAL = {"speedup_eager": EAGER, "speedup_shipped": AS_SHIPPED, "speedup_compiled": COMPILED}
"""By key, the baselines that tables show beside the fastest; None where one was not measured."""


def report(verdict: Verdict) -> dict[str, Any]:
    """The contract of `judge --json`: keys are always all there; what does not apply or is not known is None.

    Times are medians in ms, `samples` the raw paired ones (the placebo's and the witnesses' stand in `measurement`);
    `speedup` is against the fastest baseline at equal accuracy, which `against` names, with the ends of its 95 %
    interval, and `speedup_any` against the fastest of all. `speedups` has those against each that was measured, and the
    keys of `USUAL` those against the usual ones. `timing_clock` says what `candidate_ms` and `baselines_ms` are: the
    time on a GPU (`gpu_time`), or of a call on a processor (`call`); `times` has all three times of each side on a GPU.
    `floor_ms`, `fraction_of_floor` and `impossible_below_ms` are None where no floor is known.
    `kernelwright.sandbox.verdict.recheck` recomputes what is derived.
    """
    evidence = verdict.evidence
    keys = ("stage", "reason", "log", "speedup", "speedup_low", "speedup_high", "comparison", "candidate_ms")
    found: dict[str, Any] = {"outcome": verdict.outcome} | dict.fromkeys(keys)
    found |= {"baselines_ms": None, "against": None, "floor_ms": None, "fraction_of_floor": None}
    found |= {"impossible_below_ms": None, "clock": None, "speedups": None}
    found |= dict.fromkeys(TIMES) | {"times": {}, "launch_bound": None, "less_accurate": []}
    found |= dict.fromkeys(USUAL)
    found |= {"samples": None, "measurement": None}
    if isinstance(verdict, Passed):
        found |= derived(verdict.measurement) | three_times(verdict.measurement)
        whole = verdict.measurement.model_dump(mode="json")
        found |= {"samples": whole.pop("pairings"), "measurement": whole}
    else:
        found |= {"stage": verdict.stage, "reason": verdict.reason, "log": verdict.log}
    status = evidence.problem_status
    return found | {
        "authenticity": evidence.authenticity.model_dump(mode="json"),
        "problem_status": status.model_dump(mode="json") if status else None,
        "deterministic": evidence.deterministic,
        "jail": list(evidence.jail),
        "builds": list(evidence.builds),
        "device": evidence.device,
        "exact": list(evidence.exact),
        "hidden_builds": list(evidence.hidden_builds),
        "look": evidence.look.model_dump(mode="json") if evidence.look else None,
        "families_left_out": list(evidence.families_left_out),
        "baselines_left_out": list(evidence.baselines_left_out),
        "weights": evidence.weights,
        "without": list(evidence.without),
        "accuracy": evidence.accuracy,
        "errors": evidence.errors,
        "errors_allowed": evidence.errors_allowed,
        "effort": evidence.effort,
        "not_met": list(evidence.not_met),
        "seconds": evidence.seconds,
        "versions": evidence.versions,
    }


def derived(measurement: Measurement) -> dict[str, Any]:
    """The keys that follow from the raw samples alone."""
    return {
        "speedup": measurement.speedup,
        "speedup_low": measurement.interval.low,
        "speedup_high": measurement.interval.high,
        "comparison": measurement.comparison,
        "candidate_ms": measurement.candidate_ms,
        "baselines_ms": measurement.baselines_ms,
        "against": measurement.closest.baseline,
        "speedups": measurement.speedups,
        **usual_speedups(measurement),
        "floor_ms": measurement.floor_ms,
        "fraction_of_floor": measurement.fraction_of_floor,
        "impossible_below_ms": measurement.floor.impossible_below_ms if measurement.floor else None,
    }


TIMES = ("timing_clock", "speedup_any", "gpu_time_ms", "call_latency_ms", "host_time_ms")
"""Keys of a passed verdict that records of older releases lack."""


def three_times(measurement: Measurement) -> dict[str, Any]:
    return {key: getattr(measurement, key) for key in TIMES} | {
        "clock": measurement.clock,
        "times": measurement.times,
        "launch_bound": measurement.is_launch_bound if measurement.host_time_ms is not None else None,
        "less_accurate": list(measurement.less_accurate),
    }


def usual_speedups(measurement: Measurement) -> dict[str, float | None]:
    """The speedups against the usual baselines, by the keys of `USUAL`."""
    return {key: measurement.speedup_against(baseline) for key, baseline in USUAL.items()}
