"""Boards from runs alone: who found how fast kernels on how many problems. Pure; reads and writes nothing.

A board holds one device, for times of two devices are not compared; of several clocks the newest counts. A row is one
entrant (model, strategy, target) with all its runs; a cell is its best kernel for one problem. Ranked by the geometric
mean of what is credited for each problem: the lower end of the speedup's interval, 1 where there is no gain or no right
kernel (`metrics.credited`).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pydantic import Field

from kernelwright.evals.boards.cells import Cell, Group, Status, grouped_by
from kernelwright.evals.figures import metrics
from kernelwright.evals.figures.measured import BASELINES, Measured
from kernelwright.evals.figures.metrics import Estimate
from kernelwright.evals.runs.facts import Kernel, ProblemFacts, RunFacts
from kernelwright.problems.record.base import Record
from kernelwright.sandbox.verdict.settings import AT_EFFORT, JudgingEffort
from kernelwright.sandbox.verdict.verdicts import TimingClock

PASS_AT = (1, 5, 10)
CLOCKS = ("gpu_time", "call", "events", "bound", None)
"""Of several on one board the first counts, see `Measurement.timing_clock`."""


class Verified(NamedTuple):
    """What a second judging of a kernel said, with new seeds and processes."""

    measured: Measured
    judge_version: str
    record: str


class Row(Record):
    """One entrant on one board. Everything here is derived from its cells."""

    rank: int
    model: str
    strategy: str
    target: str
    runs: tuple[str, ...]
    cells: tuple[Cell, ...]
    """One for each problem of the board, in its order."""
    score: float
    """Geometric mean of the credits over the problems that are ranked."""
    correct: int
    """Ranked problems with a right kernel."""
    fast: dict[str, dict[float, float]]
    """fast_p by baseline: `best` (the fastest of all), `eager`, `shipped` (eager as shipped), `compile` (best mode).

    One that no kernel was measured against is left out.
    """
    geometric_mean: Estimate | None
    """Of the speedups of right kernels alone."""
    pass_at: dict[int, float | None]
    """Mean over the problems; None where a problem has fewer attempts than k."""
    roofline: float | None
    """Geometric mean of the roofline fractions that are known, of times without a doubt."""
    speed_of_light: float | None
    """Mean of the scores that are known."""
    attempts_to_correct: float | None
    """Mean over the problems that were solved."""
    cost_usd: float | None
    families: dict[str, Group]
    levels: dict[str, Group]
    verified: int
    stale: int
    own: dict[str, float | None] = Field(default_factory=dict)
    """Metrics of the user's own, by name; None where one has no value."""


class Board(Record):
    """All rows of one device."""

    device: str
    problems: tuple[str, ...]
    weak: tuple[str, ...]
    """Problems that are shown and not ranked, since a verdict on them says little."""
    rows: tuple[Row, ...]

    def ranked(self, row: Row) -> tuple[Cell, ...]:
        """The cells of a row that count: those whose problem is not weak."""
        return tuple(cell for cell in row.cells if cell.problem not in self.weak)


Verifications = Callable[[str, str, str], Verified | None]
"""Looks up the verification of a kernel: folder of the run, problem digest, candidate digest."""


def nothing_verified(folder: str, problem_digest: str, candidate_digest: str) -> Verified | None:
    """For a leaderboard without verifications."""
    return None


def boards(
    runs: Iterable[RunFacts],
    judge_version: str,
    verifications: Verifications = nothing_verified,
    effort: JudgingEffort = "rank",
) -> list[Board]:
    """A board for each device, in the order of their names. Numbers of another `judge_version` are stale.

    `effort`: the least with which a number that counts was measured.
    """
    by_device: dict[str, list[RunFacts]] = {}
    for run in runs:
        by_device.setdefault(run.device, []).append(run)
    maker = _Maker(judge_version, verifications, effort)
    return [maker.board(device, group) for device, group in sorted(by_device.items())]


class _Entry(NamedTuple):
    run: RunFacts
    facts: ProblemFacts


