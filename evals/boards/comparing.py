"""Two runs on the same problems: the ratio of their speedups, problem by problem, and a sign test. Pure."""

from kernelwright.evals import figures
from kernelwright.evals.figures import Estimate
from kernelwright.evals.runs.facts import ProblemFacts, RunFacts
from kernelwright.problems.problem import Record
from kernelwright.sandbox.verdict.verdicts import TimingClock


class Pair(Record):
    problem: str
    first: float | None
    """Speedup of the first run's best kernel; None where it found no right one."""
    second: float | None
    ratio: float | None
    """second / first, of speedups as metrics count them; None unless both found one, by the same clock."""
    winner: str
    """`first`, `second`, or `same` where the intervals overlap, the clocks differ or neither found a right kernel."""
    timing_clocks: tuple[TimingClock | None, TimingClock | None] = (None, None)
    comparisons: tuple[str | None, str | None] = (None, None)
    intervals: tuple[tuple[float, float] | None, tuple[float, float] | None] = (None, None)


class RunComparison(Record):
    first: str
    second: str
    pairs: tuple[Pair, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    wins: int
    """Problems on which the second run is clearly better: faster beyond both intervals, or alone in being right."""
    losses: int
    p_value: float
    """Of the two-sided sign test over wins and losses."""
    ratio: Estimate | None
    """Geometric mean of the ratios where both found a right kernel."""


def compare_runs(first: RunFacts, second: RunFacts) -> RunComparison:
    """Pairs are problems with one digest; the rest is named and not counted. Raises `ValueError` where none is shared.

    Times of two devices are not compared, but speedups are each against a baseline on their own device; a reader should
    know, so `show` says where the devices differ.
    """
    ours = {facts.digest: facts for facts in first.problems}
    theirs = {facts.digest: facts for facts in second.problems}
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
        only_first=tuple(facts.problem for digest, facts in ours.items() if digest not in theirs),
        only_second=tuple(facts.problem for digest, facts in theirs.items() if digest not in ours),
        wins=wins,
        losses=losses,
        p_value=figures.sign_test(wins, losses),
        ratio=figures.geometric_mean(ratios) if ratios else None,
    )


def _pair(first: ProblemFacts, second: ProblemFacts) -> Pair:
    one = first.best.measured if first.best else None
    two = second.best.measured if second.best else None
    counts = one.counting() if one else None, two.counting() if two else None
    other_clock = one is not None and two is not None and one.timing_clock != two.timing_clock
    ratio = counts[1] / counts[0] if counts[0] and counts[1] and not other_clock else None
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
        ratio=ratio,
        winner=winner,
        timing_clocks=(one.timing_clock if one else None, two.timing_clock if two else None),
        comparisons=(one.comparison if one else None, two.comparison if two else None),
        intervals=(one.interval if one else None, two.interval if two else None),
    )
