"""Which of several models is asked next: the cheapest until it stalls, or the one with the best gain for its cost."""

import math
import random
from collections.abc import Sequence

from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.view import View
from kernelwright.agent.steering.budget import usd_of
from kernelwright.agent.steering.prices import Prices
from kernelwright.agent.strategies.moves import last_gain

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
