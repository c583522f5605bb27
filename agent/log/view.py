"""`View`: the log of one problem, folded for strategies. Pure: no clock, no file, no state."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from kernelwright.agent.config import SearchConfig
from kernelwright.agent.log import events
from kernelwright.agent.log.events import AtFault, Event, MeasuredProblem, OfAttempt, OfProblem, RunLogError
from kernelwright.agent.log.records import Asking, Attempt, KnownIdea, ranked
from kernelwright.problems.problem import Record


class View(Record):
    """The state of the search for one problem. Immutable; `after` gives the next one."""

    problem: str
    attempts: tuple[Attempt, ...] = ()  # in order of their numbers, which run from 1 without a gap
    kept: int | None = None  # the attempt that the log last called the best; its re-evaluation may have failed since
    stopped: str | None = None  # why the search ended; None while it continues
    fault: AtFault | None = None
    ideas: tuple[KnownIdea, ...] = ()
    """Those that apply to the problem, in the order in which to try them; empty before the search has begun."""
    config: SearchConfig | None = None  # the config of the last start; None before it, and in records of older runs
    measured: MeasuredProblem | None = None
    """PyTorch's own times from before the first ask; None where they were not measured."""
    granted: int = 0  # attempts beyond the problem's own budget, left over by other problems
    session_start: datetime | None = None
    last_event: datetime | None = None
    earlier_s: float = 0.0  # wall seconds of the sessions before this one, from the first to the last event of each

    @cached_property
    def best(self) -> Attempt | None:
        """The attempt of the highest rank, the earlier one of equals: the only definition of the best."""
        return next(iter(self.ranked), None)

    @cached_property
    def ranked(self) -> tuple[Attempt, ...]:
        """The attempts that passed, the highest rank first. A repeated source counts once."""
        first_ones = (attempt for attempt in self.attempts if not attempt.same_as)
        return tuple(ranked(first_ones, lambda attempt: attempt.standing))

    @property
    def pending(self) -> tuple[Attempt, ...]:
        """Attempts that are not complete: without an answer, or with one that is neither refused nor judged."""
        return tuple(attempt for attempt in self.attempts if not attempt.finished)

    @property
    def failures(self) -> dict[str, int]:
        return dict(Counter(attempt.outcome for attempt in self.attempts if attempt.failed))

    @property
    def spent(self) -> int:
        return sum(1 for attempt in self.attempts if attempt.counts)

    @property
    def wall_s(self) -> float:
        """Wall seconds from the first event to the last, without the time between two sessions."""
        if self.session_start is None or self.last_event is None:
            return 0.0
        return self.earlier_s + (self.last_event - self.session_start).total_seconds()

    @property
    def next_number(self) -> int:
        return len(self.attempts) + 1

    def attempt(self, number: int) -> Attempt:
        """Find an attempt by its number. Raises `RunLogError` where the log has none."""
        return _numbered(self.attempts, number, self.problem)

    def children(self, number: int) -> list[Attempt]:
        return self._by_parent.get(number, [])

    @cached_property
    def _by_parent(self) -> defaultdict[int | None, list[Attempt]]:
        found: defaultdict[int | None, list[Attempt]] = defaultdict(list)
        for attempt in self.attempts:
            found[attempt.ask.parent].append(attempt)
        return found

    def first_with(self, identity: str) -> Attempt | None:
        """Find the earliest attempt with a verdict on the same program; see `FoundCandidate.identity`."""
        judged = (attempt for attempt in self.attempts if attempt.candidate and attempt.verdict)
        return next((one for one in judged if one.candidate and one.candidate.identity == identity), None)

    def after(self, event: Event) -> "View":
        return _folded(self, [event])


def fold(problem: str, log: Iterable[Event]) -> View:
    """Fold events, which may be those of the complete run, into the view of one problem."""
    return _folded(View(problem=problem), log)


def _folded(view: View, log: Iterable[Event]) -> View:
    """Take in events, each in a time that does not grow with the number of attempts."""
    fields, attempts, mine = _fields(view), list(view.attempts), 0
    for event in log:
        if not isinstance(body := event.body, OfProblem) or body.problem != view.problem:
            continue
        mine += 1
        fields |= _clock(event, fields) | body.changes(fields)
        if isinstance(body, events.Asked):
            if not body.attempt == body.ask.attempt == len(attempts) + 1:
                what = f"the record of {body.problem!r} goes from attempt {len(attempts)} to {body.attempt}"
                raise RunLogError(f"{what}; it is damaged, start a new run")
            attempts.append(Attempt.model_validate({name: getattr(body, name) for name in Asking.model_fields}))
        elif isinstance(body, OfAttempt):
            _advance(attempts, body)
    return View.model_validate(fields | {"attempts": tuple(attempts)}) if mine else view


def _clock(event: Event, fields: dict[str, Any]) -> dict[str, Any]:
    start, last, earlier_s = fields["session_start"], fields["last_event"], fields["earlier_s"]
    if isinstance(event.body, events.Resumed) and last is not None:
        start, earlier_s = event.time, earlier_s + (last - start).total_seconds()
    return {"earlier_s": earlier_s, "session_start": start or event.time, "last_event": event.time}


def _advance(attempts: list[Attempt], body: OfAttempt) -> None:
    old = _numbered(attempts, body.attempt, body.problem)
    news, touched = body.changes_to(old), [old]
    if isinstance(body, events.JudgedAttempt) and body.same_as is not None:
        news |= {"confirmed": _numbered(attempts, body.same_as, body.problem).confirmed}
    elif isinstance(body, events.Confirmed):
        # One candidate, one ruling: else the same source would be refused here and recommended there.
        touched += [attempt for attempt in attempts if attempt.same_as == old.number]
    for one in touched if news else ():
        attempts[one.number - 1] = Attempt.model_validate(_fields(one) | news)


def _numbered(attempts: Sequence[Attempt], number: int, problem: str) -> Attempt:
    if not 1 <= number <= len(attempts):
        why = f"the record of {problem!r} has no attempt {number}, only 1 to {len(attempts)}"
        raise RunLogError(f"{why}; it is damaged, start a new run")
    return attempts[number - 1]


def _fields(record: Record) -> dict[str, Any]:
    # Neither dict(record) nor model_copy: both would carry over the cached properties of the old record.
    return {name: getattr(record, name) for name in type(record).model_fields}
