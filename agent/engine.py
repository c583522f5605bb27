"""The search for one problem: decide, ask, extract, judge, keep; each step committed to the log before the next.

The engine holds nothing that the log does not: it starts by folding the log, so a new search and one that continues
after a kill are the same code.
"""

import asyncio
import random
import re
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from kernelwright.agent import steering
from kernelwright.agent.config import SearchConfig
from kernelwright.agent.log import events, records
from kernelwright.agent.log.records import Ask, Attempt, Decision, FoundCandidate, Reply
from kernelwright.agent.log.store import Journal, RunLog
from kernelwright.agent.log.view import View
from kernelwright.agent.normalising import normal_digest
from kernelwright.agent.providers import AnswerPending, NoMoreAnswers, Provider, ProviderError
from kernelwright.agent.replies import Extraction, NotExtracted, extract
from kernelwright.agent.strategies import Step, Stop, Strategy, StrategyError
from kernelwright.problems import Problem
from kernelwright.prompts import Brief, Prompt, continued, render
from kernelwright.sandbox.verdict.errors import BrokenProblem, SandboxError, UnsupportedProblem
from kernelwright.sandbox.verdict.verdicts import Candidate, Verdict


class Evaluator(Protocol):
    """Judges candidates, several concurrently where the search has several slots.

    An exception means that the machine or the problem is broken, not the candidate.
    """

    async def evaluate(
        self, problem: Problem, candidate: Candidate, *, fresh: bool = False, best_speedup: float | None = None
    ) -> Verdict:
        """Judge a candidate; where `fresh`, at effort `rank`, in new processes with seeds of their own.

        `best_speedup`: the best speedup so far; a candidate that is clearly slower need not be measured any further.
        """
        ...

    async def screen(self, problem: Problem, candidates: list[Candidate]) -> list[float | None]:
        """Time each candidate quickly, in ms, under like conditions; None where one failed."""
        ...

    async def measure(self, problem: Problem) -> Verdict | None:
        """Judge the problem's own reference quickly, for PyTorch's times; None where nothing is really run."""
        ...

    def release(self, problem: Problem) -> None: ...


@dataclass(frozen=True)
class Parts:
    """A search without its problem. The same parts may serve many searches concurrently."""

    strategy: Strategy
    provider: Provider
    evaluator: Evaluator
    log: RunLog
    config: SearchConfig
    brief_for: Callable[[Problem, View, Ask], Brief]
    on_event: Callable[[events.Event], None] = lambda event: None
    idea_statistics: steering.IdeaStatistics | None = None  # made from the log where it is None
    limit: Callable[[View], str | None] = lambda view: None
    """A reason to stop that lies outside this problem, such as a budget of the complete run."""


async def search(problem: Problem, parts: Parts) -> View:
    """Search until a budget is used up, the strategy stops or the provider has no more answers; return the last view.

    Continues where the log ends: an ask without an answer is asked again, word for word; an answered one is not.
    Before the end the fastest are judged again.

    Raises `ProviderError` once the provider cannot continue, `AnswerPending` where answers are to come later, whatever
    the evaluator raises, `RunLogError` and `StrategyError`. Running steps are finished and logged first. A
    `SandboxError` of the evaluator is logged as the end of this search: a later one tries to judge again. When
    cancelled, running steps are dropped, and a later search repeats them.
    """
    run = _Search(problem, parts)
    await run.prepare()
    running: set[asyncio.Task[None]] = set()
    try:
        while True:
            for step in run.next_steps(running):
                running.add(asyncio.create_task(step))
            if not running:
                break
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                run.note(task.exception())
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    if run.trouble is None or isinstance(run.trouble, NoMoreAnswers):
        await run.confirm()
    run.conclude()
    return run.view


USED_UP = "the recorded answers are used up"
GRAVITY = (NoMoreAnswers, AnswerPending, ProviderError, BaseException)
"""Kinds of errors, the gravest last: of several the gravest ends the search, and the first of those alike."""
FAULTS: tuple[tuple[type[SandboxError], events.AtFault], ...] = (
    (UnsupportedProblem, "unsupported"),
    (BrokenProblem, "broken"),
    (SandboxError, "machine"),
)