class _Maker:
    def __init__(self, judge_version: str, verifications: Verifications, effort: JudgingEffort) -> None:
        self.judge_version = judge_version
        self.effort = effort
        self.verifications = verifications

    def board(self, device: str, runs: Sequence[RunFacts]) -> Board:
        problems: dict[str, ProblemFacts] = {}
        entrants: dict[tuple[str, str, str], list[RunFacts]] = {}
        for run in runs:
            entrants.setdefault((run.model, run.strategy, run.target), []).append(run)
            for facts in run.problems:
                problems.setdefault(facts.digest, facts)
        order = sorted(problems.values(), key=lambda facts: (facts.level or "", facts.family, facts.problem))
        kernels = ((run, facts, facts.best) for run in runs for facts in run.problems if facts.best is not None)
        known = {self._published(*kernel)[0].timing_clock for kernel in kernels}
        clock = next(one for one in CLOCKS if one in known or one is None)
        cells = {entrant: [self._cell(facts, group, clock) for facts in order] for entrant, group in entrants.items()}
        weak = {cell.problem_digest for row in cells.values() for cell in row if cell.status == "weak problem"}
        rows = [_row(entrant, entrants[entrant], row, weak) for entrant, row in cells.items()]
        rows.sort(key=lambda row: (-row.score, -row.correct, row.model, row.strategy, row.target))
        return Board(
            device=device,
            problems=tuple(facts.problem for facts in order),
            weak=tuple(facts.problem for facts in order if facts.digest in weak),
            rows=tuple(row.model_copy(update={"rank": rank}) for rank, row in enumerate(rows, start=1)),
        )

    def _published(self, run: RunFacts, facts: ProblemFacts, best: Kernel) -> tuple[Measured, Verified | None]:
        again = self.verifications(run.folder, facts.digest, best.candidate_digest)
        return again.measured if again else best.measured, again

    def _cell(self, asked: ProblemFacts, runs: Sequence[RunFacts], clock: TimingClock | None) -> Cell:
        entries = [_Entry(run, facts) for run in runs for facts in run.problems if facts.digest == asked.digest]
        cell = Cell(
            problem=asked.problem,
            problem_digest=asked.digest,
            family=asked.family,
            level=asked.level,
            status="unsolved",
            attempts=sum(entry.facts.attempts for entry in entries),
            passed=sum(entry.facts.passed for entry in entries),
            compiled=any(entry.facts.compiled for entry in entries),
        )
        solved = [self._solved(cell, one, one.facts.best, clock) for one in entries if one.facts.best is not None]
        return max(solved, key=lambda one: (one.credit, one.published.low or 0 if one.published else 0), default=cell)

    def _solved(self, cell: Cell, entry: _Entry, best: Kernel, clock: TimingClock | None) -> Cell:
        published, again = self._published(entry.run, entry.facts, best)
        status, why = _status(best.measured, again, self.effort, clock)
        return cell.model_copy(
            update={
                "status": status,
                "why": why,
                "stale": (again.judge_version if again else best.judge_version) != self.judge_version,
                "run": entry.run.run,
                "folder": entry.run.folder,
                "attempt": best.attempt,
                "record": f"{best.record}; {again.record}" if again else best.record,
                "candidate_digest": best.candidate_digest,
                "published": published,
                "claimed": best.measured,
                "first_correct": entry.facts.first_correct,
                "to_best": entry.facts.to_best,
            }
        )


def _status(
    claimed: Measured, again: Verified | None, least: JudgingEffort, clock: TimingClock | None
) -> tuple[Status, str]:
    counted = again.measured if again else claimed
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
    if counted.timing_clock != clock:
        return "provisional", f"older clock ({counted.timing_clock}), and others here are timed by {clock}"
    return ("verified", "") if again else ("unverified", "")


def _row(entrant: tuple[str, str, str], runs: Sequence[RunFacts], cells: Sequence[Cell], weak: set[str]) -> Row:
    ranked = [cell for cell in cells if cell.problem_digest not in weak]
    results = {name: [cell.result(name) for cell in ranked] for name in ("best", *BASELINES)}
    speedups = [result.speedup for result in results["best"] if result.speedup is not None]
    sure = [cell for cell in ranked if cell.is_beyond_doubt]
    efforts = [cell.first_correct.attempts for cell in ranked if cell.first_correct]
    return Row(
        rank=0,
        model=entrant[0],
        strategy=entrant[1],
        target=entrant[2],
        runs=tuple(run.run for run in runs),
        cells=tuple(cells),
        score=metrics.geometric_mean([cell.credit for cell in ranked]).value if ranked else 1.0,
        correct=len(speedups),
        fast={name: metrics.fast_curve(found) for name, found in results.items() if found and _is_known(name, ranked)},
        geometric_mean=metrics.geometric_mean(speedups) if speedups else None,
        pass_at={k: _pass_at(ranked, k) for k in PASS_AT},
        roofline=_roofline(sure),
        speed_of_light=_speed_of_light(sure),
        attempts_to_correct=sum(efforts) / len(efforts) if efforts else None,
        cost_usd=metrics.total_cost([facts.cost_usd for run in runs for facts in run.problems]),
        families=grouped_by(ranked, lambda cell: cell.family),
        levels=grouped_by(ranked, lambda cell: cell.level),
        verified=sum(1 for cell in cells if cell.status == "verified"),
        stale=sum(1 for cell in cells if cell.stale),
    )


def _is_known(baseline: str, cells: Sequence[Cell]) -> bool:
    """Whether any kernel was measured against this baseline; a column of failures for want of one would mislead."""
    return any(cell.published is not None and cell.published.against(baseline) is not None for cell in cells)


def _pass_at(cells: Sequence[Cell], k: int) -> float | None:
    if not cells or min(cell.attempts for cell in cells) < k:
        return None
    return sum(metrics.pass_at_k(cell.attempts, cell.passed, k) for cell in cells) / len(cells)


def _roofline(cells: Sequence[Cell]) -> float | None:
    known = [cell.published for cell in cells if cell.published and cell.published.floor_ms]
    fractions = [metrics.roofline_fraction(one.candidate_ms or 0.0, one.floor_ms or 0.0) for one in known]
    return metrics.geometric_mean(fractions).value if fractions else None


def _speed_of_light(cells: Sequence[Cell]) -> float | None:
    scores = []
    for cell in cells:
        found = cell.published
        if found is None or found.floor_ms is None or found.candidate_ms is None or not found.baselines_ms:
            continue
        baseline = found.baselines_ms.get(found.counted or "", min(found.baselines_ms.values()))
        if found.floor_ms < baseline:
            scores.append(metrics.speed_of_light_score(found.candidate_ms, baseline, found.floor_ms))
    return sum(scores) / len(scores) if scores else None
