"""A model, its inputs and its calls: cast to another dtype, over memory that the judge lends, forward and backward.

What is floating is cast once it is made, as `Module.to` does.
"""

import mmap
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from kernelwright_child import wire


def cast_model(model: Any, dtype: str | None) -> None:
    """Cast parameters and buffers; nothing for None. What a model keeps elsewhere stays as it is."""
    if dtype is not None:
        model.to(getattr(torch, dtype))


def cast_inputs(inputs: list[Any], dtype: str | None) -> list[Any]:
    """The inputs with floating tensors cast; integers, booleans and complex numbers stay as they were drawn."""
    if dtype is None:
        return inputs
    wanted = getattr(torch, dtype)

    def cast(leaf: Any) -> Any:
        return leaf.to(wanted) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    return [tree_map(cast, value) for value in inputs]


def lent_tensors(fd: int, specs: Sequence[dict[str, Any]]) -> list[torch.Tensor]:
    """One tensor for each spec (`dtype`, `shape`, `offset` in bytes), sharing the pages of the descriptor.

    The descriptor is closed: the mapping holds one of its own, and closes it when none of the tensors lives any more.
    """
    try:
        memory = mmap.mmap(fd, 0)
    finally:
        os.close(fd)
    return [_tensor(memory, spec) for spec in specs]


def _tensor(memory: mmap.mmap, spec: dict[str, Any]) -> torch.Tensor:
    dtype = getattr(torch, spec["dtype"])
    count = 1
    for size in spec["shape"]:
        count *= size
    if count == 0:
        return torch.empty(spec["shape"], dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=spec["offset"]).view(spec["shape"])


def constant_of(weight: torch.Tensor) -> float | None:
    """The value that all elements of a floating tensor have; None where they differ."""
    if not weight.is_floating_point() or not weight.numel() or not bool((weight == weight.view(-1)[0]).all()):
        return None
    return float(weight.view(-1)[0])


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
