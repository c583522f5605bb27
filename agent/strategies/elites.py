"""`elites`: the best attempt of each cell, a cell being a first design and the kind of the last change."""

import random
from dataclasses import dataclass

from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.view import View
from kernelwright.agent.strategies.moves import families, first_moves, ideas_for, improvements
from kernelwright.agent.strategies.strategy import Step, Stop


@dataclass(frozen=True)
class Elites:
    """Half of the steps improve the best of all, half that of a cell drawn at random, so that designs stay apart."""

    config: SearchConfig

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        """See `Strategy.propose`."""
        opening = first_moves(view, self.config, max(3, self.config.drafts))
        if opening is not None:
            return opening[:slots]
        kin, kinds = families(view), _kinds(view)
        cells: dict[tuple[str, str], Attempt] = {}
        for attempt in view.ranked:
            cells.setdefault((kin[attempt.number], kinds.get(attempt.ask.idea, "free")), attempt)
        designs = list(cells.values())
        parents = (view.ranked[0] if rng.random() < 0.5 else rng.choice(designs) for _ in range(slots))
        return improvements(view, parents, rng)


def _kinds(view: View) -> dict[str, str]:
    """The family of each idea by its name."""
    return {idea.name: idea.family for idea in (*ideas_for(view, "propose"), *ideas_for(view, "improve"))}
