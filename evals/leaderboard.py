"""Leaderboards from the summaries of runs and scores: cells, rows, ranking; two runs compared.

A board holds one device, for times of two devices are not compared; of several clocks the newest counts. A row is one
entrant (model, strategy, target) with all its runs; a cell is its best kernel for one problem. Ranked by the geometric
mean of the credit for each problem: the lower end of the speedup's interval, 1 without a gain or a correct
kernel (`metrics.credited`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from kernelwright.agent.strategies import function_in
from kernelwright.evals import metrics
from kernelwright.evals.metrics import BASELINES, COPY, OWN_KERNEL, Effort, Estimate, Result, VerdictSummary
from kernelwright.evals.verdict_store import JudgedKernel, ProblemSummary, RunSummary
from kernelwright.problems.problem import Record
from kernelwright.sandbox.verdict.report import counted_speedup
from kernelwright.sandbox.verdict.settings import AT_EFFORT, JudgingEffort
from kernelwright.sandbox.verdict.verdicts import TimingClock

Status = Literal["verified", "unverified", "provisional", "weak problem", "quarantined", "unsolved"]
"""`provisional`: measured with less effort than the board takes, or by an older clock than others of it. So it is shown
and counts for nothing."""


class LeaderboardCell(Record):
    """An entrant's best kernel for one problem, or that it has none; run, attempt and record give its origin."""

    problem: str
    problem_digest: str
    family: str
    level: str | None
    status: Status
    why: str = ""
    """For a degenerate problem, a provisional number or a kernel in quarantine."""
    stale: bool = False
    """True where the published number is of another judge version: judge it again."""
    attempts: int
    passed: int
    compiled: bool
    run: str | None = None
    folder: str | None = None
    attempt: str | None = None
    record: str | None = None
    candidate_digest: str | None = None
    published: VerdictSummary | None = None
    """The number that counts: of the re-evaluation where there is one, else of the search."""
    claimed: VerdictSummary | None = None
    first_correct: Effort | None = None
    to_best: Effort | None = None

    @property
    def counted(self) -> VerdictSummary | None:
        """The published summary, where it counts: a kernel in quarantine is a failure."""
        return self.published if self.status in ("verified", "unverified") else None

    @property
    def credit(self) -> float:
        found = self.counted
        low = found.low if found else None
        return metrics.credited(None if found is None or low is None else counted_speedup(low, found.comparison))

    @property
    def is_beyond_doubt(self) -> bool:
        return self.counted is not None and not self.counted.is_doubtful

    def result(self, baseline: str = "best") -> Result:
        """Return the sample that the metrics count."""
        speedup = self.counted.counting(baseline) if self.counted else None
        return Result(
            problem=self.problem, family=self.family, level=self.level, compiled=self.compiled, speedup=speedup
        )


class Group(Record):
    """A level or a family of an entrant."""

    problems: int
    correct: int
    compile_rate: float
    fast: dict[float, float]
    """fast_p against the fastest baseline."""
    geometric_mean: Estimate | None
    first_correct: Effort | None
    """Attempts and cost to the first correct kernel, summed over the problems that have one."""
    to_best: Effort | None


class Row(Record):
    """One entrant."""

    rank: int
    model: str
    strategy: str
    target: str
    runs: tuple[str, ...]
    cells: tuple[LeaderboardCell, ...]
    score: float
    """Geometric mean of the credits over the problems that are ranked."""
    correct: int
    """Ranked problems with a correct kernel."""
    own_kernels: int = 0
    """Ranked problems whose best kernel computes with one of its own; a library's, PyTorch's and a copy do not."""
    fast: dict[str, dict[float, float]]
    """fast_p by baseline: `best` (the fastest of all), `eager`, `shipped` (default precision), `compile` (best mode).

    One that no kernel was measured against is left out.
    """
    geometric_mean: Estimate | None
    """Of the speedups of correct kernels alone."""
    pass_at: dict[int, float | None]
    """Mean over the problems; None where a problem has fewer attempts than k."""
    roofline: float | None
    """Geometric mean of the known shares of the roofline, of times without a doubt."""
    speed_of_light: float | None
    attempts_to_correct: float | None
    cost_usd: float | None
    families: dict[str, Group]
    levels: dict[str, Group]
    verified: int
    stale: int
    own: dict[str, float | None] = Field(default_factory=dict)
    """Metrics of the user's own, by name; None where one has no value."""


