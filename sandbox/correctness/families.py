"""Values for a call: as the problem draws them, or changed into another input distribution. Pure.

The families are the entries of `problems/input_distributions.py`. They are part of the timed set, so a
candidate cannot distinguish a check from a timing. A problem is judged on those that it is defined for: the reference
of a logarithm gives NaN for negative values, so they are left out if the problem never draws them.

Every change is made in place, since an input may take gigabytes.
"""

import random
from collections.abc import Callable, Collection, Iterator, Sequence

import torch

from kernelwright.problems import INPUT_DISTRIBUTIONS
from kernelwright.problems.input_distributions import GROWTH, OFFSET, largest_magnitude, most
from kernelwright.sandbox.tensors import RawTensor, Values

DRAWN = "as drawn"
FAMILIES: tuple[str, ...] = tuple(INPUT_DISTRIBUTIONS)


def vary(values: Values, family: str) -> Values:
    """Change values in place into the family; integers, booleans and floats of 8 bits stay as they were drawn."""
    if family == DRAWN:
        return values
    change = INPUT_DISTRIBUTIONS[family].change
    return Values(values.tree, tuple(_varied(raw, change) for raw in values.tensors))


def _varied(raw: RawTensor, change: Callable[[torch.Tensor], object]) -> RawTensor:
    tensor = raw.tensor()
    # Torch computes nothing in floats of 8 bits.
    if not tensor.is_floating_point() or tensor.element_size() == 1 or not tensor.numel():
        return raw
    largest = largest_magnitude(tensor)
    change(tensor)
    bound = max(most(tensor.dtype), largest)
    if GROWTH * largest + OFFSET > bound:
        tensor.clamp_(-bound, bound)
    return raw


def schedule(rng: random.Random, families: Sequence[str] = FAMILIES) -> Iterator[str]:
    """Without end: of four, one to three are the problem's own draw; the others any family, whichever came before."""
    while True:
        four = [True, False, rng.random() < 0.5, rng.random() < 0.5]
        for is_varied in rng.sample(four, len(four)):
            yield rng.choice(sorted(families)) if is_varied and families else DRAWN


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
        """Return whether nothing can be compared on this distribution; `near` is the reference's result on it.

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
        """Return whether a NaN of the reference has to be matched, and does not only mark where it is not defined."""
        return family == DRAWN or self._gives_nan is not False


def is_nan_only(result: Values) -> bool:
    """Return whether a result has floats, and no element that could be compared."""
    tensors = [_floats(raw) for raw in result.tensors]
    # The first element alone nearly always tells that it is not so.
    return bool(tensors) and all(
        tensor is not None and bool(tensor.reshape(-1)[0].isnan()) and bool(tensor.isnan().all()) for tensor in tensors
    )


def has_nan(result: Values) -> bool:
    """Return whether a result has a NaN. The largest element decides, without a second tensor of this size."""
    return any(tensor is not None and bool(tensor.amax().isnan()) for tensor in map(_floats, result.tensors))


def _floats(raw: RawTensor) -> torch.Tensor | None:
    """A tensor's values as real floats; None where it has none that could be NaN."""
    tensor = raw.tensor()
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor if tensor.is_floating_point() and tensor.element_size() > 1 and tensor.numel() else None
