"""What is found in a reply, and what is known beside it: small records that attempts and events are made of."""

from pydantic import Field

from kernelwright.problems.record.base import Record
from kernelwright.prompts import Idea
from kernelwright.sandbox.verdict.verdicts import Language


class Knob(Record):
    """A constant that a candidate declares to be worth tuning."""

    name: str
    value: str
    """As the source has it."""
    values: tuple[str, ...]
    """Those worth trying, in the author's order."""


class FoundCandidate(Record):
    """What extraction found; the run's log holds the source under `digest`."""

    digest: str
    language: Language
    how: str
    warnings: tuple[str, ...] = ()
    normal: str = ""
    """Digest of the source with names, comments and layout taken away; empty in records that are older than this."""
    knobs: tuple[Knob, ...] = ()

    @property
    def identity(self) -> str:
        """What two candidates share that are the same program."""
        return self.normal or self.digest


class Screening(Record):
    """A quick look at one variant of a candidate: enough to leave it aside, not enough to rank it."""

    setting: str
    """`TILE = 16`, or several, with commas between them."""
    candidate_ms: float | None
    """None where it failed."""


class Note(Record):
    """A piece of advice that a reply gave."""

    name: str
    """A few words."""
    text: str


class KnownIdea(Idea):
    """An idea with what is known of it from attempts at other problems."""

    tried: int = Field(default=0, ge=0)
    won: int = Field(default=0, ge=0)

    @property
    def rate(self) -> float:
        """The share of wins to expect: one win in three before anything is known."""
        return (self.won + 1) / (self.tried + 3)


class Decision(Record):
    """Which asks a strategy decided on at once, and for how much room."""

    first: int
    """Number of the decision's first attempt."""
    room: int
