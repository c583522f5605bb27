"""A part of a large reference, for what need not be asked of the whole."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from kernelwright.sandbox.correctness.chunking import Cut, part
from kernelwright.sandbox.correctness.lint import RunningReference, TimedResult
from kernelwright.sandbox.tensors.values import Values


class Whole(RunningReference, Protocol):
    """A reference that can be called on parts of its inputs."""

    def exact_part(self, values: Values) -> Values:
        """The reference in float64 on fewer indices, for which memory is lent."""

    def reweighted(self) -> AbstractContextManager[Values]:
        """Within it the model has other weights than before and after."""


class PartOfReference:
    """A reference that is called on fewer indices of the first axis: enough to see which lazy answers pass.

    Its child sees memory for so many, and `turn` shows it that for whole inputs.
    """

    def __init__(self, whole: Whole, turn: Callable[[], None], cut: Cut, step: int) -> None:
        self._whole, self._turn, self._cut, self._step = whole, turn, cut, step
        self.weights = whole.weights

    def draw(self) -> Values:
        self._turn()
        try:
            return part(self._whole.draw(), self._cut, 0, self._step).copied()
        finally:
            self._turn()

    def call(self, values: Values) -> TimedResult:
        return self._whole.call(values)

    def call_ms(self, values: Values) -> float:
        return self._whole.call_ms(values)

    def exact(self, values: Values) -> Values:
        """In float64."""
        return self._whole.exact_part(values)

    def keep(self, output: Values) -> Values:
        return self._whole.keep(output)

    def reweighted(self) -> AbstractContextManager[Values]:
        return self._whole.reweighted()

    def nothing_ms(self) -> float:
        return self._whole.nothing_ms()
