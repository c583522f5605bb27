"""What can happen in a run: one closed record for each kind of event."""

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from kernelwright.agent.log import records
from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.replies import NotExtracted
from kernelwright.problems.problem import Record
from kernelwright.sandbox.verdict.verdicts import Verdict

AtFault = Literal["broken", "unsupported", "machine"]
"""What kept a problem from being judged: its own reference, a limit of the judge, or this machine."""


class RunLogError(Exception):
    """A run's record that cannot be read or written; the message is one sentence with the remedy."""


class RunStarted(Record):
    kind: Literal["run_started"] = "run_started"
    run_id: str


class OfProblem(Record):
    problem: str


class OfAttempt(OfProblem):
    attempt: int


class Equipped(OfProblem):
    """What the search for the problem sets out with; again where a later process goes on with another config."""

    kind: Literal["equipped"] = "equipped"
    ideas: tuple[records.KnownIdea, ...]
    """Those that apply to the problem, with what is known of them, in the order in which to try them."""
    config: SearchConfig


class MeasuredProblem(OfProblem):
    """What PyTorch takes, told by judging the reference as a candidate: once, before the first ask.

    The prompts of the search have their times and the floor from here; nothing is measured again for one.
    """

    kind: Literal["measured"] = "measured"
    verdict: Verdict | None = None
    why_not: str = ""
    """Why there is no verdict; the search goes on, and its prompts do without."""


class Granted(OfProblem):
    kind: Literal["granted"] = "granted"
    attempts: int
    reason: str


class Asked(OfAttempt):
    """The strategy decided; committed before the provider hears of it. The prompt's text is a blob.

    For role tune nobody is asked: the prompt is empty, the request's digest too, and the source is a blob.
    """

    kind: Literal["asked"] = "asked"
    ask: records.Ask
    prompt: records.PromptOutline
    request_digest: str
    temperature: float | None
    max_tokens: int | None
    sample: int
    decision: records.Decision | None = None
    """None in records of older runs."""


class Replied(OfAttempt):
    """The provider answered. The whole `Reply` is a blob, as JSON, under `reply_digest`."""

    kind: Literal["replied"] = "replied"
    reply_digest: str
    reply: records.ReplyFacts


class AskedAgain(OfAttempt):
    """The reply was cut off, and the provider is asked, once, to go on. The prompt's text is a blob."""

    kind: Literal["asked_again"] = "asked_again"
    prompt_digest: str
    request_digest: str


class RepliedAgain(OfAttempt):
    """The provider's second answer; the whole `Reply` is a blob, as JSON."""

    kind: Literal["replied_again"] = "replied_again"
    reply_digest: str
    reply: records.ReplyFacts


class Noted(OfAttempt):
    kind: Literal["noted"] = "noted"
    notes: tuple[records.Note, ...]


class CandidateExtracted(OfAttempt):
    kind: Literal["extracted"] = "extracted"
    candidate: records.FoundCandidate


class NoCandidate(OfAttempt):
    kind: Literal["not_extracted"] = "not_extracted"
    why: NotExtracted


class JudgedAttempt(OfAttempt):
    kind: Literal["judged"] = "judged"
    verdict: Verdict
    same_as: int | None = None
    """The earlier attempt that this verdict was reached for, where the candidate is the same."""


class Screened(OfAttempt):
    kind: Literal["screened"] = "screened"
    screenings: tuple[records.Screening, ...]


class Confirmed(OfAttempt):
    """A second verdict, by a fresh judge in new processes, so that luck in the first timing does not win."""

    kind: Literal["confirmed"] = "confirmed"
    verdict: Verdict


class Kept(OfAttempt):
    kind: Literal["kept"] = "kept"
    speedup: float
    previous: int | None


class ProviderFailed(OfAttempt):
    kind: Literal["provider_failed"] = "provider_failed"
    message: str
    retryable: bool


class Stopped(OfProblem):
    kind: Literal["stopped"] = "stopped"
    reason: str
    fault: AtFault | None = None
    """None for an end that is the search's own; otherwise no candidate could be judged for the reason that is told."""


class Resumed(OfProblem):
    kind: Literal["resumed"] = "resumed"


Body = Annotated[
    RunStarted
    | Equipped
    | MeasuredProblem
    | Granted
    | Asked
    | Replied
    | AskedAgain
    | RepliedAgain
    | CandidateExtracted
    | NoCandidate
    | Noted
    | JudgedAttempt
    | Screened
    | Confirmed
    | Kept
    | ProviderFailed
    | Stopped
    | Resumed,
    Field(discriminator="kind"),
]


class Event(Record):
    seq: int
    """Its place in the run, from 1."""
    time: AwareDatetime
    """When it was committed, UTC."""
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
