"""Which families of input values a problem leaves out, and why."""

from typing import Annotated, Self

from pydantic import AfterValidator, model_validator
from pydantic_core import PydanticCustomError

from kernelwright.problems.record.base import Record
from kernelwright.problems.record.value_families import FAMILIES


def _known(name: str) -> str:
    if name not in FAMILIES:
        *others, last = map(repr, FAMILIES)
        known = f"{', '.join(others)} or {last}"
        raise PydanticCustomError("family", "Input should be {known}", {"known": known})
    return name


class ExcludedValues(Record):
    """Families that lie outside of what a problem is defined for, such as negative values under a logarithm."""

    without: tuple[Annotated[str, AfterValidator(_known)], ...] = ()
    reason: str = ""
    """Why; must be given where any family is left out."""

    @model_validator(mode="after")
    def _has_a_reason(self) -> Self:
        if self.without and not self.reason.strip():
            raise ValueError("[values] leaves families of values out; add its reason")
        return self
