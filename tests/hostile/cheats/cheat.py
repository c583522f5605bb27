"""What a cheat is: a candidate that must not get through, and why it does not."""

from typing import NamedTuple

from kernelwright.sandbox.verdict.verdicts import Candidate
from tests.hostile.cheats.problems import posed


class Cheat(NamedTuple):
    """A candidate that takes a way round the work."""

    trick: str
    """What it does, in words."""
    lines: tuple[int, ...]
    """Kinds of documented cheats that it stands for, by their number in `kinds.py`; empty for our own inventions."""
    problem: str
    stage: str
    words: str
    """What the reason holds. Several, divided by `|`: any of them will do."""
    forward: str
    top: str = ""
    constructor: str = "pass"
    init: str = ""
    stopped_by: str = ""
    """The check or other defence that alone stops it, by its name in `JudgeSettings.without`."""

    @property
    def candidate(self) -> Candidate:
        """The source, whole."""
        return posed(self.problem).candidate(self.forward, self.constructor, self.top, self.init)
