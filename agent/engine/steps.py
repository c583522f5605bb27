"""The steps of one attempt, from the ask to the verdict: each is committed to the log before the next is taken."""

import asyncio
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

from kernelwright.agent.log import events as log_events
from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.records import Attempt, FoundCandidate, Reply, Request, Screening
from kernelwright.agent.log.run_log import Journal, RunLog
from kernelwright.agent.log.view import View
from kernelwright.agent.providers.provider import AnswerPending, Provider, ProviderError
from kernelwright.agent.replies import Extraction, NotExtracted, extract
from kernelwright.agent.replies.normalising import normal_digest
from kernelwright.agent.steering.advice import notes_in
from kernelwright.agent.steering.tuning import knobs_of, with_setting
from kernelwright.problems import Problem
from kernelwright.prompts import Prompt, continued
from kernelwright.sandbox.verdict.errors import SandboxError
from kernelwright.sandbox.verdict.verdicts import Candidate, Verdict

CUT_OFF = "length"
"""The finish reason of a reply that ran into its length limit."""
_OPENING = re.compile(r"\A\s*```\w*[ \t]*\n")
_STARTS_OVER = re.compile(r"^```python\b[^`]*?^(?:import|from) ", re.MULTILINE | re.DOTALL)


def read(reply: Reply, second: Reply | None = None) -> Extraction | NotExtracted:
    """What a reply offers; with the second half of one that was cut off, or the shorter one given instead."""
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


def asked_again(problem: str, attempt: Attempt, longer: Prompt) -> log_events.AskedAgain:
    digest = attempt.request(longer.text).digest
    return log_events.AskedAgain(
        problem=problem, attempt=attempt.number, prompt_digest=longer.digest, request_digest=digest
    )


def noted(problem: str, attempt: Attempt, log: RunLog) -> log_events.Noted:
    notes = notes_in(replies_of(attempt, log)[0].text)
    return log_events.Noted(problem=problem, attempt=attempt.number, notes=notes)


def extracted(
    attempt: Attempt, view: View, log: RunLog
) -> tuple[log_events.CandidateExtracted | log_events.NoCandidate, list[str]]:
    """The event of finding the attempt's candidate, in its replies or by other constants in its parent's; and texts."""
    if attempt.ask.role == "tune":
        parent = view.attempt(attempt.ask.parent or 0).candidate
        assert parent is not None, "only candidates are tuned"
        source = with_setting(log.text(parent.digest), attempt.ask.directive)
        how = f"attempt {attempt.ask.parent} with {attempt.ask.directive}"
        candidate = found_candidate(Extraction(source=source, language=parent.language, how=how))
    else:
        found = read(*replies_of(attempt, log))
        if isinstance(found, NotExtracted):
            return log_events.NoCandidate(problem=view.problem, attempt=attempt.number, why=found), []
        source, candidate = found.source, found_candidate(found)
    return log_events.CandidateExtracted(problem=view.problem, attempt=attempt.number, candidate=candidate), [source]


def found_candidate(found: Extraction) -> FoundCandidate:
    return FoundCandidate(
        digest=Candidate(source=found.source, language=found.language).digest,
        language=found.language,
        how=found.how,
        warnings=found.warnings,
        normal=normal_digest(found.source),
        knobs=knobs_of(found.source),
    )


class Evaluator(Protocol):
    """Judges candidates; called for several at once where there are several slots.

    An exception means that the machine or the problem is broken, not the candidate.
    """

    async def evaluate(
        self, problem: Problem, candidate: Candidate, *, fresh: bool = False, beat: float | None = None
    ) -> Verdict:
        """The verdict; `fresh` asks for one to be kept: at effort `rank`, by new processes with seeds of their own.

        `beat`: the speedup of the best so far; what is clearly below it need not be measured any further.
        """
        ...

    async def screen(self, problem: Problem, candidates: list[Candidate]) -> list[float | None]:
        """A quick time in ms of each, under like conditions; None where one failed."""
        ...

    async def measure(self, problem: Problem) -> Verdict | None:
        """A quick verdict on the problem's own reference, for PyTorch's times; None where nothing is really run."""
        ...

    def release(self, problem: Problem) -> None: ...


