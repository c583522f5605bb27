"""Steering of a search beyond its strategy: budgets, prices, choice of the model, tuning, advice, statistics of ideas.

Tuning needs no model: a candidate names constants that are worth other values, and the engine tries them. It declares
them in a comment, anywhere in the file, in Python or in C++ inside a string:

    # tune: BLOCK in (64, 128, 256)
    // tune: TILE in (4, 8, 16)

and defines each once, as `BLOCK = 128`, `BLOCK: tl.constexpr = 128`, `constexpr int TILE = 8;` or `#define TILE 8`. A
declaration is ignored where its constant is not found exactly once, or its values do not hold the present one.

Advice comes in replies of words: ideas to try, faults of a failure, lessons of the attempts. It is off by default.
"""

import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from kernelwright.agent.config import Budget, SearchConfig
from kernelwright.agent.log.records import Attempt, Knob, KnownIdea, Note, ReplyFacts, Screening
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import View, fold
from kernelwright.agent.strategies import Step, dry_spell, last_gain
from kernelwright.problems import Problem
from kernelwright.problems.problem import Record, read_table
from kernelwright.prompts import applicable, idea_bank, traits_of
from kernelwright.sandbox.verdict.verdicts import Measurement

SHIPPED = Path(__file__).parent / "data" / "prices.toml"
MILLION = 1_000_000


class PriceError(ValueError):
    """A price table that cannot be used; the message is one sentence."""


class Price(Record):
    """USD for a million tokens."""

    model: str  # the name as the reply or the ask gives it; * matches anything
    input: float = Field(ge=0)
    cached: float | None = Field(default=None, ge=0)  # None: the same as other input
    output: float = Field(ge=0)


class Prices(Record):
    price: tuple[Price, ...] = ()

    def usd(self, reply: ReplyFacts, asked: str) -> float | None:
        """Compute the cost of a reply, by the model that gave it or that was asked; None where it is unknown."""
        usage = reply.usage
        if usage.cost_usd is not None:
            return usage.cost_usd
        price = self.of(reply.model) or self.of(asked)
        if price is None or usage.input_tokens is None or usage.output_tokens is None:
            return None
        cached = usage.cached_tokens or 0
        rate = price.input if price.cached is None else price.cached
        fresh = usage.input_tokens - cached
        return (fresh * price.input + cached * rate + usage.output_tokens * price.output) / MILLION

    def of(self, model: str) -> Price | None:
        return next((price for price in self.price if fnmatchcase(model, price.model)), None)


def load_prices(path: str | None = None) -> Prices:
    """Read the table at `path`, or the one that ships. Raises `PriceError`."""
    return read_table(SHIPPED if path is None else Path(path), Prices, "the price table", PriceError)


class Spent(Record):
    """Costs of attempts so far. None is unknown: a provider reported no usage, or no price is known."""

    tokens: int | None
    usd: float | None
    judge_s: float
    wall_s: float

    def __add__(self, other: "Spent") -> "Spent":
        pairs = zip(dict(self).items(), dict(other).values(), strict=True)
        return Spent.model_validate({name: known_sum((mine, theirs)) for (name, mine), theirs in pairs})


N = TypeVar("N", int, float)
NOTHING = Spent(tokens=0, usd=0.0, judge_s=0.0, wall_s=0.0)


def spent(view: View, prices: Prices) -> Spent:
    # Seconds of all verdicts: on PyTorch itself, and both of each attempt where they are its own.
    verdicts = [view.measured.verdict if view.measured else None]
    verdicts += [one for own in view.attempts if own.same_as is None for one in (own.verdict, own.confirmed)]
    usages = [reply.usage for attempt in view.attempts for reply in attempt.replies]
    return Spent(
        tokens=known_sum(count for one in usages for count in (one.input_tokens, one.output_tokens)),
        usd=known_sum(usd_of(attempt, prices) for attempt in view.attempts),
        judge_s=sum(sum(verdict.evidence.seconds.values()) for verdict in verdicts if verdict is not None),
        wall_s=view.wall_s,
    )


def usd_of(attempt: Attempt, prices: Prices) -> float | None:
    """Compute the cost of all replies to an attempt; 0 before one came, None where it is unknown."""
    return known_sum((prices.usd(reply, attempt.ask.model) for reply in attempt.replies), start=0.0)


def exceeded(budget: Budget, costs: Spent, whose: str = "") -> str | None:
    """Say in a few words why the budget allows nothing more, with `whose` behind `budget`; None where it does."""
    for name, words in (("tokens", "tokens"), ("usd", "USD"), ("judge_s", "s of judging"), ("wall_s", "s")):
        limit, used = getattr(budget, name), getattr(costs, name)
        if limit is not None and used is None:
            return f"a budget{whose} in {words} is set and the costs are unknown: the provider reported none"
        if limit is not None and used >= limit:
            return f"the budget{whose} of {limit:g} {words} is used up"
    return None