class Board(Record):
    device: str
    problems: tuple[str, ...]
    weak: tuple[str, ...]
    """Degenerate problems: shown and not ranked, since a verdict on them says little."""
    rows: tuple[Row, ...]

    def ranked(self, row: Row) -> tuple[LeaderboardCell, ...]:
        return tuple(cell for cell in row.cells if cell.problem not in self.weak)


PASS_AT = (1, 5, 10)
CLOCKS = ("gpu_time", "call", "events", "bound", None)
"""Of several on one board the first counts, see `Measurement.timing_clock`."""
Verifications = Callable[[str, str, str], JudgedKernel | None]
"""Looks up the re-evaluation of a kernel: folder of the run, problem digest, candidate digest."""
Entrant = tuple[str, str, str]
Entry = tuple[RunSummary, ProblemSummary, JudgedKernel | None]
"""One problem of one run, with the re-evaluation of its best kernel."""


def boards(
    runs: Iterable[RunSummary],
    judge_version: str,
    verifications: Verifications = lambda folder, problem_digest, candidate_digest: None,
    effort: JudgingEffort = "rank",
) -> list[Board]:
    """Return a board for each device, in the order of their names. Numbers of another `judge_version` are stale.

    `effort`: the least with which a number that counts was measured.
    """
    by_device: dict[str, list[RunSummary]] = {}
    for run in runs:
        by_device.setdefault(run.device, []).append(run)
    return [_board(device, group, judge_version, verifications, effort) for device, group in sorted(by_device.items())]


def _board(
    device: str, runs: Sequence[RunSummary], judge_version: str, verifications: Verifications, effort: JudgingEffort
) -> Board:
    problems: dict[str, ProblemSummary] = {}
    entrants: dict[Entrant, list[RunSummary]] = {}
    entries: dict[tuple[Entrant, str], list[Entry]] = {}
    for run in runs:
        entrant = run.model, run.strategy, run.target
        entrants.setdefault(entrant, []).append(run)
        for found in run.problems:
            problems.setdefault(found.digest, found)
            again = found.best and verifications(run.folder, found.digest, found.best.candidate_digest)
            entries.setdefault((entrant, found.digest), []).append((run, found, again))
    order = sorted(problems.values(), key=lambda found: (found.level or "", found.family, found.problem))
    kernels = [again or found.best for group in entries.values() for _, found, again in group]
    known = {kernel.measured.timing_clock for kernel in kernels if kernel}
    clock = next(one for one in CLOCKS if one in known or one is None)
    cells = {
        entrant: [
            _cell(found, entries.get((entrant, found.digest), []), judge_version, effort, clock) for found in order
        ]
        for entrant in entrants
    }
    weak = {cell.problem_digest for row in cells.values() for cell in row if cell.status == "weak problem"}
    rows = [_row(entrant, entrants[entrant], row, weak) for entrant, row in cells.items()]
    rows.sort(key=lambda row: (-row.score, -row.correct, row.model, row.strategy, row.target))
    return Board(
        device=device,
        problems=tuple(found.problem for found in order),
        weak=tuple(found.problem for found in order if found.digest in weak),
        rows=tuple(row.model_copy(update={"rank": rank}) for rank, row in enumerate(rows, start=1)),
    )