class _Search:
    def __init__(self, problem: Problem, parts: Parts) -> None:
        if parts.log.header.problems.get(problem.name) != problem.digest:
            what = f"the run in {parts.log.folder} was not started for this version of problem {problem.name!r}"
            raise events.RunLogError(f"{what}; start a new run")
        self.problem, self.name = problem, problem.name
        self.parts, self.config, self.log = parts, parts.config, parts.log
        self.journal = Journal(problem.name, parts.log, parts.on_event)
        prices = steering.load_prices(parts.config.prices)
        self.decider = Decider(problem, parts.config, parts.strategy, parts.brief_for, prices, parts.limit)
        self.waiting = deque(attempt.number for attempt in self.view.pending)
        self.judging: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By identity of the candidate, so that the same one in two slots is judged once."""
        self.screening = False
        self.stop: Stop | None = None
        self.trouble: BaseException | None = None

    @property
    def view(self) -> View:
        return self.journal.view

    async def prepare(self) -> None:
        """Log the config, and PyTorch's times or why there are none; for a broken problem nobody is asked anything."""
        if self.view.config != self.config:
            statistics = self.parts.idea_statistics or steering.IdeaStatistics(self.log, self.config)
            ideas = self.view.ideas or statistics.ideas(self.problem)
            self.journal.write(events.Equipped(problem=self.name, ideas=ideas, config=self.config))
        if self.config.measure and self.view.measured is None and not self.view.attempts:
            verdict, why_not = None, ""
            try:
                verdict = await self.parts.evaluator.measure(self.problem)
            except SandboxError as error:
                is_broken = isinstance(error, BrokenProblem) and not isinstance(error, UnsupportedProblem)
                self.trouble, why_not = (error, "") if is_broken else (None, str(error))
            if verdict is not None or why_not:
                self.journal.write(events.MeasuredProblem(problem=self.name, verdict=verdict, why_not=why_not))
        self.keep_best()

    def next_steps(self, running: set[asyncio.Task[None]]) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield work for the free slots: attempts that the log left open, then decisions, which are logged first.

        The end counts once nothing is running.
        """
        while self.trouble is None and (room := self.config.slots - len(running)) > 0:
            if self.waiting:
                yield self.attempt(self.waiting.popleft())
                continue
            if running and self.config.lockstep:
                return
            try:
                decision = self.decider.decide(self.view, room)
            except Exception as error:  # raised again in `conclude`, once the running steps have ended
                self.trouble = error
                return
            if isinstance(decision, Stop):
                self.stop = None if running else decision
                return
            if decision:
                self.journal.write_all(decision)
                self.waiting.extend(opened.asked.attempt for opened in decision)
            elif (order := steering.to_screen(self.view, self.config)) is not None and not self.screening:
                self.screening = True
                yield self.screen(*order)
            else:
                return

    def note(self, error: BaseException | None) -> None:
        def gravity(trouble: BaseException | None) -> int:
            return -1 if trouble is None else next(at for at, kind in enumerate(GRAVITY) if isinstance(trouble, kind))

        if gravity(error) > gravity(self.trouble):
            self.trouble = error

    async def attempt(self, number: int) -> None:
        """Do the remaining steps of an attempt: answer, extract and judge, each logged before the next."""
        if self.view.attempt(number).ask.role != "tune":
            await self.answer(number)
        attempt = self.view.attempt(number)
        if attempt.advises:
            if attempt.notes is None:
                self.journal.write(noted(self.name, attempt, self.log))
        else:
            if attempt.extraction is None:
                self.journal.write(*extracted(attempt, self.view, self.log))
            if not self.view.attempt(number).finished:
                await self.judge(self.view.attempt(number))
        self.keep_best()

    async def answer(self, number: int) -> None:
        """Log the provider's answer. Ask once more where it was cut off before its candidate was complete."""
        attempt = self.view.attempt(number)
        prompt = self.log.prompt(attempt.prompt)
        if attempt.reply_digest is None:
            self.journal.write_reply(number, await self.completed(attempt, prompt))
            attempt = self.view.attempt(number)
        if attempt.extraction is not None or attempt.advises:
            return
        first, second = replies_of(attempt, self.log)
        if second is not None or first.finish_reason != CUT_OFF or isinstance(read(first), Extraction):
            return
        longer = continued(prompt, first.text)
        if attempt.follow_up is None:
            self.journal.write(asked_again(self.name, attempt, longer), blobs=[longer.text])
        self.journal.write_reply(number, await self.completed(attempt, longer), again=True)

    async def completed(self, attempt: Attempt, prompt: Prompt) -> Reply:
        """Ask the provider, again after a passing failure; each failure is logged."""
        of, request = {"problem": self.name, "attempt": attempt.number}, attempt.request(prompt.text)
        retries = 0
        while True:
            try:
                return await self.parts.provider.complete(request, attempt.ask, prompt)
            except AnswerPending:
                raise
            except ProviderError as error:
                self.journal.write(events.ProviderFailed(**of, message=str(error), retryable=error.retryable))
                if not error.retryable or retries == self.config.provider_retries:
                    raise
            await asyncio.sleep(self.config.retry_delay_s * 2**retries)
            retries += 1

    async def judge(self, attempt: Attempt) -> None:
        """Log the verdict. A candidate that was judged before, or is being judged, is not judged again."""
        found = attempt.candidate
        assert found is not None
        async with self.judging[found.identity]:
            known = self.view.first_with(found.identity)
            if known is not None and known.verdict is not None:
                verdict, same_as = known.verdict, known.number
            else:
                best, same_as = self.view.best.standing if self.view.best else None, None
                candidate = self.candidate(found)
                verdict = await self.parts.evaluator.evaluate(self.problem, candidate, best_speedup=best)
            of = {"problem": self.name, "attempt": attempt.number}
            self.journal.write(events.JudgedAttempt(**of, verdict=verdict, same_as=same_as))

    async def screen(self, attempt: Attempt, settings: tuple[str, ...]) -> None:
        """Log a quick time of each variant of a candidate."""
        assert attempt.candidate is not None
        source, language = self.log.text(attempt.candidate.digest), attempt.candidate.language
        variants = [Candidate(source=steering.with_setting(source, one), language=language) for one in settings]
        try:
            times = await self.parts.evaluator.screen(self.problem, variants)
            found = tuple(
                records.Screening(setting=one, candidate_ms=ms) for one, ms in zip(settings, times, strict=True)
            )
            self.journal.write(events.Screened(problem=self.name, attempt=attempt.number, screenings=found))
        finally:
            self.screening = False

    async def confirm(self) -> None:
        """Judge the fastest again, until the best is one of them."""
        try:
            while (attempt := next_to_confirm(self.view, self.config.confirm)) is not None:
                assert attempt.candidate is not None
                candidate = self.candidate(attempt.candidate)
                verdict = await self.parts.evaluator.evaluate(self.problem, candidate, fresh=True)
                self.journal.write(events.Confirmed(problem=self.name, attempt=attempt.number, verdict=verdict))
        except Exception as error:
            self.trouble = error
        self.keep_best()

    def candidate(self, found: FoundCandidate) -> Candidate:
        return Candidate(source=self.log.text(found.digest), language=found.language)

    def keep_best(self) -> None:
        best, kept = self.view.best, self.view.kept
        if best is not None and best.standing is not None and best.number != kept:
            self.journal.write(
                events.Kept(problem=self.name, attempt=best.number, speedup=best.standing, previous=kept)
            )

    def conclude(self) -> None:
        """Log why the search ends; raise the error that ended it, unless the end is an ordinary one."""
        trouble, reason = self.trouble, self.stop.reason if self.stop else None
        if trouble is not None and not isinstance(trouble, NoMoreAnswers | ProviderError | SandboxError):
            raise trouble
        if trouble is not None:
            reason = USED_UP if isinstance(trouble, NoMoreAnswers) else str(trouble)
        fault = next((name for kind, name in FAULTS if isinstance(trouble, kind)), None)
        if reason is not None and not isinstance(trouble, AnswerPending) and (fault or self.view.stopped != reason):
            self.journal.write(events.Stopped(problem=self.name, reason=reason, fault=fault))
        if isinstance(trouble, ProviderError | SandboxError):
            raise trouble


