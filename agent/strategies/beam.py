"""`beam`: the few best attempts, each improved by a few ideas, round after round."""

import random
from dataclasses import dataclass

from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.view import View
from kernelwright.agent.strategies.moves import first_moves, improvements
from kernelwright.agent.strategies.strategy import Step, Stop

WIDTH, IDEAS = 3, 2


@dataclass(frozen=True)
class Beam:
    """Keeps `WIDTH` attempts; each of them gets `IDEAS` improvements before the next round is drawn."""

    config: SearchConfig

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        """See `Strategy.propose`."""
        opening = first_moves(view, self.config, WIDTH)
        if opening is not None:
            return opening[:slots]
        parents: list[Attempt] = []
        kept = view.ranked[:WIDTH]
        tried = {one.number: sum(c.ask.role == "improve" for c in view.children(one.number)) for one in kept}
        for _ in range(slots):
            round_now = min(tried.values()) // IDEAS
            parents.append(next(one for one in kept if tried[one.number] // IDEAS == round_now))
            tried[parents[-1].number] += 1
        return improvements(view, parents, rng)
