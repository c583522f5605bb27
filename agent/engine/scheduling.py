"""Many problems in one run: several searched at once, and attempts that some leave unspent given to others.

What is known of a problem that is not being searched is a few numbers; its log stays on disk.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kernelwright.agent.engine.search import Parts, search
from kernelwright.agent.engine.steps import Evaluator
from kernelwright.agent.log.config import Budget, SearchConfig
from kernelwright.agent.log.events import Confirmed, Event, Granted, JudgedAttempt
from kernelwright.agent.log.run_log import RunLog
from kernelwright.agent.log.view import View, fold
from kernelwright.agent.providers.provider import AnswerPending
from kernelwright.agent.steering import budget
from kernelwright.agent.steering.advice import IdeaStatistics
from kernelwright.problems import Problem
from kernelwright.sandbox.machine.fact_store import Store
from kernelwright.sandbox.pool.dispatcher import Dispatcher
from kernelwright.sandbox.pool.executor import Unjudged, Work
from kernelwright.sandbox.pool.judge_pool import Where, executor_for
from kernelwright.sandbox.verdict.errors import BrokenProblem, MachineError, UnsupportedProblem
from kernelwright.sandbox.verdict.settings import SCREEN, CompileMode, JudgingEffort, Settings
from kernelwright.sandbox.verdict.verdicts import Candidate, Passed, Verdict

GRANT = 4
"""Attempts that are handed over at once."""
RECENT = 6
LACKING = 3
"""Problems that one after the other, without a verdict between them, end for want of the machine: then it is broken."""
UNKNOWN_ROOM = math.log(2)
"""The room to the floor, as a logarithm, where the floor is not known: enough for a gain of two."""


class EndedSearch(NamedTuple):
    problem: Problem
    left: int
    """Attempts of its own budget that it did not spend; negative where it was granted some."""
    hungry: bool
    """Whether it ended for want of attempts."""
    expected_gain: float


class SearchErrors:
    """What ended searches of a run, told apart: a problem's own trouble, or one of the run as a whole.

    A machine that lacks something may lack it for one problem alone, such as memory. It is taken for broken where
    `LACKING` problems end so one after the other, or where none of the run had a verdict.
    """

    def __init__(self) -> None:
        self._waits: AnswerPending | None = None
        self._lacking: list[MachineError] = []
        """Since the last verdict."""
        self._judged = False

    def hear(self, event: Event) -> None:
        if isinstance(event.body, Confirmed) or (isinstance(event.body, JudgedAttempt) and event.body.same_as is None):
            self._judged = True
            self._lacking.clear()

    def take(self, errors: Iterable[BaseException | None]) -> None:
        """What ended some searches; raises the first error that concerns the run."""
        others: list[BaseException] = []
        for error in errors:
            match error:
                case None | BrokenProblem():
                    pass
                case AnswerPending():
                    self._waits = error
                case MachineError() if len(self._lacking) + 1 < LACKING:
                    self._lacking.append(error)
                case _:
                    others.append(error)
        if others:
            raise others[0]

    def conclude(self) -> None:
        """At the run's end: raise what kept it from being done."""
        if self._waits is not None:
            raise self._waits
        if self._lacking and not self._judged:
            raise self._lacking[-1]


@dataclass
class Scheduler:
    log: RunLog
    config: SearchConfig
    parts_for: Callable[[Problem], Parts]
    ended: Callable[[Problem], None] = lambda problem: None
    """Called each time that the search for a problem has ended: to keep its best, to free what it holds."""
    accounts: dict[str, EndedSearch] = field(default_factory=dict)
    troubles: SearchErrors = field(default_factory=SearchErrors)

    async def search(self, problems: Sequence[Problem]) -> None:
        """Search for all of them; the first error ends the run once it is raised, and what is in flight is dropped.

        Two kinds of error concern their own problem alone. One whose answers are to come later: `AnswerPending` is
        raised at the end. One that can not be judged, as its search has logged; see `SearchErrors` for what is the
        machine's.
        """
        purse = SharedBudget(self.config.batch, budget.load_prices(self.config.prices))
        lore = IdeaStatistics(self.log, self.config)
        queue = list(problems)
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                while len(running) < self.config.problems_at_once and (problem := self._next(queue)) is not None:
                    running.add(asyncio.create_task(self._search_one(problem, purse, lore)))
                if not running:
                    break
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                self.troubles.take(task.exception() for task in done)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        self.troubles.conclude()

    async def _search_one(self, problem: Problem, purse: "SharedBudget", lore: IdeaStatistics) -> None:
        parts = self.parts_for(problem)
        tell = parts.on_event

        def on_event(event: Event) -> None:
            self.troubles.hear(event)
            tell(event)

        parts = replace(parts, lore=lore, limit=purse.limit, on_event=on_event)
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
        self.accounts[chosen.problem.name] = chosen._replace(left=chosen.left - more, hungry=False)
        return chosen.problem


