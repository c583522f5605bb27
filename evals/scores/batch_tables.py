"""A batch told to a person: while it goes on, and what came of it."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelwright.evals import figures
from kernelwright.evals.figures import BASELINES, Result, separate_baselines
from kernelwright.evals.report import LiveTable
from kernelwright.evals.scores.scoring import NOT_JUDGED, Scored, level_of
from kernelwright.problems import Problem
from kernelwright.sandbox.verdict.report import marks, others_words, ratio_words


class BatchProgress(LiveTable):
    """Takes what is done, file by file: a line for each new verdict; on a terminal, a live table of all."""

    def __init__(self, total: int, console: Console) -> None:
        self.done: list[Scored] = []
        self._total = total
        super().__init__(console)

    def __call__(self, scored: Scored) -> None:
        self.done.append(scored)
        if not scored.cached:
            count = f"{len(self.done)}/{self._total}"
            self._console.print(Text(f"{count:>11}  {scored.file.name}: {scored_words(scored)}"), soft_wrap=True)

    def remaining_s(self) -> float | None:
        """An estimate from the files that were judged in this pass; None before the first of them."""
        fresh = sum(1 for one in self.done if not one.cached)
        if not fresh:
            return None
        return (time.monotonic() - self._start) / fresh * (self._total - len(self.done))

    def _table(self) -> Table:
        outcomes = Counter(one.report["outcome"] for one in self.done)
        cached = sum(1 for one in self.done if one.cached)
        left = self.remaining_s()
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
    """The samples of a batch against the fastest of all baselines (`best`), or against one of `BASELINES`."""
    return [
        one.measured.result(one.file.problem, problems[one.file.problem].family, level_of(one.file.problem), baseline)
        for one in done
        if one.measured is not None
    ]


def batch_table(done: Sequence[Scored], problems: Mapping[str, Problem]) -> Table:
    """Rates over all candidates, by level and by family where there are several; all against the fastest baseline.

    Where there were several baselines, a row for each of the usual ones that was measured apart.
    """
    columns = ("", "candidates", "compiled", *(f"fast_{p:g}" for p in figures.THRESHOLDS), "geometric mean [95 %]")
    table = Table(*columns, box=SIMPLE)
    results = results_of(done, problems, "best")
    if not results:
        return table
    table.add_row("all", *_cells(results))
    for baseline in separate_baselines([one.measured for one in done if one.measured]):
        table.add_row(f"against {BASELINES[baseline]}", *_cells(results_of(done, problems, baseline)))
    for key in ("level", "family"):
        groups = figures.grouped(results, lambda result, key=key: getattr(result, key))  # type: ignore[misc]
        if len(groups) > 1:
            for name, group in sorted(groups.items(), key=lambda item: str(item[0])):
                table.add_row(str(name), *_cells(group))
    return table


def unjudged_lines(done: Sequence[Scored]) -> list[str]:
    """One line for each problem and reason that left files without a verdict: `level1/3, 4 files: not judged: ...`."""
    counts = Counter((one.file.problem, scored_words(one)) for one in done if one.measured is None)
    return [
        f"{problem}, {count} {'file' if count == 1 else 'files'}: {words}" for (problem, words), count in counts.items()
    ]


def _cells(results: Sequence[Result]) -> list[str]:
    curve = figures.fast_curve(results)
    speedups = [result.speedup for result in results if result.speedup is not None]
    shares = [f"{100 * share:.0f} %" for share in (figures.compile_rate(results), *curve.values())]
    if not speedups:
        return [str(len(results)), *shares, "-"]
    found = figures.geometric_mean(speedups)
    return [str(len(results)), *shares, f"{ratio_words(found.value, found.low, found.high)} of {found.count}"]
