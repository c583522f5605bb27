"""The `Problem` record, the base of all records, and the errors of what is read."""

import hashlib
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from kernelwright.problems.input_distributions import DISTRIBUTIONS


class Record(BaseModel):
    """A frozen, closed record: unknown fields are errors, and nothing changes after construction."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Fault(NamedTuple):
    key: str
    """Its path, as `table.entry.field`; empty for the complete record."""
    said: str


def first_fault(error: ValidationError) -> Fault:
    found = error.errors(include_url=False)[0]
    return Fault(".".join(str(part) for part in found["loc"]), found["msg"])


T = TypeVar("T")


def read_table(path: Path, kind: type[T], what: str, error: type[Exception]) -> T:
    """Return the table in a file as `kind`. Raises `error` with one sentence, in which `what` names the table."""
    try:
        return TypeAdapter(kind).validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as fault:
        raise error(f"cannot read {what} {path} ({fault.strerror}); check the path") from fault
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
        raise error(f"{what} {path} is not valid TOML: {fault}; correct it") from fault
    except ValidationError as fault:
        key, said = first_fault(fault)
        raise error(f"{what} {path}: {key or 'the file'}: {said}; correct it") from fault


class ProblemError(ValueError):
    """A problem that cannot be loaded as requested. The message is one sentence for the user, with the remedy."""


class LibraryMissing(Exception):
    """A library that this installation lacks; the message is one sentence with the remedy."""

    @classmethod
    def of_extra(cls, what_for: str, package: str | None, extra: str) -> "LibraryMissing":
        """Name the use, the package that it needs, and the extra of ours that brings it."""
        return cls(f"{what_for} needs {package}; run pip install 'kernelwright[{extra}]'")


def library(name: str, what_for: str) -> Any:
    """Import a module. Raises `LibraryMissing`, with the purpose, where it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        raise LibraryMissing.of_extra(what_for, name.partition(".")[0], "data") from None


PrecisionPolicy = Literal["strict", "tf32", "half"]
OperatorPolicy = Literal["any", "no-library", "custom-only"]
Direction = Literal["forward", "backward", "both"]
Dtype = Literal["float32", "float16", "bfloat16"]
StatePolicy = Literal["free", "followed"]
Format = Literal["kernelbench", "robust-kbench", "flashinfer", "sol-execbench", "kernelbot"]
"""Benchmarks whose problems can be read."""

Bound = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
"""Above 1 any element would be correct."""


class StatedTolerance(Record):
    """Tolerance of the benchmark that a problem comes from, in its own terms; None where it does not say.

    An element is correct where |error| <= max_atol + max_rtol * |expected|.
    """

    max_atol: Bound | None = None
    max_rtol: Bound | None = None
    required_matched_ratio: float | None = Field(default=None, ge=0, le=1)
    """The share of elements that must be correct; all of them where it is None."""
    max_error_cap: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Limit on the error of every element, correct or not."""
    allow_negative_inf: bool | None = None
    """Whether -inf is accepted where the reference has it."""


class Tolerance(Record):
    """Allowed distance from the float64 result, as a multiple of the reference's own rounding error."""

    factor: float = Field(default=8.0, gt=0, le=1e6, allow_inf_nan=False)
    """k: the candidate's error against float64 may be k times the error of the same-dtype reference."""
    floor_ulp: float = Field(default=64.0, gt=0, le=2**23, allow_inf_nan=False)
    """The bound never falls below this many units in the last place, at the output's own scale.

    64 lets a plain running sum of some thousand terms pass, where the reference adds pairwise; TF32 is 8192 away. For
    outputs of 16 bits, whose sums run in float32, the floor is 2 at most; of 64 elements or more half of that, and half
    of the factor.
    """
    stated: StatedTolerance | None = None
    """The tolerance of the benchmark that the problem comes from, if it states one; kept next to ours."""
    reason: str = ""
    """The justification; required where this differs from the defaults."""


def _known_distribution(name: str) -> str:
    if name not in DISTRIBUTIONS:
        *others, last = map(repr, DISTRIBUTIONS)
        known = f"{', '.join(others)} or {last}"
        raise PydanticCustomError("distribution", "Input should be {known}", {"known": known})
    return name


class ExcludedValues(Record):
    """Input distributions that a problem is not defined for, such as negative values under a logarithm."""

    without: tuple[Annotated[str, AfterValidator(_known_distribution)], ...] = ()
    reason: str = ""
    """The justification; required where any is excluded."""

    @model_validator(mode="after")
    def _has_a_reason(self) -> Self:
        if self.without and not self.reason.strip():
            raise ValueError("[values] excludes input distributions; add its reason")
        return self


class Origin(Record):
    """The benchmark that a problem comes from, and its name there, under which results are handed back."""

    format: Format
    id: str
    """The id in its benchmark: `level1/3`, `TASK/CONFIGURATION`, `DEFINITION/WORKLOAD`."""
    title: str = ""
    """The benchmark's own name for it, such as the file name `3_Softmax.py`."""
    details: dict[str, JsonValue] = Field(default={})
    """Facts that results repeat: for `DEFINITION/WORKLOAD` the workload, and the names of inputs and outputs."""


class Policies(Record):
    """Rules that a problem is judged by. A manifest sets them under the same names."""

    precision: PrecisionPolicy = "strict"
    """`strict`: no arithmetic below the dtype's own; `tf32` and `half` allow the named lower precision inside."""
    operators: OperatorPolicy = "any"
    """Which operators a candidate may call: any; none of the vendor libraries; only its own kernels."""
    direction: Direction = "forward"
    dtype: Dtype | None = None
    """The dtype that weights and floating inputs are cast to; None keeps those that the source makes."""
    state: StatePolicy = "free"
    """Whether buffers that forward changes, such as running statistics, must change as the reference's do."""
    tolerance: Tolerance = Tolerance()
    values: ExcludedValues = ExcludedValues()
    """Input distributions that it is not judged on."""
    origin: Origin | None = None
    """None for a problem that was written for us."""


class Mode(Record):
    """The mode in which a reference is called, and torch's functions that depend on it, as its process tells them."""

    is_training: bool
    batch: tuple[str, ...] = ()
    """Normalisations by statistics of the batch, which keep running ones too."""
    running: tuple[str, ...] = ()
    """Those by running statistics."""
    drawing: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    """Those that would draw in training mode."""

    @property
    def matters(self) -> bool:
        return bool(self.batch or self.running or self.drawing or self.silent)


class Reference(Record):
    """A reference program at one size."""

    name: str
    """Catalog name such as `softmax`, or the file's stem for a file from elsewhere."""
    title: str
    family: str
    size: str
    """`cpu` or `gpu` for catalog problems; `file` where the file itself fixes the shapes."""
    source: str
    """The reference as self-contained Python: `Model`, `get_inputs`, `get_init_inputs`, sizes already put in."""


class Problem(Policies, Reference):
    """Computation to be made fast, at one size. Problems with the same digest are the same.

    Fields of the last base come first: their order is that of stored records, over which digests are taken.
    """

    @property
    def record(self) -> str:
        """The problem as JSON text, as it is stored under `digest`.

        A field of `LATER` is left out where it has its default, so that older records keep their digests.
        """
        silent = {name for name in LATER if getattr(self, name) == type(self).model_fields[name].default}
        return self.model_dump_json(exclude=silent)

    @property
    def digest(self) -> str:
        """sha256 over `record`, as 64 hex digits; not remembered, since a changed copy would take it over."""
        return hashlib.sha256(self.record.encode()).hexdigest()


LATER = ("dtype", "state", "values")
"""Fields of `Problem` that came after records with digests had been written."""
