"""The records of a prompt: a `Brief` goes in, a `Prompt` of named sections comes out."""

import hashlib
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Literal

from pydantic import Field

from kernelwright.problems import Problem
from kernelwright.problems.languages import Target
from kernelwright.problems.problem import Record
from kernelwright.prompts.devices import DeviceSheet

Role = Literal["propose", "repair", "improve", "tune", "plan", "critique", "reflect"]
"""Roles of a step. The first three ask for a candidate. `tune` asks nobody: it changes constants that a candidate
declares. The last three ask for words: ideas to try, what is wrong with an attempt, what the attempts teach."""

VERSION = r"^\d+\.\d+(\.\d+)?$"


class PromptError(ValueError):
    """A brief that no prompt can be made from, or a template that cannot be rendered; the message is one sentence."""


class TargetVersions(Record):
    """The versions that the answer must run under, which need not be those of this machine."""

    python: str = Field(default="3.11", pattern=VERSION)
    torch: str = Field(default="2.9", pattern=VERSION)
    cuda: str | None = Field(default=None, pattern=VERSION)
    """The CUDA toolkit, or None where it does not matter or is simply the installed one."""

    def torch_at_least(self, version: str) -> bool:
        """Whether the target PyTorch is `version` or newer; compared by major and minor number only."""
        return _major_minor(self.torch) >= _major_minor(version)

    def python_at_least(self, version: str) -> bool:
        """Whether the target Python is `version` or newer; compared by major and minor number only."""
        return _major_minor(self.python) >= _major_minor(version)


class PastAttempt(Record):
    """One row of the table of attempts."""

    number: int
    role: Role
    idea: str
    outcome: str
    """`passed`, or what went wrong: `failed at check`."""
    detail: str = ""
    """One line; line ends and bars are flattened when it is put in the table."""
    candidate_ms: float | None = None
    speedup: float | None = None
    """Against the better PyTorch baseline; above 1 the candidate is faster."""
    doubt: str = ""
    """Stands behind a speedup that may be chance: ` [0.81, 4.20], too noisy`."""

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


class Parent(Record):
    """The attempt that this step starts from."""

    number: int
    source: str
    outcome: str
    """`passed`, or what went wrong: `failed at check`."""
    evidence: str
    """For a failure the reason, then the log; for a pass the timings. Long text is cut in the middle when rendered."""
    candidate_ms: float | None = None
    speedup: float | None = None
    doubt: str = ""

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


class Baselines(Record):
    """What an answer is held against in time, on the brief's device: facts, one line each, with units."""

    times: tuple[str, ...] = ()
    """Of PyTorch: eager under the problem's policy and as it ships, torch.compile."""
    roofline: tuple[str, ...] = ()
    """Lower bounds from bytes and operations, and the time of a plain copy of as many bytes."""


class Brief(Record):
    """A request for one step of a search."""

    problem: Problem
    target: Target
    role: Role
    device: DeviceSheet
    versions: TargetVersions = TargetVersions()
    baselines: Baselines = Baselines()
    directive: str = ""
    """The one thing to do in this step; empty for the role's default."""
    parent: Parent | None = None
    history: tuple[PastAttempt, ...] = ()
    left_out: int = 0
    """Attempts that the history leaves out for want of room."""
    lessons: tuple[str, ...] = ()
    """Conclusions of a reflection on earlier attempts."""

    @property
    def best_ms(self) -> float | None:
        """The shortest time in ms of the parent and the past attempts that passed without a doubt; None without any."""
        known = [one for one in (self.parent, *self.history) if one and one.passed and not one.doubt]
        timed = [one.candidate_ms for one in known]
        return min((ms for ms in timed if ms is not None), default=None)


def check_parent(brief: Brief) -> None:
    """Raise `PromptError` unless the parent fits the role.

    To propose and to reflect take none, to repair and to criticise a failed one, to improve one that passed, and a plan
    may do without. To tune asks nothing.
    """
    role, parent = brief.role, brief.parent
    if role == "tune":
        raise PromptError("role 'tune' asks nobody, so there is no prompt for it; use another role")
    if role in {"propose", "reflect"}:
        if parent is not None:
            raise PromptError(f"role '{role}' starts afresh but got attempt {parent.number} as parent; leave it out")
    elif parent is None:
        if role != "plan":
            raise PromptError(
                f"role '{role}' needs a parent attempt and got none; name one (--parent), or use role 'propose'"
            )
    elif parent.passed == (role in {"repair", "critique"}):
        wanted = "improve" if parent.passed else "repair"
        raise PromptError(
            f"role '{role}' does not fit attempt {parent.number}, whose outcome is '{parent.outcome}'; "
            f"use role '{wanted}'"
        )


def _major_minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


BYTES_PER_TOKEN = 3.5
"""Between prose, at about 4.3 bytes a token, and code, at about 3."""


def estimated_tokens(text: str) -> int:
    """An estimate and no more: UTF-8 bytes over 3.5, rounded up. Real counts depend on the model's own tokenizer."""
    return math.ceil(len(text.encode()) / BYTES_PER_TOKEN)


class Section(Record):
    """One named part of a prompt."""

    name: str
    text: str
    stable: bool
    """Whether it depends only on problem, target and versions: the same on every machine and in every attempt."""

    @cached_property
    def digest(self) -> str:
        """sha256 of the text, as 64 hex digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def tokens(self) -> int:
        return estimated_tokens(self.text)


class Prompt(Record):
    """What the model reads. Stable sections come first, so that a provider's prefix cache can serve them again."""

    role: Role
    target: Target
    sections: tuple[Section, ...]

    @cached_property
    def text(self) -> str:
        return _joined(self.sections)

    @cached_property
    def digest(self) -> str:
        """sha256 of `text`, as 64 hex digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def stable_digest(self) -> str:
        """sha256 over the stable sections, as 64 hex digits: equal for all attempts at one problem on any machine."""
        stable = _joined(section for section in self.sections if section.stable)
        return hashlib.sha256(stable.encode()).hexdigest()

    @property
    def tokens(self) -> int:
        return sum(section.tokens for section in self.sections)


def _joined(sections: Iterable[Section]) -> str:
    return "\n\n".join(section.text for section in sections) + "\n"


RECENT = 3


def shortened(rows: Sequence[PastAttempt], tokens: int, first: Sequence[int] = ()) -> tuple[PastAttempt, ...]:
    """As many rows as fit into about `tokens`, in their own order.

    Those numbered in `first` go before all others, then the fastest, the latest few, what else passed, and the other
    failures, each the latest first. The budget is an estimate: see `estimated_tokens`.
    """
    left = tokens
    kept: set[int] = set()
    for row in sorted(rows, key=lambda row: _rank(row, rows, first)):
        left -= _tokens(row)
        if left < 0:
            break
        kept.add(row.number)
    return tuple(row for row in rows if row.number in kept)


def _rank(row: PastAttempt, rows: Sequence[PastAttempt], first: Sequence[int]) -> tuple[int, int]:
    fastest = max(rows, key=lambda one: 0.0 if one.doubt else one.speedup or 0.0)
    if row.number in first:
        return 0, list(first).index(row.number)
    if row is fastest and row.passed:
        return 1, 0
    if row.number > rows[-1].number - RECENT:
        return 2, -row.number
    return (3 if row.passed else 4), -row.number


def _tokens(row: PastAttempt) -> int:
    return estimated_tokens(
        f"| {row.number} | {row.role} | {row.idea} | {row.outcome} | 0.000 | 0.00x{row.doubt} | {row.detail} |"
    )
