"""What a strategy is: a pure function from the folded log to the next steps."""

import random
from typing import NamedTuple, Protocol

from kernelwright.agent.log.view import View
from kernelwright.problems.record.base import Record
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
