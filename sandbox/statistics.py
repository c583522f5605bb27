"""Statistics of paired timings: medians, and a bootstrap interval for a ratio. Pure."""

import math
import random
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """A two-sided 95 % interval."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the width as a share of the geometric centre; 0.02 means about +-2 %."""
        return math.sqrt(self.high / self.low) - 1


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """The median over pairs of numerator[i] / denominator[i].

    The median of ratios, not the ratio of medians: a slow moment of the machine hits both sides of a pair and cancels.
    """
    return math.exp(statistics.median(_log_ratios(numerator, denominator)))


def ratio_interval(
    numerator: Sequence[float], denominator: Sequence[float], groups: Sequence[int] = (), resamples: int = 1000
) -> Interval:
    """The percentile bootstrap interval of `paired_ratio` (Efron 1979), resampling whole pairs.

    Pairs of one group (a pair of processes) share what that process was dealt: its memory, its place on the cores. So
    groups are resampled first, and then pairs within each (Davison and Hinkley 1997, section 3.8). The generator's seed
    is fixed, so that the interval can be recomputed from the recorded samples alone.
    """
    logs = _log_ratios(numerator, denominator)
    if groups and len(groups) != len(logs):
        raise ValueError(f"{len(logs)} pairs with {len(groups)} group numbers; give one for each pair, or none")
    members: dict[int, list[float]] = {}
    for group, log in zip(groups or [0] * len(logs), logs, strict=True):
        members.setdefault(group, []).append(log)
    rng = random.Random(0)
    medians = sorted(statistics.median(_resampled(list(members.values()), rng)) for _ in range(resamples))
    low = medians[int(0.025 * resamples)]
    high = medians[min(int(0.975 * resamples), resamples - 1)]
    return Interval(math.exp(low), math.exp(high))


def _resampled(groups: list[list[float]], rng: random.Random) -> list[float]:
    return [log for group in rng.choices(groups, k=len(groups)) for log in rng.choices(group, k=len(group))]


def _log_ratios(numerator: Sequence[float], denominator: Sequence[float]) -> list[float]:
    if len(numerator) != len(denominator) or not numerator:
        raise ValueError(
            f"a paired ratio needs two equally long, non-empty series, got {len(numerator)} and {len(denominator)}"
        )
    return [math.log(n / d) for n, d in zip(numerator, denominator, strict=True)]
