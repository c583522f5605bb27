"""Two ways to do one thing, in turn, in one run: drift of the machine hits both alike."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple


class Comparison(NamedTuple):
    """Samples in ms of both ways, pair by pair."""

    names: tuple[str, str]
    plain_ms: tuple[float, ...]
    ours_ms: tuple[float, ...]
    limit_ms: float | None
    """How much more ours may cost; None where nothing is promised."""
    ours_limit_ms: float | None = None
    """What ours may cost in all; None where nothing is promised."""
    least_ratio: float | None = None
    """How many times as long the plain way must take; None where nothing is promised."""

    @property
    def difference_ms(self) -> float:
        """Median of the differences, pair by pair."""
        return statistics.median(ours - plain for plain, ours in zip(self.plain_ms, self.ours_ms, strict=True))

    @property
    def times_as_fast(self) -> float:
        """The plain way's median over ours."""
        return statistics.median(self.plain_ms) / statistics.median(self.ours_ms)

    @property
    def holds(self) -> bool:
        """Whether every promise is kept."""
        return (
            (self.limit_ms is None or self.difference_ms <= self.limit_ms)
            and (self.ours_limit_ms is None or statistics.median(self.ours_ms) <= self.ours_limit_ms)
            and (self.least_ratio is None or self.times_as_fast >= self.least_ratio)
        )

    def __str__(self) -> str:
        lines = [_row(name, samples) for name, samples in zip(self.names, (self.plain_ms, self.ours_ms), strict=True)]
        ratio = statistics.median(self.ours_ms) / statistics.median(self.plain_ms)
        promise = "" if self.limit_ms is None else f" (promised: at most {self.limit_ms:.0f} ms)"
        lines.append(f"  difference {self.difference_ms:+.1f} ms, ratio {ratio:.2f}{promise}")
        if self.ours_limit_ms is not None:
            lines.append(f"  promised: the latter at most {self.ours_limit_ms:.0f} ms")
        if self.least_ratio is not None:
            lines.append(f"  {self.times_as_fast:.1f} times as fast (promised: at least {self.least_ratio:.0f})")
        return "\n".join(lines)


def _row(name: str, samples: tuple[float, ...]) -> str:
    low, middle, high = statistics.quantiles(samples, n=4)
    return f"  {name:<40} {middle:8.1f} ms   [{low:.1f}, {high:.1f}] middle half of {len(samples)}"


Way = Callable[[], Callable[[], None] | None]
"""Does the thing once. It may return what is left to do when the clock has stopped."""


def in_turn(plain: Way, ours: Way, rounds: int) -> tuple[list[float], list[float]]:
    """Times in ms of both, alternating which goes first; one round before that counts for nothing."""
    samples: dict[Way, list[float]] = {plain: [], ours: []}
    for turn in range(rounds + 1):
        for way in (plain, ours) if turn % 2 else (ours, plain):
            start = time.perf_counter_ns()
            tidy = way()
            taken_ms = (time.perf_counter_ns() - start) / 1e6
            if tidy:
                tidy()
            if turn:
                samples[way].append(taken_ms)
    return samples[plain], samples[ours]