@dataclass
class AttemptSteps:
    problem: Problem
    config: SearchConfig
    provider: Provider
    evaluator: Evaluator
    journal: Journal
    judging: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    """By identity of the candidate, so that the same one in two slots is judged once."""

    async def measure(self) -> None:
        """Log what PyTorch takes, or why that can not be told; candidates may be judged all the same."""
        verdict, why_not = None, ""
        try:
            verdict = await self.evaluator.measure(self.problem)
        except SandboxError as error:
            why_not = str(error)
        if verdict is not None or why_not:
            self.journal.write(log_events.MeasuredProblem(problem=self.problem.name, verdict=verdict, why_not=why_not))

    async def finish(self, number: int) -> None:
        if self._attempt(number).ask.role != "tune":
            await self._answer(number)
        attempt = self._attempt(number)
        if attempt.advises:
            if attempt.notes is None:
                self.journal.write(noted(self.problem.name, attempt, self.journal.texts))
            return
        if attempt.extraction is None:
            self.journal.write(*extracted(attempt, self.journal.view, self.journal.texts))
        if not self._attempt(number).finished:
            await self._judge(self._attempt(number))

    async def screen(self, attempt: Attempt, settings: tuple[str, ...]) -> None:
        assert attempt.candidate is not None
        source = self.journal.texts.text(attempt.candidate.digest)
        variants = [
            Candidate(source=with_setting(source, setting), language=attempt.candidate.language) for setting in settings
        ]
        times = await self.evaluator.screen(self.problem, variants)
        found = tuple(Screening(setting=one, candidate_ms=ms) for one, ms in zip(settings, times, strict=True))
        self.journal.write(log_events.Screened(problem=self.problem.name, attempt=attempt.number, screenings=found))

    async def confirm(self, attempt: Attempt) -> None:
        assert attempt.candidate is not None
        verdict = await self.evaluator.evaluate(self.problem, self._candidate(attempt.candidate), fresh=True)
        self.journal.write(log_events.Confirmed(problem=self.problem.name, attempt=attempt.number, verdict=verdict))

    def _attempt(self, number: int) -> Attempt:
        return self.journal.view.attempt(number)

    def _candidate(self, found: FoundCandidate) -> Candidate:
        return Candidate(source=self.journal.texts.text(found.digest), language=found.language)

    async def _answer(self, number: int) -> None:
        attempt = self._attempt(number)
        prompt = self.journal.texts.prompt(attempt.prompt)
        if attempt.reply_digest is None:
            reply = await self._completed(attempt, attempt.request(prompt.text), prompt)
            self.journal.write(
                log_events.Replied(
                    problem=self.problem.name, attempt=number, reply_digest=reply.digest, reply=reply.facts
                ),
                blobs=[reply.model_dump_json()],
            )
        if self._attempt(number).extraction is None and not attempt.advises:
            await self._go_on(self._attempt(number), prompt)

    async def _go_on(self, attempt: Attempt, prompt: Prompt) -> None:
        """Ask once more where the reply was cut off before its candidate was whole."""
        first, _ = replies_of(attempt, self.journal.texts)
        is_cut_short = first.finish_reason == CUT_OFF and isinstance(read(first), NotExtracted)
        if not is_cut_short or (attempt.follow_up and attempt.follow_up.reply_digest):
            return
        longer = continued(prompt, first.text)
        request = attempt.request(longer.text)
        if attempt.follow_up is None:
            self.journal.write(asked_again(self.problem.name, attempt, longer), blobs=[longer.text])
        reply = await self._completed(attempt, request, longer)
        self.journal.write(
            log_events.RepliedAgain(
                problem=self.problem.name, attempt=attempt.number, reply_digest=reply.digest, reply=reply.facts
            ),
            blobs=[reply.model_dump_json()],
        )

    async def _completed(self, attempt: Attempt, request: Request, prompt: Prompt) -> Reply:
        for retry in range(self.config.provider_retries + 1):
            try:
                return await self.provider.complete(request, attempt.ask, prompt)
            except AnswerPending:
                raise
            except ProviderError as error:
                failed = log_events.ProviderFailed(
                    problem=self.problem.name,
                    attempt=attempt.number,
                    message=str(error),
                    retryable=error.retryable,
                )
                self.journal.write(failed)
                if not error.retryable or retry == self.config.provider_retries:
                    raise
            await asyncio.sleep(self.config.retry_delay_s * 2**retry)
        raise AssertionError("the last try returns or raises")

    async def _judge(self, attempt: Attempt) -> None:
        """Log the verdict. A candidate that was judged before, or is being judged, is not judged again."""
        found = attempt.candidate
        assert found is not None
        async with self.judging[found.identity]:
            known = self.journal.view.first_with(found.identity)
            if known is not None and known.verdict is not None:
                verdict, same_as = known.verdict, known.number
            else:
                beat, same_as = best.standing if (best := self.journal.view.best) else None, None
                verdict = await self.evaluator.evaluate(self.problem, self._candidate(found), beat=beat)
            judged = log_events.JudgedAttempt(
                problem=self.problem.name, attempt=attempt.number, verdict=verdict, same_as=same_as
            )
            self.journal.write(judged)
