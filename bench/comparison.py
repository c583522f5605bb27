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

    @property
    def difference_ms(self) -> float:
        """Median of the differences, pair by pair."""
        return statistics.median(ours - plain for plain, ours in zip(self.plain_ms, self.ours_ms, strict=True))

    @property
    def holds(self) -> bool:
        """Whether the promise is kept."""
        return self.limit_ms is None or self.difference_ms <= self.limit_ms

    def __str__(self) -> str:
        lines = [_row(name, samples) for name, samples in zip(self.names, (self.plain_ms, self.ours_ms), strict=True)]
        ratio = statistics.median(self.ours_ms) / statistics.median(self.plain_ms)
        promise = "" if self.limit_ms is None else f" (promised: at most {self.limit_ms:.0f} ms)"
        lines.append(f"  difference {self.difference_ms:+.1f} ms, ratio {ratio:.2f}{promise}")
        return "\n".join(lines)


def _row(name: str, samples: tuple[float, ...]) -> str:
    low, middle, high = statistics.quantiles(samples, n=4)
    return f"  {name:<40} {middle:8.1f} ms   [{low:.1f}, {high:.1f}] middle half of {len(samples)}"


def in_turn(plain: Callable[[], None], ours: Callable[[], None], rounds: int) -> tuple[list[float], list[float]]:
    """Times in ms of both, alternating which goes first; one round before that counts for nothing."""
    samples: dict[Callable[[], None], list[float]] = {plain: [], ours: []}
    for turn in range(rounds + 1):
        for way in (plain, ours) if turn % 2 else (ours, plain):
            start = time.perf_counter_ns()
            way()
            if turn:
                samples[way].append((time.perf_counter_ns() - start) / 1e6)
    return samples[plain], samples[ours]
