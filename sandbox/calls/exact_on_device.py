"""The float64 result on a device, also where its memory does not hold all of it at once.

First the whole, once everybody has given back what they keep. Else in parts, where the reference computes each index of
the first axis apart from the others: that is tried on a part in its own dtype, which must give the same as the whole
did. Else on the processor. All three are the same function in float64.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, Protocol

from kernelwright.problems import Tolerance
from kernelwright.sandbox.calls.buffers import Layout, Lent, relieve
from kernelwright.sandbox.calls.device import CudaDevice
from kernelwright.sandbox.calls.gpu_session import GpuSession
from kernelwright.sandbox.calls.memory_planning import Needs
from kernelwright.sandbox.calls.sessions import Refused
from kernelwright.sandbox.correctness.compare import PLAIN, mismatch
from kernelwright.sandbox.correctness.distance import Cut, Joined, are_alike, cuts, part, result_rows, spans
from kernelwright.sandbox.correctness.lint import RunningReference, TimedResult
from kernelwright.sandbox.tensors import Values

Way = Literal["whole", "parts", "processor"]
SHARE = 0.8
"""Of the free memory that one computation may be planned to take."""
PART_SHARE = 3
"""A part takes at most one of this many shares of the free memory: the joined result lies beside it."""


class ExactOnDevice:
    """Computes float64 results of one reference."""

    def __init__(self, session: GpuSession, device: CudaDevice, needs: Needs, tolerance: Tolerance) -> None:
        self._session, self._device, self._needs, self._tolerance = session, device, needs, tolerance
        self._found: Cut | None = None
        self._is_looked_for = False
        self.ways: set[Way] = set()
        """Those that were gone so far."""

    def result(self, values: Values, near: Values | None, op: str, patience_s: float) -> Values:
        """Of `op` (`call` or `backward`) on `values`; `near`, where it is known, is the result in the own dtype."""
        if not self._fits():
            relieve()
        try:
            found = self._by_the_way_that_fits(values, near, op, patience_s)
        finally:
            if self._needs.is_large:
                self._session.rest()
        return found

    def _by_the_way_that_fits(self, values: Values, near: Values | None, op: str, patience_s: float) -> Values:
        cut = self.cut(values, near, op, patience_s) if not self._fits() and near is not None else None
        if cut is not None:
            return self._in_parts(values, cut, op, patience_s)
        try:
            return self._gone("whole", self._read(values, f"exact {op}", patience_s))
        except Refused as refused:
            if not refused.memory:
                raise
        cut = self.cut(values, near, op, patience_s) if near is not None else None
        if cut is not None:
            return self._in_parts(values, cut, op, patience_s)
        return self._gone("processor", self._read(values, f"exact {op} elsewhere", patience_s))

    def _read(self, values: Values, op: str, patience_s: float) -> Values:
        """A large result is read where it lies, until the child is asked again: it may take what a copy would take."""
        return self._session.call(values, patience_s, op, in_place=self._needs.is_large).output

    def _gone(self, way: Way, found: Values) -> Values:
        self.ways.add(way)
        return found

    def _fits(self) -> bool:
        return self._needs.exact_peak + self._needs.exact <= SHARE * self._device.free_bytes()

    def cut(self, values: Values, near: Values | None, op: str, patience_s: float) -> Cut | None:
        """Find the parts that a call falls into, once; None where it does not. `near` is the result on `values`."""
        if self._is_looked_for or near is None:
            return self._found
        self._is_looked_for = True
        self._found = next((cut for cut in cuts(values, near) if self._holds(cut, values, near, op, patience_s)), None)
        return self._found

    def _holds(self, cut: Cut, values: Values, near: Values, op: str, patience_s: float) -> bool:
        """Whether a part from the middle gives what the whole has there."""
        step = self.step(cut)
        start = (cut.rows - step) // 2
        with self.lent(layout_of_part(values, cut, step)):
            try:
                got = self._session.call(part(values, cut, start, start + step), patience_s, op).output
            except Refused:  # a shape that it does not take
                return False
        want = result_rows(near, start, start + step)
        return mismatch(got, want, want, self._tolerance, PLAIN) is None and are_alike(got, want)

    def step(self, cut: Cut) -> int:
        """Indices of a part: at most half of all, and as many as fit."""
        each = (self._needs.exact_peak + self._needs.exact) / cut.rows
        fitting = int(self._device.free_bytes() / PART_SHARE / each) if each else cut.rows
        parts = math.ceil(cut.rows / max(1, min(fitting, cut.rows // 2)))
        return math.ceil(cut.rows / parts)

    def _in_parts(self, values: Values, cut: Cut, op: str, patience_s: float) -> Values:
        joined, step = Joined(cut.rows), self.step(cut)
        with self.lent(layout_of_part(values, cut, step)):
            for start, stop in spans(cut.rows, step):
                found = self._session.call(part(values, cut, start, stop), patience_s, f"exact {op}", in_place=True)
                joined.put(found.output, start, stop)
                self._session.release_result()
        return self._gone("parts", joined.values())

    @contextmanager
    def lent(self, layout: Layout) -> Iterator[Callable[[], None]]:
        """Within it the child sees memory for inputs of this layout, and after it what it saw before.

        What is yielded shows it the former memory again, until the same is called once more.
        """
        session, whole = self._session, self._session.inputs
        assert whole is not None
        mine = Lent(layout, self._device.ordinal)
        shown = [mine, whole]

        def turn() -> None:
            shown.reverse()
            session.lend_memory(shown[0])

        try:
            session.lend_memory(mine)
            yield turn
        finally:
            try:
                if session.inputs is not whole:
                    session.lend_memory(whole)
            finally:
                mine.close()


def layout_of_part(values: Values, cut: Cut, rows: int) -> Layout:
    """Of a part of these inputs; the values themselves are not held by the owner of their memory."""
    return [raw[:2] for raw in part(values, cut, 0, rows).tensors]


class Whole(RunningReference, Protocol):
    """A reference that can be called on parts of its inputs."""

    def exact_part(self, values: Values) -> Values:
        """The reference in float64 on fewer indices, for which memory is shared."""

    def reweighted(self) -> AbstractContextManager[Values]:
        """Within it the model has other weights than before and after."""


class PartOfReference:
    """A reference that is called on fewer indices of the first axis: enough to see which lazy answers pass.

    Its child sees memory for this many, and `turn` shows it that for whole inputs.
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