def next_to_confirm(view: View, count: int) -> Attempt | None:
    """Choose the attempt to re-evaluate now: the `count` fastest, then the best without a second verdict.

    None at the end. Where only one attempt passed, luck cannot have chosen it; but a best that was not measured at full
    effort is re-evaluated in any case.
    """
    done = sum(1 for attempt in view.attempts if attempt.confirmed is not None and not attempt.same_as)
    open_ones = [attempt for attempt in view.ranked if attempt.confirmed is None]
    if not open_ones or count == 0:
        return None
    if view.best in open_ones and not view.best.is_measured_in_full:
        return view.best
    if done + len(open_ones) < 2:
        return None
    if done < count:
        return open_ones[0]
    return view.best if view.best in open_ones and done < 2 * count else None


class PreparedAsk(NamedTuple):
    """An ask as it is logged, with the texts of its prompt's sections, of which tuning has none."""

    asked: events.Asked
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Decider:
    """The decisions for one problem. Pure: it keeps nothing between calls."""

    problem: Problem
    config: SearchConfig
    strategy: Strategy
    brief_for: Callable[[Problem, View, Ask], Brief]
    prices: steering.Prices = field(default_factory=steering.Prices)
    limit: Callable[[View], str | None] = lambda view: None

    def decide(self, view: View, room: int) -> list[PreparedAsk] | Stop:
        """Decide on requests for the free slots; none to wait; or the end, which counts once nothing is pending."""
        config = self.config
        reason = steering.near_floor(view, config.near_floor) or self.limit(view)
        if reason := reason or steering.exceeded(config.budget, steering.spent(view, self.prices)):
            return Stop(reason=reason)
        if steering.to_screen(view, config) is not None:
            return []
        if tunings := steering.to_judge(view, config):
            steps = [Step("tune", parent.number, "constants", setting) for parent, setting in tunings]
            return self._opened(view, steps[:room], room)
        if reason := steering.out_of_attempts(view, config):
            return Stop(reason=reason)
        advice = steering.advice_steps(view, config)
        if advice or any(attempt.advises for attempt in view.pending):
            return self._opened(view, advice[:room], room)
        allowed = min(room, config.attempts + view.granted - view.spent)
        decision = self.strategy.propose(view, allowed, self._rng(view))
        if isinstance(decision, Stop):
            return decision
        finished = {None, *(attempt.number for attempt in view.attempts if attempt.finished)}
        fault = None
        if not decision and not view.pending:
            fault = "waits although nothing is pending"
        elif len(decision) > allowed or any(step.parent not in finished for step in decision):
            fault = f"broke its rules: at most {allowed} steps, each from a finished attempt"
        if fault:
            raise StrategyError(f"strategy {config.strategy!r} {fault}; correct its propose")
        return self._opened(view, decision, room)

    def _rng(self, view: View) -> random.Random:
        return random.Random(f"{self.config.seed}/{self.problem.name}/{view.next_number}")

    def _opened(self, view: View, steps: list[Step], room: int) -> list[PreparedAsk]:
        """Make the requests of one decision, each with its model and prompt."""
        config, rng = self.config, self._rng(view)
        decision = Decision(first=view.next_number, room=room)
        opened: list[PreparedAsk] = []
        before = [(one.prompt.digest, one.ask.model) for one in view.attempts]
        for number, step in enumerate(steps, start=view.next_number):
            model = steering.choose_model(view, config, self.prices, rng)
            of = {"attempt": number, "problem": self.problem.name}
            ask = Ask(**of, target=config.target, model=model, **step._asdict())
            texts: tuple[str, ...] = ()
            sent: dict[str, Any] = {"prompt": records.PromptOutline.empty(ask.role, ask.target)}
            if ask.role != "tune":
                prompt = render(self.brief_for(self.problem, view, ask), without=frozenset(config.without))
                request = records.Request(
                    model=model,
                    prompt=prompt.text,
                    temperature=config.temperature,
                    max_tokens=config.max_tokens,
                    sample=before.count((prompt.digest, model)),
                )
                texts = tuple(section.text for section in prompt.sections)
                sent = request.model_dump(include={"temperature", "max_tokens", "sample"})
                sent |= {"prompt": records.PromptOutline.of(prompt), "request_digest": request.digest}
                before.append((prompt.digest, model))
            opened.append(PreparedAsk(events.Asked(**of, ask=ask, decision=decision, **sent), texts))
        return opened


