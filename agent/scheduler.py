"""Many problems in one run: several searched concurrently, and unspent attempts of some given to others.

A problem that is not being searched takes a few numbers in memory; its log stays on disk.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import NamedTuple

from kernelwright.agent import steering
from kernelwright.agent.config import Budget, SearchConfig
from kernelwright.agent.engine import Evaluator, Parts, search
from kernelwright.agent.log.events import Confirmed, Event, Granted, JudgedAttempt
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import View, fold
from kernelwright.agent.providers import AnswerPending
from kernelwright.agent.steering import IdeaStatistics
from kernelwright.problems import Problem
from kernelwright.sandbox.pool.dispatcher import Dispatcher
from kernelwright.sandbox.pool.executor import Unjudged, Work
from kernelwright.sandbox.pool.judge_pool import Where, executor_for
from kernelwright.sandbox.storage import Store
from kernelwright.sandbox.verdict.errors import BrokenProblem, MachineError, UnsupportedProblem
from kernelwright.sandbox.verdict.settings import SCREEN, CompileMode, JudgeSettings, JudgingEffort
from kernelwright.sandbox.verdict.verdicts import Candidate, Passed, Verdict

GRANT = 4  # attempts in one transfer
RECENT = 6
LACKING = 3  # successive problems without a verdict after which the machine counts as broken
UNKNOWN_ROOM = math.log(2)
"""The distance to the roofline, as a logarithm, where that is unknown: enough for a gain of two."""


class EndedSearch(NamedTuple):
    problem: Problem
    left: int  # attempts of its own budget that it did not spend; negative where it was granted some
    ran_out: bool  # it ended for want of attempts
    expected_gain: float


class Scheduler:
    """The searches of one run, with what they share: attempts, a budget, statistics of ideas.

    A machine may lack something for one problem alone, such as memory. It counts as broken where `LACKING` successive
    problems end so, or where no problem of the run had a verdict.
    """

    def __init__(
        self,
        log: RunLog,
        config: SearchConfig,
        parts_for: Callable[[Problem], Parts],
        ended: Callable[[Problem], None] = lambda problem: None,
    ) -> None:
        """`ended` is called each time that the search for a problem has ended: to keep its best and free resources."""
        self.log, self.config, self.parts_for, self.ended = log, config, parts_for, ended
        self.accounts: dict[str, EndedSearch] = {}
        self._prices, self._start = steering.load_prices(config.prices), time.monotonic()
        self._spent: dict[str, steering.Spent] = {}  # by problem
        self._pending: AnswerPending | None = None
        self._lacking: list[MachineError] = []  # since the last verdict
        self._judged = False

    async def search(self, problems: Sequence[Problem]) -> None:
        """Search for all of them. The first error ends the run, and running searches are dropped.

        Two kinds of error concern one problem alone: `AnswerPending`, which is raised at the end, and a problem that
        cannot be judged, which its search has logged.
        """
        idea_statistics = IdeaStatistics(self.log, self.config)
        queue = list(problems)
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                while len(running) < self.config.problems_at_once and (problem := self._next(queue)) is not None:
                    running.add(asyncio.create_task(self._search_one(problem, idea_statistics)))
                if not running:
                    break
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                self._take(task.exception() for task in done)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        if self._pending is not None:
            raise self._pending
        if self._lacking and not self._judged:
            raise self._lacking[-1]

    async def _search_one(self, problem: Problem, idea_statistics: IdeaStatistics) -> None:
        given = self.parts_for(problem)

        def on_event(event: Event) -> None:
            body = event.body
            if isinstance(body, Confirmed) or (isinstance(body, JudgedAttempt) and body.same_as is None):
                self._judged = True
                self._lacking.clear()
            given.on_event(event)

        parts = replace(given, idea_statistics=idea_statistics, limit=self._limit, on_event=on_event)
        try:
            view = await search(problem, parts)
        finally:
            self.ended(problem)
        self._spent[problem.name] = steering.spent(view, self._prices)
        self.accounts[problem.name] = account(problem, view, parts.config)

    def _take(self, errors: Iterable[BaseException | None]) -> None:
        """Take in the errors that ended some searches; raise the first one that concerns the run."""
        others: list[BaseException] = []
        for error in errors:
            match error:
                case None | BrokenProblem():
                    pass
                case AnswerPending():
                    self._pending = error
                case MachineError() if len(self._lacking) + 1 < LACKING:
                    self._lacking.append(error)
                case _:
                    others.append(error)
        if others:
            raise others[0]

    def _limit(self, view: View) -> str | None:
        """Say why the run may ask no more; its wall seconds are those of this process."""
        if self.config.batch == Budget():
            return None
        self._spent[view.problem] = steering.spent(view, self._prices)
        total = sum(self._spent.values(), start=steering.NOTHING)
        wall_s = time.monotonic() - self._start
        return steering.exceeded(self.config.batch, total.model_copy(update={"wall_s": wall_s}), " of the run")

    def _next(self, queue: list[Problem]) -> Problem | None:
        """Choose the next problem of the queue; after these, the one to give unspent attempts to."""
        if queue:
            return queue.pop(0)
        pool = sum(account.left for account in self.accounts.values())
        ran_out = [account for account in self.accounts.values() if account.ran_out]
        if not self.config.share or pool < 1 or not ran_out:
            return None
        chosen = max(ran_out, key=lambda account: account.expected_gain)
        more = min(GRANT, pool)
        reason = f"left unspent by others; expected gain {chosen.expected_gain:.2f}"
        self.log.append(Granted(problem=chosen.problem.name, attempts=more, reason=reason))
        # While it runs, what it was granted is steering.spent.
        self.accounts[chosen.problem.name] = chosen._replace(left=chosen.left - more, ran_out=False)
        return chosen.problem


def account(problem: Problem, view: View, config: SearchConfig) -> EndedSearch:
    reason = steering.out_of_attempts(view, config)
    ran_out = reason is not None and view.stopped == reason
    return EndedSearch(
        problem=problem,
        left=-view.granted if ran_out else config.attempts - view.spent,
        ran_out=ran_out,
        expected_gain=expected_gain(view, config),
    )


def expected_gain(view: View, config: SearchConfig) -> float:
    """Multiply the distance to the roofline, as a logarithm, by the share of recent attempts that gained."""
    earned = list(steering.gains(view).values())[-RECENT:]
    share = (sum(gain > math.log1p(config.gain) for gain in earned) + 1) / (len(earned) + 3)
    times = steering.times_the_roofline(view, config.near_floor)
    return (UNKNOWN_ROOM if times is None else max(0.0, math.log(times))) * share


def views_of(log: RunLog) -> list[View]:
    return [fold(name, log.events(name)) for name in log.header.problems]


class ExecutorEvaluator:
    """The engine's `Evaluator` on a dispatcher."""

    def __init__(self, dispatcher: Dispatcher, compiled: Sequence[CompileMode] = (), kept: Store | None = None) -> None:
        """`compiled`: modes of torch.compile that the executor's settings name. `kept`: a store of earlier times."""
        self._dispatcher, self._compiled, self._kept = dispatcher, compiled, kept

    async def evaluate(
        self, problem: Problem, candidate: Candidate, *, fresh: bool = False, best_speedup: float | None = None
    ) -> Verdict:
        """Judge a candidate. Raises `MachineError` or `BrokenProblem` where no verdict is possible."""
        effort: JudgingEffort | None = "rank" if fresh else None
        work = Work(problem=problem, candidate=candidate, fresh=fresh, effort=effort, best_speedup=best_speedup)
        return await self._verdict(work)

    async def measure(self, problem: Problem) -> Verdict:
        work = measuring(problem, self._compiled)
        key = {"problem": work.problem.digest, "conditions": self._dispatcher.devices[0].conditions.alike}
        known = self._kept.get(key) if self._kept else None
        if known is not None:
            return Passed.model_validate(known)
        try:
            found = await self._verdict(work, settles=False)  # a candidate may do with less memory
        finally:
            self.release(work.problem)  # candidates are judged by other settings, and so with other processes
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
        """Check each, one after the other, for its median ms; None where one failed."""
        times: list[float | None] = []
        for candidate in candidates:
            times.append(None)
            with suppress(Unjudged):
                verdict = (await self._dispatcher.judge(Work(problem=problem, candidate=candidate), "check")).verdict
                times[-1] = verdict.measurement.candidate_ms if isinstance(verdict, Passed) else None
        return times

    def release(self, problem: Problem) -> None:
        self._dispatcher.executor.release(problem)


def measuring(problem: Problem, compiled: Sequence[CompileMode]) -> Work:
    """Make the job that measures PyTorch: the reference, screened, or judged as briefly with torch.compile.

    It may use PyTorch's operators even where candidates may not.
    """
    return Work(
        problem=problem.model_copy(update={"operators": "any"}),
        candidate=Candidate(source=f"{problem.source}\n\nModelNew = Model\n"),
        effort=None if compiled else "screen",
        overrides=SCREEN | {"compiled": list(compiled), "baselines": ["shipped"], "effort": "search"}
        if compiled
        else {},
    )


@asynccontextmanager
async def evaluating(choice: Where, settings: JudgeSettings, kept: Store | None = None) -> AsyncIterator[Evaluator]:
    """Start an executor's workers; by default on one device of this machine. `kept`: see `ExecutorEvaluator`."""
    chosen = Where(devices=1) if choice == Where() else choice
    async with Dispatcher(executor_for(chosen, settings), chosen.kind) as dispatcher:
        yield ExecutorEvaluator(dispatcher, settings.compiled, kept)
