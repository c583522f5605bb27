"""A verdict in words: the one place that says what a measurement comes to. Pure."""

import statistics
from collections.abc import Collection, Mapping

from kernelwright.sandbox.verdict.findings import Look
from kernelwright.sandbox.verdict.verdicts import Measurement, Pairing, Passed, Verdict

DOUBTS = {
    "too_noisy": "the machine was too noisy: this speedup may be chance",
    "unconfirmed": "its time is by its own process's word; the judge's clock does not confirm it",
}
"""By comparison, why a speedup above 1 counts as 1."""
OLDER_CLOCKS = ("events", "bound")
LAUNCH_BOUND = "launch-bound: the host takes longer to issue a call than the GPU to run it; use a CUDA graph"


def verdict_words(verdict: Verdict) -> str:
    """`passed, 2.34 x [2.20, 2.41], faster (1.23 ms against 2.88 ms)` or `failed at check: ...`.

    The times are of the fastest baseline, as the speedup is; what it is against the others stands behind.
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
    """`2.34 x [2.20, 2.41]`, without the brackets where there is no interval."""
    return f"{ratio:.2f} x" + ("" if low is None or high is None else f" [{low:.2f}, {high:.2f}]")


def others_of(found: Measurement) -> str:
    return others_words(found.speedups, found.closest.baseline, found.less_accurate)


def others_words(speedups: Mapping[str, float], against: str | None, less_accurate: Collection[str] = ()) -> str:
    """`; against eager 2.88 x, eager tf32 (less accurate) 0.91 x; against any 0.91 x`: all but the one that counts.

    Empty where there is but one. The last part stands where a less accurate baseline is the fastest.
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
    """The same of a measurement, with what a closer look saw."""
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
    if measured.is_launch_bound:
        lines.append(LAUNCH_BOUND)
    lines.append(f"threads: {measured.threads}")
    floor = measured.floor_ms
    if floor is not None:
        lines.append(
            f"least time that the bytes and operations of the problem allow: {floor:#.3g} ms, "
            f"{floor / measured.candidate_ms:.0%} of the candidate's"
        )
    if measured.protocol_ms and measured.timing_clock == "call":
        empty = statistics.median(measured.protocol_ms)
        lines.append(f"a call that does nothing: {empty:#.3g} ms, part of all times above")
    if look is not None:
        lines.extend(look.lines(widest=4))
    return "\n".join(lines)


def floor_ms(verdict: Verdict | None) -> float | None:
    """The least time that the problem can take on the device, by the judge; None where it is not known."""
    return verdict.measurement.floor_ms if isinstance(verdict, Passed) else None
