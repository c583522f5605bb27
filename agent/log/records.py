"""The records of a search: requests, replies, candidates, and the `Attempt` that they belong to."""

import hashlib
import math
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Annotated, Self, TypeVar

from pydantic import BeforeValidator, Field

from kernelwright.agent.compat import SectionSpan
from kernelwright.agent.replies import NotExtracted
from kernelwright.problems.languages import LanguageName
from kernelwright.problems.problem import Record
from kernelwright.prompts import Idea, Prompt, Role, Target
from kernelwright.sandbox.verdict.report import DOUBTS, speedup_words
from kernelwright.sandbox.verdict.verdicts import NOISE_LIMIT, SAME_WITHIN, Failed, Measurement, Passed, Verdict


class SectionDigest(Record):
    """A section of a prompt; the log holds its text under `digest`."""

    name: str
    stable: bool
    digest: str


class PromptOutline(Record):
    """A prompt without its texts."""

    role: Role
    target: Target
    digest: str  # of the complete text
    stable_digest: str
    sections: tuple[SectionDigest | SectionSpan, ...]

    @classmethod
    def of(cls, prompt: Prompt) -> Self:
        return cls(
            role=prompt.role,
            target=prompt.target,
            digest=prompt.digest,
            stable_digest=prompt.stable_digest,
            sections=tuple(SectionDigest(name=s.name, stable=s.stable, digest=s.digest) for s in prompt.sections),
        )

    @classmethod
    def empty(cls, role: Role, target: Target) -> Self:
        """Make the outline of an attempt without a prompt."""
        digest = hashlib.sha256(b"").hexdigest()
        return cls(role=role, target=target, digest=digest, stable_digest=digest, sections=())


class Knob(Record):
    name: str
    value: str
    values: tuple[str, ...]  # those worth trying, in the author's order


class FoundCandidate(Record):
    digest: str
    language: LanguageName
    how: str
    warnings: tuple[str, ...] = ()
    normal: str = ""  # digest of the source without names, comments and layout; empty in older records
    knobs: tuple[Knob, ...] = ()

    @property
    def identity(self) -> str:
        """A digest that two candidates share if they are the same program."""
        return self.normal or self.digest


class Screening(Record):
    """A quick time of one variant of a candidate: enough to drop it, not enough to rank it."""

    setting: str  # `TILE = 16`, or several, with commas between them
    candidate_ms: float | None


class Note(Record):
    name: str
    text: str


class KnownIdea(Idea):
    tried: int = Field(default=0, ge=0)
    won: int = Field(default=0, ge=0)

    @property
    def rate(self) -> float:
        """The expected share of wins: one in three before any trial."""
        return (self.won + 1) / (self.tried + 3)


class Decision(Record):
    """A decision of the strategy: its first attempt, and the free slots that it was for."""

    first: int
    room: int


T = TypeVar("T")


def standing_of(verdict: Verdict | None) -> float | None:
    """Compute the speedup to rank by; None unless it passed.

    A candidate that is faster without doubt ranks above one that is unconfirmed or too noisy to compare. Noise must not
    win, so noisy candidates rank by the lower end of their interval.
    """
    if not isinstance(verdict, Passed):
        return None
    measured = verdict.measurement
    doubt = doubt_of(measured)
    value = measured.interval.low if doubt == "too_noisy" else measured.speedup
    return value if doubt is None or value <= 1 else 1 + SAME_WITHIN * (1 - 1 / value)


def doubt_of(measured: Measurement) -> str | None:
    """Give `too_noisy` or `unconfirmed` where the comparison is that, else None.

    A bootstrap interval of a median lies inside its samples' range, so most need no interval for it: that saves a
    thousand resamples for each quiet measurement.
    """
    may_be_noisy = measured.placebo is not None or measured.known_spread is not None
    if not may_be_noisy:
        pairing = measured.closest
        logs = [math.log(b / c) for b, c in zip(pairing.baseline_ms, pairing.candidate_ms, strict=True)]
        may_be_noisy = (max(logs) - min(logs)) / 2 > math.log1p(NOISE_LIMIT)
    if not may_be_noisy and measured.is_confirmed:
        return None
    return measured.comparison if measured.comparison in DOUBTS else None


def ranked(found: Iterable[T], standing: Callable[[T], float | None]) -> list[T]:
    """Sort those that have a rank, the highest first, the earlier one of equals; the first of them is the best."""
    standings = [(value, one) for one in found if (value := standing(one)) is not None]
    return [one for _, one in sorted(standings, key=lambda pair: -pair[0])]


def _storable(value: object) -> object:
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_storable)]
"""Text from outside. Half of a surrogate pair, which JSON can smuggle in and UTF-8 cannot hold, becomes `?`."""

Count = Annotated[int, Field(ge=0)]
ADVICE = frozenset({"plan", "critique", "reflect"})


class Ask(Record):
    attempt: int = Field(ge=1)  # number of the attempt that this opens; consecutive for each problem
    problem: str
    role: Role
    target: Target
    parent: int | None  # the attempt to start from; None for a first draft
    idea: str
    directive: str
    model: str


class Request(Record):
    """All that decides an answer: requests with one digest ask for the same sample of the same thing."""

    model: str
    prompt: str
    temperature: float | None = None  # None leaves it to the provider, and so with `max_tokens`
    max_tokens: int | None = None
    sample: int = Field(default=0, ge=0)
    """The number of earlier requests at this problem in this run that were otherwise the same."""

    @cached_property
    def digest(self) -> str:
        return _digest(self)


