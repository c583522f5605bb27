"""The floor of a problem on this machine: its work traced once, the peaks measured once, both remembered."""

from collections.abc import Callable

from pydantic import ValidationError

from kernelwright.problems import Problem
from kernelwright.sandbox.calls.reference import ReferenceSession
from kernelwright.sandbox.cpu import CpuBackend
from kernelwright.sandbox.storage import Store, work_key
from kernelwright.sandbox.verdict.errors import MachineError, StageFailed
from kernelwright.sandbox.verdict.roofline import Floor, NecessaryWork, Peaks, floor_of
from kernelwright.sandbox.verdict.verdicts import Measurement


class Floors:
    def __init__(self, problem: Problem, backend: CpuBackend, store: Store | None = None) -> None:
        self._problem, self._backend = problem, backend
        self._works = store or Store("works")
        self._floor: Floor | None = None
        self._is_known = False

    def of(self, reference: ReferenceSession) -> Floor | None:
        """The floor; the first time some peaks may be measured, which takes seconds."""
        if not self._is_known:
            self._floor = self._found(reference, self._backend.peaks)
            self._is_known = True
        return self._floor

    def added(self, reference: ReferenceSession, measurement: Measurement) -> Measurement:
        """The record with its floor. Raises `StageFailed` for a candidate faster than any program can be.

        Peaks are measured once more before that is said. A floor above the times of the reference itself is our
        mistake, no reason to doubt a candidate: then there is none.
        """
        floor, mine = self.of(reference), measurement.candidate_ms
        quickest = min(measurement.baselines_ms.values())
        if floor is not None and floor.is_impossible(min(mine, quickest)):
            floor = self._found(reference, self._backend.peaks_again)
            if floor is not None and floor.is_impossible(quickest):
                floor = None
            self._floor = floor
            if floor is not None and floor.is_impossible(mine):
                least = floor.impossible_below_ms
                raise StageFailed(
                    "time", f"{mine:.4g} ms is less than this device can do it in at all ({least:.4g} ms)"
                )
        return measurement.model_copy(update={"floor": floor})

    def _found(self, reference: ReferenceSession, peaks: Callable[[], Peaks]) -> Floor | None:
        work = self._work(reference)
        if work is None:
            return None
        try:
            return floor_of(work, peaks(), self._problem.precision)
        except MachineError:
            return None

    def _work(self, reference: ReferenceSession) -> NecessaryWork | None:
        key = work_key(self._problem.digest)
        kept = self._works.get(key)
        try:
            if kept is not None:
                return NecessaryWork.model_validate(kept)
            work = NecessaryWork.of(reference.work())
        except (ValidationError, KeyError, TypeError):
            return None
        self._works.put(key, work.model_dump(mode="json"))
        return work
