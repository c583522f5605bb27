"""Candidates that are right, and that a judge which is too strict would refuse."""

from typing import NamedTuple

from kernelwright.sandbox.verdict.verdicts import Candidate
from tests.hostile.cheats.problems import posed


class Honest(NamedTuple):
    """A right candidate, and what is unusual about it."""

    habit: str
    problem: str
    forward: str
    top: str = ""
    constructor: str = "pass"
    init: str = ""

    @property
    def candidate(self) -> Candidate:
        """The source, whole."""
        return posed(self.problem).candidate(self.forward, self.constructor, self.top, self.init)
