"""Every strategy on 500 simulated problems with 10, 40 and 160 attempts, and how they compare with the default.

What the landscape is made of, and what this can not show: docs/search.md.
"""

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bench.simulated.playing import play
from kernelwright.agent.config import SearchConfig
from kernelwright.agent.providers.simulated import Landscape
from kernelwright.agent.strategies import SHIPPED, load_strategy

SEEDS = range(1000, 1500)
"""Not those on which the strategies were tried out."""
SHORT, LONG = (10, 40), (10, 40, 160)
DEFAULT, YARDSTICK = "refine", "best_of"
WANTED = 1.5
"""The default over the yardstick at 40 attempts."""
ALLOWED = 1.05
"""Any other strategy over the default at 10 and 40."""
RESAMPLES = 1000

Reached = dict[int, list[float]]
"""By budget: logarithm of the speedup that each seed's search ended with."""


class Ratio(NamedTuple):
    """A ratio of geometric means over the same problems, with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Ranking(NamedTuple):
    """What each strategy reached; each promises nothing but the default, which promises to be worth it."""

    reached: dict[str, Reached]

    @property
    def worth(self) -> Ratio:
        """The default over the yardstick at 40 attempts."""
        return ratio(self.reached[DEFAULT][40], self.reached[YARDSTICK][40])

    @property
    def rivals(self) -> dict[tuple[str, int], Ratio]:
        """The others over the default at 10 and at 40 attempts."""
        logs, others = self.reached, [name for name in self.reached if name != DEFAULT]
        return {(name, at): ratio(logs[name][at], logs[DEFAULT][at]) for name in others for at in SHORT}

    @property
    def holds(self) -> bool:
        """Whether the default keeps its promises."""
        return self.worth.value >= WANTED and max(rival.value for rival in self.rivals.values()) <= ALLOWED

    def __str__(self) -> str:
        games = len(next(iter(self.reached.values()))[SHORT[0]])
        rows = [f"  {'strategy':<10}" + "".join(f"{f'{at} attempts':>28}" for at in LONG)]
        rows += [f"  {name:<10}{self._cells(logs)}" for name, logs in self.reached.items()]
        rows.append(f"  (geometric mean of the speedup on {games} problems; over {YARDSTICK}, with 95 % interval)")
        (name, at), best = max(self.rivals.items(), key=lambda rival: rival[1].value)
        rows.append(f"  {DEFAULT} over {YARDSTICK} at 40 attempts: {self.worth} (promised: at least {WANTED})")
        rows.append(f"  the best other one over {DEFAULT}: {name} at {at}, {best} (promised: at most {ALLOWED})")
        return "\n".join(rows)

    def _cells(self, logs: Mapping[int, Sequence[float]]) -> str:
        base = self.reached[YARDSTICK]
        cells = (f"{_mean(logs[at])} x, {ratio(logs[at], base[at])}" if at in logs else "-" for at in LONG)
        return "".join(f"{cell:>28}" for cell in cells)


def run(seeds: Sequence[int] = SEEDS, names: Sequence[str] = tuple(SHIPPED)) -> Ranking:
    """All strategies, with all budgets."""
    return Ranking({name: played(name, seeds, LONG) for name in names})


def briefly(seeds: Sequence[int] = SEEDS) -> Ranking:
    """All strategies with 10 and 40 attempts, and the default and its yardstick with 160 too."""
    budgets = {name: LONG if name in {DEFAULT, YARDSTICK} else SHORT for name in SHIPPED}
    return Ranking({name: played(name, seeds, budgets[name]) for name in SHIPPED})


def played(name: str, seeds: Sequence[int], budgets: Sequence[int]) -> Reached:
    """One strategy as it ships, on one problem a seed."""
    strategy = load_strategy(name, SearchConfig(model="simulated", strategy=name))
    games = [play(strategy, Landscape(seed), budgets, seed) for seed in seeds]
    return {budget: [math.log(game.reached[budget]) for game in games] for budget in budgets}


def ratio(mine: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Of the geometric means; the interval by a bootstrap over problems."""
    differences = [a - b for a, b in zip(mine, theirs, strict=True)]
    rng = random.Random(0)
    means = sorted(statistics.fmean(rng.choices(differences, k=len(differences))) for _ in range(RESAMPLES))
    low, high = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]
    return Ratio(math.exp(statistics.fmean(differences)), math.exp(low), math.exp(high))


def _mean(logs: Sequence[float]) -> str:
    return f"{math.exp(statistics.fmean(logs)):.2f}"
