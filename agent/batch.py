"""Many problems in one run: several searched at once, and attempts that some leave unspent given to others.

What is known of a problem that is not being searched is a few numbers; its log stays on disk.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from agent.budget import NOTHING, Spent, exceeded, floor_ms, out_of_attempts, spent
from agent.config import Budget, SearchConfig
from agent.engine import Parts, search
from agent.events import Granted
from agent.learning import Lore
from agent.log import RunLog
from agent.models import gains
from agent.prices import Prices, load_prices
from agent.providers.protocol import Waiting
from agent.view import View, fold
from problems import Problem

GRANT = 4
"""Attempts that are handed over at once."""
RECENT = 6
UNKNOWN_ROOM = math.log(2)
"""The room to the floor, as a logarithm, where the floor is not known: enough for a gain of two."""


@dataclass(frozen=True)
class Account:
    """A problem whose search has ended for now."""

    problem: Problem
    left: int
    """Attempts of its own budget that it did not spend; negative where it was granted some."""
    hungry: bool
    """Whether it ended for want of attempts."""
    expected_gain: float


@dataclass
class Batch:
    """The searches of one run."""

    log: RunLog
    config: SearchConfig
    parts_for: Callable[[Problem], Parts]
    ended: Callable[[Problem], None] = lambda problem: None
    """Called each time that the search for a problem has ended: to keep its best, to free what it holds."""
    accounts: dict[str, Account] = field(default_factory=dict)

    async def search(self, problems: Sequence[Problem]) -> None:
        """Search for all of them; the first error ends the run once it is raised, and what is in flight is dropped.

        A problem whose answers are to come later holds up no other one: `Waiting` is raised at the end.
        """
        purse = Purse(self.config.batch, load_prices(self.config.prices))
        lore = Lore(self.log, self.config)
        queue = list(problems)
        running: set[asyncio.Task[None]] = set()
        waits: Waiting | None = None
        try:
            while True:
                while len(running) < self.config.problems_at_once and (problem := self._next(queue)) is not None:
                    running.add(asyncio.create_task(self._search_one(problem, purse, lore)))
                if not running:
                    break
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                waits = _waiting(done) or waits
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        if waits is not None:
            raise waits

    async def _search_one(self, problem: Problem, purse: "Purse", lore: Lore) -> None:
        parts = replace(self.parts_for(problem), lore=lore, limit=purse.limit)
        try:
            view = await search(problem, parts)
        finally:
            self.ended(problem)
        purse.note(view)
        self.accounts[problem.name] = account(problem, view, parts.config)

    def _next(self, queue: list[Problem]) -> Problem | None:
        """The next problem in line; after these, the one to which unspent attempts are best given."""
        if queue:
            return queue.pop(0)
        pool = sum(account.left for account in self.accounts.values())
        hungry = [account for account in self.accounts.values() if account.hungry]
        if not self.config.share or pool < 1 or not hungry:
            return None
        chosen = max(hungry, key=lambda account: account.expected_gain)
        more = min(GRANT, pool)
        reason = f"left unspent by others; expected gain {chosen.expected_gain:.2f}"
        self.log.append(Granted(problem=chosen.problem.name, attempts=more, reason=reason))
        # While it runs, what it was granted is spent.
        self.accounts[chosen.problem.name] = replace(chosen, left=chosen.left - more, hungry=False)
        return chosen.problem


def _waiting(done: Iterable[asyncio.Task[None]]) -> Waiting | None:
    """The last of these that waits for answers; raises the first error that is another."""
    waits: Waiting | None = None
    others: list[BaseException] = []
    for task in done:
        match task.exception():
            case None:
                pass
            case Waiting() as error:
                waits = error
            case error:
                others.append(error)
    if others:
        raise others[0]
    return waits


class Purse:
    """What the problems of a run may spend together, beside attempts."""

    def __init__(self, budget: Budget, prices: Prices) -> None:
        self._budget = budget
        self._prices = prices
        self._by_problem: dict[str, Spent] = {}
        self._start = time.monotonic()

    def note(self, view: View) -> None:
        """Take down what a search has spent so far."""
        if self._budget != Budget():
            self._by_problem[view.problem] = spent(view, self._prices)

    def limit(self, view: View) -> str | None:
        """Why nothing more may be asked; the wall seconds are those of this process."""
        if self._budget == Budget():
            return None
        self.note(view)
        total = sum(self._by_problem.values(), start=NOTHING)
        wall_s = time.monotonic() - self._start
        return exceeded(self._budget, total.model_copy(update={"wall_s": wall_s}), " of the run")


def account(problem: Problem, view: View, config: SearchConfig) -> Account:
    """Where a problem stands whose search has ended."""
    hungry = out_of_attempts(view, config) is not None and view.stopped == out_of_attempts(view, config)
    return Account(
        problem=problem,
        left=-view.granted if hungry else config.attempts - view.spent,
        hungry=hungry,
        expected_gain=expected_gain(view, config),
    )


def expected_gain(view: View, config: SearchConfig) -> float:
    """Room to the floor, as a logarithm, times the share of recent attempts that gained."""
    earned = list(gains(view).values())[-RECENT:]
    share = (sum(gain > math.log1p(config.gain) for gain in earned) + 1) / (len(earned) + 3)
    best = view.best
    floor = floor_ms(best.ruling) if best else None
    if best is None or best.candidate_ms is None or floor is None:
        return UNKNOWN_ROOM * share
    return max(0.0, math.log(best.candidate_ms / floor)) * share


def views_of(log: RunLog) -> list[View]:
    """The views of all problems of a run, in its order."""
    return [fold(name, log.events(name)) for name in log.header.problems]
