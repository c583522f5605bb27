"""Which families of values a problem is judged on: those that lie inside what it is defined for. Pure.

A logarithm's reference gives NaN for what is negative, and a problem that never draws such values does not ask for it.
"""

from collections.abc import Callable, Collection

import torch

from kernelwright.sandbox.correctness.families import DRAWN, FAMILIES
from kernelwright.sandbox.tensors.values import RawTensor, Values


class Domain:
    """The families of one problem. What lies outside is found as values come, and remembered."""

    def __init__(self, without: Collection[str] = ()) -> None:
        """`without` are those that the problem itself leaves out."""
        self.families = tuple(family for family in FAMILIES if family not in without)
        """Beside its own draw; without those that were found to lie outside."""
        self.outside: tuple[str, ...] = ()
        self._gives_nan: bool | None = None
        """Whether values as drawn do; None before there were any."""

    def excludes(self, family: str, near: Values, exact: Callable[[], Values]) -> bool:
        """Whether nothing can be compared on values of this family, with what the reference gives on some of them.

        That is where float64 gives nothing but NaN, and values as drawn gave none. These have to come first.
        """
        if family == DRAWN:
            if self._gives_nan is None:
                self._gives_nan = has_nan(near)
            return False
        # Float64 costs more, and has NaN nowhere where the narrower dtype has none.
        if self._gives_nan or not is_nan_only(near) or not is_nan_only(exact()):
            return False
        self.families = tuple(one for one in self.families if one != family)
        self.outside += (family,)
        return True

    def defines_nan(self, family: str) -> bool:
        """Whether a NaN of the reference has to be met, and does not only mark where it is not defined."""
        return family == DRAWN or self._gives_nan is not False


def is_nan_only(result: Values) -> bool:
    """Whether a result has floats, and no element that could be compared."""
    tensors = [_floats(raw) for raw in result.tensors]
    # The first element alone nearly always tells that it is not so.
    return bool(tensors) and all(
        tensor is not None and bool(tensor.reshape(-1)[0].isnan()) and bool(tensor.isnan().all()) for tensor in tensors
    )


def has_nan(result: Values) -> bool:
    """Whether there is any NaN in a result. The largest element tells, without a second tensor of this size."""
    return any(tensor is not None and bool(tensor.amax().isnan()) for tensor in map(_floats, result.tensors))


def _floats(raw: RawTensor) -> torch.Tensor | None:
    """A tensor's values as real floats; None where it has none that could be NaN."""
    tensor = raw.tensor()
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor if tensor.is_floating_point() and tensor.element_size() > 1 and tensor.numel() else None
