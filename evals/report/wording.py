"""Verdicts in the words of the tables."""

from collections.abc import Mapping

from kernelwright.agent.log.view import View
from kernelwright.sandbox.verdict.escaping import one_line
from kernelwright.sandbox.verdict.verdicts import Passed, Verdict


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
    return f"{found.speedup:.2f} x [{found.interval.low:.2f}, {found.interval.high:.2f}]"


def others_words(speedups: Mapping[str, float]) -> str:
    """`; against eager 2.88 x, torch.compile default 2.41 x`: all but the fastest; empty where there is but one."""
    others = list(speedups.items())[1:]
    return "; against " + ", ".join(f"{name} {ratio:.2f} x" for name, ratio in others) if others else ""


def ending_words(view: View) -> str:
    """Why the search for a problem ended, `not judged: ...` where no candidate of it could be; empty while it goes on.

    A reason may quote what a reference has raised, so it is made fit for a terminal.
    """
    reason = one_line(view.stopped or "")
    return f"not judged: {reason}" if view.fault else reason
