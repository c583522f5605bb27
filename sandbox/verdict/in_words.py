"""A verdict in words: the one place that says what a measurement comes to. Pure."""

import statistics
from collections.abc import Mapping

from kernelwright.sandbox.verdict.findings import Look
from kernelwright.sandbox.verdict.verdicts import Measurement, Passed, Verdict


def verdict_words(verdict: Verdict) -> str:
    """`passed, 2.34 x [2.20, 2.41], faster (1.23 ms against 2.88 ms)` or `failed at check: ...`.

    The times are of the fastest baseline, as the speedup is; what it is against the others stands behind.
    """
    if not isinstance(verdict, Passed):
        return f"failed at {verdict.stage}: {verdict.reason}"
    found = verdict.measurement
    baseline = found.baselines_ms[found.closest.baseline]
    times = f"({found.candidate_ms:.3g} ms against {baseline:.3g} ms)"
    return (
        f"passed, {speedup_words(verdict)}, {found.comparison.replace('_', ' ')} {times}{others_words(found.speedups)}"
    )


def speedup_words(verdict: Passed) -> str:
    """`2.34 x [2.20, 2.41]`."""
    found = verdict.measurement
    return ratio_words(found.speedup, found.interval.low, found.interval.high)


def ratio_words(ratio: float, low: float | None, high: float | None) -> str:
    """`2.34 x [2.20, 2.41]`, without the brackets where there is no interval."""
    return f"{ratio:.2f} x" + ("" if low is None or high is None else f" [{low:.2f}, {high:.2f}]")


def others_words(speedups: Mapping[str, float]) -> str:
    """`; against eager 2.88 x, torch.compile default 2.41 x`: all but the fastest; empty where there is but one."""
    others = list(speedups.items())[1:]
    return "; against " + ", ".join(f"{name} {ratio:.2f} x" for name, ratio in others) if others else ""


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
    others = list(measured.speedups.items())[1:]
    if others:
        lines.append("against the other baselines: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in others))
    lines.append(f"threads: {measured.threads}")
    floor = measured.floor_ms
    if floor is not None:
        lines.append(
            f"least time that the bytes and operations of the problem allow: {floor:#.3g} ms, "
            f"{floor / measured.candidate_ms:.0%} of the candidate's"
        )
    if measured.protocol_ms:
        empty = statistics.median(measured.protocol_ms)
        lines.append(f"a call that does nothing: {empty:#.3g} ms, part of all times above")
    if look is not None:
        lines.extend(look.lines(widest=4))
    return "\n".join(lines)


def floor_ms(verdict: Verdict | None) -> float | None:
    """The least time that the problem can take on the device, by the judge; None where it is not known."""
    return verdict.measurement.floor_ms if isinstance(verdict, Passed) else None
