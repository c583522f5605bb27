"""A verdict as one flat object with stable keys, in words, and computed again from its samples."""

import math
import statistics
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

from kernelwright.sandbox.verdict.diagnoses import lines_of
from kernelwright.sandbox.verdict.verdicts import (
    AS_SHIPPED,
    COMPILED,
    EAGER,
    Look,
    Measurement,
    Pairing,
    Passed,
    Verdict,
)

USUAL = {"speedup_eager": EAGER, "speedup_shipped": AS_SHIPPED, "speedup_compiled": COMPILED}
"""By key, the baselines that tables show beside the fastest; None where one was not measured."""


def report(verdict: Verdict) -> dict[str, Any]:
    """The contract of `judge --json`: keys are always all there; what does not apply or is not known is None.

    Times are medians in ms, `samples` the raw paired ones (the placebo's and others are in `measurement`).
    `speedup` is against the fastest baseline at equal accuracy, which `against` names; it has the ends of its 95 %
    interval. `speedup_any` is against the fastest of all. `speedups` has those against each that was measured, and the
    keys of `USUAL` those against the usual ones. `timing_clock` says what `candidate_ms` and `baselines_ms` are: the
    GPU time (`gpu_time`), or the time of a call on a processor (`call`). `times` has the three times of each side.
    `floor_ms`, `fraction_of_floor` and `impossible_below_ms` are None where no floor is known.
    `kernelwright.sandbox.verdict.report` recomputes what is derived.
    """
    found: dict[str, Any] = {"outcome": verdict.outcome} | dict.fromkeys(REPORTED) | {"times": {}, "less_accurate": []}
    if isinstance(verdict, Passed):
        measured = verdict.measurement
        found |= derived(measured) | three_times(measured)
        whole = measured.model_dump(mode="json")
        found |= {"samples": whole.pop("pairings"), "measurement": whole}
    else:
        found |= {"stage": verdict.stage, "reason": verdict.reason, "log": verdict.log}
    return found | verdict.evidence.model_dump(mode="json")


TIMES = ("timing_clock", "speedup_any", "gpu_time_ms", "call_latency_ms", "host_time_ms")
"""Keys of a passed verdict that records of older releases lack."""
DERIVED = (
    "speedup",
    "speedup_low",
    "speedup_high",
    "comparison",
    "candidate_ms",
    "baselines_ms",
    "against",
    "speedups",
)
"""Keys that follow from the samples, with those of `USUAL` and `ROOFLINE`."""
ROOFLINE = ("floor_ms", "fraction_of_floor", "impossible_below_ms")
REPORTED = (
    *("stage", "reason", "log", *DERIVED, *USUAL, *ROOFLINE, *TIMES),
    *("clock", "times", "launch_bound", "less_accurate", "samples", "measurement"),
)
"""All keys besides those of the evidence."""


def three_times(measurement: Measurement) -> dict[str, Any]:
    """The keys for the times on a device and of the host."""
    return {key: getattr(measurement, key) for key in TIMES} | {
        "clock": measurement.clock,
        "times": measurement.times,
        "launch_bound": measurement.is_launch_bound if measurement.host_time_ms is not None else None,
        "less_accurate": list(measurement.less_accurate),
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
        **{key: measurement.speedup_against(baseline) for key, baseline in USUAL.items()},
        "floor_ms": measurement.floor_ms,
        "fraction_of_floor": measurement.fraction_of_floor,
        "impossible_below_ms": measurement.floor.impossible_below_ms if measurement.floor else None,
    }


DOUBTS = {
    "too_noisy": "the machine was too noisy: this speedup may be chance",
    "unconfirmed": "its time is by its own process's word; the judge's clock does not confirm it",
}
"""By comparison, why a speedup above 1 counts as 1."""
OLDER_CLOCKS = ("events", "bound")


def verdict_words(verdict: Verdict) -> str:
    """`passed, 2.34 x [2.20, 2.41], faster (1.23 ms against 2.88 ms)` or `failed at check: ...`.

    Times and speedup are of the fastest baseline; speedups against the others follow.
    """
    if not isinstance(verdict, Passed):
        return f"failed at {verdict.stage}: {verdict.reason}"
    found = verdict.measurement
    baseline = found.baselines_ms[found.closest.baseline]
    times = f"({found.candidate_ms:.3g} ms against {baseline:.3g} ms)"
    plain = f", {found.comparison}" if found.comparison not in DOUBTS else ""
    return f"passed, {speedup_words(verdict)}{plain} {times}{others_of(found)}"


def speedup_words(verdict: Passed, against: Pairing | None = None) -> str:
    """`2.34 x [2.20, 2.41]`, with `marks`: against the baseline that counts, or another one."""
    found = verdict.measurement
    pairing = against or found.closest
    said = marks(found.comparison, found.timing_clock, found.is_launch_bound)
    return ratio_words(pairing.speedup, *found.interval_of(pairing)) + said


