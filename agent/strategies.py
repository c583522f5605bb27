"""Strategies: pure functions from the folded log to the next steps, and finding one by its name.

Those that ship:

- `best_of`: always from the reference, by one idea after the other.
- `refine`: a few drafts by different ideas; then best-first: repair what is worth it, else improve the best.
- `race`: drafts in parallel, each repaired as long as it is worth it, until the first one is correct.
- `beam`: the few best attempts, each improved by a few ideas, round after round.
- `pool`: each step starts from an attempt drawn by its speed.
- `elites`: the best attempt of each cell, a cell being a first design and the kind of the last change.
- `islands`: separate groups of attempts that now and then take over a neighbour's best.
- `tree`: a bandit over designs; a design is a first draft with all that descends from it.

Others are found in a file of the user's own, or in installed packages by the entry-point group
`kernelwright.strategies`: a callable that takes a `SearchConfig` and returns a `Strategy`.
"""

import importlib.util
import math
import random
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kernelwright.agent.config import SearchConfig
from kernelwright.agent.log.records import Attempt, KnownIdea
from kernelwright.agent.log.view import View
from kernelwright.problems.problem import Record
from kernelwright.prompts import Role, idea_bank


class Stop(Record):
    reason: str  # a few words for the user: `10 improvements in a row brought no gain`


class StrategyError(Exception):
    """No such strategy, or one that breaks the rules; the message is one sentence."""


class Step(NamedTuple):
    """The next thing to ask for. The engine numbers it and chooses the model."""

    role: Role
    parent: int | None  # the finished attempt to start from; None for a first draft
    idea: str  # a few words that name the approach
    directive: str = ""  # the prompt's text on the approach; empty for the role's default


class Strategy(Protocol):
    """Decides on the next steps. It keeps nothing between calls and looks at no clock, so a run can be resumed.

    Budgets are not its concern: the engine never requests more steps than they allow.
    """

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        """Propose at most `slots` steps; none to wait for what is pending; or the end.

        `rng` is seeded from the run's seed and the next attempt's number.
        """
        ...


