"""What a search has spent and may still spend, what replies cost, and which of several models is asked next. Pure."""

import math
import random
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from kernelwright.agent.log.config import Budget, SearchConfig
from kernelwright.agent.log.records import Attempt, ReplyFacts
from kernelwright.agent.log.view import View
from kernelwright.agent.strategies.moves import last_gain
from kernelwright.problems.problem import Record, read_table
from kernelwright.sandbox.verdict.report import floor_ms

SHIPPED = Path(__file__).parent.parent / "data" / "prices.toml"
MILLION = 1_000_000


class PriceError(ValueError):
    """A price table that cannot be used; the message is one sentence."""


class Price(Record):
    """USD for a million tokens."""

    model: str
    """The name as the reply or the ask gives it; * stands for anything."""
    input: float = Field(ge=0)
    cached: float | None = Field(default=None, ge=0)
    """None: the same as other input."""
    output: float = Field(ge=0)


class Prices(Record):
    price: tuple[Price, ...] = ()

    def usd(self, reply: ReplyFacts, asked: str) -> float | None:
        """What a reply cost, by the model that gave it or that was asked; None where it is unknown."""
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
    """The table at `path`, or the one that ships; `PriceError` where it cannot be read."""
    return read_table(SHIPPED if path is None else Path(path), Prices, "the price table", PriceError)


class Spent(Record):
    """What attempts have cost so far. None is unknown: a provider told no usage, or there is no price."""

    tokens: int | None
    usd: float | None
    judge_s: float
    wall_s: float

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            tokens=known_sum((self.tokens, other.tokens)),
            usd=known_sum((self.usd, other.usd)),
            judge_s=self.judge_s + other.judge_s,
            wall_s=self.wall_s + other.wall_s,
        )


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
    """What all replies to an attempt cost; 0 before one came, None where it is unknown."""
    return known_sum((prices.usd(reply, attempt.ask.model) for reply in attempt.replies), start=0.0)


def exceeded(budget: Budget, costs: Spent, whose: str = "") -> str | None:
    """Why the budget allows nothing more, in a few words; None where it does. `whose` is put behind `budget`."""
    for name, words in (("tokens", "tokens"), ("usd", "USD"), ("judge_s", "s of judging"), ("wall_s", "s")):
        limit, used = getattr(budget, name), getattr(costs, name)
        if limit is None:
            continue
        if used is None:
            return (
                f"a budget{whose} in {words} is set and what was spent is unknown: the provider told no usage or price"
            )
        if used >= limit:
            return f"the budget{whose} of {limit:g} {words} is used up"
    return None


def out_of_attempts(view: View, config: SearchConfig) -> str | None:
    """Why no further attempt may be opened; None where one may."""
    allowed = config.attempts + view.granted
    return f"the budget of {allowed} attempts is used up" if view.spent >= allowed else None


def times_the_floor(view: View, share: float) -> float | None:
    """The best time over the floor; None where one of them is unknown, or the floor is none.

    A floor counts what the reference's operators ask for. A best time below `share` of it leaves out some of that (the
    other half of a triangle), and then the floor tells nothing of the room that is left.
    """
    best = view.best
    floor = floor_ms(best.ruling) if best else None
    if best is None or best.candidate_ms is None or floor is None or best.candidate_ms < share * floor:
        return None
    return best.candidate_ms / floor


def near_floor(view: View, share: float) -> str | None:
    """Why there is no room left: the floor is `share` of the best time, or more; None where there is, or who knows."""
    times, best = times_the_floor(view, share), view.best
    if times is None or best is None or best.candidate_ms is None or share * times > 1:
        return None
    return f"the best takes {best.candidate_ms:.3g} ms, and the floor is {best.candidate_ms / times:.3g} ms"


def known_sum(parts: Iterable[N | None], start: N = 0) -> N | None:
    """The sum; None where a part is unknown, since a sum of the others would look like the whole."""
    total = start
    for part in parts:
        if part is None:
            return None
        total += part
    return total


PRIOR_WEIGHT = 2.0
"""Attempts that the prior guess of a model's gain counts for."""


def choose_model(view: View, config: SearchConfig, prices: Prices, rng: random.Random) -> str:
    """The model for the next ask; always the only one where there is one."""
    models = (config.model, *config.models)
    if len(models) == 1:
        return config.model
    if config.choice == "escalate":
        return models[min(stalls(view, config) // config.stall, len(models) - 1)]
    return max(models, key=lambda model: _sampled_worth(view, model, models, prices, rng))


def stalls(view: View, config: SearchConfig) -> int:
    """Finished attempts since the best last grew by the share `gain`; the first right one counts as growth."""
    since = view.attempts[last_gain(view, config.gain) :]
    return sum(1 for attempt in since if attempt.counts and attempt.finished)


def gains(view: View) -> dict[int, float]:
    """By attempt, how far it raised the logarithm of the best standing; the first right one counts from 1."""
    level, found = 1.0, {}
    for attempt in view.attempts:
        if attempt.counts and attempt.finished:
            standing = max(level, attempt.standing or 0.0)
            found[attempt.number] = math.log(standing / level)
            level = standing
    return found


def _sampled_worth(view: View, model: str, models: Sequence[str], prices: Prices, rng: random.Random) -> float:
    """A draw from what is believed of the model's gain a USD (Thompson 1933), with an exponential belief.

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
    """Of what it answered so far; before that, its price for equal parts of input and output."""
    known = [usd_of(attempt, prices) for attempt in attempts if attempt.ask.model == model and attempt.replies]
    if known and all(cost is not None for cost in known):
        return sum(cost or 0.0 for cost in known) / len(known)
    price = prices.of(model)
    return None if price is None else 1e-2 * (price.input + price.output)