class Usage(Record):
    """Tokens and cost of one reply. None is unknown, never 0.

    Cached and cache-written tokens lie inside `input_tokens`, reasoning tokens inside `output_tokens`: adding them up
    would count them twice.
    """

    input_tokens: Count | None = None
    cached_tokens: Count | None = None
    cache_write_tokens: Count | None = None
    output_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    cost_usd: float | None = None  # as the provider states it; nothing is estimated here
    raw: Text | None = None  # the provider's own usage object, as JSON


class ReplyFacts(Record):
    finish_reason: Text | None = "stop"  # as the provider says; `length` where the reply was cut off
    model: Text  # the model that the provider says it used
    usage: Usage = Usage()
    provider: str
    provider_request_id: Text | None = None  # the provider's own id of this answer; for a recorded one its file
    latency_s: float | None = None  # from sending to the last byte, retries included; None where nothing was sent
    note: str = ""


class Reply(ReplyFacts):
    text: Text
    reasoning: Text = ""  # reasoning from a field of its own; reasoning inside `text` stays there

    @cached_property
    def digest(self) -> str:
        return _digest(self)

    @property
    def facts(self) -> ReplyFacts:
        return ReplyFacts.model_validate(self.model_dump(exclude={"text", "reasoning"}))


class FollowUp(Record):
    prompt_digest: str
    request_digest: str
    reply_digest: str | None = None
    reply: ReplyFacts | None = None


class Asking(Record):
    """The part of an attempt that is known once it was asked; its event and `Attempt` have these fields."""

    ask: Ask
    prompt: PromptOutline
    request_digest: str = ""  # empty for tuning, where no provider is asked
    temperature: float | None = None
    max_tokens: int | None = None
    sample: int = 0
    decision: Decision | None = None  # None in records of older runs


class Attempt(Asking):
    """One ask with all that followed, folded from the log."""

    reply_digest: str | None = None
    reply: ReplyFacts | None = None
    follow_up: FollowUp | None = None
    extraction: FoundCandidate | NotExtracted | None = None
    notes: tuple[Note, ...] | None = None  # the content of a reply of words; None for other roles and before it is read
    verdict: Verdict | None = None  # the first one; see `ruling`
    same_as: int | None = None  # the earlier attempt with the same candidate, whose verdict this one has
    confirmed: Verdict | None = None  # from a re-evaluation, of the earlier attempt where the candidate is the same
    screenings: tuple[Screening, ...] = ()
    provider_failures: int = 0

    @property
    def number(self) -> int:
        return self.ask.attempt

    def request(self, prompt_text: str) -> Request:
        """The request that was logged for this attempt, made from its prompt's text."""
        model, sent = self.ask.model, self.model_dump(include={"temperature", "max_tokens", "sample"})
        return Request.model_validate({"model": model, "prompt": prompt_text} | sent)

    @property
    def candidate(self) -> FoundCandidate | None:
        return self.extraction if isinstance(self.extraction, FoundCandidate) else None

    @property
    def replies(self) -> tuple[ReplyFacts, ...]:
        found = (self.reply, self.follow_up.reply if self.follow_up else None)
        return tuple(reply for reply in found if reply is not None)

    @property
    def advises(self) -> bool:
        return self.ask.role in ADVICE

    @property
    def counts(self) -> bool:
        """Tell whether it counts in the budget of attempts: a candidate was requested."""
        return not self.advises and self.ask.role != "tune"

    @property
    def finished(self) -> bool:
        """Tell whether it is complete: judged, read, or without a candidate."""
        return self.verdict is not None or self.notes is not None or isinstance(self.extraction, NotExtracted)

    @property
    def ruling(self) -> Verdict | None:
        """The verdict that counts: that of the re-evaluation, else the first."""
        return self.confirmed or self.verdict

    @property
    def is_measured_in_full(self) -> bool:
        return self.ruling is not None and self.ruling.evidence.effort == "rank"

    @property
    def passed(self) -> bool:
        return isinstance(self.ruling, Passed)

    @property
    def failed(self) -> bool:
        """Tell whether it asked for a candidate and none passed; a reply without one is a failure too."""
        return self.finished and not self.passed and not self.advises

    @property
    def measurement(self) -> Measurement | None:
        return self.ruling.measurement if isinstance(self.ruling, Passed) else None

    @cached_property
    def speedup(self) -> float | None:
        return self.measurement.speedup if self.measurement else None

    @cached_property
    def marks(self) -> str:
        """The interval and the doubt behind its speedup: ` [2.20, 2.41], too noisy`."""
        return speedup_words(self.ruling).partition(" x")[2] if isinstance(self.ruling, Passed) else ""

    @cached_property
    def standing(self) -> float | None:
        """The speedup to rank by; None unless it passed, and where the re-evaluation failed."""
        return standing_of(self.ruling)

    @property
    def candidate_ms(self) -> float | None:
        return self.measurement.candidate_ms if self.measurement else None

    @property
    def outcome(self) -> str:
        """`passed`, `failed at check`, `no candidate (truncated)`, `advice`, `not judged yet`, `not answered yet`."""
        if isinstance(self.ruling, Failed):
            return f"failed at {self.ruling.stage}"
        if isinstance(self.extraction, NotExtracted):
            return f"no candidate ({self.extraction.kind})"
        if self.passed:
            return "passed"
        if self.notes is not None:
            return "advice"
        return "not answered yet" if self.reply is None and self.ask.role != "tune" else "not judged yet"

    @property
    def detail(self) -> str:
        """Why it failed, in one or a few lines; empty where it did not."""
        if isinstance(self.ruling, Failed):
            return self.ruling.reason
        return self.extraction.detail if isinstance(self.extraction, NotExtracted) else ""


def _digest(record: Record) -> str:
    return hashlib.sha256(record.model_dump_json().encode()).hexdigest()
