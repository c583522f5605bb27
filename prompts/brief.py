"""The `Brief`: all that a prompt is made from, and the rules that it must keep."""

from typing import Literal

from pydantic import Field

from kernelwright.problems import Problem
from kernelwright.problems.languages import Target
from kernelwright.problems.record.base import Record
from kernelwright.prompts.devices import DeviceSheet

Role = Literal["propose", "repair", "improve", "tune", "plan", "critique", "reflect"]
"""What a step does. The first three ask for a candidate. `tune` asks nobody: it changes constants that a candidate
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


class Yardstick(Record):
    """What an answer is held against in time, on the brief's device: facts, one line each, with units."""

    times: tuple[str, ...] = ()
    """Of PyTorch: eager under the problem's policy and as it ships, torch.compile."""
    floor: tuple[str, ...] = ()
    """The least that bytes and operations take, and what a plain copy of as many bytes does."""


class Brief(Record):
    """What to ask for, in one step of a search."""

    problem: Problem
    target: Target
    role: Role
    device: DeviceSheet
    versions: TargetVersions = TargetVersions()
    yardstick: Yardstick = Yardstick()
    directive: str = ""
    """The one thing to do in this step; empty for the role's default."""
    parent: Parent | None = None
    history: tuple[PastAttempt, ...] = ()
    left_out: int = 0
    """Attempts that the history leaves out for want of room."""
    lessons: tuple[str, ...] = ()
    """What a reflection on earlier attempts said."""

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
