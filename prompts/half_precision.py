"""What a prompt says of a dtype of 16 bits that weights and inputs are cast to."""

from typing import NamedTuple

from kernelwright.problems import Problem

FORMATS = {"float16": ("fp16", 10), "bfloat16": ("bf16", 7)}
"""By dtype, its short name and the bits of its fraction."""
MOST_ULP = 2.0
MANY, SHARE = 64, 0.5
"""The judge allows outputs of 16 bits no wider a floor, and of so many elements this share of floor and factor; see
`docs/judge.md`."""


class HalfPrecision(NamedTuple):
    """A dtype of 16 bits, and the bound that comes with it."""

    short: str
    """`fp16` or `bf16`."""
    many: int
    """The elements of an output from which on these bounds hold; of fewer twice as much is allowed."""
    factor: float
    """How many times the reference's own rounding error is allowed."""
    floor_ulp: float
    floor: float
    """The same as a share of the output's largest magnitude."""


def narrow_of(problem: Problem) -> HalfPrecision | None:
    """None where weights and inputs stay as they are, or are of 32 bits."""
    if problem.dtype not in FORMATS:
        return None
    short, fraction_bits = FORMATS[problem.dtype]
    ulp = SHARE * min(MOST_ULP, problem.tolerance.floor_ulp)
    factor = SHARE * problem.tolerance.factor
    return HalfPrecision(short=short, many=MANY, factor=factor, floor_ulp=ulp, floor=ulp / 2**fraction_bits)
