"""The events of a run: one closed record a kind, with the change that it makes to the folded view."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field

from kernelwright.agent.config import SearchConfig
from kernelwright.agent.log.records import (
    Asking,
    Attempt,
    FollowUp,
    FoundCandidate,
    KnownIdea,
    Note,
    ReplyFacts,
    Screening,
)
from kernelwright.agent.replies import NotExtracted
from kernelwright.problems.problem import Record
from kernelwright.sandbox.verdict.verdicts import Verdict

AtFault = Literal["broken", "unsupported", "machine"]
"""The reason why a problem cannot be judged: its own reference, a limit of the judge, or this machine."""
CONTINUES = {"stopped": None, "fault": None}


class RunLogError(Exception):
    """A run's record that cannot be read or written; the message is one sentence with the remedy."""


class RunStarted(Record):
    kind: Literal["run_started"] = "run_started"
    run_id: str


class OfProblem(Record):
    problem: str

    def changes(self, view: Mapping[str, Any]) -> dict[str, Any]:
        """Give the fields of the problem's view that this event sets, from the fields that it had."""
        return {}


class OfAttempt(OfProblem):
    attempt: int

    def changes_to(self, attempt: Attempt) -> dict[str, Any]:
        """Give the fields of the attempt that this event sets; by default those that have the same names."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in Attempt.model_fields}


class Equipped(OfProblem):
    """The start of the search for a problem; again where a later process continues with another config."""

    kind: Literal["equipped"] = "equipped"
    ideas: tuple[KnownIdea, ...]  # those that apply to the problem, in the order in which to try them
    config: SearchConfig

    def changes(self, view: Mapping[str, Any]) -> dict[str, Any]:
        return {"ideas": self.ideas, "config": self.config}


class MeasuredProblem(OfProblem):
    """PyTorch's times, from judging the reference as a candidate: once, before the first ask.

    The prompts of the search take their times and the roofline from here; nothing is measured again for a prompt.
    """

    kind: Literal["measured"] = "measured"
    verdict: Verdict | None = None
    why_not: str = ""  # the reason for a missing verdict; the search continues, and its prompts do without

    def changes(self, view: Mapping[str, Any]) -> dict[str, Any]:
        return {"measured": self}


class Granted(OfProblem):
    kind: Literal["granted"] = "granted"
    attempts: int
    reason: str

    def changes(self, view: Mapping[str, Any]) -> dict[str, Any]:
        return CONTINUES | {"granted": view["granted"] + self.attempts}


class Asked(Asking, OfAttempt):
    """A decision of the strategy, committed before the provider receives it. The texts of the prompt are blobs.

    For role tune no provider is asked: the prompt is empty, the request's digest too, and the source is a blob.
    """

    kind: Literal["asked"] = "asked"

    def changes(self, view: Mapping[str, Any]) -> dict[str, Any]:
        return CONTINUES


class Replied(OfAttempt):
    """The provider's answer. The complete `Reply` is a blob, as JSON, under `reply_digest`."""

    kind: Literal["replied"] = "replied"
    reply_digest: str
    reply: ReplyFacts


class AskedAgain(OfAttempt):
    """The request to continue a reply that was cut off, once at most. The prompt's text is a blob."""

    kind: Literal["asked_again"] = "asked_again"
    prompt_digest: str
    request_digest: str

    def changes_to(self, attempt: Attempt) -> dict[str, Any]:
        return {"follow_up": FollowUp(prompt_digest=self.prompt_digest, request_digest=self.request_digest)}


class RepliedAgain(OfAttempt):
    """The provider's second answer; the complete `Reply` is a blob, as JSON."""

    kind: Literal["replied_again"] = "replied_again"
    reply_digest: str
    reply: ReplyFacts

    def changes_to(self, attempt: Attempt) -> dict[str, Any]:
        if attempt.follow_up is None:
            what = f"attempt {self.attempt} has a second answer and no second request"
            raise RunLogError(f"{what}; the record is damaged, start a new run")
        return {"follow_up": FollowUp(**dict(attempt.follow_up) | super().changes_to(attempt))}


class Noted(OfAttempt):
    kind: Literal["noted"] = "noted"
    notes: tuple[Note, ...]


class CandidateExtracted(OfAttempt):
    kind: Literal["extracted"] = "extracted"
    candidate: FoundCandidate

    def changes_to(self, attempt: Attempt) -> dict[str, Any]:
        return {"extraction": self.candidate}


class NoCandidate(OfAttempt):
    kind: Literal["not_extracted"] = "not_extracted"
    why: NotExtracted

    def changes_to(self, attempt: Attempt) -> dict[str, Any]:
        return {"extraction": self.why}


class JudgedAttempt(OfAttempt):
    kind: Literal["judged"] = "judged"
    verdict: Verdict
    same_as: int | None = None  # the earlier attempt that this verdict was reached for, where the candidate is the same


class Screened(OfAttempt):
    kind: Literal["screened"] = "screened"
    screenings: tuple[Screening, ...]

    def changes_to(self, attempt: Attempt) -> dict[str, Any]:
        return {"screenings": (*attempt.screenings, *self.screenings)}


class Confirmed(OfAttempt):
    """A second verdict, by a judge in new processes, so that luck in the first timing does not win."""

    kind: Literal["confirmed"] = "confirmed"
    verdict: Verdict

    def changes_to(self, attempt: Attempt) -> dict[str, Any]:
        return {"confirmed": self.verdict}


class Kept(OfAttempt):
    kind: Literal["kept"] = "kept"
    speedup: float
    previous: int | None

    def changes(self, view: Mapping[str, Any]) -> dict[str, Any]:
        return {"kept": self.attempt}


class ProviderFailed(OfAttempt):
    kind: Literal["provider_failed"] = "provider_failed"
    message: str
    retryable: bool

    def changes_to(self, attempt: Attempt) -> dict[str, Any]:
        return {"provider_failures": attempt.provider_failures + 1}


class Stopped(OfProblem):
    kind: Literal["stopped"] = "stopped"
    reason: str
    fault: AtFault | None = None  # why no candidate could be judged; None for an ordinary end of the search

    def changes(self, view: Mapping[str, Any]) -> dict[str, Any]:
        return {"stopped": self.reason, "fault": self.fault}


class Resumed(OfProblem):
    kind: Literal["resumed"] = "resumed"

    def changes(self, view: Mapping[str, Any]) -> dict[str, Any]:
        return CONTINUES


_Searched = Equipped | MeasuredProblem | Granted | Stopped | Resumed
_Answered = Asked | Replied | AskedAgain | RepliedAgain | ProviderFailed
_Read = CandidateExtracted | NoCandidate | Noted | JudgedAttempt | Screened | Confirmed | Kept
Body = Annotated[RunStarted | _Searched | _Answered | _Read, Field(discriminator="kind")]


class Event(Record):
    seq: int  # its place in the run, from 1
    time: AwareDatetime  # when it was committed, UTC
    body: Body

    @property
    def kind(self) -> str:
        return self.body.kind

    @property
    def problem(self) -> str | None:
        return self.body.problem if isinstance(self.body, OfProblem) else None

    @property
    def attempt(self) -> int | None:
        return self.body.attempt if isinstance(self.body, OfAttempt) else None
