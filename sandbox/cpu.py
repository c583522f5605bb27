"""Judging on the processors of this machine: how references, timing and tools are there."""

from contextlib import AbstractContextManager, nullcontext

from kernelwright.problems import Problem
from kernelwright.sandbox.calls.backend import Backend
from kernelwright.sandbox.calls.reference import PLAIN, Form, ReferenceSession
from kernelwright.sandbox.gpu_tools import Subject
from kernelwright.sandbox.jail.zygote import release_freed_memory
from kernelwright.sandbox.judge.stages import Built
from kernelwright.sandbox.timing.baselines import Baselines, compiled_reference
from kernelwright.sandbox.timing.paired import Timing
from kernelwright.sandbox.workfolder import WorkFolder


class CpuBackend(Backend):
    def reference(self, problem: Problem, form: Form = PLAIN) -> ReferenceSession:
        """Start a reference of its own; a compiled one has compiled. Close it."""
        if form.compiled is None:
            return self._open_reference(problem, form)
        return compiled_reference(problem, self, form, lambda folder: self._open_reference(problem, form, folder))

    def _open_reference(self, problem: Problem, form: Form, folder: WorkFolder | None = None) -> ReferenceSession:
        return ReferenceSession(problem, self, form, folder)

    def baselines(self, problem: Problem) -> Baselines:
        return Baselines(problem, self)

    def timing(self, baselines: Baselines, best_speedup: float | None) -> Timing:
        """The timing of one candidate; `best_speedup` is the speedup of the best so far."""
        return Timing(baselines, self.settings, best_speedup)

    def may_observe_timed_worker(self, baselines: Baselines) -> bool:
        """Return whether the worker that was timed last may be the one in which it is seen what runs."""
        return True

    def memory_explained(self, problem: Problem, baselines: Baselines, built: Built) -> AbstractContextManager[None]:
        """Attribute missing memory to the candidate or to the problem, as far as that can be decided."""
        return nullcontext()

    def looking(self, subject: Subject) -> AbstractContextManager[None]:
        """Have the CUDA tools of the settings look at a candidate once the judging inside has ended."""
        return nullcontext()

    def free_device_memory(self) -> None:
        """Give back device memory that this process keeps; processors have none."""

    def release_memory(self) -> None:
        """Give back all memory that this process keeps, so that it does not count for another problem."""
        release_freed_memory()