def out_of_attempts(view: View, config: SearchConfig) -> str | None:
    """Say why no further attempt may be opened; None where one may."""
    allowed = config.attempts + view.granted
    return f"the budget of {allowed} attempts is used up" if view.spent >= allowed else None


def times_the_roofline(view: View, share: float) -> float | None:
    """Divide the best time by the least that is possible; see `least_of`."""
    return room_of(view.best.measurement if view.best else None, share)


def room_of(found: Measurement | None, share: float) -> float | None:
    least = least_of(found, share)
    return found.candidate_ms / least[0] if found and least else None


def least_of(found: Measurement | None, share: float) -> tuple[float, str] | None:
    """Return the least time in ms that bounds a measured kernel, and what takes it; None where nothing is known to.

    That is the roofline's time, or on a GPU that of a copy of the bytes that have to move, if it is longer. A roofline
    counts the work of the reference's operators. A time below `share` of it leaves out some of that work, such as the
    other half of a triangle; then neither bounds further gains.
    """
    if found is None or found.floor is None or found.candidate_ms < share * found.floor.floor_ms:
        return None
    floor_ms, copy_ms = found.floor.floor_ms, found.floor.copy_ms or 0.0
    if found.timing_clock == "gpu_time" and floor_ms < copy_ms and share * copy_ms <= found.candidate_ms:
        return copy_ms, "a copy of the bytes that have to move takes"
    return floor_ms, "the roofline is"


def near_floor(view: View, share: float) -> str | None:
    """Say why no gain is left: the least time that is possible is `share` of the best, or more; None otherwise."""
    found = view.best.measurement if view.best else None
    least = least_of(found, share)
    if found is None or least is None or share * found.candidate_ms > least[0]:
        return None
    return f"the best takes {found.candidate_ms:.3g} ms, and {least[1]} {least[0]:.3g} ms"


def known_sum(parts: Iterable[N | None], start: N = 0) -> N | None:
    """Add up; None where a part is unknown, since a sum of the others would look complete."""
    total = start
    for part in parts:
        if part is None:
            return None
        total += part
    return total


PRIOR_WEIGHT = 2.0  # attempts that the prior guess of a model's gain counts for


