"""The records of a prompt: a `Brief` goes in, a `Prompt` of named sections comes out."""

import hashlib
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Literal

from pydantic import Field

from kernelwright.problems import Problem
from kernelwright.problems.languages import Target
from kernelwright.problems.problem import Mode, Record
from kernelwright.prompts.devices import DeviceSheet

Role = Literal["propose", "repair", "improve", "tune", "plan", "critique", "reflect"]
"""Roles of a step. The first three ask for a candidate. `tune` asks nobody: it changes constants that a candidate
declares. The last three ask for words: ideas to try, what is wrong with an attempt, what the attempts teach."""

VERSION = r"^\d+\.\d+(\.\d+)?$"


class PromptError(ValueError):
    """A brief that no prompt can be made from, or a template that cannot be rendered; the message is one sentence."""


class TargetVersions(Record):
    """The versions that the answer must run under, compared by major and minor number only."""

    python: str = Field(default="3.11", pattern=VERSION)
    torch: str = Field(default="2.9", pattern=VERSION)
    cuda: str | None = Field(default=None, pattern=VERSION)  # of the toolkit; None where any will do

    def torch_at_least(self, version: str) -> bool:
        return _major_minor(self.torch) >= _major_minor(version)

    def python_at_least(self, version: str) -> bool:
        return _major_minor(self.python) >= _major_minor(version)


class EarlierAttempt(Record):
    number: int
    outcome: str  # `passed`, or what went wrong: `failed at check`
    candidate_ms: float | None = None
    speedup: float | None = None  # against the better PyTorch baseline; above 1 the candidate is faster
    doubt: str = ""  # follows a speedup that may be chance: ` [0.81, 4.20], too noisy`

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


class PastAttempt(EarlierAttempt):
    """One row of the table of attempts."""

    role: Role
    idea: str
    detail: str = ""  # one line; line ends and bars are flattened when it is put in the table


class Parent(EarlierAttempt):
    """The attempt that this step starts from."""

    source: str
    evidence: str
    """For a failure the reason, then the log; for a pass the timings. Long text is cut in the middle when rendered."""


class Baselines(Record):
    """Measurements of the reference on the brief's device: times are facts, one line each, with units."""

    times: tuple[str, ...] = ()  # of PyTorch: eager under the problem's policy and at default precision, torch.compile
    roofline: tuple[str, ...] = ()  # lower bounds from bytes and operations, and the time of a plain copy
    mode: Mode | None = None  # None before the reference was called


class Brief(Record):
    """A request for one step of a search."""

    problem: Problem
    target: Target
    role: Role
    device: DeviceSheet
    versions: TargetVersions = TargetVersions()
    baselines: Baselines = Baselines()
    directive: str = ""  # the one thing to do in this step; empty for the role's default
    parent: Parent | None = None
    history: tuple[PastAttempt, ...] = ()
    left_out: int = 0  # attempts that the history leaves out for want of room
    lessons: tuple[str, ...] = ()  # conclusions of a reflection on earlier attempts
    room: float | None = None  # the best time over the roofline; None where one is unknown

    @property
    def best_ms(self) -> float | None:
        """The shortest time in ms of the parent and the past attempts that passed without a doubt; None without any."""
        known = [one for one in (self.parent, *self.history) if one and one.passed and not one.doubt]
        timed = [one.candidate_ms for one in known]
        return min((ms for ms in timed if ms is not None), default=None)


def _major_minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


BYTES_PER_TOKEN = 3.5
"""Between prose, at about 4.3 bytes a token, and code, at about 3."""


def estimated_tokens(text: str) -> int:
    """Estimate tokens as UTF-8 bytes over 3.5, rounded up. Real counts depend on the model's own tokenizer."""
    return math.ceil(len(text.encode()) / BYTES_PER_TOKEN)


class Section(Record):
    """One named part of a prompt."""

    name: str
    text: str
    stable: bool  # it depends only on problem, target and versions: the same on every machine and in every attempt

    @cached_property
    def digest(self) -> str:
        return _sha256(self.text)

    @property
    def tokens(self) -> int:
        return estimated_tokens(self.text)


class Prompt(Record):
    """The text for the model. Stable sections come first, so that a provider's prefix cache can serve them again."""

    role: Role
    target: Target
    sections: tuple[Section, ...]

    @cached_property
    def text(self) -> str:
        return "\n\n".join(section.text for section in self.sections) + "\n"

    @cached_property
    def digest(self) -> str:
        return _sha256(self.text)

    @cached_property
    def stable_digest(self) -> str:
        """Hash the stable sections: equal for all attempts at one problem on any machine."""
        return _sha256("\n\n".join(section.text for section in self.sections if section.stable) + "\n")

    @property
    def tokens(self) -> int:
        return sum(section.tokens for section in self.sections)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


RECENT = 3


def shortened(rows: Sequence[PastAttempt], tokens: int, first: Sequence[int] = ()) -> tuple[PastAttempt, ...]:
    """Keep as many rows as fit into about `tokens`, in their own order.

    Those numbered in `first` go before all others, then the fastest, the latest few, what else passed, and the other
    failures, each the latest first. The budget is an estimate: see `estimated_tokens`.
    """
    fastest = max(rows, key=lambda one: 0.0 if one.doubt else one.speedup or 0.0, default=None)

    def rank(row: PastAttempt) -> tuple[int, int]:
        if row.number in first:
            return 0, list(first).index(row.number)
        if row is fastest and row.passed:
            return 1, 0
        if row.number > rows[-1].number - RECENT:
            return 2, -row.number
        return (3 if row.passed else 4), -row.number

    kept: set[int] = set()
    for row in sorted(rows, key=rank):
        line = f"| {row.number} | {row.role} | {row.idea} | {row.outcome} | 0.000 | 0.00x{row.doubt} | {row.detail} |"
        tokens -= estimated_tokens(line)
        if tokens < 0:
            break
        kept.add(row.number)
    return tuple(row for row in rows if row.number in kept)
