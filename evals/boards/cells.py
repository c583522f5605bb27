"""A cell of a leaderboard, an entrant's best kernel for one problem; and what several cells come to. Pure."""

from collections.abc import Callable, Sequence
from typing import Literal

from kernelwright.evals.figures import metrics
from kernelwright.evals.figures.measured import Measured
from kernelwright.evals.figures.metrics import Effort, Estimate, Result
from kernelwright.problems.record.base import Record

Status = Literal["verified", "unverified", "provisional", "weak problem", "quarantined", "unsolved"]
"""`provisional`: measured with less effort than the board takes, or by an older clock than others of it. So it is shown
and counts for nothing."""


class Cell(Record):
    """An entrant's best kernel for one problem, or that it has none; run, attempt and record say whence it comes."""

    problem: str
    problem_digest: str
    family: str
    level: str | None
    status: Status
    why: str = ""
    """For a weak problem, a provisional number or a kernel in quarantine."""
    stale: bool = False
    """The published number was reached under another judge version: judge it again."""
    attempts: int
    passed: int
    compiled: bool
    run: str | None = None
    folder: str | None = None
    attempt: str | None = None
    record: str | None = None
    candidate_digest: str | None = None
    published: Measured | None = None
    """The number that counts: of the verification where there is one, else of the search."""
    claimed: Measured | None = None
    """What the search measured."""
    first_correct: Effort | None = None
    to_best: Effort | None = None

    @property
    def credit(self) -> float:
        """What the ranking credits."""
        return metrics.credited(self.published.low if self.published and self.is_beyond_doubt else None)

    @property
    def is_beyond_doubt(self) -> bool:
        """Whether its time counts, without a doubt of the judge's clock or the machine."""
        counts = self.status in ("verified", "unverified")
        return counts and self.published is not None and not self.published.is_doubtful

    def result(self, baseline: str = "best") -> Result:
        """The sample that the metrics count; a kernel in quarantine is a failure."""
        counts = self.status in ("verified", "unverified") and self.published is not None
        speedup = self.published.counting(baseline) if counts and self.published else None
        return Result(
            problem=self.problem, family=self.family, level=self.level, compiled=self.compiled, speedup=speedup
        )


class Group(Record):
    """The problems of one family or level, for one entrant."""

    problems: int
    correct: int
    compile_rate: float
    fast: dict[float, float]
    """fast_p against the fastest baseline."""
    geometric_mean: Estimate | None
    first_correct: Effort | None
    """Attempts and cost to the first right kernel, summed over the problems that have one."""
    to_best: Effort | None
    """The same, to the best one."""


def grouped_by(cells: Sequence[Cell], key: Callable[[Cell], str | None]) -> dict[str, Group]:
    """The groups by name, in alphabetical order; cells without a name are in none."""
    names = sorted({name for cell in cells if (name := key(cell)) is not None})
    return {name: _group([cell for cell in cells if key(cell) == name]) for name in names}


def _group(cells: Sequence[Cell]) -> Group:
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
