"""The problem's own code in its own child on a device."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch

from kernelwright.problems import Problem
from kernelwright.sandbox.calls.backend import Backend
from kernelwright.sandbox.calls.buffers import Layout, register, with_relief
from kernelwright.sandbox.calls.device import SharedInputs, Timed, device_of
from kernelwright.sandbox.calls.exact_on_device import ExactOnDevice, PartOfReference, layout_of_part
from kernelwright.sandbox.calls.gpu_session import GpuSession
from kernelwright.sandbox.calls.memory_planning import LARGE_BYTES, Needs
from kernelwright.sandbox.calls.reference import PLAIN, Form, Precision, ReferenceSession, fresh_seed, operation
from kernelwright.sandbox.calls.sessions import Session
from kernelwright.sandbox.correctness.compare import tolerance_of
from kernelwright.sandbox.tensors import Values
from kernelwright.sandbox.verdict.errors import UnsupportedProblem
from kernelwright.sandbox.verdict.memory import gib
from kernelwright.sandbox.verdict.verdicts import ProblemStatus
from kernelwright.sandbox.workfolder import WorkFolder

MOST_WARMING = 4
"""Calls after memory was given back."""
STATUS_BYTES = 2**28
"""Of inputs and result that lazy answers are held against, where a part of them does."""
UNFOLLOWED = (
    "{name} can not be judged on a GPU: calls of its reference go on from weights or integers that they have changed, "
    "and calls are issued ahead there; judge it with --device cpu"
)
UNTRIED = "whether lazy answers fail was not tried: the device has no room for them beside inputs and results"


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
        """`inputs`: the memory in which all references of the problem see inputs."""
        self._shared, self._owns_inputs = inputs or SharedInputs(), inputs is None
        self._forget: Callable[[], None] = lambda: None
        self._shows_exact = False
        self.switches_under: dict[Precision, dict[str, Any]] = {}
        """Torch's switches under the policies of `under`, as the child reported them."""
        super().__init__(problem, backend, form, folder)

    def _require_room(self, source: str) -> None:
        """Nothing beforehand: what a call takes is measured in one, which is quicker."""

    def _lend(self) -> None:
        session = self._session
        session.to_device(self.problem.precision if self.form.precision == "strict" else self.form.precision)
        session.trust_results()
        self.layout: Layout = session.layout(fresh_seed(), self._patience_s)
        session.lend_memory(self._shared.for_layout(self.layout, device_of(self.settings)))
        if not session.can_be_mapped():
            session.lend_outputs(self.needs.exact)
        self._forget = register(self.rest, self.settings.ordinal)

    def _require_followable(self, weights: list[int]) -> None:
        if weights or any("int" in self.layout[one][0] for one in self.changes):
            raise UnsupportedProblem(UNFOLLOWED.format(name=self.problem.name))

    @cached_property
    def needs(self) -> Needs:
        """Device memory of a call, measured in one."""
        with self._translated():
            return self._session.needs(self.problem.direction != "forward", self.draw())

    @cached_property
    def _exact(self) -> ExactOnDevice:
        return ExactOnDevice(self._session, device_of(self.settings), self.needs, tolerance_of(self.problem))

    @property
    def exact_ways(self) -> tuple[str, ...]:
        """Ways in which float64 results were computed so far: `whole`, `parts`, `processor`."""
        return tuple(sorted(self._exact.ways)) if "_exact" in self.__dict__ else ()

    def rest(self) -> None:
        """Give back all memory that is kept for the next call only; that one is then preceded by another.

        Nothing while a result is still to be read where it lies.
        """
        with self._translated():
            self._session.rest()

    def release_result(self) -> None:
        self._session.release_result()
        if self._shows_exact and self.needs.is_large:
            self.rest()
        self._shows_exact = False

    def keep(self, output: Values) -> Values:
        owned = with_relief(output.owned)
        self._session.release_result()
        return owned

    @property
    def switches(self) -> dict[str, Any]:
        """Torch's precision switches as the child reported them."""
        return self._session.switches

    def _drawn(self, cores: Sequence[int]) -> Values:
        values = self._session.draw(fresh_seed(), self._patience_s)
        if values.size > LARGE_BYTES:
            self._session.rest()
        return values

    def share_memory(self, worker: Session) -> None:
        """Share memory with it like this child's."""
        assert isinstance(worker, GpuSession)
        worker.share_memory(self.layout, self.needs.result)

    def prepare_worker(self, worker: Session) -> None:
        """Move its model to the device."""
        assert isinstance(worker, GpuSession)
        worker.changes = self.changes
        worker.to_device(self.problem.precision)

    def show(self, values: Values) -> Timed:
        """The result is read where it lies, until the next question: `keep` what must last."""
        with self._translated():
            self._warm(values)
            return self._session.call(values, self._patience_s, operation(self.problem), in_place=True)

    def _warm(self, values: Values) -> None:
        """Until a result lies where an earlier one did: it may alternate with what lies between."""
        if not self._session.is_cold:
            return
        for _ in range(MOST_WARMING):
            known = self._session.places_known
            self._session.call_ms(values, self._patience_s, operation(self.problem))
            if self._session.places_known == known:
                return

    def under(self, precision: Precision, values: Values, in_place: bool = True) -> Timed:
        """Call under another policy, which is then put back.

        `in_place`: the result is read where it lies, until the next question.
        """
        with self.on_device(precision) as session:
            self._warm(values)
            return session.call(values, self._patience_s, operation(self.problem), in_place=in_place)

    @contextmanager
    def on_device(self, precision: Precision | None = None) -> Iterator[GpuSession]:
        """Within it the child's session, under another precision policy where one is named."""
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
        """A large result is read where it lies, until the next question: `owned` is what must last."""
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
    def subject(self) -> Iterator[ReferenceSession | PartOfReference]:
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
        with self._exact.lent(layout) as turn:
            yield PartOfReference(self, turn, cut, step)

    def _room(self, how: str) -> str:
        there = gib(device_of(self.settings).total_bytes())
        return f"the device's {there} leave it{how}; use a device with more, or make the problem smaller"

    def close(self) -> None:
        self._forget()
        self._forget = lambda: None
        try:
            super().close()
        finally:
            if self._owns_inputs:
                self._shared.close()
