"""The strategies that ship. Pure.

- `best_of`: always from the reference; the ideas come in turn.
- `refine`: a few drafts by different ideas; then best-first: repair what is worth it, else improve the best.
- `race`: drafts side by side, each repaired as long as it is worth it, until the first one is right.
- `beam`: the few best attempts, each improved by a few ideas, round after round.
- `pool`: each step starts from an attempt drawn by its speed.
- `elites`: the best attempt of each cell, a cell being a first design and the kind of the last change.
- `islands`: separate groups of attempts that now and then take over a neighbour's best.
- `tree`: a bandit over designs; a design is a first draft with all that descends from it.
"""

import math
import random
from dataclasses import dataclass

from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.view import View
from kernelwright.agent.strategies import Step, Stop, moves


@dataclass(frozen=True)
class BestOf:
    config: SearchConfig

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        made = moves.drafts_made(view)
        return [moves.draft(view, made + at) for at in range(slots)]


FRESH_AFTER = 6
"""Improvements without a gain after which one more design is drafted."""


@dataclass(frozen=True)
class Refine:
    """The default. It stays with the best, but neither with one design nor beyond its patience."""

    config: SearchConfig

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        steps = [*moves.drafts(view, self.config.drafts), *moves.repairs(view, self.config)]
        if steps:
            return steps[:slots]
        if view.best is None:
            return [] if view.pending else [moves.draft(view, moves.drafts_made(view))]
        dry = moves.dry_spell(view, self.config.gain)
        if dry >= self.config.patience:
            end = Stop(reason=f"{self.config.patience} improvements in a row brought no gain")
            return [] if view.pending else end
        since = moves.last_gain(view, self.config.gain)
        fresh = sum(1 for one in view.attempts[since:] if one.ask.role == "propose")
        if dry // FRESH_AFTER > fresh and self.config.runner_up:
            return [moves.draft(view, moves.drafts_made(view))]
        return self._improvements(view, slots, rng)

    def _improvements(self, view: View, slots: int, rng: random.Random) -> list[Step]:
        made = sum(1 for attempt in view.attempts if attempt.ask.role == "improve")
        return moves.improvements(view, (self._parent(view, made + at) for at in range(1, slots + 1)), rng)

    def _parent(self, view: View, number: int) -> Attempt:
        """The best; every so often the best of another family of ideas."""
        best = view.ranked[0]
        if not self.config.runner_up or number % self.config.runner_up:
            return best
        kin = moves.families(view)
        return next((one for one in view.ranked if kin[one.number] != kin[best.number]), best)


@dataclass(frozen=True)
class Race:
    """For when any right kernel will do. What is in flight when the first one passes is finished and counts."""

    config: SearchConfig

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        if view.best is not None:
            return [] if view.pending else Stop(reason=f"attempt {view.best.number} is right")
        steps = moves.repairs(view, self.config)[:slots]
        made = moves.drafts_made(view)
        return steps + [moves.draft(view, made + at) for at in range(slots - len(steps))]


WIDTH, IDEAS = 3, 2


@dataclass(frozen=True)
class Beam:
    config: SearchConfig

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        opening = moves.first_moves(view, self.config, WIDTH)
        if opening is not None:
            return opening[:slots]
        parents: list[Attempt] = []
        kept = view.ranked[:WIDTH]
        tried = {one.number: sum(c.ask.role == "improve" for c in view.children(one.number)) for one in kept}
        for _ in range(slots):
            round_now = min(tried.values()) // IDEAS
            parents.append(next(one for one in kept if tried[one.number] // IDEAS == round_now))
            tried[parents[-1].number] += 1
        return moves.improvements(view, parents, rng)


SHARPNESS = 4
"""The weight of an attempt is its speedup to this power: at 1 slow parents crowd out the fast ones."""


@dataclass(frozen=True)
class Pool:
    config: SearchConfig

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        opening = moves.first_moves(view, self.config, self.config.drafts)
        if opening is not None:
            return opening[:slots]
        weights = [(one.standing or 0.0) ** SHARPNESS for one in view.ranked]
        return moves.improvements(view, rng.choices(view.ranked, weights, k=slots), rng)


@dataclass(frozen=True)
class Elites:
    """Half of the steps improve the best of all, half that of a cell drawn at random, so that designs stay apart."""

    config: SearchConfig

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        opening = moves.first_moves(view, self.config, max(3, self.config.drafts))
        if opening is not None:
            return opening[:slots]
        kin = moves.families(view)
        kinds = {idea.name: idea.family for role in ("propose", "improve") for idea in moves.ideas_for(view, role)}
        cells: dict[tuple[str, str], Attempt] = {}
        for attempt in view.ranked:
            cells.setdefault((kin[attempt.number], kinds.get(attempt.ask.idea, "free")), attempt)
        designs = list(cells.values())
        parents = (view.ranked[0] if rng.random() < 0.5 else rng.choice(designs) for _ in range(slots))
        return moves.improvements(view, parents, rng)


GROUPS, PERIOD = 3, 5


@dataclass(frozen=True)
class Islands:
    config: SearchConfig

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        opening = moves.first_moves(view, self.config, GROUPS)
        if opening is not None:
            return opening[:slots]
        made = sum(1 for attempt in view.attempts if attempt.ask.role == "improve")
        homes = _homes(view)
        return moves.improvements(view, (_parent(view, homes, turn) for turn in range(made, made + slots)), rng)


def _parent(view: View, homes: dict[int, int], turn: int) -> Attempt:
    round_now, home = divmod(turn, GROUPS)
    shown = (home + 1) % GROUPS if round_now % PERIOD == PERIOD - 1 else home
    return next((one for one in view.ranked if homes[one.number] == shown), view.ranked[0])


def _homes(view: View) -> dict[int, int]:
    """The group of each attempt: drafts and improvements go round, all else stays with its parent."""
    homes: dict[int, int] = {}
    turns = {"propose": 0, "improve": 0}
    for attempt in view.attempts:
        homes[attempt.number] = _home(attempt, turns, homes)
    return homes


def _home(attempt: Attempt, turns: dict[str, int], homes: dict[int, int]) -> int:
    role = attempt.ask.role
    if role in turns:
        turns[role] += 1
        return (turns[role] - 1) % GROUPS
    return homes[attempt.ask.parent] if attempt.ask.parent else 0


CURIOSITY = 0.25
"""Weight of the bonus for designs that were tried less, in units of log speedup."""
FREE_FAILURES = 2
"""Broken attempts that a design is not charged for: the code was wrong, not the idea."""


@dataclass(frozen=True)
class Tree:
    config: SearchConfig

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        opening = moves.first_moves(view, self.config, max(3, self.config.drafts))
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
        return moves.improvements(view, parents, rng)


def _charged(view: View, roots: dict[int, int], root: int) -> int:
    members = [attempt for attempt in view.attempts if roots[attempt.number] == root]
    failures = sum(attempt.failed for attempt in members)
    return len(members) - min(failures, FREE_FAILURES)


def _roots(view: View) -> dict[int, int]:
    roots: dict[int, int] = {}
    for attempt in view.attempts:
        roots[attempt.number] = roots[attempt.ask.parent] if attempt.ask.parent else attempt.number
    return roots


def _bound(attempt: Attempt, visits: int, total: int) -> float:
    return math.log(attempt.standing or 1.0) + CURIOSITY * math.sqrt(math.log(total + 1) / visits)
