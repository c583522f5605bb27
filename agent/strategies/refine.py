"""`refine`: a few drafts by different ideas; then best-first: repair what is worth it, else improve the best."""

import random
from dataclasses import dataclass

from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.view import View
from kernelwright.agent.strategies.moves import (
    draft,
    drafts,
    drafts_made,
    dry_spell,
    families,
    improvements,
    last_gain,
    repairs,
)
from kernelwright.agent.strategies.strategy import Step, Stop

FRESH_AFTER = 6
"""Improvements without a gain after which one more design is drafted."""


@dataclass(frozen=True)
class Refine:
    """The default. It stays with the best, but neither with one design nor beyond its patience."""

    config: SearchConfig

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        """See `Strategy.propose`. Drafts come first, then repairs, then improvements."""
        steps = [*drafts(view, self.config.drafts), *repairs(view, self.config)]
        if steps:
            return steps[:slots]
        if view.best is None:
            return [] if view.pending else [draft(view, drafts_made(view))]
        dry = dry_spell(view, self.config.gain)
        if dry >= self.config.patience:
            end = Stop(reason=f"{self.config.patience} improvements in a row brought no gain")
            return [] if view.pending else end
        since = last_gain(view, self.config.gain)
        fresh = sum(1 for one in view.attempts[since:] if one.ask.role == "propose")
        if dry // FRESH_AFTER > fresh and self.config.runner_up:
            return [draft(view, drafts_made(view))]
        return self._improvements(view, slots, rng)

    def _improvements(self, view: View, slots: int, rng: random.Random) -> list[Step]:
        made = sum(1 for attempt in view.attempts if attempt.ask.role == "improve")
        return improvements(view, (self._parent(view, made + at) for at in range(1, slots + 1)), rng)

    def _parent(self, view: View, number: int) -> Attempt:
        """The best; every so often the best of another family of ideas."""
        best = view.ranked[0]
        if not self.config.runner_up or number % self.config.runner_up:
            return best
        kin = families(view)
        return next((one for one in view.ranked if kin[one.number] != kin[best.number]), best)