def _cell(
    problem: ProblemSummary,
    entries: Sequence[Entry],
    judge_version: str,
    effort: JudgingEffort,
    clock: TimingClock | None,
) -> LeaderboardCell:
    """Return the best of an entrant's kernels for a problem, with the attempts of all its runs."""
    cell = LeaderboardCell(
        problem=problem.problem,
        problem_digest=problem.digest,
        family=problem.family,
        level=problem.level,
        status="unsolved",
        attempts=sum(found.attempts for _, found, _ in entries),
        passed=sum(found.passed for _, found, _ in entries),
        compiled=any(found.compiled for _, found, _ in entries),
    )
    solved = []
    for run, found, again in entries:
        if (best := found.best) is None:
            continue
        published = again.measured if again else best.measured
        if best.measured.authenticity == COPY:
            published = published.model_copy(update={"authenticity": COPY})
        status, why = _status(best.measured, published, again is not None, effort, clock)
        update = {
            "status": status,
            "why": why,
            "stale": (again or best).judge_version != judge_version,
            "run": run.run,
            "folder": run.folder,
            "attempt": best.attempt,
            "record": f"{best.record}; {again.record}" if again else best.record,
            "candidate_digest": best.candidate_digest,
            "published": published,
            "claimed": best.measured,
            "first_correct": found.first_correct,
            "to_best": found.to_best,
        }
        solved.append(cell.model_copy(update=update))
    return max(solved, key=lambda one: (one.credit, one.published.low or 0 if one.published else 0), default=cell)


def _status(
    claimed: VerdictSummary, counted: VerdictSummary, verified: bool, least: JudgingEffort, clock: TimingClock | None
) -> tuple[Status, str]:
    weak = counted.weak if counted.weak is not None else claimed.weak
    if not counted.passed:
        return "quarantined", f"judged again, it failed at {counted.stage}"
    if counted.without:
        return "quarantined", f"judged with defences off: {', '.join(counted.without)}"
    if counted.is_impossible:
        times = f"{counted.candidate_ms:.3g} ms, where {counted.impossible_below_ms:.3g} ms is the least possible"
        return "quarantined", f"it takes {times}"
    if weak:
        return "weak problem", "; ".join(weak)
    efforts = list(AT_EFFORT)
    if efforts.index(counted.effort) < efforts.index(least):
        return "provisional", f"measured at effort {counted.effort}: enough to choose, not to be ranked"
    if counted.accuracy != "ieee":
        return "provisional", f"judged at accuracy {counted.accuracy}, and others here at ieee"
    if counted.timing_clock != clock:
        return "provisional", f"older clock ({counted.timing_clock}), and others here are timed by {clock}"
    return ("verified", "") if verified else ("unverified", "")


def _row(entrant: Entrant, runs: Sequence[RunSummary], cells: Sequence[LeaderboardCell], weak: set[str]) -> Row:
    ranked = [cell for cell in cells if cell.problem_digest not in weak]
    results = {name: [cell.result(name) for cell in ranked] for name in ("best", *BASELINES)}
    speedups = [result.speedup for result in results["best"] if result.speedup is not None]
    sure = [cell.published for cell in ranked if cell.is_beyond_doubt and cell.published]
    shares = [metrics.roofline_fraction(one.candidate_ms or 0.0, one.floor_ms) for one in sure if one.floor_ms]
    efforts = [cell.first_correct.attempts for cell in ranked if cell.first_correct]
    # A baseline that no kernel was measured against is left out: a column of failures for want of one would mislead.
    shown = [cell.published for cell in ranked if cell.published]
    known = [name for name in results if any(one.against(name) is not None for one in shown)]
    return Row(
        rank=0,
        model=entrant[0],
        strategy=entrant[1],
        target=entrant[2],
        runs=tuple(run.run for run in runs),
        cells=tuple(cells),
        score=metrics.geometric_mean([cell.credit for cell in ranked]).value if ranked else 1.0,
        correct=len(speedups),
        own_kernels=sum(1 for cell in ranked if cell.counted and cell.counted.authenticity in OWN_KERNEL),
        fast={name: metrics.fast_curve(results[name]) for name in known},
        geometric_mean=metrics.geometric_mean(speedups) if speedups else None,
        pass_at={k: _pass_at(ranked, k) for k in PASS_AT},
        roofline=metrics.geometric_mean(shares).value if shares else None,
        speed_of_light=_speed_of_light(sure),
        attempts_to_correct=sum(efforts) / len(efforts) if efforts else None,
        cost_usd=metrics.total_cost([found.cost_usd for run in runs for found in run.problems]),
        families=_groups(ranked, lambda cell: cell.family),
        levels=_groups(ranked, lambda cell: cell.level),
        verified=sum(1 for cell in cells if cell.status == "verified"),
        stale=sum(1 for cell in cells if cell.stale),
    )