CUT_OFF = "length"  # the finish reason of a reply that ran into its length limit
_OPENING = re.compile(r"\A\s*```\w*[ \t]*\n")
_STARTS_OVER = re.compile(r"^```python\b[^`]*?^(?:import|from) ", re.MULTILINE | re.DOTALL)


def read(reply: Reply, second: Reply | None = None) -> Extraction | NotExtracted:
    """Extract from a reply; with `second`, the rest of one that was cut off, or the shorter one given instead."""
    if second is None:
        return extract(reply.text, reasoning=reply.reasoning, truncated=reply.finish_reason == CUT_OFF)
    cut = second.finish_reason == CUT_OFF
    joined = reply.text + _OPENING.sub("", second.text)
    texts = [second.text, joined] if _STARTS_OVER.search(second.text) else [joined, second.text]
    first, other = (extract(text, truncated=cut) for text in texts)
    return other if isinstance(first, NotExtracted) and isinstance(other, Extraction) else first


def replies_of(attempt: Attempt, log: RunLog) -> tuple[Reply, Reply | None]:
    assert attempt.reply_digest is not None
    again = attempt.follow_up.reply_digest if attempt.follow_up else None
    return log.reply(attempt.reply_digest), log.reply(again) if again else None


def asked_again(problem: str, attempt: Attempt, longer: Prompt) -> events.AskedAgain:
    of, digest = {"problem": problem, "attempt": attempt.number}, attempt.request(longer.text).digest
    return events.AskedAgain(**of, prompt_digest=longer.digest, request_digest=digest)


