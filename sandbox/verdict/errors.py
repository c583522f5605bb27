"""Errors that are not the candidate's fault, and the one that is."""

from typing import Literal

Stage = Literal["scan", "build", "load", "run", "check", "time"]


class SandboxError(Exception):
    """The judging cannot go on; the text is one sentence with the remedy."""


class MachineError(SandboxError):
    """The machine lacks something: a compiler, a GPU, a permission, space. Exit code 3."""


class BrokenProblem(SandboxError):
    """The problem's own reference does not load, run or agree with itself. Exit code 2."""


class UnsupportedProblem(BrokenProblem):
    """The reference runs by itself, but needs something that cannot be judged here. Exit code 2."""


class UnsupportedHere(UnsupportedProblem):
    """It could be judged on a machine that has more memory; the text says how much it takes and how much there is."""


class StageFailed(Exception):
    """A stage ended the judging of a candidate, whose fault it is: stage, reason, log.

    `is_unsteady`: a second call on the same values gave another result than the wrong one.
    """

    def __init__(self, stage: Stage, reason: str, log: str = "", is_unsteady: bool = False) -> None:
        super().__init__(reason)
        self.stage, self.reason, self.log, self.is_unsteady = stage, reason, log, is_unsteady
