"""Finding a strategy by its name: shipped, installed beside us, or a function in a file of the user's own."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.view import View
from kernelwright.agent.strategies.plugins import function_in
from kernelwright.agent.strategies.strategy import Step, Stop, Strategy, StrategyError

GROUP = "kernelwright.strategies"
SHIPPED = {
    "best_of": "kernelwright.agent.strategies.best_of:BestOf",
    "refine": "kernelwright.agent.strategies.refine:Refine",
    "beam": "kernelwright.agent.strategies.beam:Beam",
    "pool": "kernelwright.agent.strategies.pool:Pool",
    "elites": "kernelwright.agent.strategies.elites:Elites",
    "islands": "kernelwright.agent.strategies.islands:Islands",
    "tree": "kernelwright.agent.strategies.tree:Tree",
    "race": "kernelwright.agent.strategies.race:Race",
}
"""Written like entry points and loaded like them, so that a bare checkout needs no installed metadata."""
Propose = Callable[[View, int, random.Random], list[Step] | Stop]


@dataclass(frozen=True)
class OwnFunction:
    """A user's `propose(view, slots, rng)` as a strategy."""

    function: Propose

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        """See `Strategy.propose`."""
        return self.function(view, slots, rng)


def strategies() -> dict[str, EntryPoint]:
    """All that can be named: those that ship, then those of installed packages, which may not take a shipped name."""
    shipped = {name: EntryPoint(name, value, GROUP) for name, value in SHIPPED.items()}
    return {point.name: point for point in entry_points(group=GROUP)} | shipped


def load_strategy(name: str, config: SearchConfig) -> Strategy:
    """The strategy of that name, or of a file as `path/to/file.py:function`; `StrategyError` where there is none."""
    if ":" in name:
        return OwnFunction(function_in(name, "strategy", StrategyError, "(view, slots, rng)"))
    known = strategies()
    if name not in known:
        raise StrategyError(
            f"no strategy {name!r}; there are: {', '.join(known)}, and any function as path/to/file.py:function"
        )
    made: Strategy = known[name].load()(config)
    return made