def _pass_at(cells: Sequence[LeaderboardCell], k: int) -> float | None:
    if not cells or min(cell.attempts for cell in cells) < k:
        return None
    return sum(metrics.pass_at_k(cell.attempts, cell.passed, k) for cell in cells) / len(cells)


def _speed_of_light(found: Sequence[VerdictSummary]) -> float | None:
    scores = []
    for one in found:
        if one.floor_ms is None or one.candidate_ms is None or not one.baselines_ms:
            continue
        baseline = one.baselines_ms.get(one.counted or "", min(one.baselines_ms.values()))
        if one.floor_ms < baseline:
            scores.append(metrics.speed_of_light_score(one.candidate_ms, baseline, one.floor_ms))
    return sum(scores) / len(scores) if scores else None


def _groups(cells: Sequence[LeaderboardCell], key: Callable[[LeaderboardCell], str | None]) -> dict[str, Group]:
    """Return the groups by name, in alphabetical order; cells without a name are in none."""
    names = sorted({name for cell in cells if (name := key(cell)) is not None})
    return {name: _group([cell for cell in cells if key(cell) == name]) for name in names}


def _group(cells: Sequence[LeaderboardCell]) -> Group:
    results = [cell.result() for cell in cells]
    speedups = [result.speedup for result in results if result.speedup is not None]
    return Group(
        problems=len(cells),
        correct=len(speedups),
        compile_rate=metrics.compile_rate(results),
        fast=metrics.fast_curve(results),
        geometric_mean=metrics.geometric_mean(speedups) if speedups else None,
        first_correct=_total([cell.first_correct for cell in cells if cell.first_correct]),
        to_best=_total([cell.to_best for cell in cells if cell.to_best]),
    )


def _total(efforts: Sequence[Effort]) -> Effort | None:
    if not efforts:
        return None
    cost = metrics.total_cost([effort.cost_usd for effort in efforts])
    return Effort(attempts=sum(effort.attempts for effort in efforts), cost_usd=cost)


Metric = Callable[[Sequence[LeaderboardCell]], float | None]
"""Of an entrant's cells for the problems that are ranked; None where it has no value."""


class MetricError(Exception):
    """No such metric, or one that breaks the rules; the message is one sentence."""


def load_metrics(names: Sequence[str]) -> dict[str, Metric]:
    """Load the metrics that `path/to/file.py:function` names, by the function's name; `MetricError` for none."""
    found: dict[str, Metric] = {}
    for name in names:
        path, colon, function = name.rpartition(":")
        if not colon or not path:
            raise MetricError(f"no metric {name!r}; give it as path/to/file.py:function")
        if function in found:
            raise MetricError(f"two metrics are named {function!r}; rename one of them")
        found[function] = function_in(name, "metric", MetricError, "(cells)")
    return found


def with_metrics(boards: Sequence[Board], own: Mapping[str, Metric]) -> list[Board]:
    """Return the boards with a further column for each metric. Raises `MetricError` where one fails."""
    found = []
    for board in boards:
        rows = []
        for row in board.rows:
            values = {name: _value(name, metric, board.ranked(row)) for name, metric in own.items()}
            rows.append(row.model_copy(update={"own": values}))
        found.append(board.model_copy(update={"rows": tuple(rows)}))
    return found


