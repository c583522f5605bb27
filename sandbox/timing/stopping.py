"""When it is known well enough how fast a candidate is: to be left aside, to be chosen, or to be published. Pure.

What is slower is not kept, so by how much need not be known to a few per cent; and most of what a model writes at first
is slower by far. Ending early tells nothing else than ending late would: the interval is the same bootstrap over what
was measured, and these rules only say that it need not be narrower. Families of values that were not met till then are
met untimed (`Timing.meet_the_rest`).
"""

import math

from kernelwright.sandbox.verdict.verdicts import NOISE_LIMIT, SAME_WITHIN, Measurement

EFFORT = 0.8
"""The share of worker pairs and of pairs that is measured in any case."""
FEWEST = 4
"""Worker pairs: from three, intervals are too narrow too often."""
SHARE_OF_DISTANCE = 1 / 6
"""The half width, as a share of the distance of the logarithm from 0: 1 lies at least six half widths away."""
TO_CHOOSE = 0.05
"""The half width that is enough of what is clearly the best so far: it is judged again before it is published. Where it
is better by far, `SHARE_OF_DISTANCE` is, up to `FAR_BETTER`.
"""
FAR_BETTER = 0.1
AT_LEAST, FAR_FROM_IT = 2, 1.5
"""Worker pairs before it is given up to become as sure as that, where the last one would leave a half width of so many
times what is wanted.
"""
STUDENT = {4: 3.182, 5: 2.776}
"""By number of worker pairs, the 97.5 % point of Student's t with one degree less."""


def is_clearly_slower(measurement: Measurement) -> bool:
    """Whether the slowdown is beyond doubt.

    An interval from four processes is too narrow more often than one from five, so it is widened here by what Student's
    t has for four over what it has for five. It still has to be narrow enough for a claim (`NOISE_LIMIT`),
    and narrow against its distance from 1; and the placebo has to be steady.
    """
    groups = len(set(measurement.closest.workers))
    if groups < FEWEST or not measurement.is_steady:
        return False
    interval = measurement.interval
    centre, half = math.log(interval.low * interval.high) / 2, math.log(interval.high / interval.low) / 2
    half *= STUDENT.get(groups, STUDENT[5]) / STUDENT[5]
    is_beyond = centre + half < -math.log(1 + SAME_WITHIN)
    return is_beyond and half < min(math.log(1 + NOISE_LIMIT), SHARE_OF_DISTANCE * -centre)


def is_enough_to_choose(measurement: Measurement, beat: float | None, target: float) -> bool:
    """Whether a search knows enough of what is clearly below the speedup to beat (of the reference, where there is none
    yet), of what is clearly above it, or, with an interval as narrow as `target`, of what is neither.
    """
    interval, threshold = measurement.interval, beat or 1.0
    if not measurement.is_steady:
        return False
    if interval.high < threshold / (1 + SAME_WITHIN) or interval.half_width < target:
        return True
    if interval.low <= threshold * (1 + SAME_WITHIN):
        return False
    enough = min(FAR_BETTER, max(TO_CHOOSE, SHARE_OF_DISTANCE * math.log(interval.low / threshold)))
    return interval.half_width < enough or _is_in_vain(measurement, enough)


def _is_in_vain(measurement: Measurement, enough: float) -> bool:
    """Whether all looks together would not make it sure `enough`, and do not decide either whether a claim stands."""
    groups, known = len(set(measurement.closest.workers)), measurement.known_spread
    if known is None or groups < AT_LEAST:
        return False
    half = measurement.interval.half_width
    in_the_end = half * math.sqrt(groups / known.looks)
    may_become_a_claim = in_the_end <= NOISE_LIMIT <= half
    return in_the_end > FAR_FROM_IT * enough and not may_become_a_claim