class SharedBudget:
    def __init__(self, limits: Budget, prices: budget.Prices) -> None:
        self._budget = limits
        self._prices = prices
        self._by_problem: dict[str, budget.Spent] = {}
        self._start = time.monotonic()

    def note(self, view: View) -> None:
        if self._budget != Budget():
            self._by_problem[view.problem] = budget.spent(view, self._prices)

    def limit(self, view: View) -> str | None:
        """Why nothing more may be asked; the wall seconds are those of this process."""
        if self._budget == Budget():
            return None
        self.note(view)
        total = sum(self._by_problem.values(), start=budget.NOTHING)
        wall_s = time.monotonic() - self._start
        return budget.exceeded(self._budget, total.model_copy(update={"wall_s": wall_s}), " of the run")


def account(problem: Problem, view: View, config: SearchConfig) -> EndedSearch:
    hungry = budget.out_of_attempts(view, config) is not None and view.stopped == budget.out_of_attempts(view, config)
    return EndedSearch(
        problem=problem,
        left=-view.granted if hungry else config.attempts - view.spent,
        hungry=hungry,
        expected_gain=expected_gain(view, config),
    )


def expected_gain(view: View, config: SearchConfig) -> float:
    """Room to the floor, as a logarithm, times the share of recent attempts that gained."""
    earned = list(budget.gains(view).values())[-RECENT:]
    share = (sum(gain > math.log1p(config.gain) for gain in earned) + 1) / (len(earned) + 3)
    times = budget.times_the_floor(view, config.near_floor)
    return (UNKNOWN_ROOM if times is None else max(0.0, math.log(times))) * share


def views_of(log: RunLog) -> list[View]:
    return [fold(name, log.events(name)) for name in log.header.problems]


class ExecutorEvaluator:
    """The engine's `Evaluator` on a dispatcher. Its device's conditions are those of every verdict."""

    def __init__(self, dispatcher: Dispatcher, compiled: Sequence[CompileMode] = (), kept: Store | None = None) -> None:
        """`compiled`: modes of torch.compile that the executor's settings name. `kept`: where what was measured of a
        problem under the same conditions is looked for first.
        """
        self._dispatcher, self._compiled, self._kept = dispatcher, compiled, kept

    async def evaluate(
        self, problem: Problem, candidate: Candidate, *, fresh: bool = False, beat: float | None = None
    ) -> Verdict:
        """The verdict; `MachineError` or `BrokenProblem` where none is possible."""
        effort: JudgingEffort | None = "rank" if fresh else None
        return await self._verdict(Work(problem=problem, candidate=candidate, fresh=fresh, effort=effort, beat=beat))

    async def measure(self, problem: Problem) -> Verdict:
        work = measuring(problem, self._compiled)
        key = {"problem": work.problem.digest, "conditions": self._dispatcher.devices[0].conditions.alike}
        known = self._kept.get(key) if self._kept else None
        if known is not None:
            return Passed.model_validate(known)
        try:
            found = await self._verdict(work, settles=False)  # a candidate may do with less memory
        finally:
            self.release(work.problem)  # candidates are judged by other settings, and so beside other processes
        if self._kept and isinstance(found, Passed):
            self._kept.put(key, found.model_dump(mode="json"))
        return found

    async def _verdict(self, work: Work, settles: bool = True) -> Verdict:
        try:
            return (await self._dispatcher.judge(work, settles=settles)).verdict
        except Unjudged as error:
            broken = UnsupportedProblem if error.error.unsupported else BrokenProblem
            raise (broken if error.error.whole_problem else MachineError)(str(error)) from None

    async def screen(self, problem: Problem, candidates: list[Candidate]) -> list[float | None]:
        """Median ms of a check of each, one after the other; None where one failed."""
        return [await self._checked_ms(Work(problem=problem, candidate=candidate)) for candidate in candidates]

    async def _checked_ms(self, work: Work) -> float | None:
        try:
            verdict = (await self._dispatcher.judge(work, "check")).verdict
        except Unjudged:
            return None
        return verdict.measurement.candidate_ms if isinstance(verdict, Passed) else None

    def release(self, problem: Problem) -> None:
        self._dispatcher.executor.release(problem)


def measuring(problem: Problem, compiled: Sequence[CompileMode]) -> Work:
    """What finds out how long PyTorch takes: the reference, screened, or judged as briefly beside torch.compile.

    PyTorch's own operators are what is measured, whatever a candidate may use.
    """
    return Work(
        problem=problem.model_copy(update={"operators": "any"}),
        candidate=Candidate(source=f"{problem.source}\n\nModelNew = Model\n"),
        effort=None if compiled else "screen",
        asks=SCREEN | {"compiled": list(compiled), "baselines": ["shipped"], "effort": "search"} if compiled else {},
    )


@asynccontextmanager
async def evaluating(choice: Where, settings: Settings, kept: Store | None = None) -> AsyncIterator[Evaluator]:
    """What judges for a search: an executor's workers. Where nothing is chosen there is one device of this machine.

    `kept`: see `ExecutorEvaluator`.
    """
    chosen = Where(devices=1) if choice == Where() else choice
    async with Dispatcher(executor_for(chosen, settings), chosen.kind) as dispatcher:
        yield ExecutorEvaluator(dispatcher, settings.compiled, kept)
