"""The `Problem` record."""

import hashlib
from functools import cached_property
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

PrecisionPolicy = Literal["strict", "tf32", "half"]
OperatorPolicy = Literal["any", "no-library", "custom-only"]
Direction = Literal["forward", "backward", "both"]


class ProblemError(ValueError):
    """A problem that cannot be had as asked. The message is one sentence for the user, with the remedy."""


class Tolerance(BaseModel):
    """How far a candidate may be from the float64 result, as a multiple of the reference's own rounding error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    factor: float = Field(default=8.0, gt=0)
    """k: the candidate's error against float64 may be k times the error of the same-dtype reference."""
    floor_ulp: float = Field(default=64.0, gt=0)
    """The bound never falls below this many units in the last place, at the output's own scale.

    64 lets a plain running sum of some thousand terms pass, where the reference adds pairwise; TF32 is 8192 away. For
    outputs of 16 bits, whose sums run in float32, the floor is 2 at most.
    """
    reason: str = ""
    """Why this problem departs from the defaults; must be given where it does."""


class Problem(BaseModel):
    """What to compute, at one size. Immutable; two problems with the same digest ask the same thing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Catalog name such as `softmax`, or the file's stem for a file from elsewhere."""
    title: str
    family: str
    size: str
    """`cpu` or `gpu` for catalog problems; `file` where the file itself fixes the shapes."""
    source: str
    """The reference as self-contained Python: `Model`, `get_inputs`, `get_init_inputs`, sizes already put in."""
    precision: PrecisionPolicy = "strict"
    """`strict`: no arithmetic below the dtype's own; `tf32` and `half` allow the named lower precision inside."""
    operators: OperatorPolicy = "any"
    """Which operators a candidate may call: any; none of the vendor libraries; only its own kernels."""
    direction: Direction = "forward"
    tolerance: Tolerance = Tolerance()

    @cached_property
    def digest(self) -> str:
        """sha256 over the whole record, as 64 hex digits."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()
