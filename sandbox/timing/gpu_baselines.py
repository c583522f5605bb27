"""The references of one problem on a device, and how accurate its less accurate baselines are."""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import get_args

from kernelwright.problems import Problem
from kernelwright.sandbox.calls.backend import ON_DEVICE, Backend, Needs, fit_easily
from kernelwright.sandbox.calls.gpu_device import SharedInputs, device_of
from kernelwright.sandbox.calls.gpu_reference import GpuReference
from kernelwright.sandbox.calls.reference import Form, Precision, ReferenceSession
from kernelwright.sandbox.calls.sessions import Timed
from kernelwright.sandbox.correctness.compare import IEEE, Shares, are_within
from kernelwright.sandbox.machine import free_bytes
from kernelwright.sandbox.storage import Key, Store, baseline_key
from kernelwright.sandbox.tensors import Values
from kernelwright.sandbox.timing.baseline_facts import BaselineErrors, accuracy_of
from kernelwright.sandbox.timing.baselines import PERMITTING, Baselines, OtherBaseline, begin_compiler
from kernelwright.sandbox.timing.paired import in_background
from kernelwright.sandbox.verdict.settings import Accuracy
from kernelwright.sandbox.workfolder import WorkFolder

LUCK = 2.0
"""A candidate may be off by this many times those errors, which are of a single draw for each input distribution."""


class GpuBaselines(Baselines):
    """Reference processes on a device, which see inputs in one allocation; hold the device's lock."""

    own_bytes = ON_DEVICE

    def __init__(self, problem: Problem, backend: Backend) -> None:
        super().__init__(problem, backend)
        self._inputs: SharedInputs | None = None
        if self._settings.compiled:  # on a processor it would disturb whoever is timed now
            begin_compiler(self._settings)

    def _open(self, form: Form, folder: WorkFolder | None = None) -> GpuReference:
        self._inputs = self._inputs or SharedInputs()
        return GpuReference(self.problem, self.backend, form, folder, inputs=self._inputs)

    def eager(self, number: int) -> GpuReference:
        return _on_device(super().eager(number))

    @property
    def first(self) -> GpuReference:
        return _on_device(super().first)

    def _needs_and_room(self) -> tuple[Needs, int]:
        return self.first.needs, device_of(self._settings).total_bytes()

    @property
    def is_tight(self) -> bool:
        needs, wanted = self.first.needs, self._settings.worker_pairs + 1
        fit = fit_easily(needs, wanted, device_of(self._settings).free_bytes(), free_bytes())
        with self.first.on_device() as session:  # where results cannot be mapped, each that starts draws inputs
            return not (fit and session.can_be_mapped) or super().is_tight

    def _start_together(self, works: Sequence[Callable[[], object]]) -> None:
        """Start the other baselines too, which takes longest: in this thread, so that an interrupt ends them."""
        self.eager(0)  # they are compared with it
        with in_background(partial(super()._start_together, works)):
            if self._settings.effort != "screen":
                self.others(0)

    def others(self, number: int) -> list[OtherBaseline]:
        found, eager, groups = super().others(number), self.eager(number), self._settings.baselines
        found += [OtherBaseline(Form(precision=one).baseline, eager, one) for one in self.policies if one in groups]
        modes = dict.fromkeys(self._settings.compiled)
        optional = [Form(mode, precision=one) for one in self.policies if f"compiled-{one}" in groups for mode in modes]
        # What a call changes in place would be the inputs that it has converted.
        if "channels_last" in groups and self.first.is_spatial and not self.first.changes:
            optional.append(Form(channels_last=True))
        return found + self._available(optional)

    def accuracy(self) -> tuple[dict[str, Shares], tuple[str, ...]]:
        """Found in untimed calls, once a problem, device and versions; nothing for a reference that draws."""
        if self.is_seeded:
            return {}, ()
        number = self._order.index(min(self._eager, default=0))
        eager, others = self.eager(number), self.others(number)
        known = {other.name: self._known_errors(other.name) for other in others}
        missing = [other for other in others if known[other.name] is None]
        known |= self._found_errors([one for one in missing if one.precision or one.session.adopt(eager)], eager)
        found = {name: one for name, one in known.items() if one is not None}
        asked = self._settings.accuracy
        allowed = self.allowed(asked) or IEEE
        less = [
            name
            for name, (errors, is_equal) in found.items()
            if not (is_equal if asked == "ieee" else are_within(errors, allowed))
        ]
        return {name: one.errors for name, one in found.items()}, tuple(less)

    def _known_errors(self, name: str) -> BaselineErrors | None:
        found = Store("baseline-accuracy").get(self._errors_key(name))
        return None if found is None else BaselineErrors(*found)

    def _errors_key(self, name: str) -> Key:
        assert self.backend.place is not None, "who judges on a device has opened it"
        return baseline_key(self.problem.digest, *self.backend.place, name)

    def _found_errors(self, others: Sequence[OtherBaseline], eager: GpuReference) -> dict[str, BaselineErrors]:
        calls = {one.name: partial(_called, one) for one in others}
        found = accuracy_of(calls, eager, self.domain) if others else {}
        for name, errors in found.items():
            Store("baseline-accuracy").put(self._errors_key(name), errors)
        return found

    def allowed(self, accuracy: Accuracy, find: bool = True) -> Shares | None:
        policy = PERMITTING.get(accuracy)
        if policy is None or self.is_seeded:
            return super().allowed(accuracy, find)
        name = Form(precision=policy).baseline
        found = self._known_errors(name)
        if found is None and find:
            eager = self.first
            if eager.is_random or policy not in self.policies:
                return IEEE
            found = self._found_errors([OtherBaseline(name, eager, policy)], eager)[name]
        if found is None:
            return None
        return {measure: max(1.0, LUCK * found.errors.get(measure, 0.0)) for measure in IEEE}

    @cached_property
    def policies(self) -> tuple[Precision, ...]:
        """Precision policies that change what strict eager gives, bit by bit."""
        values, one, problem = self.first.draw(), self.first, self.problem
        strict, tried = one.call(values).output, get_args(Precision)[1:]
        if problem.precision != "strict" or problem.dtype not in (None, "float32"):
            tried = tried[:1]
        return tuple(policy for policy in tried if one.under(policy, values).output != strict)

    def close(self) -> None:
        super().close()
        if self._inputs is not None:
            self._inputs.close()
            self._inputs = None


def _on_device(session: ReferenceSession) -> GpuReference:
    assert isinstance(session, GpuReference)
    return session


def _called(other: OtherBaseline, values: Values) -> Timed:
    if other.precision is None:
        return other.session.call(values)
    return _on_device(other.session).under(other.precision, values, in_place=False)
