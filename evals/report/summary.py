"""The table at the end of a run, from its log alone."""

from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from kernelwright.agent.log.view import View
from kernelwright.sandbox.machine.escaping import one_line
from kernelwright.sandbox.verdict.in_words import others_of, speedup_words
from kernelwright.sandbox.verdict.report import USUAL, usual_speedups
from kernelwright.sandbox.verdict.verdicts import Passed


def summary_rows(views: list[View], folder: Path) -> list[dict[str, Any]]:
    """One flat object for each problem; `speedup` is the best attempt's by its verdict that counts, None without one.

    It is against the fastest baseline at equal accuracy, which `against` names; others tell it against the usual.
    `confirmed` says whether that verdict is a second one, by a fresh judge.
    """
    return [_row(view, folder) for view in views]


def _row(view: View, folder: Path) -> dict[str, Any]:
    best = view.best
    row: dict[str, Any] = {
        "problem": view.problem,
        "attempts": _judged(view),
        "passed": sum(1 for attempt in view.attempts if attempt.passed),
        "failures": view.failures,
        "stopped": view.stopped,
        "fault": view.fault,
    }
    row |= dict.fromkeys((
        "best_attempt", "speedup", "speedup_low", "speedup_high", "speedup_any", "comparison", "timing_clock",
        "against", *USUAL, "candidate_ms", "confirmed", "effort", "kept",
    ))  # fmt: skip
    if best is not None and isinstance(best.ruling, Passed):
        found = best.ruling.measurement
        row |= {
            "best_attempt": best.number,
            "speedup": found.speedup,
            "speedup_low": found.interval.low,
            "speedup_high": found.interval.high,
            "speedup_any": found.speedup_any,
            "comparison": found.comparison,
            "timing_clock": found.timing_clock,
            "against": found.closest.baseline,
            **usual_speedups(found),
            "candidate_ms": found.candidate_ms,
            "confirmed": best.confirmed is not None,
            "effort": best.ruling.evidence.effort,
            "kept": str(folder / "best" / view.problem / "candidate.py"),
        }
    return row


def summary_table(views: list[View]) -> Table:
    """The same for a person, narrow enough for any terminal: no paths, and of failures only those that decide."""
    table = Table(box=SIMPLE)
    table.add_column("problem", no_wrap=True)
    table.add_column("passed", no_wrap=True)
    best = [view.best.ruling for view in views if view.best]
    several = any(isinstance(one, Passed) and len(one.measurement.pairings) > 1 for one in best)
    table.add_column(f"best speedup{', against the fastest' if several else ''} [95 %]")
    for view in views:
        passed = sum(1 for attempt in view.attempts if attempt.passed)
        table.add_row(view.problem, f"{passed} of {_judged(view)}", Text(_outcome(view)))
    return table


def _outcome(view: View) -> str:
    """The best speedup; without one, what came out instead. Why a problem could not be judged, or not to the end."""
    if view.best and isinstance(view.best.ruling, Passed):
        came = speedup_words(view.best.ruling) + others_of(view.best.ruling.measurement)
    else:
        came = ", ".join(f"{count} {outcome}" for outcome, count in view.failures.items())
    return "; ".join(filter(None, (came, ending_words(view) if view.fault else ""))) or "-"


def _judged(view: View) -> int:
    """Attempts that came to an end; the last ask to recorded answers that are used up is none."""
    return sum(1 for attempt in view.attempts if attempt.finished)


def ending_words(view: View) -> str:
    """Why the search for a problem ended, `not judged: ...` where no candidate of it could be; empty while it goes on.

    A reason may quote what a reference has raised, so it is made fit for a terminal.
    """
    reason = one_line(view.stopped or "")
    return f"not judged: {reason}" if view.fault else reason
