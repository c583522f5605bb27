"""Does a problem notice a lazy answer? Trivial outputs are held against it like a candidate's. Pure."""

from collections.abc import Callable, Iterator

import torch

from problems import Tolerance
from sandbox.compare import mismatch
from sandbox.values import RawTensor, Values
from sandbox.verdict import ProblemStatus

Draw = tuple[Values, Values, Values]
"""Inputs, the float64 result and the result in the reference's own dtype, for one seed."""


def problem_status(first: Draw, second: Draw, tolerance: Tolerance) -> ProblemStatus:
    """`weak`, with a sentence for each, where one of the trivial answers would pass on the first draw."""
    inputs, exact, same_dtype = first
    accepted = [
        f"it accepts {name}"
        for name, answer in _trivial_answers(inputs, same_dtype, second[2])
        if mismatch(answer, exact, same_dtype, tolerance) is None
    ]
    return ProblemStatus(status="weak" if accepted else "ok", why=tuple(accepted))


def _trivial_answers(inputs: Values, result: Values, other: Values) -> Iterator[tuple[str, Values]]:
    yield "zeros", _each(result, torch.zeros_like)
    yield "the mean of the output everywhere", _each(result, _mean)
    yield "the result for other inputs", other
    if any(tensor.dtype == "float32" for tensor in result.tensors):
        yield "the result rounded to bfloat16", _each(result, _rounded)
    for index, tensor in enumerate(inputs.tensors):
        if len(result.tensors) == 1 and tensor[:2] == result.tensors[0][:2]:
            yield f"input {index} passed through", Values(result.tree, (tensor,))


def _each(values: Values, change: Callable[[torch.Tensor], torch.Tensor]) -> Values:
    return Values(values.tree, tuple(RawTensor.of(change(raw.tensor())) for raw in values.tensors))


def _mean(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full_like(tensor, tensor.double().mean().item()) if tensor.numel() else tensor


def _rounded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16().float() if tensor.dtype == torch.float32 else tensor
