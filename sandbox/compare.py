"""Is an output right? Decided by arithmetic: the float64 result, and what rounding alone does to the reference. Pure.

A candidate in dtype T may be off from float64 by `factor` times the error of the reference computed in T, never less
than `floor_ulp` units in the last place at the output's own scale; once for the largest element, once for the relative
L2 norm. The next lower precision is hundreds of units away, so it does not pass.
"""

import math
from typing import Any, NamedTuple

import torch

from problems import Problem, Tolerance
from sandbox.patterns import describe_pattern
from sandbox.values import RawTensor, Values


class Wrong(NamedTuple):
    """Why an output was refused: a sentence first, then what helps to find the mistake."""

    reason: str
    details: str


class Bound(NamedTuple):
    """What one output tensor may be off by."""

    largest: float
    norm: float


SHORT_FLOOR_ULP = 2.0
"""The floor for outputs of 16 bits: their sums run in float32, so only the last rounding is theirs."""
LOWER_PRECISION_ULP = {"strict": 0.0, "tf32": 2.0**13, "half": 2.0**16}
"""Units in the last place of float32 that one unit of TF32 (10 bits of fraction) or bf16 (7 bits) spans."""


def tolerance_of(problem: Problem) -> Tolerance:
    """The problem's tolerance, widened where its precision policy allows a lower precision inside float32."""
    floor = max(problem.tolerance.floor_ulp, LOWER_PRECISION_ULP[problem.precision])
    return problem.tolerance.model_copy(update={"floor_ulp": floor})


def mismatch(got: Values, exact: Values, same_dtype: Values, tolerance: Tolerance) -> Wrong | None:
    """The first thing in which `got` is wrong, or None.

    `exact` is the reference in float64, `same_dtype` the reference as it stands, both on the inputs of `got`.
    """
    if got.tree != same_dtype.tree or len(got.tensors) != len(same_dtype.tensors):
        return Wrong(
            f"the structure of the result is {_shown(got.tree)}, the reference's is {_shown(same_dtype.tree)}", ""
        )
    for index, (mine, true, rounded) in enumerate(zip(got.tensors, exact.tensors, same_dtype.tensors, strict=True)):
        label = "the output" if len(got.tensors) == 1 else f"output {index}"
        wrong = _form(label, mine, rounded) or _values(label, mine, true, rounded, tolerance)
        if wrong:
            return wrong
    return None


def _form(label: str, mine: RawTensor, reference: RawTensor) -> Wrong | None:
    if mine.shape != reference.shape:
        return Wrong(f"{label} has shape {list(mine.shape)}, the reference's is {list(reference.shape)}", "")
    if mine.dtype != reference.dtype:
        return Wrong(f"{label} has dtype {mine.dtype}, the reference's is {reference.dtype}", "")
    return None


def _values(label: str, mine: RawTensor, true: RawTensor, rounded: RawTensor, tolerance: Tolerance) -> Wrong | None:
    got = mine.tensor()
    if not (got.is_floating_point() or got.is_complex()):
        return _exact_values(label, got, rounded.tensor())
    want, near = true.tensor().double(), rounded.tensor()
    if not (torch.isfinite(got).all() and torch.isfinite(near).all()):
        for name, test in (("NaN", torch.isnan), ("+Inf", torch.isposinf), ("-Inf", torch.isneginf)):
            if not torch.equal(test(got), test(near)):
                return _mask_difference(label, name, test(got), test(near))
        finite = torch.isfinite(near)
        # The same places on both sides, so they are right; zeros keep the shape for the pattern.
        got, want, near = (torch.where(finite, tensor, 0) for tensor in (got, want, near))
    return _too_far(label, got.double(), want, error_bound(near, want, tolerance))


def _too_far(label: str, got: torch.Tensor, want: torch.Tensor, bound: Bound) -> Wrong | None:
    error = (got - want).abs_()
    largest = float(error.max()) if error.numel() else 0.0
    norm = float(torch.linalg.vector_norm(error))
    if largest <= bound.largest and norm <= bound.norm:
        return None
    over = f"its largest error is {largest:.3g}, the bound {bound.largest:.3g}"
    if largest <= bound.largest:
        over = f"the norm of its error is {norm:.3g}, the bound {bound.norm:.3g}"
    pattern = describe_pattern(got, want, bound.largest)
    return Wrong(f"{label} is wrong: {over}; {pattern.splitlines()[0]}", pattern)


def error_bound(near: torch.Tensor, want: torch.Tensor, tolerance: Tolerance) -> Bound:
    """Largest and L2 error that rounding explains, from the same-dtype reference `near` and the float64 `want`."""
    if not want.numel():
        return Bound(0.0, 0.0)
    short = near.dtype.itemsize <= 2
    unit = min(tolerance.floor_ulp, SHORT_FLOOR_ULP if short else math.inf) * torch.finfo(near.dtype).eps
    error = (near.double() - want).abs_()
    largest = max(tolerance.factor * float(error.max()), unit * float(want.abs().max()))
    norm = max(tolerance.factor * float(torch.linalg.vector_norm(error)), unit * float(torch.linalg.vector_norm(want)))
    return Bound(largest, norm)


def _exact_values(label: str, got: torch.Tensor, want: torch.Tensor) -> Wrong | None:
    if torch.equal(got, want):
        return None
    pattern = describe_pattern(got.double(), want.double(), 0.0)
    return Wrong(f"{label} is wrong: {pattern.splitlines()[0]}", pattern)


def _mask_difference(label: str, name: str, got: torch.Tensor, want: torch.Tensor) -> Wrong:
    index = [int(axis) for axis in torch.nonzero(got != want)[0]]
    count = int((got != want).sum())
    verb, other = ("has", "has none") if got[tuple(index)] else ("lacks", "has one")
    return Wrong(f"{label} {verb} {name} at {index}, where the reference {other} ({count} such places)", "")


def _shown(tree: dict[str, Any]) -> str:
    ((kind, body),) = tree.items()
    if kind == "t":
        return "a tensor"
    if kind in ("l", "p"):
        return f"a {'list' if kind == 'l' else 'tuple'} of ({', '.join(_shown(item) for item in body)})"
    if kind == "d":
        return "a dict of (" + ", ".join(f"{key}: {_shown(item)}" for key, item in body) + ")"
    return repr(body)
