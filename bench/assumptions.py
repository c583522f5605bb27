"""How much of the comparison of strategies rests on what the simulated landscape assumes; 200 problems each."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from bench.simulated.playing import play
from bench.strategies import DEFAULT, YARDSTICK, Ratio, ratio
from kernelwright.agent.config import SearchConfig
from kernelwright.agent.providers.simulated import STANDARD, Assumptions, Landscape
from kernelwright.agent.strategies import load_strategy

SEEDS = range(2000, 2200)
ATTEMPTS = 40
RIVAL = "tree"
"""The strategy that comes nearest to the default."""
OTHERS = {
    "as it ships": STANDARD,
    "problems differ less, samples of one more": Assumptions(
        difficulty_spread=0.75, problem_spread=0.3, idea_spread=0.3, writing_spread=0.4
    ),
    "a stronger model": Assumptions(draft_right=0.85, improve_right=0.85, repair_right=0.6, draft_log=0.0),
    "fewer ideas fit": Assumptions(helps=0.2),
    "repairs seldom work": Assumptions(repair_right=0.15),
}


class Sensitivity(NamedTuple):
    """By assumptions: the default over its yardstick, and its rival over the default. Promises nothing."""

    rows: dict[str, tuple[Ratio, Ratio]]
    holds: bool = True

    def __str__(self) -> str:
        head = f"  {f'at {ATTEMPTS} attempts':<44}{f'{DEFAULT} over {YARDSTICK}':>24}{f'{RIVAL} over {DEFAULT}':>24}"
        return "\n".join(
            [head, *(f"  {name:<44}{worth!s:>24}{rival!s:>24}" for name, (worth, rival) in self.rows.items())]
        )


def run(seeds: Sequence[int] = SEEDS) -> Sensitivity:
    """All of them."""
    rows = {}
    for name, assumptions in OTHERS.items():
        default, yardstick, rival = (reached(one, assumptions, seeds) for one in (DEFAULT, YARDSTICK, RIVAL))
        rows[name] = ratio(default, yardstick), ratio(rival, default)
    return Sensitivity(rows)


def reached(name: str, assumptions: Assumptions, seeds: Sequence[int]) -> list[float]:
    """Logarithm of the speedup at the end of each game."""
    strategy = load_strategy(name, SearchConfig(model="simulated", strategy=name))
    games = (play(strategy, Landscape(seed, assumptions), (ATTEMPTS,), seed) for seed in seeds)
    return [math.log(game.reached[ATTEMPTS]) for game in games]
