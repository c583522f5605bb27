"""A run or a batch on a terminal: a line for each event, a live table, the table at its end, and a tree of a run."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

from rich.box import SIMPLE
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from kernelwright.agent.log import events as log_events
from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.view import View, fold
from kernelwright.evals import metrics
from kernelwright.evals.metrics import BASELINES, Result, level_of, separate_baselines
from kernelwright.evals.score import NOT_JUDGED, Scored
from kernelwright.problems import Problem
from kernelwright.sandbox.logs import escaped, one_line
from kernelwright.sandbox.verdict.report import (
    USUAL,
    marks,
    others_of,
    others_words,
    ratio_words,
    report,
    speedup_words,
    verdict_words,
)
from kernelwright.sandbox.verdict.verdicts import Passed


def summary_rows(views: list[View], folder: Path) -> list[dict[str, Any]]:
    """Return one flat object for each problem; `speedup` is that of the best attempt, None without one.

    It is against the fastest baseline at equal accuracy, which `against` names; other keys have it against the usual
    ones. `confirmed` says whether the verdict is a re-evaluation.
    """
    return [_row(view, folder) for view in views]


def _row(view: View, folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = {
        "problem": view.problem,
        "attempts": _judged(view),
        "passed": _passed(view),
        "failures": view.failures,
        "stopped": view.stopped,
        "fault": view.fault,
    }
    row |= dict.fromkeys((
        "best_attempt", "speedup", "speedup_low", "speedup_high", "speedup_any", "comparison", "timing_clock",
        "against", *USUAL, "candidate_ms", "confirmed", "effort", "kept",
    ))  # fmt: skip
    best = view.best
    if best is not None and isinstance(best.ruling, Passed):
        found = report(best.ruling)
        row |= {key: found[key] for key in row.keys() & found.keys()}
        row |= {
            "best_attempt": best.number,
            "confirmed": best.confirmed is not None,
            "kept": str(folder / "best" / view.problem / "candidate.py"),
        }
    return row


def summary_table(views: list[View]) -> Table:
    """Return a table narrow enough for any terminal: no paths, and of failures only those that decide."""
    table = Table(box=SIMPLE)
    table.add_column("problem", no_wrap=True)
    table.add_column("passed", no_wrap=True)
    best = [view.best.ruling for view in views if view.best]
    several = any(isinstance(one, Passed) and len(one.measurement.pairings) > 1 for one in best)
    table.add_column(f"best speedup{', against the fastest' if several else ''} [95 %]")
    for view in views:
        table.add_row(view.problem, f"{_passed(view)} of {_judged(view)}", Text(_outcome(view)))
    return table


def _outcome(view: View) -> str:
    """Return the best speedup, or without one the failures; and why a problem could not be judged to the end."""
    if view.best and isinstance(view.best.ruling, Passed):
        came = speedup_words(view.best.ruling) + others_of(view.best.ruling.measurement)
    else:
        came = ", ".join(f"{count} {outcome}" for outcome, count in view.failures.items())
    return "; ".join(filter(None, (came, ending_words(view) if view.fault else ""))) or "-"


def _judged(view: View) -> int:
    """Return the number of finished attempts; the last ask to recorded answers that are used up does not count."""
    return sum(1 for attempt in view.attempts if attempt.finished)


def _passed(view: View) -> int:
    return sum(1 for attempt in view.attempts if attempt.passed)


def ending_words(view: View) -> str:
    """Return the reason why a search ended, `not judged: ...` where nothing could be judged; empty while it goes on.

    A reason may quote an exception of a reference, so control characters are escaped.
    """
    reason = one_line(view.stopped or "")
    return f"not judged: {reason}" if view.fault else reason


NOW = {"equipped": "set-up", "asked": "waits for an answer", "extracted": "build, check, time"}
"""By the last event of a problem, the stage that it began; for others the event's own name is shown."""


