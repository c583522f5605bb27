"""Telling the user how a run goes: a line for each thing that happened, and a live table on a terminal."""

import time
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kernelwright.agent.log.events import (
    Asked,
    Confirmed,
    Event,
    JudgedAttempt,
    MeasuredProblem,
    NoCandidate,
    ProviderFailed,
    Resumed,
    Stopped,
)
from kernelwright.agent.log.view import View, fold
from kernelwright.evals.report.summary import ending_words
from kernelwright.sandbox.machine.escaping import escaped
from kernelwright.sandbox.verdict.in_words import verdict_words
from kernelwright.sandbox.verdict.verdicts import Passed


class Progress:
    """Prints as events arrive; pass `event` as the engine's callback. Use it as a context.

    On a terminal the lines stand above a live table of all problems; elsewhere there are the lines alone, each flushed,
    so that a log file grows while the run goes on.
    """

    def __init__(self, problems: tuple[str, ...], console: Console | None = None) -> None:
        self._console = console or Console()
        self._views = {problem: View(problem=problem) for problem in problems}
        self._stage = dict.fromkeys(problems, "waiting")
        self._start = time.monotonic()
        self._live = Live(get_renderable=self._table, console=self._console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def event(self, event: Event) -> None:
        """Take notice of one event of the log."""
        if event.problem not in self._views:
            return
        before = self._views[event.problem]
        self._views[event.problem] = view = before.after(event)
        self._stage[event.problem] = event.kind.replace("_", " ")
        line = line_of(event, view)
        if line:
            elapsed = time.monotonic() - self._start
            self._console.print(Text(f"{elapsed:6.1f} s  {escaped(line)}"), soft_wrap=True)

    def take_over(self, problem: str, events: "list[Event]") -> None:
        """What happened before, in an earlier process: into the table, without lines."""
        self._views[problem] = fold(problem, events)

    def _table(self) -> Table:
        table = Table("problem", "attempts", "best", "now")
        for problem, view in self._views.items():
            best = f"{view.best.speedup:.2f} x{view.best.marks}" if view.best and view.best.speedup else "-"
            table.add_row(problem, str(len(view.attempts)), best, self._stage[problem])
        return table


def line_of(event: Event, view: View) -> str:
    """One line for a person, or nothing for an event that says little."""
    body = event.body
    match body:
        case MeasuredProblem(verdict=Passed() as verdict):
            times = ", ".join(f"{name} {ms:.3g} ms" for name, ms in verdict.measurement.baselines_ms.items())
            return f"{body.problem}: PyTorch takes {times}"
        case MeasuredProblem(verdict=verdict, why_not=why_not):
            return f"{body.problem}: PyTorch was not measured: {verdict_words(verdict) if verdict else why_not}"
        case Asked(ask=ask):
            start = f" of attempt {ask.parent}" if ask.parent else ""
            return f"{body.problem} attempt {ask.attempt}: {ask.role}{start}{': ' + ask.idea if ask.idea else ''}"
        case JudgedAttempt(verdict=verdict):
            same = f" (as attempt {body.same_as})" if body.same_as else ""
            return f"{body.problem} attempt {body.attempt}: {verdict_words(verdict)}{same}"
        case Confirmed(verdict=verdict):
            return f"{body.problem} attempt {body.attempt}, judged afresh: {verdict_words(verdict)}"
        case NoCandidate(why=why):
            return f"{body.problem} attempt {body.attempt}: no candidate ({why.kind}): {why.detail}"
        case ProviderFailed(message=message):
            return f"{body.problem} attempt {body.attempt}: the provider failed: {message}"
        case Stopped(reason=reason, fault=fault):
            return f"{body.problem}: {ending_words(view) if fault else f'done, {reason}'}"
        case Resumed():
            return f"{body.problem}: going on after {len(view.attempts)} attempts"
    return ""
