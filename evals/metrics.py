"""The summary of a verdict, and metrics over many of them, each with its definition and source. Pure.

None means "not correct", never 0, and every rate has the failures in its denominator. `docs/judge.md#metrics` says the
same in prose.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from kernelwright.agent.normalising import is_copy
from kernelwright.problems import Problem
from kernelwright.problems.problem import Record
from kernelwright.sandbox.verdict.report import DOUBTS, counted_speedup, report
from kernelwright.sandbox.verdict.settings import Accuracy, JudgingEffort
from kernelwright.sandbox.verdict.statistics import student
from kernelwright.sandbox.verdict.verdicts import AS_SHIPPED, COMPILED, EAGER, Passed, TimingClock, Verdict

THRESHOLDS = (0.0, 0.5, 0.8, 1.0, 1.5, 2.0, 5.0)
RESAMPLES, FEW = 2000, 20


class Result(Record):
    """One sample of a metric: a problem, and the outcome of one candidate or of the best of several."""

    problem: str
    family: str
    level: str | None = None
    """Such as `level1` of KernelBench; None where the problems have no levels."""
    compiled: bool
    """True where the candidate passed scan and build; a reply without a candidate did not."""
    speedup: float | None
    """Baseline's time over the candidate's; None where the candidate is not correct, or there is none."""


class Estimate(Record):
    """A number with its 95 % interval and its number of samples."""

    value: float
    low: float | None
    """None where one sample allows no interval."""
    high: float | None
    count: int


class Effort(Record):
    attempts: int
    """Finished attempts up to and with the one that reached it."""
    cost_usd: float | None
    """Their cost; None where the cost of one of them is not known."""


def level_of(problem: str) -> str | None:
    match = re.search(r"(?:^|/)(level_?\d+)(?=/)", problem)
    return match[1].replace("_", "") if match else None


def compile_rate(results: Sequence[Result]) -> float:
    return _share(result.compiled for result in results)


def fast_p(results: Sequence[Result], p: float) -> float:
    """Return the share of results that are correct and more than p times as fast as the baseline.

    Ouyang et al., KernelBench (2025): fast_p = 1/N * sum over i of [correct_i and speedup_i > p]. N counts all
    problems, so a failure lowers every fast_p; a speedup of exactly p does not count.
    """
    return _share(result.speedup is not None and result.speedup > p for result in results)


def fast_curve(results: Sequence[Result], thresholds: Sequence[float] = THRESHOLDS) -> dict[float, float]:
    """Return `fast_p` at each threshold; it never rises with p."""
    return {p: fast_p(results, p) for p in thresholds}


def geometric_mean(ratios: Sequence[float]) -> Estimate:
    """exp of the mean logarithm, with a 95 % interval over the samples.

    None below three samples. It is Student's t on the logarithms below `FEW`, where a bootstrap is too narrow; from
    there a percentile bootstrap (Efron 1979). The generator's seed is fixed, so it can be computed again. The mean does
    not depend on which side is the numerator (Fleming and Wallace 1986). Among correct results only, it rises when hard
    problems are left out. Raises `ValueError` unless all ratios are positive.
    """
    if not ratios or min(ratios) <= 0:
        raise ValueError(f"a geometric mean needs one or more positive ratios, got {list(ratios)[:5]}")
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    value = float(np.exp(logs.mean()))
    if len(logs) < 3:  # of two, Student's t would span factors of hundreds
        return Estimate(value=value, low=None, high=None, count=len(logs))
    if len(logs) < FEW:
        half = student(0.975, len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
        return Estimate(value=value, low=value * math.exp(-half), high=value * math.exp(half), count=len(logs))
    rng = np.random.default_rng(0)
    means = logs[rng.integers(0, len(logs), size=(RESAMPLES, len(logs)))].mean(axis=1)
    low, high = np.exp(np.quantile(means, (0.025, 0.975)))
    return Estimate(value=value, low=float(low), high=float(high), count=len(logs))


def credited(low: float | None) -> float:
    """Return the credit of a ranking for one problem: the lower end of the speedup's interval, and 1 without a gain.

    Without a faster kernel PyTorch remains in use. So nothing counts below 1, and a failure neither drops out of the
    mean nor drags it to zero.
    """
    return 1.0 if low is None else max(1.0, low)


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Return the chance that at least one of k samples is correct, drawn without replacement from `samples`.

    The unbiased estimator of Chen et al., Codex (2021): 1 - C(n - c, k) / C(n, k), as a product, which cannot
    overflow. Raises `ValueError` unless 0 <= correct <= samples and 1 <= k <= samples.
    """
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(
            f"pass@k needs 0 <= correct <= samples and 1 <= k <= samples, got {correct=}, {samples=}, {k=}"
        )
    if samples - correct < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(samples - correct + 1, samples + 1))


