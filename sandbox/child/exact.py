"""A reference in float64, also where it names narrower types itself, or reaches its modules by another way.

The model is not copied: a copy would be missed by whatever holds the modules themselves, such as a lambda that a
constructor made. Its parameters and buffers are float64 for as long as the context lasts, and what they were after it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

NARROW = (torch.float32, torch.float16, torch.bfloat16)
CASTS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)
REINTERPRETING = (torch.Tensor.view, torch.finfo)
"""What a dtype means for these is not a precision to compute in."""


class Widening(TorchFunctionMode):
    """Every cast to a narrower floating type, every new tensor of one, and every tensor that is given, is float64.

    The last are those that stand nowhere in the model: a mask in a global, a table in a list.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The call with float64 in place of the narrower types and tensors among its arguments."""
        kwargs = kwargs or {}
        if func in CASTS:
            return args[0].double()
        if func in REINTERPRETING or _is_plumbing(func):
            return func(*args, **kwargs)
        args, kwargs = tree_map(_widened_type, (args, kwargs))
        if _has_wide(args, kwargs) and not _writes(func):
            args, kwargs = tree_map(widened_value, (args, kwargs))
        return func(*args, **kwargs)


def _is_plumbing(func: Any) -> bool:
    """Whether this reads or sets a property of a tensor, such as its `data`: that is no arithmetic."""
    return getattr(func, "__name__", "") in ("__get__", "__set__", "__delete__")


def _writes(func: Any) -> bool:
    """Whether this changes its first argument in place: a copy of it must not take the change."""
    name = getattr(func, "__name__", "")
    return (
        name == "__setitem__"
        or (name.startswith("__i") and name in vars(torch.Tensor))
        or (name.endswith("_") and not name.endswith("__"))
    )


def _has_wide(args: Any, kwargs: Any) -> bool:
    found = []

    def note(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float64:
            found.append(leaf)
        return leaf

    tree_map(note, (args, kwargs))
    return bool(found)


def _widened_type(argument: Any) -> Any:
    return torch.float64 if isinstance(argument, torch.dtype) and argument in NARROW else argument


def widened_value(leaf: Any) -> Any:
    """A floating tensor in float64; anything else as it is."""
    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.dtype in NARROW else leaf


@contextmanager
def widened(model: torch.nn.Module | None = None) -> Iterator[None]:
    """Within it all floating arithmetic is float64, if the inputs are; so are the model's parameters and buffers."""
    before = torch.get_default_dtype()
    held = [] if model is None else _widen(model)
    torch.set_default_dtype(torch.float64)
    try:
        with Widening():
            yield
    finally:
        torch.set_default_dtype(before)
        for tensor, narrow in held:
            tensor.grad = None
            tensor.data = narrow


def _widen(model: torch.nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Give every parameter and buffer float64 values; tells each with what it held."""
    held = []
    for tensor in dict.fromkeys([*model.parameters(), *model.buffers(), *_loose(model)]):
        if tensor.dtype in NARROW:
            held.append((tensor, tensor.data))
            tensor.grad = None
            tensor.data = tensor.data.double()
    return held


def _loose(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Tensors that modules keep as plain attributes."""
    for module in model.modules():
        yield from (value for value in vars(module).values() if isinstance(value, torch.Tensor) and value.is_leaf)