def _value(name: str, metric: Metric, cells: Sequence[LeaderboardCell]) -> float | None:
    try:
        value = metric(cells)
        return None if value is None else float(value)
    except Exception as fault:
        raise MetricError(f"metric {name!r} failed ({type(fault).__name__}: {fault}); correct it") from fault


class Pair(Record):
    """One problem of two runs."""

    problem: str
    first: float | None
    """Speedup of the first run's best kernel; None where it found no correct one."""
    second: float | None
    ratio: float | None
    """second / first; None unless both found one, beyond doubt and by the same clock."""
    winner: str
    """`first`, `second`, or `same` where the intervals overlap, the clocks differ or neither found a correct kernel."""
    timing_clocks: tuple[TimingClock | None, TimingClock | None] = (None, None)
    comparisons: tuple[str | None, str | None] = (None, None)
    intervals: tuple[tuple[float, float] | None, tuple[float, float] | None] = (None, None)


class RunComparison(Record):
    """Two runs on the same problems: the ratios of their speedups, and a sign test."""

    first: str
    second: str
    pairs: tuple[Pair, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    wins: int
    """Problems on which the second run is clearly better: faster beyond both intervals, or alone in being correct."""
    losses: int
    p_value: float
    """Of the two-sided sign test over wins and losses."""
    ratio: Estimate | None
    """Geometric mean of the ratios where both found a correct kernel."""


def compare_runs(first: RunSummary, second: RunSummary) -> RunComparison:
    """Pair the problems with one digest; the rest is named and not counted. Raises `ValueError` where none is shared.

    Each speedup is against a baseline on its own device, so runs on two devices may be compared.
    """
    ours = {found.digest: found for found in first.problems}
    theirs = {found.digest: found for found in second.problems}
    shared = [digest for digest in ours if digest in theirs]
    if not shared:
        raise ValueError(f"runs {first.run} and {second.run} share no problem; compare runs over the same problems")
    pairs = tuple(_pair(ours[digest], theirs[digest]) for digest in shared)
    wins, losses = (sum(1 for pair in pairs if pair.winner == side) for side in ("second", "first"))
    ratios = [pair.ratio for pair in pairs if pair.ratio is not None]
    return RunComparison(
        first=first.run,
        second=second.run,
        pairs=pairs,
        only_first=tuple(found.problem for digest, found in ours.items() if digest not in theirs),
        only_second=tuple(found.problem for digest, found in theirs.items() if digest not in ours),
        wins=wins,
        losses=losses,
        p_value=metrics.sign_test(wins, losses),
        ratio=metrics.geometric_mean(ratios) if ratios else None,
    )


def _pair(first: ProblemSummary, second: ProblemSummary) -> Pair:
    one = first.best.measured if first.best else None
    two = second.best.measured if second.best else None
    mine, other = (None if side is None or side.is_doubtful else side.counting() for side in (one, two))
    other_clock = one is not None and two is not None and one.timing_clock != two.timing_clock
    winner = "same"
    if one is None or two is None:
        winner = "same" if one is two else "first" if two is None else "second"
    elif (two.low or 0) > (one.high or 0) and not two.is_doubtful and not other_clock:
        winner = "second"
    elif (one.low or 0) > (two.high or 0) and not one.is_doubtful and not other_clock:
        winner = "first"
    return Pair(
        problem=first.problem,
        first=one.speedup if one else None,
        second=two.speedup if two else None,
        ratio=other / mine if mine and other and not other_clock else None,
        winner=winner,
        timing_clocks=(one.timing_clock if one else None, two.timing_clock if two else None),
        comparisons=(one.comparison if one else None, two.comparison if two else None),
        intervals=(one.interval if one else None, two.interval if two else None),
    )
