"""Strategies: pure functions from the folded log to the next asks, each in one file and one entry of `STRATEGIES`."""

from collections.abc import Callable

from agent.config import SearchConfig
from agent.strategies.protocol import Stop, Strategy, StrategyError
from agent.strategies.refine import Refine

__all__ = ["STRATEGIES", "Stop", "Strategy", "StrategyError", "load_strategy"]

STRATEGIES: dict[str, Callable[[SearchConfig], Strategy]] = {"refine": Refine}


def load_strategy(name: str, config: SearchConfig) -> Strategy:
    """The strategy of that name; `StrategyError` where there is none."""
    if name not in STRATEGIES:
        raise StrategyError(f"no strategy {name!r}; there are: {', '.join(sorted(STRATEGIES))}")
    return STRATEGIES[name](config)
