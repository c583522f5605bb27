"""A verdict in words: the one place that says what a measurement comes to. Pure."""

import statistics

from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.verdicts import Passed, Verdict


def timings(verdict: Passed) -> str:
    """The judge's measurement in a few lines: medians in ms, and the speedup with its interval."""
    measured = verdict.measurement
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
    floor = floor_ms(verdict)
    if floor is not None:
        lines.append(
            f"least time that the bytes and operations of the problem allow: {floor:#.3g} ms, "
            f"{floor / measured.candidate_ms:.0%} of the candidate's"
        )
    if measured.protocol_ms:
        empty = statistics.median(measured.protocol_ms)
        lines.append(f"a call that does nothing: {empty:#.3g} ms, part of all times above")
    if verdict.evidence.look is not None:
        lines.extend(verdict.evidence.look.lines(widest=4))
    return "\n".join(lines)


def floor_ms(verdict: Verdict | None) -> float | None:
    """The least time that the problem can take on the device, by the judge; None where it is not known."""
    if not isinstance(verdict, Passed):
        return None
    found = report(verdict)["floor_ms"]
    return None if found is None else float(found)
