"""`race`: drafts side by side, each repaired as long as it is worth it, until the first one is right."""

import random
from dataclasses import dataclass

from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.view import View
from kernelwright.agent.strategies.moves import draft, drafts_made, repairs
from kernelwright.agent.strategies.strategy import Step, Stop


@dataclass(frozen=True)
class Race:
    """For when any right kernel will do. What is in flight when the first one passes is finished and counts."""

    config: SearchConfig

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        """See `Strategy.propose`."""
        if view.best is not None:
            return [] if view.pending else Stop(reason=f"attempt {view.best.number} is right")
        steps = repairs(view, self.config)[:slots]
        made = drafts_made(view)
        return steps + [draft(view, made + at) for at in range(slots - len(steps))]
