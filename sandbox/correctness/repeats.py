"""Does a reference draw in `forward` (dropout, noise), or do its kernels only add up in no fixed order? Pure."""

from collections.abc import Callable

from kernelwright.problems import Tolerance
from kernelwright.sandbox.correctness.compare import PLAIN, mismatch
from kernelwright.sandbox.tensors.values import Values

OVERALL = PLAIN._replace(usual=False, slices=False)
"""What rounding in another order stays within: a slice or a usual element may rest on few elements near zero."""
SEEDED = 4
"""Calls that are seeded alike: sums in no fixed order may come out alike by chance."""


def draws(again: Values, first: Values, tolerance: Tolerance, seeded: Callable[[], Values]) -> bool:
    """Whether a reference draws, from two results on the same values.

    Where only small parts of an output differ, `seeded` gives more, with all generators seeded alike before each: what
    draws repeats itself bit by bit then. Its results have to stay what they are, whatever is asked next, and so has
    `first`; `again` is not looked at once it was called.
    """
    if mismatch(again, first, first, tolerance, PLAIN) is None:
        return False
    if mismatch(again, first, first, tolerance, OVERALL) is not None:
        return True
    one = seeded()
    return all(seeded() == one for _ in range(SEEDED - 1))
