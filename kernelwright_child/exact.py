"""A reference in float64, also where it names narrower types itself, or reaches its modules by another way.

The model is not copied: a copy would be missed by whatever holds the modules themselves, such as a lambda that a
constructor made. Its parameters and buffers are float64 for as long as the context lasts, and what they were after it.
"""

from collections.abc import Callable, Iterator, Sequence
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
            given = {name: value for name, value in kwargs.items() if name != "out"}
            args, given = tree_map(widened_value, (args, given))
            kwargs = kwargs | given
        return func(*args, **kwargs)


def _is_plumbing(func: Any) -> bool:
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
    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.dtype in NARROW else leaf


@contextmanager
def widened(model: torch.nn.Module | None = None) -> Iterator[Callable[[Any], Any]]:
    """Within it all floating arithmetic is float64, if the inputs are; so are the model's parameters and buffers.

    After it the model is what it was, also where a call counts, caches or replaces something: what is float64 there
    would make the next call in its own dtype another one. What is yielded is to be called on the results, some of which
    may be the model's own tensors.
    """
    before = torch.get_default_dtype()
    held = Held([] if model is None else list(model.modules()))
    torch.set_default_dtype(torch.float64)
    try:
        held.widen()
        with Widening():
            yield held.apart
    finally:
        torch.set_default_dtype(before)
        held.put_back()


class Held:
    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self._attributes = [
            (vars(module), {name: _copied(value) for name, value in vars(module).items()}) for module in modules
        ]
        found = (tensor for attributes, _ in self._attributes for tensor in _tensors(attributes))
        self._tensors = [(tensor, tensor.data) for tensor in dict.fromkeys(found)]
        # Integers and what is float64 already are computed with where they are.
        self._values = [(data, data.clone()) for _, data in self._tensors if data.dtype not in NARROW]

    def widen(self) -> None:
        """Give all narrow tensors float64 values."""
        for tensor, data in self._tensors:
            tensor.grad = None
            if data.dtype in NARROW:
                tensor.data = data.double()

    def apart(self, results: Any) -> Any:
        """The results, with memory of their own in place of what will be put back."""
        held = {_place(tensor) for tensor, _ in self._tensors}

        def own(leaf: Any) -> Any:
            is_held = isinstance(leaf, torch.Tensor) and _place(leaf) in held
            return leaf.detach().clone() if is_held else leaf

        return tree_map(own, results)

    def put_back(self) -> None:
        """All as it was: the same tensors at the same places, with the same values."""
        for attributes, former in self._attributes:
            attributes.clear()
            attributes.update(former)
        for tensor, data in self._tensors:
            tensor.grad = None
            tensor.data = data
        for data, value in self._values:
            data.copy_(value)


def _place(tensor: torch.Tensor) -> int:
    """Where its memory begins; of what has no such, as a sparse one, an own number."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else -id(tensor)


def _copied(value: Any) -> Any:
    """Of the dictionaries that a module keeps its parameters, buffers and modules in, a copy."""
    return value.copy() if isinstance(value, dict) else value


def _tensors(attributes: dict[str, Any]) -> Iterator[torch.Tensor]:
    for kept in (attributes["_parameters"], attributes["_buffers"]):
        yield from (tensor for tensor in kept.values() if tensor is not None)
    yield from (value for value in attributes.values() if isinstance(value, torch.Tensor) and value.is_leaf)
