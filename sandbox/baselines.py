"""The references of one problem: as many eager processes as there are worker pairs, and one for each compiled mode."""

from concurrent.futures import ThreadPoolExecutor

from problems import Problem
from sandbox.baseline_times import BaselineTimes
from sandbox.compiled import compiled_reference
from sandbox.domain import Domain
from sandbox.reference import Form, ReferenceSession
from sandbox.settings import CompileMode, Settings
from sandbox.verdict import Measurement

AT_ONCE = 2
"""So many start at a time: more would only wait for each other's memory."""
AS_CONSTRUCTED = 1
"""The one process that keeps the constructor's weights, where there are several; the others change them."""


class Baselines:
    """Reference processes, each started when first needed and kept for the problem's next candidates. Close it."""

    def __init__(self, problem: Problem, settings: Settings) -> None:
        self.problem, self._settings = problem, settings
        self._eager: dict[int, ReferenceSession] = {}
        self._compiled: dict[CompileMode, ReferenceSession] = {}
        self.domain = Domain(problem.values.without)
        """The families of values that candidates are judged on."""

    def eager(self, number: int) -> ReferenceSession:
        """The baseline of worker pair `number`; pairs beyond the settings' `worker_pairs` start over with the first."""
        index = number % self._settings.worker_pairs
        if index not in self._eager:
            changed = index != AS_CONSTRUCTED and "weights" not in self._settings.without
            self._eager[index] = ReferenceSession(self.problem, self._settings, Form(changed_weights=changed))
        return self._eager[index]

    def start(self) -> None:
        """Have all eager processes run; on a device one after the other, in this thread, which holds it."""
        if not self._settings.side_by_side:
            for number in range(self._settings.worker_pairs):
                self.eager(number)
            return
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self.eager, range(self._settings.worker_pairs)))

    @property
    def left_out(self) -> tuple[str, ...]:
        """The families that it is not judged on, so far as is known: the problem's own word first."""
        return (*self.problem.values.without, *self.domain.outside)

    def compiled(self) -> list[ReferenceSession]:
        """One for each mode of torch.compile that the settings name, its compilation done."""
        for mode in self._settings.compiled:
            if mode not in self._compiled:
                self._compiled[mode] = compiled_reference(self.problem, self._settings, mode)
        return list(self._compiled.values())

    def remember(self, measurement: Measurement) -> None:
        """Keep what each of them took, for tables."""
        BaselineTimes(self.problem).keep(measurement, self._settings)

    @property
    def first(self) -> ReferenceSession:
        """The one that describes the problem: arguments, weights, status."""
        return self.eager(0)

    @property
    def has_started(self) -> bool:
        """Whether the first one runs already."""
        return 0 in self._eager

    def close(self) -> None:
        """End all of them."""
        for session in (*self._eager.values(), *self._compiled.values()):
            session.close()
        self._eager.clear()
        self._compiled.clear()