class LiveTable:
    """Lines on a console, on a terminal with a live table below. Use it as a context."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = time.monotonic()
        self._live = Live(get_renderable=self._table, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _table(self) -> Table:
        raise NotImplementedError


class Progress(LiveTable):
    """Prints as events arrive; pass `event` as the engine's callback. Lines are flushed, also into a log file."""

    def __init__(self, problems: tuple[str, ...], console: Console | None = None) -> None:
        self._views = {problem: View(problem=problem) for problem in problems}
        self._stage = dict.fromkeys(problems, "waiting")
        super().__init__(console or Console())

    def event(self, event: log_events.Event) -> None:
        if event.problem not in self._views:
            return
        before = self._views[event.problem]
        self._views[event.problem] = view = before.after(event)
        self._stage[event.problem] = NOW.get(event.kind, event.kind.replace("_", " "))
        line = line_of(event, view)
        if line:
            elapsed = time.monotonic() - self._start
            self._console.print(Text(f"{elapsed:6.1f} s  {escaped(line)}"), soft_wrap=True)

    def take_over(self, problem: str, events: "list[log_events.Event]") -> None:
        """Show the events of an earlier process in the table, without lines."""
        self._views[problem] = fold(problem, events)

    def _table(self) -> Table:
        table = Table("problem", "attempts", "best", "now")
        for problem, view in self._views.items():
            best = f"{view.best.speedup:.2f} x{view.best.marks}" if view.best and view.best.speedup else "-"
            table.add_row(problem, str(len(view.attempts)), best, self._stage[problem])
        return table


def line_of(event: log_events.Event, view: View) -> str:
    body = event.body
    match body:
        case log_events.MeasuredProblem(verdict=Passed() as verdict):
            times = ", ".join(f"{name} {ms:.3g} ms" for name, ms in verdict.measurement.baselines_ms.items())
            return f"{body.problem}: PyTorch takes {times}"
        case log_events.MeasuredProblem(verdict=verdict, why_not=why_not):
            return f"{body.problem}: PyTorch was not measured: {verdict_words(verdict) if verdict else why_not}"
        case log_events.Asked(ask=ask):
            start = f" of attempt {ask.parent}" if ask.parent else ""
            return f"{body.problem} attempt {ask.attempt}: {ask.role}{start}{': ' + ask.idea if ask.idea else ''}"
        case log_events.JudgedAttempt(verdict=verdict):
            same = f" (as attempt {body.same_as})" if body.same_as else ""
            return f"{body.problem} attempt {body.attempt}: {verdict_words(verdict)}{same}"
        case log_events.Confirmed(verdict=verdict):
            return f"{body.problem} attempt {body.attempt}, re-evaluated: {verdict_words(verdict)}"
        case log_events.NoCandidate(why=why):
            return f"{body.problem} attempt {body.attempt}: no candidate ({why.kind}): {why.detail}"
        case log_events.ProviderFailed(message=message):
            return f"{body.problem} attempt {body.attempt}: the provider failed: {message}"
        case log_events.Stopped(reason=reason, fault=fault):
            return f"{body.problem}: {ending_words(view) if fault else f'done, {reason}'}"
        case log_events.Resumed():
            return f"{body.problem}: going on after {len(view.attempts) - len(view.pending)} attempts"
    return ""


STYLES = {"passed": "green", "failed": "red", "no candidate": "magenta"}


def run_tree(title: str, views: Mapping[str, View]) -> Tree:
    tree = Tree(Text(title, style="bold"))
    for name, view in views.items():
        best = view.best
        ended = f"; {ending_words(view)}" if view.stopped else ""
        branch = tree.add(Text(f"{name}: {_passed(view)} of {len(view.attempts)} attempts passed{ended}", style="bold"))
        nodes: dict[int | None, Tree] = {None: branch}
        for attempt in view.attempts:
            label = attempt_words(attempt, best is not None and attempt.number == best.number)
            nodes[attempt.number] = nodes.get(attempt.ask.parent, branch).add(label)
    return tree


def attempt_words(attempt: Attempt, best: bool) -> Text:
    """Describe an attempt: `7 improve, tile the rows: passed, 1.42 x, 0.81 ms`, and a star for the best."""
    idea = f", {escaped(attempt.ask.idea)}" if attempt.ask.idea else ""
    style = next((style for start, style in STYLES.items() if attempt.outcome.startswith(start)), "")
    words = Text(f"{attempt.number} {attempt.ask.role}{idea}: ")
    words.append(attempt.outcome, style=style)
    if isinstance(attempt.ruling, Passed):
        words.append(f", {attempt.speedup:.2f} x{attempt.marks}, {attempt.candidate_ms:.3g} ms")
    elif attempt.detail:
        words.append(f": {one_line(attempt.detail.partition(chr(10))[0], 100)}")
    if best:
        words.append(" *", style="bold yellow")
    return words


