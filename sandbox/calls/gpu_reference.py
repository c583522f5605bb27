"""A reference on a device, and its float64 results, also where the device's memory does not hold all at once."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, Literal

import torch

from kernelwright.problems import Problem, Tolerance
from kernelwright.sandbox.calls.backend import LARGE_BYTES, Backend, Needs
from kernelwright.sandbox.calls.gpu_buffers import Layout, SharedDeviceMemory, register, relieve, with_relief
from kernelwright.sandbox.calls.gpu_device import CudaDevice, SharedInputs, device_of
from kernelwright.sandbox.calls.gpu_session import GpuSession
from kernelwright.sandbox.calls.reference import (
    PLAIN,
    Form,
    Precision,
    ReferenceSession,
    StatusSubject,
    fresh_seed,
    operation,
)
from kernelwright.sandbox.calls.sessions import Refused, Session, Timed
from kernelwright.sandbox.correctness.compare import PLAIN as PLAIN_RULE
from kernelwright.sandbox.correctness.compare import mismatch, tolerance_of
from kernelwright.sandbox.correctness.distance import Cut, Joined, are_alike, cuts, part, result_rows, spans
from kernelwright.sandbox.correctness.lint import TimedResult
from kernelwright.sandbox.machine import gib
from kernelwright.sandbox.tensors import Values
from kernelwright.sandbox.verdict.errors import UnsupportedProblem
from kernelwright.sandbox.verdict.verdicts import ProblemStatus
from kernelwright.sandbox.workfolder import WorkFolder

MOST_WARMING = 4
"""Most untimed calls after memory was freed."""
STATUS_BYTES = 2**28
"""Bytes of inputs and result for the check with lazy answers, where a part of them suffices."""
UNFOLLOWED = (
    "{name} cannot be judged on a GPU: calls of its reference go on from weights or integers that they have changed, "
    "and calls are issued ahead there; judge it with --device cpu"
)
UNTRIED = "whether lazy answers fail was not tried: the device has no room for them beside inputs and results"

# The float64 result. First the whole, once everybody has given back the memory that they keep. Else in parts, where the
# reference computes each index of the first axis independently: a part in its own dtype must give what the whole did.
# Else on the processor. All three are the same function in float64.

Way = Literal["whole", "parts", "processor"]
SHARE = 0.8
"""Share of the free memory that one computation may take."""
PART_SHARE = 3
"""Divisor of the free memory for one part, since the joined result needs memory too."""


class ExactOnDevice:
    def __init__(self, session: GpuSession, device: CudaDevice, needs: Needs, tolerance: Tolerance) -> None:
        self._session, self._device, self._needs, self._tolerance = session, device, needs, tolerance
        self._found: Cut | None = None
        self._is_looked_for = False
        self.ways: set[Way] = set()

    def result(self, values: Values, near: Values | None, op: str, patience_s: float) -> Values:
        """Compute `op` (`call` or `backward`) on `values`; `near` is the result in the own dtype, if known."""
        if not self._fits():
            relieve()
        try:
            found = self._by_the_way_that_fits(values, near, op, patience_s)
        finally:
            if self._needs.is_large:
                self._session.free_memory()
        return found

    def _by_the_way_that_fits(self, values: Values, near: Values | None, op: str, patience_s: float) -> Values:
        cut = self.cut(values, near, op, patience_s) if not self._fits() and near is not None else None
        if cut is not None:
            return self._in_parts(values, cut, op, patience_s)
        try:
            return self._computed("whole", self._read(values, f"exact {op}", patience_s))
        except Refused as refused:
            if not refused.memory:
                raise
        cut = self.cut(values, near, op, patience_s) if near is not None else None
        if cut is not None:
            return self._in_parts(values, cut, op, patience_s)
        return self._computed("processor", self._read(values, f"exact {op} elsewhere", patience_s))

    def _read(self, values: Values, op: str, patience_s: float) -> Values:
        """Compute and read; a large result is read in place, since a copy may not fit."""
        return self._session.call(values, patience_s, op, in_place=self._needs.is_large).output

    def _computed(self, way: Way, found: Values) -> Values:
        self.ways.add(way)
        return found

    def _fits(self) -> bool:
        return self._needs.exact_peak + self._needs.exact <= SHARE * self._device.free_bytes()

    def cut(self, values: Values, near: Values | None, op: str, patience_s: float) -> Cut | None:
        """Find the parts of a call, once; None for an inseparable one. `near` is the result on `values`."""
        if self._is_looked_for or near is None:
            return self._found
        self._is_looked_for = True
        self._found = next(
            (cut for cut in cuts(values, near) if self._is_separable(cut, values, near, op, patience_s)), None
        )
        return self._found

    def _is_separable(self, cut: Cut, values: Values, near: Values, op: str, patience_s: float) -> bool:
        """Check that a part from the middle has the same result as within the whole."""
        step = self.step(cut)
        start = (cut.rows - step) // 2
        with self.smaller_inputs(layout_of_part(values, cut, step)):
            try:
                got = self._session.call(part(values, cut, start, start + step), patience_s, op).output
            except Refused:  # a shape that it does not take
                return False
        want = result_rows(near, start, start + step)
        return mismatch(got, want, want, self._tolerance, PLAIN_RULE) is None and are_alike(got, want)

    def step(self, cut: Cut) -> int:
        """Choose the indices per part: at most half of all, and as many as fit."""
        each = (self._needs.exact_peak + self._needs.exact) / cut.rows
        fitting = int(self._device.free_bytes() / PART_SHARE / each) if each else cut.rows
        parts = math.ceil(cut.rows / max(1, min(fitting, cut.rows // 2)))
        return math.ceil(cut.rows / parts)

    def _in_parts(self, values: Values, cut: Cut, op: str, patience_s: float) -> Values:
        joined, step = Joined(cut.rows), self.step(cut)
        with self.smaller_inputs(layout_of_part(values, cut, step)):
            for start, stop in spans(cut.rows, step):
                found = self._session.call(part(values, cut, start, stop), patience_s, f"exact {op}", in_place=True)
                joined.put(found.output, start, stop)
                self._session.release_result()
        return self._computed("parts", joined.values())

    @contextmanager
    def smaller_inputs(self, layout: Layout) -> Iterator[Callable[[], None]]:
        """Show the child memory for inputs of this layout within the block.

        Yields a function that switches between this memory and the former one.
        """
        session, whole = self._session, self._session.inputs
        assert whole is not None
        mine = SharedDeviceMemory(layout, self._device.ordinal)
        shown = [mine, whole]

        def switch() -> None:
            shown.reverse()
            session.show_memory(shown[0])

        try:
            session.show_memory(mine)
            yield switch
        finally:
            try:
                if session.inputs is not whole:
                    session.show_memory(whole)
            finally:
                mine.close()


def layout_of_part(values: Values, cut: Cut, rows: int) -> Layout:
    return [raw[:2] for raw in part(values, cut, 0, rows).tensors]


class PartOfReference:
    """A reference on fewer indices of the first axis, enough to find lazy answers that pass.

    Its child sees memory for these, and `switch` shows it the memory for complete inputs.
    """

    def __init__(self, whole: ReferenceSession, switch: Callable[[], None], cut: Cut, step: int) -> None:
        self._whole, self._switch, self._cut, self._step = whole, switch, cut, step
        self.weights = whole.weights

    def draw(self) -> Values:
        self._switch()
        try:
            return part(self._whole.draw(), self._cut, 0, self._step).copied()
        finally:
            self._switch()

    def call(self, values: Values) -> TimedResult:
        return self._whole.call(values)

    def call_ms(self, values: Values) -> float:
        return self._whole.call_ms(values)

    def exact(self, values: Values) -> Values:
        return self._whole.exact_part(values)

    def keep(self, output: Values) -> Values:
        return self._whole.keep(output)

    def reweighted(self) -> AbstractContextManager[Values]:
        return self._whole.reweighted()

    def nothing_ms(self) -> float:
        return self._whole.nothing_ms()


class GpuReference(ReferenceSession):
    """A reference whose inputs and results stay on the device; use it while the device's lock is held."""

    _session: GpuSession

    def __init__(
        self,
        problem: Problem,
        backend: Backend,
        form: Form = PLAIN,
        folder: WorkFolder | None = None,
        inputs: SharedInputs | None = None,
    ) -> None:
        """Start the child; `inputs` is the memory of all references of the problem."""
        self._shared, self._owns_inputs = inputs or SharedInputs(), inputs is None
        self._forget: Callable[[], None] = lambda: None
        self._shows_exact = False
        self.switches_under: dict[Precision, dict[str, Any]] = {}
        """Torch's switches under the policies of `under`, as the child reported them."""
        super().__init__(problem, backend, form, folder)

    def _share_inputs(self) -> None:
        session = self._session
        session.to_device(self.problem.precision if self.form.precision == "strict" else self.form.precision)
        session.result_bytes = session.device.total_bytes()  # it is trusted
        self.layout: Layout = session.layout(fresh_seed(), self._patience_s)
        session.show_memory(self._shared.for_layout(self.layout, device_of(self.settings)))
        if not session.can_be_mapped:
            session.share_outputs(self.needs.exact)
        self._forget = register(self.free_memory, self.settings.ordinal)

    _follows_all = False  # what is followed is looked at in the first call and behind the timed ones

    def _require_followable(self, weights: list[int]) -> None:
        if weights or any("int" in self.layout[one][0] for one in self.changes):
            raise UnsupportedProblem(UNFOLLOWED.format(name=self.problem.name))

    @cached_property
    def needs(self) -> Needs:
        with self._translated():
            return self._session.needs(self.problem.direction != "forward", self.draw())

    @cached_property
    def _exact(self) -> ExactOnDevice:
        return ExactOnDevice(self._session, device_of(self.settings), self.needs, tolerance_of(self.problem))

    @property
    def exact_ways(self) -> tuple[str, ...]:
        """Ways in which float64 results were computed so far: `whole`, `parts`, `processor`."""
        return tuple(sorted(self._exact.ways)) if "_exact" in self.__dict__ else ()

    def free_memory(self) -> None:
        """Free memory cached for the next call, which then needs an untimed one first; not while a result is read."""
        with self._translated():
            self._session.free_memory()

    def release_result(self) -> None:
        self._session.release_result()
        if self._shows_exact and self.needs.is_large:
            self.free_memory()
        self._shows_exact = False

    def keep(self, output: Values) -> Values:
        owned = with_relief(output.owned)
        self._session.release_result()
        return owned

    @property
    def switches(self) -> dict[str, Any]:
        return self._session.switches

    def _drawn(self, cores: Sequence[int]) -> Values:
        values = self._session.draw(fresh_seed(), self._patience_s)
        if values.size > LARGE_BYTES:
            self._session.free_memory()
        return values

    def share_memory(self, worker: Session) -> None:
        assert isinstance(worker, GpuSession)
        worker.share_memory(self.layout, self.needs.result)

    def prepare_worker(self, worker: Session) -> None:
        assert isinstance(worker, GpuSession)
        worker.changes = self.changes
        worker.to_device(self.problem.precision)

    def show(self, values: Values) -> Timed:
        """Call; the result is read in place until the next question, unless `keep` copies it."""
        with self._translated():
            self._warm(values)
            return self._session.call(values, self._patience_s, operation(self.problem), in_place=True)

    def _warm(self, values: Values) -> None:
        """Call until no new allocation appears: results alternate among several."""
        if not self._session.needs_warming:
            return
        for _ in range(MOST_WARMING):
            known = self._session.mapped_allocations
            self._session.call_ms(values, self._patience_s, operation(self.problem))
            if self._session.mapped_allocations == known:
                return

    def under(self, precision: Precision, values: Values, in_place: bool = True) -> Timed:
        """Call under another policy, then restore it. `in_place`: read the result in place until the next question."""
        with self.on_device(precision) as session:
            self._warm(values)
            return session.call(values, self._patience_s, operation(self.problem), in_place=in_place)

    @contextmanager
    def on_device(self, precision: Precision | None = None) -> Iterator[GpuSession]:
        """Yield the child's session, under another precision policy if one is given."""
        session = self._session
        with self._translated():
            if precision:
                self.switches_under[precision] = session.policy(precision)
            try:
                yield session
            finally:
                session.release_result()
                if precision:
                    session.policy(self.problem.precision)

    def exact(self, values: Values, near: Values | None = None) -> Values:
        """Compute in float64; a large result is read in place until the next question, unless `owned`."""
        with self._translated():
            self._shows_exact = True
            return self._exact.result(values, near, operation(self.problem), self._patience_s)

    def nothing_ms(self) -> float:
        with self._translated():
            return self._session.nothing_on_device_ms()

    def _status(self) -> ProblemStatus:
        try:
            return with_relief(super()._status)
        except torch.OutOfMemoryError:
            return ProblemStatus(status="weak", why=(UNTRIED,))

    @contextmanager
    def subject(self) -> Iterator[StatusSubject]:
        if not self.needs.is_large:
            yield self
            return
        values = self.draw()
        cut = self._exact.cut(values, self.call(values).output, operation(self.problem), self._patience_s)
        if cut is None:
            del values
            yield self
            return
        call_bytes = self.needs.inputs + self.needs.result
        step = max(2, min(self._exact.step(cut), cut.rows * STATUS_BYTES // max(1, call_bytes)))
        layout = layout_of_part(values, cut, step)
        del values
        with self._exact.smaller_inputs(layout) as switch:
            yield PartOfReference(self, switch, cut, step)

    def _room(self, how: str) -> str:
        there = gib(device_of(self.settings).total_bytes())
        return f"the device's {there} leave it{how}; end what else uses it, or use one with more"

    def close(self) -> None:
        self._forget()
        self._forget = lambda: None
        try:
            super().close()
        finally:
            if self._owns_inputs:
                self._shared.close()
