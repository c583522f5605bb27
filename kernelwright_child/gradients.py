"""A call forward and backward, with all that flows out of it."""

from collections.abc import Callable
from typing import Any

import torch

from kernelwright_child import wire

Weights = list[tuple[torch.nn.Parameter | None, torch.Size]]


def weights_of(model: torch.nn.Module, order: list[tuple[str, torch.Size]]) -> Weights:
    """The parameters of these names with the shapes that their gradients shall have; None for what is no parameter."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return [(parameters.get(name), shape) for name, shape in order]


def differentiate(run: Callable[..., Any], weights: Weights, values: Any) -> Any:
    """Outputs and gradients of a call on `[inputs, gradients of the floating outputs]`."""
    inputs, gradients = values
    inputs = [_leaf(value) for value in inputs]
    for parameter, _ in weights:
        if parameter is not None:
            parameter.grad = None
    outputs = run(*inputs)
    flat: list[torch.Tensor] = []
    wire.pack(outputs, flat)
    roots = [tensor for tensor in flat if tensor.is_floating_point()]
    torch.autograd.backward(roots, gradients)
    return {
        "outputs": _detached(outputs),
        "inputs": [value.grad if isinstance(value, torch.Tensor) else None for value in inputs],
        "weights": [None if w is None or w.grad is None else w.grad.reshape(shape) for w, shape in weights],
    }


def _leaf(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().requires_grad_()
    return value


def _detached(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(_detached, value))
    return {key: _detached(item) for key, item in value.items()} if isinstance(value, dict) else value
