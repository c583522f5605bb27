"""Finding a strategy by its name: shipped, installed beside us, or a function in a file of the user's own."""

import importlib.util
import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.view import View
from kernelwright.agent.strategies.strategy import Step, Stop, Strategy, StrategyError


def function_in(name: str, kind: str, error: type[Exception], takes: str) -> Callable[..., Any]:
    """The function that `path/to/file.py:function` names. Raises `error` with one sentence, in which `kind` is what the
    function is (`strategy`) and `takes` are its arguments.
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
    function = getattr(module, function_name, None)
    if not callable(function):
        raise error(f"{path} defines no function {function_name!r}; name one that takes {takes}")
    found: Callable[..., Any] = function
    return found


GROUP = "kernelwright.strategies"
SHIPPED = {
    "best_of": "kernelwright.agent.strategies.shipped:BestOf",
    "refine": "kernelwright.agent.strategies.shipped:Refine",
    "beam": "kernelwright.agent.strategies.shipped:Beam",
    "pool": "kernelwright.agent.strategies.shipped:Pool",
    "elites": "kernelwright.agent.strategies.shipped:Elites",
    "islands": "kernelwright.agent.strategies.shipped:Islands",
    "tree": "kernelwright.agent.strategies.shipped:Tree",
    "race": "kernelwright.agent.strategies.shipped:Race",
}
"""Written like entry points and loaded like them, so that a bare checkout needs no installed metadata."""
Propose = Callable[[View, int, random.Random], list[Step] | Stop]


@dataclass(frozen=True)
class OwnFunction:
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
