"""`islands`: separate groups of attempts that now and then take over a neighbour's best."""

import random
from dataclasses import dataclass

from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.view import View
from kernelwright.agent.strategies.moves import first_moves, improvements
from kernelwright.agent.strategies.strategy import Step, Stop

GROUPS, PERIOD = 3, 5


@dataclass(frozen=True)
class Islands:
    """`GROUPS` groups take turns; every `PERIOD`-th improvement of a group starts from its neighbour's best."""

    config: SearchConfig

    def propose(self, view: View, slots: int, rng: random.Random) -> list[Step] | Stop:
        """See `Strategy.propose`."""
        opening = first_moves(view, self.config, GROUPS)
        if opening is not None:
            return opening[:slots]
        made = sum(1 for attempt in view.attempts if attempt.ask.role == "improve")
        homes = _homes(view)
        return improvements(view, (_parent(view, homes, turn) for turn in range(made, made + slots)), rng)


def _parent(view: View, homes: dict[int, int], turn: int) -> Attempt:
    round_now, home = divmod(turn, GROUPS)
    shown = (home + 1) % GROUPS if round_now % PERIOD == PERIOD - 1 else home
    return next((one for one in view.ranked if homes[one.number] == shown), view.ranked[0])


def _homes(view: View) -> dict[int, int]:
    """The group of each attempt: drafts and improvements go round, all else stays with its parent."""
    homes: dict[int, int] = {}
    turns = {"propose": 0, "improve": 0}
    for attempt in view.attempts:
        homes[attempt.number] = _home(attempt, turns, homes)
    return homes


def _home(attempt: Attempt, turns: dict[str, int], homes: dict[int, int]) -> int:
    role = attempt.ask.role
    if role in turns:
        turns[role] += 1
        return (turns[role] - 1) % GROUPS
    return homes[attempt.ask.parent] if attempt.ask.parent else 0
