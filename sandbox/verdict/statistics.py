"""Statistics of paired timings: medians, and a bootstrap interval for a ratio. Pure."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float64]


class Interval(NamedTuple):
    """A two-sided interval, of 95 % or more."""

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
    return math.exp(statistics.median(log_ratios(numerator, denominator)))


def ratio_interval(
    numerator: Sequence[float], denominator: Sequence[float], groups: Sequence[int] = (), resamples: int = 1000
) -> Interval:
    """The percentile bootstrap interval of `paired_ratio` (Efron 1979), resampling whole pairs.

    Pairs of one group (a pair of processes) share what that process was dealt: its memory, its place on the cores. So
    groups are resampled first, and then pairs within each (Davison and Hinkley 1997, section 3.8). The generator's seed
    is fixed, so that the interval can be recomputed from the recorded samples alone.
    """
    logs = np.array(log_ratios(numerator, denominator))
    if groups and len(groups) != len(logs):
        raise ValueError(f"{len(logs)} pairs with {len(groups)} group numbers; give one for each pair, or none")
    numbers = np.array(groups or [0] * len(logs))
    members = [logs[numbers == number] for number in dict.fromkeys(numbers.tolist())]
    medians = np.sort(np.nanmedian(_resampled(members, resamples), axis=1))
    low, high = medians[int(0.025 * resamples)], medians[min(int(0.975 * resamples), resamples - 1)]
    # The variance between a handful of groups comes out too small by (groups - 1) / groups.
    wider = math.sqrt(len(members) / (len(members) - 1)) if len(members) > 1 else 1.0
    middle, half = (low + high) / 2, (high - low) / 2
    return Interval(math.exp(middle - wider * half), math.exp(middle + wider * half))


def _resampled(members: list[Samples], resamples: int) -> Samples:
    """One row a resample, with NaN where a chosen group is shorter than the longest."""
    # The legacy generator: numpy promises that its numbers never change (NEP 19).
    rng = np.random.RandomState(0)
    sizes = np.array([len(group) for group in members])
    longest = int(sizes.max())
    table = np.array([np.resize(group, longest) for group in members])
    chosen = (rng.random_sample((resamples, len(members))) * len(members)).astype(int)
    within = (rng.random_sample((resamples, len(members), longest)) * sizes[chosen][..., None]).astype(int)
    drawn = table[chosen[..., None], within]
    drawn[np.arange(longest) >= sizes[chosen][..., None]] = np.nan
    rows: Samples = drawn.reshape(resamples, -1)
    return rows


def log_ratios(numerator: Sequence[float], denominator: Sequence[float]) -> list[float]:
    if len(numerator) != len(denominator) or not numerator:
        raise ValueError(
            f"a paired ratio needs two equally long, non-empty series, got {len(numerator)} and {len(denominator)}"
        )
    return [math.log(n / d) for n, d in zip(numerator, denominator, strict=True)]
