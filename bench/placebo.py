"""References judged as candidates for themselves: how often does the judge claim a difference that is not there?

`KERNELWRIGHT_PLACEBOS` is the number of judgings (200), spread over ten catalog problems at their CPU sizes or those
that `KERNELWRIGHT_BENCH` names, and `KERNELWRIGHT_EFFORT` the effort of each (rank). Run it on an otherwise idle
machine: on a busy one most answers are `too_noisy`, which is right and proves nothing.
"""

import os
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from bench.chosen import chosen
from kernelwright.problems import Problem, load_problem
from kernelwright.sandbox.jail.zygote import keep_freed_memory
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import Candidate, Measurement, Passed, Verdict

PROBLEMS = (
    "activation_chain",
    "argmax_rows",
    "conv_transpose2d_depthwise",
    "cross_entropy",
    "cumsum_rows",
    "gelu_bias_residual",
    "layer_norm",
    "matmul_square",
    "max_pool2d",
    "softmax_rows",
)
COUNT = 200
MOST_FASTER = 0.01
SURE = 0.95


class Placebo(NamedTuple):
    """What was said of a reference against itself, and what that took."""

    said: str
    speedup: float | None
    covers: bool | None
    """Whether the interval holds 1; None where there is none."""
    worker_pairs: int
    seconds: float

    @classmethod
    def of(cls, measurement: Measurement | None, seconds: float) -> "Placebo":
        """`measurement`: None where the reference failed."""
        if measurement is None:
            return cls("failed", None, None, 0, seconds)
        low, high = measurement.interval
        workers = len(set(measurement.closest.workers))
        return cls(measurement.comparison, measurement.speedup, low <= 1 <= high, workers, seconds)


class Placebos(NamedTuple):
    """Many of them."""

    all: tuple[Placebo, ...]

    @property
    def said(self) -> Counter[str]:
        """How often each was said."""
        return Counter(one.said for one in self.all)

    @property
    def holds(self) -> bool:
        """Whether at most one in a hundred was called faster."""
        return self.said["faster"] <= MOST_FASTER * len(self.all)

    def __str__(self) -> str:
        counts = ", ".join(f"{number} {word}" for word, number in self.said.most_common())
        known = [one for one in self.all if one.covers is not None]
        covered, speedups = sum(bool(one.covers) for one in known), [one.speedup or 1.0 for one in known]
        seconds = statistics.median(one.seconds for one in self.all)
        workers = statistics.fmean(one.worker_pairs for one in known) if known else 0.0
        return "\n".join(
            (
                f"  {len(self.all)} judgings: {counts}",
                f"  called faster: at most {most(self.said['faster'], len(self.all)):.2%} of all such, "
                f"at {SURE:.0%} (promised: at most {MOST_FASTER:.0%} of these)",
                f"  the interval holds 1 in {covered} of {len(known)}: in {least(covered, len(known)):.1%} or more",
                f"  speedups from {min(speedups, default=1.0):.3f} to {max(speedups, default=1.0):.3f}",
                f"  {seconds:.2f} s each in the median, {workers:.1f} worker pairs in the mean",
            )
        )


def most(count: int, of: int) -> float:
    """The largest share of all that leaves a chance of 5 % to see so few (Clopper and Pearson 1934, one-sided)."""
    if count >= of:
        return 1.0
    low, high = count / of, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(count, of, middle) > 1 - SURE else (low, middle)
    return high


def least(count: int, of: int) -> float:
    """The smallest share of all that leaves a chance of 5 % to see so many."""
    return 1 - most(of - count, of) if of else 0.0


def _at_most(count: int, of: int, share: float) -> float:
    """The chance to see at most `count` of so many."""
    term = total = (1 - share) ** of
    for number in range(1, count + 1):
        term *= (of - number + 1) / number * share / (1 - share)
        total += term
    return total


def run() -> Placebos:
    """Judge each reference in turn, as often as asked."""
    keep_freed_memory()
    names = chosen(PROBLEMS)
    settings = Settings.model_validate({"effort": os.environ.get("KERNELWRIGHT_EFFORT", "rank")})
    each = -(-int(os.environ.get("KERNELWRIGHT_PLACEBOS", COUNT)) // len(names))
    found: list[Placebo] = []
    for name in names:
        problem = load_problem(name, "cpu")
        with Judge(problem, settings) as judge:
            here = [judged(judge.judge, problem) for _ in range(each)]
        print(f"  {name}: {dict(Counter(one.said for one in here))}", flush=True)
        found += here
    return Placebos(tuple(found))


def judged(judge: Callable[[Candidate], Verdict], problem: Problem) -> Placebo:
    """What comes of a problem's reference as a candidate for itself, and how long that takes."""
    start = time.perf_counter()
    verdict = judge(Candidate(source=itself(problem.source)))
    return Placebo.of(verdict.measurement if isinstance(verdict, Passed) else None, time.perf_counter() - start)


def itself(source: str) -> str:
    """The reference as a candidate for itself."""
    return source + "\n\nclass ModelNew(Model):\n    pass\n"
