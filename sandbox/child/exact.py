"""A reference in float64, also where it names narrower types itself."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

NARROW = (torch.float32, torch.float16, torch.bfloat16)
CASTS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)
REINTERPRETING = (torch.Tensor.view, torch.finfo)
"""What a dtype means for these is not a precision to compute in."""


class Widening(TorchFunctionMode):
    """Every cast to a narrower floating type, and every new tensor of one, is float64 instead."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The call with float64 in place of the narrower types among its arguments."""
        kwargs = kwargs or {}
        if func in CASTS:
            return args[0].double()
        if func in REINTERPRETING:
            return func(*args, **kwargs)
        return func(*map(_widened, args), **{name: _widened(value) for name, value in kwargs.items()})


def _widened(argument: Any) -> Any:
    return torch.float64 if isinstance(argument, torch.dtype) and argument in NARROW else argument


@contextmanager
def widened() -> Iterator[None]:
    """Within it all floating arithmetic is float64, if the inputs and weights are."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Widening():
            yield
    finally:
        torch.set_default_dtype(before)