def marks(
    comparison: str | None, timing_clock: str | None, launch_bound: bool = False, weights: str | None = None
) -> str:
    """`, too noisy`, `, unconfirmed`, `, older clock`, `, launch-bound`, `, seeded weights`: behind a speedup."""
    found = f", {comparison.replace('_', ' ')}" if comparison and comparison in DOUBTS else ""
    found += ", older clock" if timing_clock in OLDER_CLOCKS else ""
    found += ", launch-bound" if launch_bound else ""
    return found + (", seeded weights" if weights == "seeded" else "")


def counted_speedup(ratio: float, comparison: str | None) -> float:
    """The speedup as rewards, fast_p, means and boards count it: at most 1 where the comparison is in `DOUBTS`."""
    return min(1.0, ratio) if comparison in DOUBTS else ratio


def ratio_words(ratio: float, low: float | None, high: float | None) -> str:
    """`2.34 x [2.20, 2.41]`, without brackets if there are no ends."""
    return f"{ratio:.2f} x" + ("" if low is None or high is None else f" [{low:.2f}, {high:.2f}]")


def others_of(found: Measurement) -> str:
    return others_words(found.speedups, found.closest.baseline, found.less_accurate)


def others_words(speedups: Mapping[str, float], against: str | None, less_accurate: Collection[str] = ()) -> str:
    """`; against eager 2.88 x, eager tf32 (less accurate) 0.91 x; against any 0.91 x`: all but the one that counts.

    Empty where there is only one. The last part is there if a less accurate baseline is the fastest.
    """
    marked = {name: f"{name} (less accurate)" if name in less_accurate else name for name in speedups}
    others = [f"{marked[name]} {ratio:.2f} x" for name, ratio in speedups.items() if name != against]
    least = min(speedups.values(), default=0.0)
    other = f"; against any {least:.2f} x" if least < speedups.get(against or "", 0.0) else ""
    return f"; against {', '.join(others)}{other}" if others else ""


def timings(verdict: Passed) -> str:
    """The judge's measurement in a few lines: medians in ms, and the speedup with its interval."""
    return timing_lines(verdict.measurement, verdict.evidence.look)


def timing_lines(measured: Measurement, look: Look | None) -> str:
    """The same of a measurement, with what limits the candidate, as far as a closer look saw it."""
    times = {"candidate": measured.candidate_ms} | measured.baselines_ms
    lines = [f"{name}: {ms:#.3g} ms" for name, ms in times.items()]
    low, high = measured.interval
    lines.append(
        f"speedup against {measured.closest.baseline}: {measured.speedup:.2f} "
        f"(95 % interval {low:.2f} to {high:.2f}, {measured.comparison.replace('_', ' ')})"
    )
    if measured.speedup > 1 and measured.comparison in DOUBTS:
        lines.append(DOUBTS[measured.comparison])
    if others := others_of(measured):
        lines.append(f"against the other baselines: {others.removeprefix('; against ').replace(' x', '')}")
    if measured.on_device is None:
        lines.append(f"threads: {measured.threads}")
    floor = measured.floor_ms
    if floor is not None:
        lines.append(
            f"least time that the bytes and operations of the problem allow: {floor:#.3g} ms, "
            f"{floor / measured.candidate_ms:.0%} of the candidate's"
        )
    empty = statistics.median(measured.protocol_ms) if measured.protocol_ms else math.inf
    if measured.timing_clock == "call" and empty < measured.candidate_ms:
        lines.append(f"a call that does nothing: {empty:#.3g} ms, part of all times above")
    lines.extend(lines_of(measured, look or Look()))
    return "\n".join(lines)


RELATIVE = 1e-9
"""Relative difference that another machine's last digits may show."""

LATER = frozenset({"against", "speedups", *USUAL})
"""Keys that records of earlier versions lack."""


class RecordError(ValueError):
    """A record that cannot be rechecked; the text is one sentence with the remedy."""


def recheck(record: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """By key, what the record says and what its samples say, where the two differ.

    `record` is a report of `judge --json`. Raises `RecordError` where it holds no samples: a failed verdict has
    nothing to compute.
    """
    if record.get("outcome") != "passed":
        raise RecordError(
            f"the record's outcome is {record.get('outcome')!r}: only a passed verdict rests on samples; "
            "judge the candidate again to see whether it still fails"
        )
    found = derived(measurement_of(record))
    wanted = {key: value for key, value in found.items() if key in record or key not in LATER}
    return {key: (record.get(key), value) for key, value in wanted.items() if not _equal(record.get(key), value)}


def measurement_of(record: dict[str, Any]) -> Measurement:
    """Read the samples of a passed record. Raises `RecordError` where it holds none."""
    try:
        return Measurement(pairings=record["samples"], **(record.get("measurement") or {"threads": 1}))
    except (KeyError, TypeError, ValidationError) as error:
        problem = error.errors()[0]["msg"] if isinstance(error, ValidationError) else f"{error}"
        raise RecordError(f"the record's samples cannot be read ({problem}); use a record of `judge --json`") from None


def _equal(said: Any, found: Any) -> bool:
    if isinstance(found, dict):
        return isinstance(said, dict) and said.keys() == found.keys() and all(_equal(said[k], found[k]) for k in found)
    if isinstance(found, float):
        return isinstance(said, int | float) and math.isclose(said, found, rel_tol=RELATIVE)
    return bool(said == found)