def roofline_fraction(candidate_ms: float, floor_ms: float) -> float:
    """Return the share of the roofline: 1 is as fast as the device's peaks allow (Williams et al., Roofline, 2009).

    `floor_ms` is the time of the problem's bytes and the reference's operations at the device's measured peaks. Above
    1 the candidate needed fewer operations than the reference, or measurement and roofline contradict each other.
    """
    if candidate_ms <= 0 or floor_ms <= 0:
        raise ValueError(f"times must be positive, got {candidate_ms=} and {floor_ms=}")
    return floor_ms / candidate_ms


def speed_of_light_score(candidate_ms: float, baseline_ms: float, floor_ms: float) -> float:
    """1/2 at the baseline, 1 at the roofline, towards 0 when slower.

    NVIDIA, SOL-ExecBench (2026): S = 1 / (1 + (T_k - T_SOL) / (T_b - T_SOL)). The roofline counts the operations of
    the reference's algorithm; a better algorithm may be below it, and scores 1 too. Raises `ValueError` where the
    baseline is not above the roofline.
    """
    if not 0 < floor_ms < baseline_ms or candidate_ms <= 0:
        raise ValueError(
            f"a score needs 0 < floor < baseline and a positive time, got {floor_ms=}, {candidate_ms=}, {baseline_ms=}"
        )
    return 1.0 / (1.0 + max(0.0, candidate_ms - floor_ms) / (baseline_ms - floor_ms))


def total_cost(costs_usd: Sequence[float | None]) -> float | None:
    """Return the sum; None where one is not known, since a sum of the others would look complete."""
    known = [cost for cost in costs_usd if cost is not None]
    return math.fsum(known) if len(known) == len(costs_usd) else None


def sign_test(wins: int, losses: int) -> float:
    """Two-sided p-value of the sign test (Arbuthnot 1710; Dixon and Mood 1946): ties are left out before.

    The chance, were both sides equally good, of a split at least this uneven: twice the smaller tail of a binomial with
    probability 1/2, at most 1.
    """
    if wins < 0 or losses < 0:
        raise ValueError(f"counts cannot be negative, got {wins=} and {losses=}")
    count = wins + losses
    tail = sum(math.comb(count, i) for i in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / (1 << count))


def _share(marks: Iterable[bool]) -> float:
    found = list(marks)
    if not found:
        raise ValueError("a rate needs at least one result")
    return sum(found) / len(found)


BASELINES = {"eager": EAGER, "shipped": AS_SHIPPED, "compile": COMPILED}
"""By their short names, the baselines that tables show besides the fastest of all."""
BUILT = frozenset({"load", "run", "check", "time"})
"""Stages that a candidate reaches after scan and build."""
OWN_KERNEL = frozenset({"custom", "mixed"})
"""Labels of authenticity of a candidate that computes with kernels of its own."""
COPY = "copy of the reference"


def kernel_label(verdict: Verdict, source: str, problem: Problem) -> str:
    """Return the label of authenticity, or `COPY` for a candidate that defines nothing but what the reference does."""
    label = verdict.evidence.authenticity.label
    return COPY if label not in OWN_KERNEL and is_copy(source, problem.source) else label


def weak_of(verdict: Verdict) -> tuple[str, ...] | None:
    """Return why the problem is degenerate; empty where it is not, None where it was not examined."""
    status = verdict.evidence.problem_status
    return None if status is None else status.why if status.status == "weak" else ()


