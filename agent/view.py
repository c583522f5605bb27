"""The log of one problem, folded into what a strategy looks at. Pure: no clock, no file, no state."""

from collections import Counter
from collections.abc import Iterable
from functools import cached_property, reduce
from typing import Any

from agent.events import (
    Asked,
    Event,
    Extracted,
    Judged,
    Kept,
    NoCandidate,
    OfAttempt,
    ProviderFailed,
    Replied,
    Resumed,
    RunLogError,
    Stopped,
)
from agent.records import Attempt
from sandbox.verdict import Record


class View(Record):
    """How far the search for one problem has come. Immutable; `after` gives the next one."""

    problem: str
    attempts: tuple[Attempt, ...] = ()
    """In order of their numbers, which run from 1 without a gap."""
    kept: int | None = None
    """The attempt that the log last called the best."""
    stopped: str | None = None
    """Why the search ended; None while it goes on."""

    @cached_property
    def best(self) -> Attempt | None:
        """The passing attempt with the highest median speedup, the earlier one of equals."""
        passing = [attempt for attempt in self.attempts if attempt.passed]
        return max(passing, key=lambda attempt: (attempt.speedup or 0.0, -attempt.number), default=None)

    @property
    def pending(self) -> tuple[Attempt, ...]:
        """Attempts of which more must come: asked and not answered, or answered and neither refused nor judged."""
        return tuple(attempt for attempt in self.attempts if not attempt.finished)

    @property
    def failures(self) -> dict[str, int]:
        """How many finished attempts ended in each outcome other than `passed`."""
        return dict(Counter(attempt.outcome for attempt in self.attempts if attempt.failed))

    @property
    def next_number(self) -> int:
        """The number that the next ask must bear."""
        return len(self.attempts) + 1

    def attempt(self, number: int) -> Attempt:
        """The attempt of that number; `RunLogError` where the log has none."""
        if not 1 <= number <= len(self.attempts):
            raise RunLogError(
                f"the record of {self.problem!r} has no attempt {number}, only 1 to {len(self.attempts)}; "
                "it is damaged, start a new run"
            )
        return self.attempts[number - 1]

    def children(self, number: int) -> tuple[Attempt, ...]:
        """The attempts that started from attempt `number`."""
        return tuple(attempt for attempt in self.attempts if attempt.ask.parent == number)

    def first_with(self, candidate_digest: str) -> Attempt | None:
        """The earliest attempt with that very candidate and a verdict on it."""
        same = (attempt for attempt in self.attempts if attempt.candidate and attempt.verdict)
        return next((one for one in same if one.candidate and one.candidate.digest == candidate_digest), None)

    def after(self, event: Event) -> "View":
        """The view once `event` has happened; events of other problems leave it as it is."""
        if event.problem != self.problem:
            return self
        match event.body:
            case Asked() as asked:
                return self._with(attempts=(*self.attempts, self._opened(asked)), stopped=None)
            case Kept(attempt=number):
                return self._with(kept=self.attempt(number).number)
            case Stopped() | Resumed() as body:
                return self._with(stopped=body.reason if isinstance(body, Stopped) else None)
            case OfAttempt() as body:
                return self._advanced(body)
            case other:
                raise AssertionError(f"no rule for {type(other).__name__}")

    def _opened(self, asked: Asked) -> Attempt:
        if asked.attempt != self.next_number or asked.ask.attempt != asked.attempt:
            raise RunLogError(
                f"the record of {self.problem!r} goes from attempt {len(self.attempts)} to {asked.attempt}; "
                "it is damaged, start a new run"
            )
        return Attempt(
            ask=asked.ask,
            prompt=asked.prompt,
            request_digest=asked.request_digest,
            temperature=asked.temperature,
            max_tokens=asked.max_tokens,
            sample=asked.sample,
        )

    def _advanced(self, body: OfAttempt) -> "View":
        old = self.attempt(body.attempt)
        changes: dict[str, Any]
        match body:
            case Replied():
                changes = {"reply": body.reply, "reply_digest": body.reply_digest}
            case Extracted():
                changes = {"extraction": body.candidate}
            case NoCandidate():
                changes = {"extraction": body.why}
            case Judged():
                changes = {"verdict": body.verdict, "same_as": body.same_as}
            case ProviderFailed():
                changes = {"provider_failures": old.provider_failures + 1}
            case _:
                raise AssertionError(f"no rule for {type(body).__name__}")
        attempts = list(self.attempts)
        attempts[body.attempt - 1] = Attempt.model_validate(_fields(old) | changes)
        return self._with(attempts=tuple(attempts))

    def _with(self, **changes: Any) -> "View":
        return View.model_validate(_fields(self) | changes)


def _fields(record: Record) -> dict[str, Any]:
    # Neither dict(record) nor model_copy: both would carry over what cached properties found in the old record.
    return {name: getattr(record, name) for name in type(record).model_fields}


def fold(problem: str, events: Iterable[Event]) -> View:
    """The view of one problem after `events`, which may be those of the whole run."""
    return reduce(View.after, events, View(problem=problem))
