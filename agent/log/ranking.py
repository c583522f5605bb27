"""Which of several verdicts stands highest: the one definition of the best, for searches, tables and exports. Pure."""

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

from kernelwright.sandbox.verdict.in_words import DOUBTS
from kernelwright.sandbox.verdict.verdicts import NOISE_LIMIT, SAME_WITHIN, Measurement, Passed, Verdict

T = TypeVar("T")


def standing_of(verdict: Verdict | None) -> float | None:
    """The speedup to rank by; None unless it passed.

    Where it is unconfirmed, or too noisy to compare, any candidate that is faster without doubt stands higher. Noise
    must not win, so that of the noisy is the lower end of their interval.
    """
    if not isinstance(verdict, Passed):
        return None
    measured = verdict.measurement
    doubt = doubt_of(measured)
    value = measured.interval.low if doubt == "too_noisy" else measured.speedup
    return value if doubt is None or value <= 1 else 1 + SAME_WITHIN * (1 - 1 / value)


def doubt_of(measured: Measurement) -> str | None:
    """`too_noisy` or `unconfirmed` where the comparison is that, None else; spares most their interval."""
    if not _may_be_noisy(measured) and measured.is_confirmed:
        return None
    return measured.comparison if measured.comparison in DOUBTS else None


def ranked(found: Iterable[T], standing: Callable[[T], float | None]) -> list[T]:
    """Those that have a standing, the highest first, the earlier one of equals; the first of them is the best."""
    standings = [(value, one) for one in found if (value := standing(one)) is not None]
    return [one for _, one in sorted(standings, key=lambda pair: -pair[0])]


def _may_be_noisy(measured: Measurement) -> bool:
    """Whether the interval could be too wide at all: a bootstrap interval of a median lies inside its samples' range.

    Saves a thousand resamples for each quiet measurement.
    """
    if measured.placebo is not None or measured.known_spread is not None:
        return True
    pairing = measured.closest
    logs = [math.log(b / c) for b, c in zip(pairing.baseline_ms, pairing.candidate_ms, strict=True)]
    return (max(logs) - min(logs)) / 2 > math.log1p(NOISE_LIMIT)
