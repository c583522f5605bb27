"""`tree`: a bandit over designs; a design is a first draft with all that descends from it."""

import math
import random
from dataclasses import dataclass

from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.view import View
from kernelwright.agent.strategies.moves import first_moves, improvements
from kernelwright.agent.strategies.strategy import Step, Stop

CURIOSITY = 0.25
"""Weight of the bonus for designs that were tried less, in units of log speedup."""
FREE_FAILURES = 2
"""Broken attempts that a design is not charged for: the code was wrong, not the idea."""


@dataclass(frozen=True)
class Tree:
    """Chooses the design by its upper confidence bound, then improves that design's best attempt."""

    config: SearchConfig

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        """See `Strategy.propose`."""
        opening = first_moves(view, self.config, max(3, self.config.drafts))
        if opening is not None:
            return opening[:slots]
        parents: list[Attempt] = []
        roots = _roots(view)
        best: dict[int, Attempt] = {}
        for attempt in view.ranked:
            best.setdefault(roots[attempt.number], attempt)
        visits = {root: max(1, _charged(view, roots, root)) for root in best}
        for _ in range(slots):
            total = sum(visits.values())
            root = max(best, key=lambda at: _bound(best[at], visits[at], total))
            visits[root] += 1
            parents.append(best[root])
        return improvements(view, parents, rng)


def _charged(view: View, roots: dict[int, int], root: int) -> int:
    members = [attempt for attempt in view.attempts if roots[attempt.number] == root]
    failures = sum(attempt.failed for attempt in members)
    return len(members) - min(failures, FREE_FAILURES)


def _roots(view: View) -> dict[int, int]:
    """By attempt, its first draft."""
    roots: dict[int, int] = {}
    for attempt in view.attempts:
        roots[attempt.number] = roots[attempt.ask.parent] if attempt.ask.parent else attempt.number
    return roots


def _bound(attempt: Attempt, visits: int, total: int) -> float:
    return math.log(attempt.standing or 1.0) + CURIOSITY * math.sqrt(math.log(total + 1) / visits)