def choose_model(view: View, config: SearchConfig, prices: Prices, rng: random.Random) -> str:
    """Choose the model for the next ask."""
    models = (config.model, *config.models)
    if len(models) == 1:
        return config.model
    if config.choice == "escalate":
        return models[min(stalls(view, config) // config.stall, len(models) - 1)]
    return max(models, key=lambda model: _sampled_worth(view, model, models, prices, rng))


def stalls(view: View, config: SearchConfig) -> int:
    """Count finished attempts since the best last grew by the share `gain`; the first correct one counts as growth."""
    since = view.attempts[last_gain(view, config.gain) :]
    return sum(1 for attempt in since if attempt.counts and attempt.finished)


def gains(view: View) -> dict[int, float]:
    """Compute by attempt the gain in the logarithm of the best speedup; the first correct one counts from 1."""
    level, found = 1.0, {}
    for attempt in view.attempts:
        if attempt.counts and attempt.finished:
            standing = max(level, attempt.standing or 0.0)
            found[attempt.number] = math.log(standing / level)
            level = standing
    return found


def _sampled_worth(view: View, model: str, models: Sequence[str], prices: Prices, rng: random.Random) -> float:
    """Draw from the belief about the model's gain a USD (Thompson 1933), which is exponential.

    Where no price is known, models are compared by gain alone.
    """
    earned = gains(view)
    mine = [attempt for attempt in view.attempts if attempt.ask.model == model and attempt.number in earned]
    everyone = sum(earned.values()) / max(1, len(earned))
    mean = (sum(earned[one.number] for one in mine) + PRIOR_WEIGHT * max(everyone, 0.05)) / (len(mine) + PRIOR_WEIGHT)
    draw = mean * rng.gammavariate(len(mine) + PRIOR_WEIGHT, 1.0) / (len(mine) + PRIOR_WEIGHT)
    costs = {name: _mean_usd(view.attempts, name, prices) for name in models}
    cost = costs[model]
    if any(one is None for one in costs.values()) or not cost:
        return draw
    return draw / cost


def _mean_usd(attempts: Sequence[Attempt], model: str, prices: Prices) -> float | None:
    """Average the cost of its answers so far; before that, take its price for equal parts of input and output."""
    known = [usd_of(attempt, prices) for attempt in attempts if attempt.ask.model == model and attempt.replies]
    if known and all(cost is not None for cost in known):
        return sum(cost or 0.0 for cost in known) / len(known)
    price = prices.of(model)
    return None if price is None else 1e-2 * (price.input + price.output)


MOST_KNOBS, MOST_VALUES = 6, 8
AS_IT_IS = "as it is"
"""The setting under which the candidate itself is screened, so that variants are compared like with like."""
WORTH_JUDGING = 0.98  # a variant is judged if its quick time is below this share of the candidate's own quick time
SCREENED_FOR_EACH = 2  # variants that are screened for each one that may be judged
_DECLARED = re.compile(r"(?:#|//)[ \t]*tune:[ \t]*(\w+)[ \t]+in[ \t]*\(([^()\n]*)\)")
_VALUE = r"[-+]?[\w.]+"


def knobs_of(source: str) -> tuple[Knob, ...]:
    knobs = []
    for name, listed in _DECLARED.findall(source)[:MOST_KNOBS]:
        values = tuple(value.strip() for value in listed.split(",") if value.strip())[:MOST_VALUES]
        found = _definition(name).findall(source)
        if len(found) == 1 and found[0][1] in values and all(re.fullmatch(_VALUE, value) for value in values):
            knobs.append(Knob(name=name, value=found[0][1], values=values))
    return tuple(knobs)


def with_setting(source: str, setting: str) -> str:
    """Put the constants of a setting (`TILE = 16, BLOCK = 64`) in place."""
    for name, value in parse_setting(setting).items():
        found = _definition(name).search(source)
        if found is not None:
            source = source[: found.start(2)] + value + source[found.end(2) :]
    return source


def parse_setting(setting: str) -> dict[str, str]:
    """Read the values by name; empty for the candidate as it is."""
    return dict(part.split(" = ", 1) for part in setting.split(", ") if " = " in part)


def to_screen(view: View, config: SearchConfig) -> tuple[Attempt, tuple[str, ...]] | None:
    """Find the attempt whose variants should be screened now, and the settings; None where there is nothing to tune."""
    best = view.best
    if best is None or best.candidate is None or not best.candidate.knobs or best.screenings:
        return None
    if best.ask.role == "tune" or _left(view, config) < 1:
        return None
    singles = [{knob.name: value} for knob in best.candidate.knobs for value in knob.values if value != knob.value]
    return best, (AS_IT_IS, *(_setting(one) for one in singles[: SCREENED_FOR_EACH * _left(view, config)]))


def to_judge(view: View, config: SearchConfig) -> list[tuple[Attempt, str]]:
    """Find settings of screened attempts that deserve a verdict, most promising first, within the budget."""
    wanted = []
    for attempt in view.attempts:
        tried = {child.ask.directive for child in view.children(attempt.number) if child.ask.role == "tune"}
        wanted += [(attempt, setting) for setting in _survivors(attempt.screenings) if setting not in tried]
    return wanted[: max(0, _left(view, config))]


def _survivors(screenings: Iterable[Screening]) -> list[str]:
    """Combine the best value of each constant that helps; then give the best two settings alone, fastest first."""
    times = {one.setting: one.candidate_ms for one in screenings if one.candidate_ms is not None}
    base = times.pop(AS_IT_IS, None)
    if base is None:
        return []
    good = sorted((ms, setting) for setting, ms in times.items() if ms < WORTH_JUDGING * base)
    together: dict[str, str] = {}
    for _, setting in good:
        for name, value in parse_setting(setting).items():
            together.setdefault(name, value)
    return ([_setting(together)] if len(together) > 1 else []) + [setting for _, setting in good[:2]]


def _left(view: View, config: SearchConfig) -> int:
    return config.tune - sum(1 for attempt in view.attempts if attempt.ask.role == "tune")


def _setting(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def _definition(name: str) -> re.Pattern[str]:
    """Match up to the value in group 1, the value in group 2."""
    typed = r"(?:(?:static|inline|constexpr|const)[ \t]+)+[\w:]+[ \t]+"
    head = rf"(?:{typed}{name}[ \t]*=|#[ \t]*define[ \t]+{name}\b|{name}[ \t]*(?::[ \t]*[\w.]+[ \t]*)?=(?!=))"
    return re.compile(rf"(^[ \t]*{head}[ \t]*)({_VALUE})(?=[ \t]*(?:;|$|#|//))", re.MULTILINE)


MOST_NOTES, LONGEST_NAME, LONGEST_NOTE = 5, 80, 800
STUCK = 3  # improvements without a gain after which a planner is asked again
REFLECT_EVERY = 8
_LIST = re.compile(r"\[.*\]", re.DOTALL)


def advice_steps(view: View, config: SearchConfig) -> list[Step]:
    if any(attempt.advises and not attempt.finished for attempt in view.attempts):
        return []
    parents = ((role, _parent_for(role, view, config)) for role in config.advisers)
    return [Step(role, parent or None, role) for role, parent in parents if parent is not None]


def notes_in(reply: str) -> tuple[Note, ...]:
    """Read a reply of words: its JSON list of names and texts, or else all of it as one note."""
    for found in reversed([*re.findall(r"```(?:json)?\s*\n(.*?)```", reply, re.DOTALL), *_LIST.findall(reply)]):
        try:
            entries = json.loads(found)
        except (ValueError, RecursionError):
            continue
        notes = [note for entry in entries if (note := _note(entry))] if isinstance(entries, list) else []
        if notes:
            return tuple(notes[:MOST_NOTES])
    text = " ".join(reply.split())
    return (Note(name="advice", text=text[-LONGEST_NOTE:]),) if text else ()


def lessons(view: View) -> tuple[str, ...]:
    said = [attempt.notes for attempt in view.attempts if attempt.ask.role == "reflect" and attempt.notes]
    return tuple(note.text for note in said[-1]) if said else ()


def _note(entry: object) -> Note | None:
    if not isinstance(entry, dict):
        return None
    name, text = str(entry.get("name", "")), str(entry.get("how", ""))
    return Note(name=name[:LONGEST_NAME] or "advice", text=text[:LONGEST_NOTE]) if text else None


def _parent_for(role: str, view: View, config: SearchConfig) -> int | None:
    """Choose the attempt that a role advises on now: 0 for none in particular, None where it is not asked."""
    if role == "critique":
        for attempt in view.attempts:
            answered = any(child.ask.role in ("critique", "repair") for child in view.children(attempt.number))
            if attempt.failed and attempt.ask.role == "repair" and not answered:
                return attempt.number
        return None
    made = [attempt for attempt in view.attempts if attempt.ask.role == role]
    if role == "reflect":
        ended = sum(1 for attempt in view.attempts if attempt.counts and attempt.finished)
        return 0 if ended >= REFLECT_EVERY * (len(made) + 1) else None
    if not made:
        return 0
    news = [one for one in view.attempts[made[-1].number :] if one.ask.role == "improve" and one.finished]
    if view.best is None or len(news) < STUCK or dry_spell(view, config.gain) < STUCK:
        return None
    return view.best.number


class IdeaStatistics:
    """Counts of wins by idea, over the ended problems of a run and over earlier runs that are named."""

    def __init__(self, log: RunLog, config: SearchConfig) -> None:
        self._log = log
        self._config = config
        self._seen = 0
        self._tallies: dict[str, tuple[Counter[str], Counter[str]]] = {}
        for folder in config.learn_from:
            with RunLog.open(Path(folder)) as earlier:
                for name in earlier.header.problems:
                    self._tallies[f"{folder}/{name}"] = tally(fold(name, earlier.events(name)), config.gain)

    def ideas(self, problem: Problem) -> tuple[KnownIdea, ...]:
        """Give the ideas that apply to a problem, with the counts so far, in the order of the bank."""
        for seq, ended in self._log.stopped(after=self._seen) if self._config.learn else ():
            self._tallies[ended] = tally(fold(ended, self._log.events(ended)), self._config.gain)
            self._seen = seq
        others = [counts for name, counts in self._tallies.items() if name != problem.name]
        tried, won = (sum((counts[at] for counts in others), start=Counter[str]()) for at in (0, 1))
        fitting = applicable(idea_bank(), traits_of(problem, self._config.target))
        return tuple(KnownIdea(**idea.model_dump(), tried=tried[idea.name], won=won[idea.name]) for idea in fitting)


def tally(view: View, gain: float) -> tuple[Counter[str], Counter[str]]:
    """Count how often each idea was tried and won. The repairs of an attempt belong to it: they follow the same idea.

    A draft wins if it is correct in the end, an improvement if it is faster than its parent by the share `gain`.
    """
    tried, won = Counter[str](), Counter[str]()
    for attempt in view.attempts:
        if attempt.ask.role not in {"propose", "improve"}:
            continue
        chain = list(_with_repairs(view, attempt))
        if all(one.finished for one in chain):
            tried[attempt.ask.idea] += 1
            parent = view.attempt(attempt.ask.parent).standing if attempt.ask.parent else None
            bar = 0.0 if parent is None else parent * (1 + gain)
            won[attempt.ask.idea] += any(one.standing is not None and one.standing > bar for one in chain)
    return tried, won


def _with_repairs(view: View, attempt: Attempt) -> Iterable[Attempt]:
    yield attempt
    for child in view.children(attempt.number):
        if child.ask.role == "repair":
            yield from _with_repairs(view, child)