class BatchProgress(LiveTable):
    """Called with each file that is done: a line for each new verdict; on a terminal, a live table of all."""

    def __init__(self, total: int, console: Console) -> None:
        self.done: list[Scored] = []
        self._total = total
        super().__init__(console)

    def __call__(self, scored: Scored) -> None:
        self.done.append(scored)
        if not scored.cached:
            count = f"{len(self.done)}/{self._total}"
            self._console.print(Text(f"{count:>11}  {scored.file.name}: {scored_words(scored)}"), soft_wrap=True)

    def _table(self) -> Table:
        outcomes = Counter(one.report["outcome"] for one in self.done)
        cached = sum(1 for one in self.done if one.cached)
        fresh = len(self.done) - cached
        left = (time.monotonic() - self._start) / fresh * (self._total - len(self.done)) if fresh else None
        table = Table("done", "cached", "compiled", "correct", "faster", "not judged", "left", box=SIMPLE)
        table.add_row(
            f"{len(self.done)}/{self._total}",
            str(cached),
            _share([one.measured.compiled for one in self.done if one.measured]),
            _share([one.measured.passed for one in self.done if one.measured]),
            _share([one.measured.comparison == "faster" for one in self.done if one.measured]),
            str(outcomes[NOT_JUDGED]),
            "-" if left is None else duration_words(left),
        )
        return table


def _share(marks: Sequence[bool]) -> str:
    return f"{100 * sum(marks) / len(marks):.0f} %" if marks else "-"


def duration_words(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def scored_words(scored: Scored) -> str:
    found = scored.measured
    if found is None:
        return f"not judged: {scored.report['reason']}"
    if not found.passed:
        return f"failed at {found.stage}: {str(scored.report['reason']).partition(chr(10))[0]}"
    said = marks(found.comparison, found.timing_clock, found.launch_bound, found.weights)
    said = f", {found.comparison}{said}" if not found.is_doubtful else said
    others = others_words(found.speedups, found.counted, found.less_accurate)
    return f"passed, {ratio_words(found.speedup or 0.0, found.low, found.high)}{said}{others}"


def results_of(done: Sequence[Scored], problems: Mapping[str, Problem], baseline: str) -> list[Result]:
    """Return the samples of a batch against the fastest of all baselines (`best`), or against one of `BASELINES`."""
    return [
        Result(
            problem=one.file.problem,
            family=problems[one.file.problem].family,
            level=level_of(one.file.problem),
            compiled=one.measured.compiled,
            speedup=one.measured.counting(baseline),
        )
        for one in done
        if one.measured is not None
    ]


def batch_table(done: Sequence[Scored], problems: Mapping[str, Problem]) -> Table:
    """Draw up rates over all candidates, by level and by family where there are several, against the fastest baseline.

    Where there were several baselines, a row for each of the usual ones that was measured separately.
    """
    columns = ("", "candidates", "compiled", *(f"fast_{p:g}" for p in metrics.THRESHOLDS), "geometric mean [95 %]")
    table = Table(*columns, box=SIMPLE)
    results = results_of(done, problems, "best")
    if not results:
        return table
    table.add_row("all", *_cells(results))
    for baseline in separate_baselines([one.measured for one in done if one.measured]):
        table.add_row(f"against {BASELINES[baseline]}", *_cells(results_of(done, problems, baseline)))
    for group_of in (attrgetter("level"), attrgetter("family")):
        names = {group_of(one) for one in results}
        if len(names) > 1:
            for name in sorted(names, key=str):
                table.add_row(str(name), *_cells([one for one in results if group_of(one) == name]))
    return table


def unjudged_lines(done: Sequence[Scored]) -> list[str]:
    """One line for each problem and reason that left files without a verdict: `level1/3, 4 files: not judged: ...`."""
    counts = Counter((one.file.problem, scored_words(one)) for one in done if one.measured is None)
    return [
        f"{problem}, {count} {'file' if count == 1 else 'files'}: {words}" for (problem, words), count in counts.items()
    ]


def _cells(results: Sequence[Result]) -> list[str]:
    curve = metrics.fast_curve(results)
    speedups = [result.speedup for result in results if result.speedup is not None]
    shares = [f"{100 * share:.0f} %" for share in (metrics.compile_rate(results), *curve.values())]
    if not speedups:
        return [str(len(results)), *shares, "-"]
    found = metrics.geometric_mean(speedups)
    return [str(len(results)), *shares, f"{ratio_words(found.value, found.low, found.high)}, n = {found.count}"]