def noted(problem: str, attempt: Attempt, log: RunLog) -> events.Noted:
    notes = steering.notes_in(replies_of(attempt, log)[0].text)
    return events.Noted(problem=problem, attempt=attempt.number, notes=notes)


def extracted(
    attempt: Attempt, view: View, log: RunLog
) -> tuple[events.CandidateExtracted | events.NoCandidate, list[str]]:
    """Find the attempt's candidate, in its replies or by other constants in its parent's; the event and its texts."""
    found: Extraction | NotExtracted
    if attempt.ask.role == "tune":
        parent = view.attempt(attempt.ask.parent or 0).candidate
        assert parent is not None, "only candidates are tuned"
        source = steering.with_setting(log.text(parent.digest), attempt.ask.directive)
        how = f"attempt {attempt.ask.parent} with {attempt.ask.directive}"
        found = Extraction(source=source, language=parent.language, how=how)
    else:
        found = read(*replies_of(attempt, log))
    if isinstance(found, NotExtracted):
        return events.NoCandidate(problem=view.problem, attempt=attempt.number, why=found), []
    candidate = FoundCandidate(
        digest=Candidate(source=found.source, language=found.language).digest,
        language=found.language,
        how=found.how,
        warnings=found.warnings,
        normal=normal_digest(found.source),
        knobs=steering.knobs_of(found.source),
    )
    extraction = events.CandidateExtracted(problem=view.problem, attempt=attempt.number, candidate=candidate)
    return extraction, [found.source]
