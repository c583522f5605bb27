"""`refine`: a few drafts; then repair what failed, a few times in a row; else improve the best."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from agent.config import SearchConfig
from agent.records import Ask, Attempt
from agent.strategies.ideas import DRAFTS, IMPROVEMENTS, Idea
from agent.strategies.protocol import Stop
from agent.view import View
from prompts import Role


class Step(NamedTuple):
    """An ask that has no number yet."""

    role: Role
    parent: int | None
    idea: str
    directive: str = ""


@dataclass(frozen=True)
class Refine:
    """The default. Beyond its drafts it starts afresh only where nothing passed and nothing can be repaired."""

    config: SearchConfig

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Ask] | Stop:
        """See `Strategy.propose`. Drafts come first, then repairs, then improvements."""
        room = self.config.attempts - len(view.attempts)
        steps = [*self._drafts(view), *self._repairs(view)] if room > 0 else []
        end = f"the budget of {self.config.attempts} attempts is used up"
        if room > 0 and not steps and view.best is None and not view.pending:
            steps = [_draft(sum(1 for attempt in view.attempts if attempt.ask.role == "propose"))]
        elif room > 0 and not steps and view.best is not None:
            end = f"{self.config.patience} improvements in a row brought no gain"
            if _dry_spell(view, 1 + self.config.gain) < self.config.patience:
                steps = list(islice(_improvements(view, view.best, rng), slots))
        if not steps:
            return [] if view.pending else Stop(reason=end)
        return [self._ask(view, at, step) for at, step in enumerate(steps[: min(slots, room)])]

    def _drafts(self, view: View) -> Iterator[Step]:
        made = sum(1 for attempt in view.attempts if attempt.ask.role == "propose")
        yield from (_draft(index) for index in range(made, self.config.drafts))

    def _repairs(self, view: View) -> Iterator[Step]:
        """One repair of each failure that has none yet, unless it ends a row of repairs that is long enough."""
        for attempt in view.attempts:
            repaired = any(child.ask.role == "repair" for child in view.children(attempt.number))
            if attempt.failed and not repaired and _repairs_in_a_row(view, attempt) < self.config.repairs:
                yield Step("repair", attempt.number, attempt.ask.idea)

    def _ask(self, view: View, at: int, step: Step) -> Ask:
        return Ask(
            attempt=view.next_number + at,
            problem=view.problem,
            target=self.config.target,
            model=self.config.model,
            **step._asdict(),
        )


def _draft(index: int) -> Step:
    idea = DRAFTS[index % len(DRAFTS)]
    return Step("propose", None, idea.name, idea.directive)


def _improvements(view: View, best: Attempt, rng: random.Random) -> Iterator[Step]:
    """Those ideas that were not tried on the best yet, in order; then any, at random and without end."""
    tried = {child.ask.idea for child in view.children(best.number) if child.ask.role == "improve"}
    ideas: list[Idea] = [idea for idea in IMPROVEMENTS if idea.name not in tried]
    while True:
        idea = ideas.pop(0) if ideas else rng.choice(IMPROVEMENTS)
        yield Step("improve", best.number, idea.name, idea.directive)


def _repairs_in_a_row(view: View, attempt: Attempt) -> int:
    """How many repairs end in this attempt, itself included."""
    count = 0
    while attempt.ask.role == "repair" and attempt.ask.parent is not None:
        count, attempt = count + 1, view.attempt(attempt.ask.parent)
    return count


def _dry_spell(view: View, factor: float) -> int:
    """Finished improvements since an attempt last beat all before it by `factor`."""
    level, dry = 0.0, 0
    for attempt in view.attempts:
        if attempt.speedup is not None and attempt.speedup > level * factor:
            level, dry = attempt.speedup, 0
        elif attempt.finished and attempt.ask.role == "improve":
            dry += 1
    return dry
