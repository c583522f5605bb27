"""A verdict in the few numbers that tables and plots need, derived once: intervals take tens of milliseconds each."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from kernelwright.evals.figures.metrics import Result
from kernelwright.problems.record.base import Record
from kernelwright.sandbox.verdict.in_words import DOUBTS
from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.settings import JudgingEffort
from kernelwright.sandbox.verdict.verdicts import AS_SHIPPED, COMPILED, EAGER, Passed, TimingClock, Verdict

BASELINES = {"eager": EAGER, "shipped": AS_SHIPPED, "compile": COMPILED}
"""What tables show beside the fastest of all, by the short name that metrics ask for them by."""
BUILT = frozenset({"load", "run", "check", "time"})
"""A failure at one of these stages came through scan and build."""


class Measured(Record):
    """What a verdict says, flat. None where it does not apply."""

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
    """What the device could do with the reference's own algorithm."""
    impossible_below_ms: float | None = None
    """What it could do with any algorithm."""
    authenticity: str
    weak: tuple[str, ...] | None
    """Why the problem is weak; empty where it is not; None where nobody looked."""
    without: tuple[str, ...] = ()
    """Defences of the judge that were off."""
    effort: JudgingEffort = "rank"
    """With how much effort it was judged."""

    @property
    def passed(self) -> bool:
        """Whether the candidate is right."""
        return self.outcome == "passed"

    @property
    def is_impossible(self) -> bool:
        """Whether the time is below what any algorithm could take: no win, but something to explain."""
        limit = self.impossible_below_ms
        return limit is not None and self.candidate_ms is not None and self.candidate_ms < limit

    @property
    def compiled(self) -> bool:
        """Whether it came through scan and build."""
        return self.passed or self.stage in BUILT

    @property
    def is_doubtful(self) -> bool:
        """Whether the speedup counts as at most 1: too noisy, or not confirmed by the judge's clock."""
        return self.comparison in DOUBTS

    def against(self, baseline: str) -> float | None:
        """The speedup against the fastest baseline at equal accuracy (`best`), or against one of `BASELINES`."""
        return self.speedup if baseline == "best" else self.usual.get(baseline)

    def counting(self, baseline: str = "best") -> float | None:
        """The same as metrics count it."""
        speedup = self.against(baseline) if self.passed else None
        return min(1.0, speedup) if speedup is not None and self.is_doubtful else speedup

    def result(self, problem: str, family: str, level: str | None, baseline: str = "best") -> Result:
        """The sample that the metrics count."""
        speedup = self.counting(baseline)
        return Result(problem=problem, family=family, level=level, compiled=self.compiled, speedup=speedup)


def measured(verdict: Verdict) -> Measured:
    """The numbers of a verdict."""
    return _of_report(report(verdict), verdict)


def _of_report(found: dict[str, Any], verdict: Verdict) -> Measured:
    measurement = verdict.measurement if isinstance(verdict, Passed) else None
    status = found["problem_status"]
    return Measured(
        outcome=found["outcome"],
        stage=found["stage"],
        speedup=found["speedup"],
        low=found["speedup_low"],
        high=found["speedup_high"],
        comparison=found["comparison"],
        timing_clock=found["timing_clock"],
        speedup_any=found["speedup_any"],
        counted=found["against"],
        less_accurate=found["less_accurate"],
        launch_bound=bool(found["launch_bound"]),
        candidate_ms=found["candidate_ms"],
        baselines_ms=found["baselines_ms"],
        speedups=measurement.speedups if measurement else {},
        usual={short: measurement.speedup_against(name) for short, name in BASELINES.items()} if measurement else {},
        floor_ms=found["floor_ms"],
        impossible_below_ms=found.get("impossible_below_ms"),
        authenticity=found["authenticity"]["label"],
        weak=None if status is None else tuple(status["why"]) if status["status"] == "weak" else (),
        without=tuple(getattr(verdict.evidence, "without", ())),
        effort=verdict.evidence.effort,
    )


def separate_baselines(verdicts: Sequence[Measured]) -> list[str]:
    """The short names of the usual baselines that tell more than the fastest of all: none where there was but one.

    Eager as shipped is one of them only where it was measured apart from strict eager.
    """
    names = {name for one in verdicts for name in one.speedups}
    if len(names) < 2:
        return []
    known = {short for one in verdicts for short, ratio in one.usual.items() if ratio is not None}
    return [short for short in BASELINES if short in known and (short != "shipped" or AS_SHIPPED in names)]
