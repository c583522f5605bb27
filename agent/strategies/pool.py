"""`pool`: each step starts from an attempt drawn by its speed."""

import random
from dataclasses import dataclass

from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.view import View
from kernelwright.agent.strategies.moves import first_moves, improvements
from kernelwright.agent.strategies.strategy import Step, Stop

SHARPNESS = 4
"""The weight of an attempt is its speedup to this power: at 1 slow parents crowd out the fast ones."""


@dataclass(frozen=True)
class Pool:
    """Every attempt that passed stays in the pool."""

    config: SearchConfig

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        """See `Strategy.propose`."""
        opening = first_moves(view, self.config, self.config.drafts)
        if opening is not None:
            return opening[:slots]
        weights = [(one.standing or 0.0) ** SHARPNESS for one in view.ranked]
        return improvements(view, rng.choices(view.ranked, weights, k=slots), rng)
