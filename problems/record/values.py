"""The families of input values that a problem is judged on beside its own draw: their names, and which it leaves out.

What each of them does to values is `kernelwright.sandbox.correctness.families`.
"""

from typing import Literal, Self, get_args

from pydantic import model_validator

from kernelwright.problems.record.base import Record

ValueFamily = Literal[
    "scaled up by 8",
    "scaled down by 1000",
    "shifted by 100",
    "shifted below zero",
    "all negative",
    "with every other sign changed",
    "with ties",
    "with rows of zeros",
    "of mixed magnitude",
    "with outliers",
]
VALUE_FAMILIES: tuple[ValueFamily, ...] = get_args(ValueFamily)


class ExcludedValues(Record):
    """Families that lie outside of what a problem is defined for, such as negative values under a logarithm."""

    without: tuple[ValueFamily, ...] = ()
    reason: str = ""
    """Why; must be given where any family is left out."""

    @model_validator(mode="after")
    def _has_a_reason(self) -> Self:
        if self.without and not self.reason.strip():
            raise ValueError("[values] leaves families of values out; add its reason")
        return self
