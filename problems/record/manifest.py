"""`problem.toml`: what a catalog problem says about itself beside its reference."""

import tomllib
from typing import Annotated, Self

from pydantic import BaseModel, StrictInt, StringConstraints, ValidationError, model_validator

from kernelwright.problems.record.base import Record
from kernelwright.problems.record.problem import (
    Direction,
    Dtype,
    OperatorPolicy,
    Origin,
    PrecisionPolicy,
    ProblemError,
    StatePolicy,
    Tolerance,
)
from kernelwright.problems.record.values import ExcludedValues

DEFAULT_SIZE = "cpu"
"""The size that is loaded where none is asked for; so every manifest has it."""

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Manifest(Record):
    """The whole of one `problem.toml`."""

    family: Text
    """The group that the problem is listed in, such as `norm`."""
    title: Text
    """One line that says what is computed."""
    precision: PrecisionPolicy = "strict"
    operators: OperatorPolicy = "any"
    direction: Direction = "forward"
    dtype: Dtype | None = None
    state: StatePolicy = "free"
    tolerance: Tolerance = Tolerance()
    values: ExcludedValues = ExcludedValues()
    origin: Origin | None = None
    sizes: dict[str, dict[str, StrictInt]]
    """By name of the size: the values of the reference's module-level constants."""

    @model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        if DEFAULT_SIZE not in self.sizes:
            raise ValueError(f"there is no table [sizes.{DEFAULT_SIZE}]; add it")
        expected = self.sizes[DEFAULT_SIZE].keys()
        for size, values in self.sizes.items():
            for constant in sorted(expected ^ values.keys()):
                raise ValueError(
                    f"{constant} is set in only one of [sizes.{DEFAULT_SIZE}] and [sizes.{size}]; set both"
                )
        return self

    @model_validator(mode="after")
    def _departure_has_a_reason(self) -> Self:
        departs = self.tolerance.model_copy(update={"reason": ""}) != Tolerance()
        if departs and not self.tolerance.reason.strip():
            raise ValueError("[tolerance] departs from the defaults; add its reason")
        return self


def parse_manifest(text: str, where: str) -> Manifest:
    """The manifest in `text`; `where` names the file in the one sentence of a `ProblemError`."""
    try:
        return Manifest.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ProblemError(f"{where} is not valid TOML: {error}; correct it") from error
    except ValidationError as error:
        raise ProblemError(f"{where}: {_first_fault(error)}") from error


def _first_fault(error: ValidationError) -> str:
    """The first of pydantic's faults in words: where, what stands there, what should."""
    fault = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in fault["loc"])
    match fault["type"]:
        case "missing":
            return f"the key {key!r} is missing; add it"
        case "extra_forbidden":
            tables: dict[str, type[BaseModel]] = {"tolerance": Tolerance, "values": ExcludedValues}
            known = tables.get(key.partition(".")[0], Manifest).model_fields
            return f"unknown key {key!r}; there are: {', '.join(known)}"
        case "value_error":
            return str(fault["ctx"]["error"])
    asked = fault["msg"].removeprefix("Input should be ")
    return f"{key!r} is {fault['input']!r}; it should be {asked}"
