"""Answers that no work stands behind, to be held against a problem like a candidate's. Pure."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from kernelwright.sandbox.tensors.values import RawTensor, Values


class Case(NamedTuple):
    """One set of inputs with what the reference makes of them."""

    inputs: Values
    exact: Values
    """In float64."""
    result: Values
    """In the reference's own dtype."""


class OtherCase(NamedTuple):
    """Another set of inputs with the reference's result: what a lazy candidate might answer instead."""

    inputs: Values
    result: Values


def lazy_answers(case: Case, other: OtherCase, lower_precision: bool) -> Iterator[tuple[str, Values]]:
    """By name, what a lazy candidate might return.

    `lower_precision` says whether less precision than the dtype's own counts as lazy.
    """
    result = case.result
    yield "zeros", _each(result, torch.zeros_like)
    yield "the mean of the output everywhere", _each(result, _mean)
    yield "the first element everywhere", _each(result, _first)
    yield "the mean along axis 0, repeated", _each(result, _mean_along_first)
    yield "the mean along the last axis, repeated", _each(result, _mean_along_last)
    yield "the first index of axis 0, repeated", _each(result, _repeated)
    yield "the result for other inputs", other.result
    if lower_precision and any(tensor.dtype in LOWER for tensor in result.tensors):
        yield f"the result rounded to {_lower(result)}", _each(result, rounded)
    for index, tensor in enumerate(case.inputs.tensors):
        if len(result.tensors) == 1 and tensor[:2] == result.tensors[0][:2]:
            yield f"input {index} passed through", Values(result.tree, (tensor,))


def lazy_inputs(case: Case, other: OtherCase, lower_precision: bool) -> Iterator[tuple[str, Values]]:
    """By name, other inputs than those that were given, for which a lazy candidate might compute."""
    tensors = case.inputs.tensors
    for index, (mine, theirs) in enumerate(zip(tensors, other.inputs.tensors, strict=True)):
        if mine[:2] == theirs[:2] and mine.data != theirs.data:
            yield f"the result for another input {index}", _with(case.inputs, index, theirs)
    for index, raw in enumerate(tensors):
        short = _cut(raw.tensor())
        if short is not None:
            yield f"the result without the last eighth of input {index}", _with(case.inputs, index, RawTensor.of(short))
    if lower_precision and any(tensor.dtype in LOWER for tensor in tensors):
        yield f"the result for inputs rounded to {_lower(case.inputs)}", _each(case.inputs, rounded)


LOWER = {"float32": torch.bfloat16, "float64": torch.float32}
"""The next dtype that a lazy candidate would compute in."""


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in the next lower precision, widened again."""
    lower = LOWER.get(str(tensor.dtype).removeprefix("torch."))
    return tensor if lower is None else tensor.to(lower).to(tensor.dtype)


def _lower(values: Values) -> str:
    names = [LOWER[tensor.dtype] for tensor in values.tensors if tensor.dtype in LOWER]
    return str(names[0]).removeprefix("torch.")


# Where an answer is what a right one would be, as with an axis of length 1, zeros stand in for it.
def _each(values: Values, change: Callable[[torch.Tensor], torch.Tensor]) -> Values:
    return Values(values.tree, tuple(RawTensor.of(change(raw.tensor())) for raw in values.tensors))


def _with(values: Values, index: int, tensor: RawTensor) -> Values:
    return Values(values.tree, (*values.tensors[:index], tensor, *values.tensors[index + 1 :]))


def _mean(tensor: torch.Tensor) -> torch.Tensor:
    if not _has_a_mean(tensor) or tensor.numel() == 1:
        return torch.zeros_like(tensor)  # of a single value it would be the right answer
    return torch.full_like(tensor, tensor.mean(dtype=torch.float64).item())


def _mean_along_first(tensor: torch.Tensor) -> torch.Tensor:
    return _mean_along(tensor, 0)


def _mean_along_last(tensor: torch.Tensor) -> torch.Tensor:
    return _mean_along(tensor, -1)


def _mean_along(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    if not _has_a_mean(tensor) or not tensor.dim() or tensor.shape[axis] == 1:
        return torch.zeros_like(tensor)
    return tensor.mean(axis, keepdim=True, dtype=torch.float64).to(tensor.dtype).expand(tensor.shape)


def _has_a_mean(tensor: torch.Tensor) -> bool:
    return bool(tensor.numel()) and not tensor.is_complex()


def _first(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.numel() < 2:
        return torch.zeros_like(tensor)
    return tensor.reshape(-1)[:1].expand(tensor.numel()).view(tensor.shape)


def _repeated(tensor: torch.Tensor) -> torch.Tensor:
    several = tensor.dim() and tensor.numel() and tensor.shape[0] > 1
    return tensor[:1].expand(tensor.shape) if several else torch.zeros_like(tensor)


def _cut(tensor: torch.Tensor) -> torch.Tensor | None:
    """Zeros in the last eighth of the last axis; None where there is none."""
    if not tensor.is_floating_point() or not tensor.dim() or tensor.shape[-1] < 2 or not tensor.numel():
        return None
    short = tensor.clone()
    short[..., -max(1, tensor.shape[-1] // 8) :] = 0
    return short