class VerdictSummary(Record):
    """A verdict in flat form, stored next to it; all tables are made from these. None where a field does not apply."""

    outcome: str
    stage: str | None
    speedup: float | None
    """Against the fastest baseline at equal accuracy, which `counted` names."""
    low: float | None
    high: float | None
    comparison: str | None
    timing_clock: TimingClock | None = None
    """None unless it passed, and in summaries of older releases."""
    speedup_any: float | None = None
    """Against the fastest of all baselines, less accurate ones too."""
    counted: str | None = None
    less_accurate: tuple[str, ...] = ()
    launch_bound: bool = False
    candidate_ms: float | None
    baselines_ms: dict[str, float] | None
    speedups: dict[str, float]
    """Against each baseline that was measured, the fastest first; empty unless it passed."""
    usual: dict[str, float | None] = Field(default_factory=dict)
    """Against those of `BASELINES`, by their short names; None where one was not measured, empty unless it passed."""
    floor_ms: float | None
    """The least time on this device with the reference's own algorithm."""
    impossible_below_ms: float | None = None
    """The least time on this device with any algorithm."""
    authenticity: str
    weak: tuple[str, ...] | None
    """See `weak_of`."""
    weights: str | None = None
    """`copied` or `seeded`, as in the evidence."""
    without: tuple[str, ...] = ()
    """Disabled checks of the judge."""
    effort: JudgingEffort = "rank"
    accuracy: Accuracy = "ieee"
    """The errors that it was allowed."""

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"

    @property
    def is_impossible(self) -> bool:
        """True where the time is below that of any algorithm: no win, but something to explain."""
        limit = self.impossible_below_ms
        return limit is not None and self.candidate_ms is not None and self.candidate_ms < limit

    @property
    def compiled(self) -> bool:
        return self.passed or self.stage in BUILT

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def is_doubtful(self) -> bool:
        """True where the speedup counts as at most 1: too noisy, or not confirmed by the judge's clock."""
        return self.comparison in DOUBTS

    def against(self, baseline: str) -> float | None:
        """Return the speedup against the fastest baseline at equal accuracy (`best`), or against one of `BASELINES`."""
        return self.speedup if baseline == "best" else self.usual.get(baseline)

    def counting(self, baseline: str = "best") -> float | None:
        """Count the speedup as metrics count it; None unless it passed."""
        speedup = self.against(baseline) if self.passed else None
        return None if speedup is None else counted_speedup(speedup, self.comparison)


AS_REPORTED = (
    "outcome", "stage", "speedup", "comparison", "timing_clock", "speedup_any", "less_accurate", "candidate_ms",
    "baselines_ms", "floor_ms",
)  # fmt: skip
"""Fields of `VerdictSummary` that the judge's report has under the same names."""


def summarize(verdict: Verdict, reported: Mapping[str, Any] | None = None) -> VerdictSummary:
    """Summarize a verdict; its report is made where it is not given."""
    found = report(verdict) if reported is None else reported
    measurement = verdict.measurement if isinstance(verdict, Passed) else None
    return VerdictSummary(
        **{name: found[name] for name in AS_REPORTED},
        low=found["speedup_low"],
        high=found["speedup_high"],
        counted=found["against"],
        launch_bound=bool(found["launch_bound"]),
        speedups=measurement.speedups if measurement else {},
        usual={short: measurement.speedup_against(name) for short, name in BASELINES.items()} if measurement else {},
        impossible_below_ms=found["impossible_below_ms"],
        authenticity=verdict.evidence.authenticity.label,
        weak=weak_of(verdict),
        weights=verdict.evidence.weights,
        without=tuple(verdict.evidence.without),
        effort=verdict.evidence.effort,
        accuracy=verdict.evidence.accuracy,
    )


def separate_baselines(summaries: Sequence[VerdictSummary]) -> list[str]:
    """Return the short names of the usual baselines that say more than the fastest of all: none for a single one.

    Eager at default precision is one of them only where it was measured separately from strict eager.
    """
    names = {name for one in summaries for name in one.speedups}
    if len(names) < 2:
        return []
    known = {short for one in summaries for short, ratio in one.usual.items() if ratio is not None}
    return [short for short in BASELINES if short in known and (short != "shipped" or AS_SHIPPED in names)]
