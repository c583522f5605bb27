"""The moves that strategies are made of: drafts, repairs, improvements, and what is worth which. Pure."""

import random
from collections.abc import Iterable, Iterator
from functools import cache

from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.records import Attempt, KnownIdea
from kernelwright.agent.log.view import View
from kernelwright.agent.strategies import Step
from kernelwright.prompts import idea_bank

PROMISING = 0.7
"""A failed improvement is repaired only if its parent stands at this share of the best, or above."""


@cache
def general_ideas() -> tuple[KnownIdea, ...]:
    """Those of the bank that apply everywhere: for views of searches that were not equipped."""
    plain = (idea for idea in idea_bank() if not (idea.when.operators or idea.when.bounds or idea.when.targets))
    return tuple(KnownIdea.model_validate(idea.model_dump()) for idea in plain)


def ideas_for(view: View, role: str) -> list[KnownIdea]:
    """The ideas for a role, in the order in which to try them; advice from a planner comes first."""
    planned = [
        KnownIdea(name=note.name, family="planned", roles=("propose", "improve"), directive=note.text)
        for attempt in view.attempts
        if attempt.ask.role == "plan"
        for note in attempt.notes or ()
    ]
    return planned + [idea for idea in view.ideas or general_ideas() if role in idea.roles]


def draft(view: View, index: int) -> Step:
    """The draft number `index`, from 0; the ideas come in turn, with room for planned ones once the first are made."""
    ideas = ideas_for(view, "propose")
    idea = ideas[index % len(ideas)]
    return Step("propose", None, idea.name, idea.directive)


def drafts_made(view: View) -> int:
    return sum(1 for attempt in view.attempts if attempt.ask.role == "propose")


def drafts(view: View, wanted: int) -> list[Step]:
    return [draft(view, index) for index in range(drafts_made(view), wanted)]


def lineage(view: View, attempt: Attempt) -> Iterator[Attempt]:
    while True:
        yield attempt
        if attempt.ask.parent is None:
            return
        attempt = view.attempt(attempt.ask.parent)


def families(view: View) -> dict[int, str]:
    """By attempt, the family of the idea that its first draft followed."""
    known = {idea.name: idea.family for idea in ideas_for(view, "propose")}
    found: dict[int, str] = {}
    for attempt in view.attempts:
        idea = attempt.ask.idea
        found[attempt.number] = found[attempt.ask.parent] if attempt.ask.parent else known.get(idea, idea)
    return found


def repairs(view: View, config: SearchConfig) -> list[Step]:
    """One repair of each failure that has none yet and that is worth it.

    How long a row of repairs may become follows how they went so far: `config.repairs` where half of them passed.
    """
    limit = repair_limit(view, config)
    return [
        Step("repair", attempt.number, attempt.ask.idea, advice_on(view, attempt))
        for attempt in view.attempts
        if attempt.failed
        and not attempt.same_as
        and attempt.ask.role != "tune"
        and not any(child.ask.role == "repair" for child in view.children(attempt.number))
        and repairs_in_a_row(view, attempt) < limit
        and _promising(view, attempt)
    ]


def first_moves(view: View, config: SearchConfig, designs: int) -> list[Step] | None:
    """What comes before right attempts can be compared: drafts of so many designs, repairs; [] while some are open.

    None once there is a right one and nothing left to draft or repair.
    """
    steps = [*drafts(view, designs), *repairs(view, config)]
    if steps or view.ranked:
        return steps or None
    return [] if view.pending else [draft(view, drafts_made(view))]


def repair_limit(view: View, config: SearchConfig) -> int:
    """At least 1 and at most twice the setting, by the share of repairs that passed, one in two before any is known."""
    ended = [attempt for attempt in view.attempts if attempt.ask.role == "repair" and attempt.finished]
    share = (sum(attempt.passed for attempt in ended) + 2) / (len(ended) + 4)
    return 0 if config.repairs == 0 else max(1, round(2 * share * config.repairs))


def repairs_in_a_row(view: View, attempt: Attempt) -> int:
    count = 0
    while attempt.ask.role == "repair" and attempt.ask.parent is not None:
        count, attempt = count + 1, view.attempt(attempt.ask.parent)
    return count


def improve(view: View, parent: Attempt, rng: random.Random, ahead: tuple[str, ...] = ()) -> Step:
    """An idea that was tried neither on the parent nor on the way to it, likeliest first; else any, at random.

    `ahead` names those that the same decision already gives to the parent.
    """
    fresh = untried(view, parent, ahead)
    idea = fresh[0] if fresh else rng.choice(ideas_for(view, "improve"))
    return Step("improve", parent.number, idea.name, idea.directive)


def improvements(view: View, parents: Iterable[Attempt], rng: random.Random) -> list[Step]:
    """An improvement of each, those of one parent by different ideas. Parents are drawn only as they are used."""
    steps: list[Step] = []
    for parent in parents:
        ahead = tuple(step.idea for step in steps if step.parent == parent.number)
        steps.append(improve(view, parent, rng, ahead))
    return steps


def untried(view: View, parent: Attempt, ahead: tuple[str, ...] = ()) -> list[KnownIdea]:
    """The ideas that neither the parent's children nor its lineage followed, by their rate of wins."""
    used = {child.ask.idea for child in view.children(parent.number) if child.ask.role == "improve"}
    used |= {one.ask.idea for one in lineage(view, parent)} | set(ahead)
    fresh = [idea for idea in ideas_for(view, "improve") if idea.name not in used]
    return sorted(fresh, key=lambda idea: -idea.rate)


def advice_on(view: View, attempt: Attempt) -> str:
    critiques = [child for child in view.children(attempt.number) if child.ask.role == "critique"]
    said = [note.text for critique in critiques for note in critique.notes or ()]
    return said[-1] if said else ""


def dry_spell(view: View, gain: float) -> int:
    """Finished improvements since an attempt last beat all before it by the share `gain`."""
    since = view.attempts[last_gain(view, gain) :]
    return sum(1 for attempt in since if attempt.finished and attempt.ask.role == "improve")


def last_gain(view: View, gain: float) -> int:
    """The number of the attempt that last beat all before it by the share `gain`; 0 where nothing is right yet."""
    level, number = 0.0, 0
    for attempt in view.attempts:
        if attempt.standing is not None and attempt.standing > level * (1 + gain):
            level, number = attempt.standing, attempt.number
    return number


def _promising(view: View, attempt: Attempt) -> bool:
    """Drafts, and what descends from an attempt that is not far behind; all while nothing has passed."""
    if view.best is None or view.best.standing is None:
        return True
    passing = next((one.standing for one in lineage(view, attempt) if one.standing is not None), None)
    return passing is None or passing >= PROMISING * view.best.standing
