"""Strategies on simulated problems, with equal budgets; and 250 problems at once through the engine.

`python -m bench search`. What the landscape is made of, and what this can not show: docs/search.md.
"""

import math
import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from agent.config import SearchConfig
from agent.simulation.landscape import Landscape
from agent.simulation.many import Load, run_many
from agent.simulation.playing import play
from agent.strategies import SHIPPED, load_strategy

SEEDS = range(1000, 1500)
"""Not those on which the strategies were tried out."""
BUDGETS = (10, 40, 160)
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


class Result(NamedTuple):
    """What each strategy reached, and how the engine bore 250 problems."""

    reached: dict[str, Reached]
    load: Load | None

    @property
    def holds(self) -> bool:
        """Whether the default keeps its promises, and the engine its own."""
        logs = self.reached
        worth = ratio(logs[DEFAULT][40], logs[YARDSTICK][40]).value >= WANTED
        unbeaten = all(
            ratio(logs[name][budget], logs[DEFAULT][budget]).value <= ALLOWED for name in logs for budget in (10, 40)
        )
        return worth and unbeaten and (self.load is None or self.load.busy > 0.9)

    def __str__(self) -> str:
        rows = [f"  {'strategy':<10}" + "".join(f"{f'{budget} attempts':>34}" for budget in BUDGETS)]
        for name, logs in self.reached.items():
            cells = (f"{_mean(logs[at]):.2f} x, {ratio(logs[at], self.reached[YARDSTICK][at])}" for at in BUDGETS)
            rows.append(f"  {name:<10}" + "".join(f"{cell:>34}" for cell in cells))
        rows.append(f"  (geometric mean of the speedup; over {YARDSTICK} on the same problems, with 95 % interval)")
        if self.load is not None:
            rows.append(
                f"  {self.load.attempts} attempts, {self.load.events} events: judge busy {self.load.busy:.1%}, "
                f"memory {self.load.memory_mb[0]:.0f} MB after a tenth, {self.load.memory_mb[-1]:.0f} MB at the end"
            )
        return "\n".join(rows)


def run(seeds: Sequence[int] = SEEDS, names: Sequence[str] = tuple(SHIPPED), problems: int = 250) -> Result:
    """Play all strategies, then many problems at once (none where `problems` is 0)."""
    return Result({name: played(name, seeds) for name in names}, load(problems) if problems else None)


def played(name: str, seeds: Sequence[int]) -> Reached:
    """One strategy as it ships, on one problem a seed."""
    strategy = load_strategy(name, SearchConfig(model="simulated", strategy=name))
    games = [play(strategy, Landscape(seed), BUDGETS, seed) for seed in seeds]
    return {budget: [math.log(game.reached[budget]) for game in games] for budget in BUDGETS}


def load(problems: int) -> Load:
    """Answers take 5 to 60 s and a verdict 10 s, on four slots, in simulated time; 20 attempts a problem."""
    config = SearchConfig(model="simulated", attempts=20, slots=2, problems_at_once=16, patience=20)
    with tempfile.TemporaryDirectory() as folder:
        return run_many(Path(folder) / "run", problems, config)


def ratio(mine: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Of the geometric means; the interval by a bootstrap over problems."""
    differences = [a - b for a, b in zip(mine, theirs, strict=True)]
    rng = random.Random(0)
    means = sorted(statistics.fmean(rng.choices(differences, k=len(differences))) for _ in range(RESAMPLES))
    low, high = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]
    return Ratio(math.exp(statistics.fmean(differences)), math.exp(low), math.exp(high))


def _mean(logs: Sequence[float]) -> float:
    return math.exp(statistics.fmean(logs))
