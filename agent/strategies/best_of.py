"""`best_of`: always from the reference; the ideas come in turn."""

import random
from dataclasses import dataclass

from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.view import View
from kernelwright.agent.strategies.moves import draft, drafts_made
from kernelwright.agent.strategies.strategy import Step, Stop


@dataclass(frozen=True)
class BestOf:
    """The yardstick for all others: independent samples, nothing learned from one for the next."""

    config: SearchConfig

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        """See `Strategy.propose`."""
        made = drafts_made(view)
        return [draft(view, made + at) for at in range(slots)]
