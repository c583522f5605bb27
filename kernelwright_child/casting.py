"""A model and its inputs at another dtype: what is floating is cast once it is made, as `Module.to` does."""

from typing import Any

import torch
from torch.utils._pytree import tree_map


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
