"""A verdict in the few numbers that tables and plots need, derived once: intervals take tens of milliseconds each."""

from typing import Any

from evals.metrics import Result
from sandbox.report import report
from sandbox.verdict import Passed, Record, Verdict

EAGER = "eager"
"""The name of the baseline that is no torch.compile mode."""
BUILT = frozenset({"load", "run", "check", "time"})
"""A failure at one of these stages came through scan and build."""


class Measured(Record):
    """What a verdict says, flat. None where it does not apply."""

    outcome: str
    stage: str | None
    speedup: float | None
    """Against the better baseline."""
    low: float | None
    high: float | None
    comparison: str | None
    candidate_ms: float | None
    baselines_ms: dict[str, float] | None
    speedups: dict[str, float]
    """Against each baseline alone; empty unless it passed."""
    floor_ms: float | None
    """What the device could do with the reference's own algorithm."""
    impossible_below_ms: float | None = None
    """What it could do with any algorithm."""
    authenticity: str
    weak: tuple[str, ...] | None
    """Why the problem is weak; empty where it is not; None where nobody looked."""
    without: tuple[str, ...] = ()
    """Defences of the judge that were off."""

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

    def against(self, baseline: str) -> float | None:
        """The speedup against `eager`, against the best `compile` mode, or against the better of all (`best`)."""
        if baseline == "best":
            return self.speedup
        if baseline == EAGER:
            return self.speedups.get(EAGER)
        return min((ratio for name, ratio in self.speedups.items() if name != EAGER), default=None)

    def result(self, problem: str, family: str, level: str | None, baseline: str = "best") -> Result:
        """The sample that the metrics count."""
        speedup = self.against(baseline) if self.passed else None
        return Result(problem=problem, family=family, level=level, compiled=self.compiled, speedup=speedup)


def measured(verdict: Verdict) -> Measured:
    """The numbers of a verdict."""
    return _of_report(report(verdict), verdict)


def _of_report(found: dict[str, Any], verdict: Verdict) -> Measured:
    pairings = verdict.measurement.pairings if isinstance(verdict, Passed) else ()
    status = found["problem_status"]
    return Measured(
        outcome=found["outcome"],
        stage=found["stage"],
        speedup=found["speedup"],
        low=found["speedup_low"],
        high=found["speedup_high"],
        comparison=found["comparison"],
        candidate_ms=found["candidate_ms"],
        baselines_ms=found["baselines_ms"],
        speedups={pairing.baseline: pairing.speedup for pairing in pairings},
        floor_ms=found["floor_ms"],
        impossible_below_ms=found.get("impossible_below_ms"),
        authenticity=found["authenticity"]["label"],
        weak=None if status is None else tuple(status["why"]) if status["status"] == "weak" else (),
        without=tuple(getattr(verdict.evidence, "without", ())),
    )
