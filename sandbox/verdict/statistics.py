"""Ratios of paired times and their intervals: over samples, and over worker pairs. Pure."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernelwright.problems.problem import Record

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


WRONG = 0.05
"""Probability that such an interval misses, over all looks and to both sides."""
UNKNOWN, UNKNOWN_DEGREES = 0.03, 4
"""The spread that is assumed before anything is known, and how many observations that counts for; one, in the end."""
LEAST = 0.01
"""No spread is taken to be smaller: a candidate may differ more from process to process than the reference does."""
GPU_UNKNOWN, GPU_LEAST = 0.01, 0.005
"""The same on a GPU: 111 worker pairs of 20 references against themselves on an H200 spread by 0.0056."""
MEDIAN_WORTH = 3
"""This many observations are worth one where only their median is used."""
OTHERS = 24
"""Ratios of other problems' references that tell what is usual on a device."""
USUAL, USUAL_POINT = 0.75, 1.1503
"""Three of four of those are nearer to 0 than what is taken for usual, so that the problems that differ most count; and
where this many are of a normal variable, in standard deviations.
"""


class KnownSpread(Record):
    """By how much one worker pair differs from another, as known before the candidate was timed."""

    sd: float
    """Standard deviation of the logarithm of a worker pair's ratio."""
    degrees: int
    """Number of observations that it counts for."""
    looks: int
    """Number of worker pairs after which it may be decided whether to go on."""
    least: float = LEAST
    """No spread between worker pairs is taken to be smaller."""


def known_spread(
    ratios: Sequence[float], looks: int, others: Sequence[float] = (), unknown: float = UNKNOWN, least: float = LEAST
) -> KnownSpread:
    """From the logarithms of ratios of pairs of the reference's own processes, whose mean is 0 by symmetry.

    What was seen and what is assumed, each with its weight, as with a conjugate prior (Gelman and others, Bayesian Data
    Analysis, section 2.6). Observations count by their median distance from 0, 0.6745 standard deviations of a
    normal variable. So a busy hour of the machine does not widen later intervals. For variances a median is worth a
    third of its observations (Rousseeuw and Croux 1993). It errs upwards, since these ratios come from fewer
    calls than a candidate's. `others` are such ratios of other problems on the same device: where there are enough of
    them and they are usually smaller than what is assumed, that is assumed.
    """
    usual = sorted(abs(ratio) for ratio in others)[int(USUAL * len(others))] if len(others) >= OTHERS else math.inf
    unknown = min(unknown, usual / USUAL_POINT)
    worth = len(ratios) // MEDIAN_WORTH
    seen = statistics.median(abs(ratio) for ratio in ratios) / 0.6745 if worth else 0.0
    assumed = max(1, UNKNOWN_DEGREES - worth)
    degrees = assumed + worth
    sd = math.sqrt((assumed * unknown**2 + worth * seen**2) / degrees)
    return KnownSpread(sd=max(least, sd), degrees=degrees, looks=looks, least=least)


SMALL_SPREAD, SMALL_DEGREES = 0.075, 5
"""Five worker pairs of 1,500 kernels of 2 us, the same program on both sides, spread by 0.077 on an H200: how fast a
device starts kernels differs from process to process."""
SMALL_HOST_MS, SMALL_RATIO = 0.1, 3.0
"""A call that takes longer than this to issue, and this many times longer than to run, consists of such kernels."""


def spread_of_launches(known: KnownSpread | None, sides: Iterable[Mapping[str, float | None]]) -> KnownSpread | None:
    """Raise what is known where one of the programs compared consists of many small kernels.

    `sides` holds the times of each program, as `Measurement.times` has them.
    """
    if known is None or known.sd >= SMALL_SPREAD:
        return known
    times = [(one["host_time_ms"] or 0.0, one["gpu_time_ms"] or 0.0) for one in sides]
    if not any(host_ms > max(SMALL_HOST_MS, SMALL_RATIO * gpu_ms) for host_ms, gpu_ms in times):
        return known
    return known.model_copy(update={"sd": SMALL_SPREAD, "degrees": SMALL_DEGREES})


def worker_interval(
    numerator: Sequence[float], denominator: Sequence[float], groups: Sequence[int], known: KnownSpread
) -> Interval:
    """Student's interval of the mean over worker pairs of each one's median log ratio.

    The variance between worker pairs is pooled from their own and what is known of the reference's, each with its
    degrees of freedom; where calls of one pair spread more than usual, what is known is raised by that. It may be
    looked at after each pair: `WRONG` is split among the looks (Bonferroni), so the chance to miss at any of them stays
    below it.
    """
    logs = log_ratios(numerator, denominator)
    numbers = groups or [0] * len(logs)
    members = [
        [log for log, one in zip(logs, numbers, strict=True) if one == number] for number in dict.fromkeys(numbers)
    ]
    medians = [statistics.median(group) for group in members]
    centre, count = statistics.fmean(medians), len(medians)
    within = statistics.fmean(_variance_of_median(group) for group in members)
    prior = max(known.sd**2, known.least**2 + within)
    degrees = known.degrees + count - 1
    variance = (known.degrees * prior + sum((median - centre) ** 2 for median in medians)) / degrees
    half = student(1 - WRONG / (2 * known.looks), degrees) * math.sqrt(variance / count)
    median = statistics.median(logs)
    return Interval(math.exp(min(centre - half, median)), math.exp(max(centre + half, median)))


def _variance_of_median(group: Sequence[float]) -> float:
    """That of the median of a few values, from their mean distance to it, which an outlier moves less than a variance.

    For many normal values it is pi^2 / 4n of that distance's square (Kendall and Stuart, chapter 14); 3 / n is
    above what it is for four to six of them.
    """
    median = statistics.median(group)
    return 3 / len(group) * statistics.fmean(abs(value - median) for value in group) ** 2


@cache
def student(probability: float, degrees: int) -> float:
    """The point that Student's t of this many degrees stays below with this probability, which is above one half."""
    low, high = 0.0, 1.0
    while _two_sided(high, degrees) < 2 * probability - 1:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _two_sided(middle, degrees) < 2 * probability - 1 else (low, middle)
    return high


def _two_sided(t: float, degrees: int) -> float:
    """The probability that |T| is at most t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    odd = degrees % 2
    term = total = math.cos(angle) if odd else 1.0
    for number in range(3 if odd else 2, degrees, 2):
        term *= (number - 1) / number * math.cos(angle) ** 2
        total += term
    if not odd:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + (math.sin(angle) * total if degrees > 1 else 0.0))