def function_in(name: str, kind: str, error: type[Exception], takes: str) -> Callable[..., Any]:
    """Load the function that `path/to/file.py:function` names.

    Raises `error` with one sentence, in which `kind` names the kind of function (`strategy`) and `takes` its arguments.
    """
    text, _, function_name = name.rpartition(":")
    path = Path(text)
    if not path.is_file():
        raise error(f"no {kind} file {path}; give it as path/to/file.py:function")
    spec = importlib.util.spec_from_file_location(f"{kind}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise error(f"{path} is no Python file; give the {kind} as path/to/file.py:function")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as fault:
        raise error(f"{path} cannot be loaded ({type(fault).__name__}: {fault}); correct it") from fault
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if function is None or not callable(function):
        raise error(f"{path} defines no function {function_name!r}; name one that takes {takes}")
    return function


PROMISING = 0.7  # A failed improvement is repaired only if its parent has at least this share of the best speedup


@cache
def general_ideas() -> tuple[KnownIdea, ...]:
    """Give the ideas that apply everywhere, for views of searches that were not equipped."""
    plain = (idea for idea in idea_bank() if not (idea.when.operators or idea.when.bounds or idea.when.targets))
    return tuple(KnownIdea.model_validate(idea.model_dump()) for idea in plain)


def ideas_for(view: View, role: str) -> list[KnownIdea]:
    """Give the ideas for a role, in the order in which to try them; advice from a planner comes first."""
    planned = [
        KnownIdea(name=note.name, family="planned", roles=("propose", "improve"), directive=note.text)
        for attempt in view.attempts
        if attempt.ask.role == "plan"
        for note in attempt.notes or ()
    ]
    return planned + [idea for idea in view.ideas or general_ideas() if role in idea.roles]


def draft(view: View, index: int) -> Step:
    """Make draft number `index`, from 0; the ideas come one after the other."""
    ideas = ideas_for(view, "propose")
    idea = ideas[index % len(ideas)]
    return Step("propose", None, idea.name, idea.directive)


def drafts_made(view: View) -> int:
    return sum(1 for attempt in view.attempts if attempt.ask.role == "propose")


def improvements_made(view: View) -> int:
    return sum(1 for attempt in view.attempts if attempt.ask.role == "improve")


def lineage(view: View, attempt: Attempt) -> Iterator[Attempt]:
    while True:
        yield attempt
        if attempt.ask.parent is None:
            return
        attempt = view.attempt(attempt.ask.parent)


def families(view: View) -> dict[int, str]:
    """Give by attempt the family of the idea that its first draft followed."""
    known = {idea.name: idea.family for idea in ideas_for(view, "propose")}
    found: dict[int, str] = {}
    for attempt in view.attempts:
        idea = attempt.ask.idea
        found[attempt.number] = found[attempt.ask.parent] if attempt.ask.parent else known.get(idea, idea)
    return found


def repairs(view: View, config: SearchConfig) -> list[Step]:
    """Make a repair of each failure that has none yet and is worth it.

    The limit of repairs in a row follows their success so far: `config.repairs` where half of them passed.
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
    """Make the drafts of N designs, and repairs, from before attempts can be compared; [] while some are pending.

    None once there is a correct one and nothing left to draft or repair.
    """
    steps = [draft(view, index) for index in range(drafts_made(view), designs)] + repairs(view, config)
    if steps or view.ranked:
        return steps or None
    return [] if view.pending else [draft(view, drafts_made(view))]


def repair_limit(view: View, config: SearchConfig) -> int:
    """Scale the setting, from 1 to twice its value, by the share of repairs that passed; half before any is known."""
    ended = [attempt for attempt in view.attempts if attempt.ask.role == "repair" and attempt.finished]
    share = (sum(attempt.passed for attempt in ended) + 2) / (len(ended) + 4)
    return 0 if config.repairs == 0 else max(1, round(2 * share * config.repairs))


def repairs_in_a_row(view: View, attempt: Attempt) -> int:
    count = 0
    while attempt.ask.role == "repair" and attempt.ask.parent is not None:
        count, attempt = count + 1, view.attempt(attempt.ask.parent)
    return count


def improvements(view: View, parents: Iterable[Attempt], rng: random.Random) -> list[Step]:
    """Improve each, those of one parent by different ideas. Parents are drawn only as they are used."""
    steps: list[Step] = []
    for parent in parents:
        ahead = tuple(step.idea for step in steps if step.parent == parent.number)
        steps.append(improve(view, parent, rng, ahead))
    return steps


def improve(view: View, parent: Attempt, rng: random.Random, ahead: tuple[str, ...] = ()) -> Step:
    """Choose the likeliest idea that was tried neither on the parent nor on the way to it; else any, at random.

    `ahead` names ideas that the same decision already gives to the parent.
    """
    used = {child.ask.idea for child in view.children(parent.number) if child.ask.role == "improve"}
    used |= {one.ask.idea for one in lineage(view, parent)} | set(ahead)
    ideas = ideas_for(view, "improve")
    fresh = sorted((idea for idea in ideas if idea.name not in used), key=lambda idea: -idea.rate)
    idea = fresh[0] if fresh else rng.choice(ideas)
    return Step("improve", parent.number, idea.name, idea.directive)


def advice_on(view: View, attempt: Attempt) -> str:
    critiques = [child for child in view.children(attempt.number) if child.ask.role == "critique"]
    return next((note.text for one in reversed(critiques) for note in reversed(one.notes or ())), "")


def dry_spell(view: View, gain: float) -> int:
    """Count finished improvements since the last gain; see `last_gain`."""
    since = view.attempts[last_gain(view, gain) :]
    return sum(1 for attempt in since if attempt.finished and attempt.ask.role == "improve")


def last_gain(view: View, gain: float) -> int:
    """Give the number of the last attempt that was faster than all before it by the share `gain`; 0 for none."""
    level, number = 0.0, 0
    for attempt in view.attempts:
        if attempt.standing is not None and attempt.standing > level * (1 + gain):
            level, number = attempt.standing, attempt.number
    return number


def _promising(view: View, attempt: Attempt) -> bool:
    """Tell whether a draft or a descendant of an attempt that is not far behind; all are while nothing has passed."""
    if view.best is None or view.best.standing is None:
        return True
    passing = next((one.standing for one in lineage(view, attempt) if one.standing is not None), None)
    return passing is None or passing >= PROMISING * view.best.standing


class Shipped:
    def __init__(self, config: SearchConfig) -> None:
        self.config = config


class BestOf(Shipped):
    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        made = drafts_made(view)
        return [draft(view, made + at) for at in range(slots)]


FRESH_AFTER = 6  # improvements without a gain after which one more design is drafted


class Refine(Shipped):
    """The default. It stays with the best, but neither with one design nor beyond its patience."""

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        moves = first_moves(view, self.config, self.config.drafts)
        if moves is not None:
            return moves[:slots]
        dry = dry_spell(view, self.config.gain)
        if dry >= self.config.patience:
            end = Stop(reason=f"{self.config.patience} improvements in a row brought no gain")
            return [] if view.pending else end
        since = last_gain(view, self.config.gain)
        fresh = sum(1 for one in view.attempts[since:] if one.ask.role == "propose")
        if dry // FRESH_AFTER > fresh and self.config.runner_up:
            return [draft(view, drafts_made(view))]
        made = improvements_made(view)
        return improvements(view, (self._parent(view, made + at) for at in range(1, slots + 1)), rng)

    def _parent(self, view: View, number: int) -> Attempt:
        """Choose the best; every so often the best of another family of ideas."""
        best = view.ranked[0]
        if not self.config.runner_up or number % self.config.runner_up:
            return best
        family = families(view)
        return next((one for one in view.ranked if family[one.number] != family[best.number]), best)


class Race(Shipped):
    """For when any correct kernel will do. Steps that run when the first one passes are finished and count."""

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        if view.best is not None:
            return [] if view.pending else Stop(reason=f"attempt {view.best.number} is right")
        steps = repairs(view, self.config)[:slots]
        made = drafts_made(view)
        return steps + [draft(view, made + at) for at in range(slots - len(steps))]


class Improving(Shipped):
    """Drafts and repairs until some designs can be compared; then improvements of chosen parents."""

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        opening = first_moves(view, self.config, self.designs())
        if opening is not None:
            return opening[:slots]
        return improvements(view, self.parents(view, slots, rng), rng)

    def designs(self) -> int:
        return max(3, self.config.drafts)

    def parents(self, view: View, slots: int, rng: random.Random) -> Iterable[Attempt]:
        """Choose an attempt for each slot; one may come more than once."""
        raise NotImplementedError


WIDTH, IDEAS = 3, 2


class Beam(Improving):
    def designs(self) -> int:
        return WIDTH

    def parents(self, view: View, slots: int, rng: random.Random) -> Iterable[Attempt]:
        parents: list[Attempt] = []
        kept = view.ranked[:WIDTH]
        tried = {one.number: sum(c.ask.role == "improve" for c in view.children(one.number)) for one in kept}
        for _ in range(slots):
            round_now = min(tried.values()) // IDEAS
            parents.append(next(one for one in kept if tried[one.number] // IDEAS == round_now))
            tried[parents[-1].number] += 1
        return parents


SHARPNESS = 4  # the weight of an attempt is its speedup to this power: at 1 slow parents crowd out the fast ones


class Pool(Improving):
    def designs(self) -> int:
        return self.config.drafts

    def parents(self, view: View, slots: int, rng: random.Random) -> Iterable[Attempt]:
        weights = [(one.standing or 0.0) ** SHARPNESS for one in view.ranked]
        return rng.choices(view.ranked, weights, k=slots)


class Elites(Improving):
    """Half of the steps improve the best of all, half that of a cell drawn at random, so that designs stay distinct."""

    def parents(self, view: View, slots: int, rng: random.Random) -> Iterable[Attempt]:
        family = families(view)
        kinds = {idea.name: idea.family for role in ("propose", "improve") for idea in ideas_for(view, role)}
        cells: dict[tuple[str, str], Attempt] = {}
        for attempt in view.ranked:
            cells.setdefault((family[attempt.number], kinds.get(attempt.ask.idea, "free")), attempt)
        designs = list(cells.values())
        return (view.ranked[0] if rng.random() < 0.5 else rng.choice(designs) for _ in range(slots))


GROUPS, PERIOD = 3, 5


class Islands(Improving):
    def designs(self) -> int:
        return GROUPS

    def parents(self, view: View, slots: int, rng: random.Random) -> Iterable[Attempt]:
        made = improvements_made(view)
        homes = _homes(view)
        return (_parent(view, homes, number) for number in range(made, made + slots))


def _parent(view: View, homes: dict[int, int], number: int) -> Attempt:
    round_now, home = divmod(number, GROUPS)
    shown = (home + 1) % GROUPS if round_now % PERIOD == PERIOD - 1 else home
    return next((one for one in view.ranked if homes[one.number] == shown), view.ranked[0])


def _homes(view: View) -> dict[int, int]:
    """Give the group of each attempt: drafts and improvements go round, all others stay with their parent."""
    homes: dict[int, int] = {}
    made = {"propose": 0, "improve": 0}
    for attempt in view.attempts:
        role = attempt.ask.role
        if role in made:
            homes[attempt.number] = made[role] % GROUPS
            made[role] += 1
        else:
            homes[attempt.number] = homes[attempt.ask.parent] if attempt.ask.parent else 0
    return homes


CURIOSITY = 0.25  # weight of the bonus for designs that were tried less, in units of log speedup
FREE_FAILURES = 2  # broken attempts that a design is not charged for: the code was wrong, not the idea


class Tree(Improving):
    def parents(self, view: View, slots: int, rng: random.Random) -> Iterable[Attempt]:
        parents: list[Attempt] = []
        roots: dict[int, int] = {}
        for attempt in view.attempts:
            roots[attempt.number] = roots[attempt.ask.parent] if attempt.ask.parent else attempt.number
        best: dict[int, Attempt] = {}
        for attempt in view.ranked:
            best.setdefault(roots[attempt.number], attempt)
        visits = {}
        for design in best:
            failed = [attempt.failed for attempt in view.attempts if roots[attempt.number] == design]
            visits[design] = max(1, len(failed) - min(sum(failed), FREE_FAILURES))
        for _ in range(slots):
            total = sum(visits.values())
            root = max(best, key=lambda at: _bound(best[at], visits[at], total))
            visits[root] += 1
            parents.append(best[root])
        return parents


def _bound(attempt: Attempt, visits: int, total: int) -> float:
    return math.log(attempt.standing or 1.0) + CURIOSITY * math.sqrt(math.log(total + 1) / visits)


GROUP = "kernelwright.strategies"
SHIPPED: dict[str, Callable[[SearchConfig], Strategy]] = {
    "best_of": BestOf,
    "refine": Refine,
    "beam": Beam,
    "pool": Pool,
    "elites": Elites,
    "islands": Islands,
    "tree": Tree,
    "race": Race,
}


class OwnFunction(NamedTuple):
    """A function from a user's file as a strategy."""

    propose: Callable[[View, int, random.Random], list[Step] | Stop]


def load_strategy(name: str, config: SearchConfig) -> Strategy:
    """Load a strategy by its name, or from a file as `path/to/file.py:function`. Raises `StrategyError`.

    An installed package may not take a shipped name.
    """
    if ":" in name:
        return OwnFunction(function_in(name, "strategy", StrategyError, "(view, slots, rng)"))
    if name in SHIPPED:
        return SHIPPED[name](config)
    installed = {point.name: point for point in entry_points(group=GROUP)}
    if name not in installed:
        there = ", ".join([*SHIPPED, *installed])
        raise StrategyError(f"no strategy {name!r}; there are: {there}, and any function as path/to/file.py:function")
    made: Strategy = installed[name].load()(config)
    return made
