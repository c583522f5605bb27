"""What a strategy is: a pure function from the folded log to the next asks."""

import random
from typing import Protocol

from agent.records import Ask
from agent.view import View
from sandbox.verdict import Record


class Stop(Record):
    """The search is over."""

    reason: str
    """A few words for the user: `the budget of 10 attempts is used up`."""


class StrategyError(Exception):
    """No such strategy, or one that breaks the rules; the message is one sentence."""


class Strategy(Protocol):
    """Decides what to ask for next. It keeps nothing between calls and looks at no clock, so a run can be resumed."""

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Ask] | Stop:
        """At most `slots` asks, numbered from `view.next_number`; none to wait for what is pending; or the end.

        `rng` is seeded from the run's seed and the next attempt's number.
        """
        ...
