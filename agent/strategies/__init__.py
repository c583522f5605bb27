"""Strategies: pure functions from the folded log to the next steps, and finding one by its name.

Others are found in installed packages by the entry-point group `kernelwright.strategies` (a callable that takes a
`SearchConfig` and returns a `Strategy`), or in a file of the user's own.
"""

import importlib.util
import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.view import View
from kernelwright.problems.problem import Record
from kernelwright.prompts import Role


class Stop(Record):
    reason: str
    """A few words for the user: `10 improvements in a row brought no gain`."""


class StrategyError(Exception):
    """No such strategy, or one that breaks the rules; the message is one sentence."""


class Step(NamedTuple):
    """What to ask for next. The engine numbers it and chooses the model."""

    role: Role
    parent: int | None
    """The finished attempt to start from; None for a first draft."""
    idea: str
    """A few words that name the approach."""
    directive: str = ""
    """What the prompt says of the approach; empty for the role's default."""


class Strategy(Protocol):
    """Decides what to ask for next. It keeps nothing between calls and looks at no clock, so a run can be resumed.

    Budgets are not its concern: the engine never asks for more steps than they allow.
    """

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        """At most `slots` steps; none to wait for what is pending; or the end.

        `rng` is seeded from the run's seed and the next attempt's number.
        """
        ...


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
