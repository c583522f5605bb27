"""The search for one problem: decide, ask, extract, judge, keep; each step committed to the log before the next.

The engine holds nothing that the log does not: it starts by folding the log, so a new search and one that goes on
after a kill are the same code. It judges nothing itself.
"""

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from agent.config import SearchConfig
from agent.events import (
    Asked,
    Body,
    Event,
    Extracted,
    Judged,
    Kept,
    NoCandidate,
    ProviderFailed,
    Replied,
    Resumed,
    RunLogError,
    Stopped,
)
from agent.extraction import NotExtracted, extract
from agent.log import RunLog
from agent.providers.protocol import NoMoreAnswers, Provider, ProviderError
from agent.records import Ask, Attempt, FoundCandidate, PromptOutline, Reply, Request
from agent.strategies import Stop, Strategy, StrategyError
from agent.view import View, fold
from problems import Problem
from prompts import Brief, render
from sandbox.verdict import Candidate, Verdict

CUT_OFF = "length"
"""The finish reason of a reply that ran into its length limit."""
USED_UP = "the recorded answers are used up"


class Evaluator(Protocol):
    """Judges candidates; the engine calls it for several at once where `slots` allows."""

    async def evaluate(self, problem: Problem, candidate: Candidate) -> Verdict:
        """The verdict. An exception means that the machine or the problem is broken, not the candidate."""
        ...


def _ignore(event: Event) -> None:
    pass


@dataclass(frozen=True)
class Parts:
    """What a search is made of, apart from its problem. The same parts may serve many searches at once."""

    strategy: Strategy
    provider: Provider
    evaluator: Evaluator
    log: RunLog
    config: SearchConfig
    brief_for: Callable[[Problem, View, Ask], Brief]
    """See `briefs.BriefMaker`."""
    on_event: Callable[[Event], None] = _ignore
    """Called with each event once it is committed: for showing progress."""


async def search(problem: Problem, parts: Parts) -> View:
    """Search until the strategy stops or the provider has no more answers; the view at the end.

    Goes on where the log ends: what was asked and not answered is asked again, word for word; what was answered is not.
    Raises `ProviderError` once the provider cannot go on, whatever the evaluator raises, `RunLogError` and
    `StrategyError`; what is in flight then is finished and logged first. When cancelled, what is in flight is dropped,
    and a later search does it again.
    """
    return await _Search(problem, parts).run()


class _Search:
    def __init__(self, problem: Problem, parts: Parts) -> None:
        if parts.log.header.problems.get(problem.name) != problem.digest:
            raise RunLogError(
                f"the run in {parts.log.folder} was not started for this version of problem {problem.name!r}; "
                "start a new run"
            )
        self.problem = problem
        self.parts = parts
        self.view = fold(problem.name, parts.log.events(problem.name))
        self.waiting = deque(attempt.number for attempt in self.view.pending)
        self.running: set[asyncio.Task[None]] = set()
        self.stop: Stop | None = None
        self.trouble: BaseException | None = None
        self.resumes = bool(self.view.attempts)
        self.judging: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def run(self) -> View:
        self.keep_best()
        try:
            self.start_more()
            while self.running:
                await self.next_end()
                self.start_more()
        finally:
            for task in self.running:
                task.cancel()
            await asyncio.gather(*self.running, return_exceptions=True)
        self.conclude()
        return self.view

    def start_more(self) -> None:
        """Fill the free slots, first with what waits; with nothing once the search has stopped or met trouble."""
        slots = self.parts.config.slots
        while self.trouble is None and len(self.running) < slots:
            if not self.waiting:
                self.decide_more(slots - len(self.running))
            if not self.waiting or self.trouble is not None:
                return
            self.announce()
            self.running.add(asyncio.create_task(self.finish(self.waiting.popleft())))

    async def next_end(self) -> None:
        done, self.running = await asyncio.wait(self.running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            self.trouble = self.trouble or task.exception()

    def decide_more(self, room: int) -> None:
        try:
            self.decide(room)
        except Exception as error:  # raised again in `conclude`, once what is in flight has ended
            self.trouble = error

    def decide(self, room: int) -> None:
        """Let the strategy look at the view, and log what it asks for."""
        if self.stop is not None:
            return
        number = self.view.next_number
        rng = random.Random(f"{self.parts.config.seed}/{self.problem.name}/{number}")
        decision = self.parts.strategy.propose(self.view, room, rng)
        if isinstance(decision, Stop):
            self.stop = decision
            return
        self.check(decision, room)
        for ask in decision:
            self.announce()
            self.open(ask)

    def check(self, asks: list[Ask], room: int) -> None:
        name = self.parts.config.strategy
        if not asks and not self.running:
            raise StrategyError(f"strategy {name!r} waits although nothing is pending; correct its propose")
        numbers = list(range(self.view.next_number, self.view.next_number + len(asks)))
        finished = {None, *(attempt.number for attempt in self.view.attempts if attempt.finished)}
        sound = all(ask.problem == self.problem.name and ask.parent in finished for ask in asks)
        if len(asks) > room or [ask.attempt for ask in asks] != numbers or not sound:
            raise StrategyError(
                f"strategy {name!r} broke its rules: at most {room} asks from number {self.view.next_number} on, "
                "for the problem at hand, each from a finished attempt; correct its propose"
            )

    def open(self, ask: Ask) -> None:
        """Log the decision together with the whole request, so that it can be repeated word for word."""
        config = self.parts.config
        prompt = render(self.parts.brief_for(self.problem, self.view, ask))
        same = [one for one in self.view.attempts if (one.prompt.digest, one.ask.model) == (prompt.digest, ask.model)]
        request = Request(
            model=ask.model,
            prompt=prompt.text,
            temperature=config.temperature,
            max_tokens=config.max_tokens,
            sample=len(same),
        )
        asked = Asked(
            problem=self.problem.name,
            attempt=ask.attempt,
            ask=ask,
            prompt=PromptOutline.of(prompt),
            request_digest=request.digest,
            **request.model_dump(include={"temperature", "max_tokens", "sample"}),
        )
        self.log(asked, blobs=[prompt.text])
        self.waiting.append(ask.attempt)

    async def finish(self, number: int) -> None:
        """Do what is left to do of one attempt."""
        if self.view.attempt(number).reply_digest is None:
            await self.answer(self.view.attempt(number))
        if self.view.attempt(number).extraction is None:
            self.extract(self.view.attempt(number))
        if not self.view.attempt(number).finished:
            await self.judge(self.view.attempt(number))
        self.keep_best()

    async def answer(self, attempt: Attempt) -> None:
        reply = await self.completed(attempt)
        replied = Replied(
            problem=self.problem.name, attempt=attempt.number, reply_digest=reply.digest, reply=reply.facts
        )
        self.log(replied, blobs=[reply.model_dump_json()])

    async def completed(self, attempt: Attempt) -> Reply:
        """The provider's answer; a passing failure is tried again, each is logged."""
        config = self.parts.config
        prompt = self.parts.log.prompt(attempt.prompt)
        request = attempt.request(prompt.text)
        for retry in range(config.provider_retries + 1):
            try:
                return await self.parts.provider.complete(request, attempt.ask, prompt)
            except ProviderError as error:
                self.log(
                    ProviderFailed(
                        problem=self.problem.name,
                        attempt=attempt.number,
                        message=str(error),
                        retryable=error.retryable,
                    )
                )
                if not error.retryable or retry == config.provider_retries:
                    raise
            await asyncio.sleep(config.retry_delay_s * 2**retry)
        raise AssertionError("the last try returns or raises")

    def extract(self, attempt: Attempt) -> None:
        assert attempt.reply_digest is not None
        reply = self.parts.log.reply(attempt.reply_digest)
        found = extract(reply.text, reasoning=reply.reasoning, truncated=reply.finish_reason == CUT_OFF)
        if isinstance(found, NotExtracted):
            self.log(NoCandidate(problem=self.problem.name, attempt=attempt.number, why=found))
            return
        candidate = FoundCandidate(
            digest=Candidate(source=found.source, language=found.language).digest,
            language=found.language,
            how=found.how,
            warnings=found.warnings,
        )
        extracted = Extracted(problem=self.problem.name, attempt=attempt.number, candidate=candidate)
        self.log(extracted, blobs=[found.source])

    async def judge(self, attempt: Attempt) -> None:
        """Log the verdict. A candidate that was judged before, or is being judged, is not judged again."""
        found = attempt.candidate
        assert found is not None
        async with self.judging[found.digest]:
            known = self.view.first_with(found.digest)
            if known is not None and known.verdict is not None:
                verdict, same_as = known.verdict, known.number
            else:
                candidate = Candidate(source=self.parts.log.text(found.digest), language=found.language)
                verdict, same_as = await self.parts.evaluator.evaluate(self.problem, candidate), None
            self.log(Judged(problem=self.problem.name, attempt=attempt.number, verdict=verdict, same_as=same_as))

    def keep_best(self) -> None:
        best, kept = self.view.best, self.view.kept
        if best is not None and best.speedup is not None and best.number != kept:
            name = self.problem.name
            self.log(Kept(problem=name, attempt=best.number, speedup=best.speedup, previous=kept))

    def announce(self) -> None:
        """Log, before the first step of a search that goes on, that it does."""
        if self.resumes:
            self.resumes = False
            self.log(Resumed(problem=self.problem.name))

    def conclude(self) -> None:
        """Log why the search ends; raise what ended it, unless it is an ordinary end."""
        match self.trouble:
            case NoMoreAnswers() | None:
                reason = USED_UP if self.trouble else self.stop.reason if self.stop else None
            case ProviderError():
                reason = str(self.trouble)
            case trouble:
                raise trouble
        if reason is not None and self.view.stopped != reason:
            self.log(Stopped(problem=self.problem.name, reason=reason))
        if isinstance(self.trouble, ProviderError):
            raise self.trouble

    def log(self, body: Body, blobs: Iterable[str] = ()) -> None:
        event = self.parts.log.append(body, blobs)
        self.view = self.view.after(event)
        self.parts.on_event(event)
