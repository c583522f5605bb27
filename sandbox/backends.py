"""Judging on the processors of this machine, or on one GPU under its lock. `backend_of` chooses between the two."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import TypeVar

import torch

from kernelwright.problems import Problem
from kernelwright.sandbox.calls.backend import CONTEXT_BYTES, ON_DEVICE, Backend, DeviceVersions, refusal
from kernelwright.sandbox.calls.gpu_buffers import OUT_OF_MEMORY, free_cached_memory
from kernelwright.sandbox.calls.gpu_device import CudaDevice, device_of
from kernelwright.sandbox.calls.gpu_reference import GpuReference
from kernelwright.sandbox.calls.gpu_session import GpuSession
from kernelwright.sandbox.calls.reference import PLAIN, Form, ReferenceSession
from kernelwright.sandbox.calls.sessions import Session
from kernelwright.sandbox.gpu_timing import LINKS, DeviceTiming
from kernelwright.sandbox.gpu_tools import Subject, disassembled, looked_at
from kernelwright.sandbox.jail.layers import Kind
from kernelwright.sandbox.jail.zygote import release_freed_memory
from kernelwright.sandbox.judge.stages import Built
from kernelwright.sandbox.locks import PATIENT, WaitLimit, processor_lock
from kernelwright.sandbox.machine import gib, versions
from kernelwright.sandbox.peaks import measured_again, peaks_here
from kernelwright.sandbox.timing.baselines import Baselines, compiled_reference
from kernelwright.sandbox.timing.gpu_baselines import GpuBaselines
from kernelwright.sandbox.timing.paired import Timing
from kernelwright.sandbox.verdict.errors import MachineError, StageFailed, UnsupportedHere
from kernelwright.sandbox.verdict.roofline import Peaks
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.statistics import GPU_LEAST, GPU_UNKNOWN
from kernelwright.sandbox.workfolder import WorkFolder
from kernelwright_child.driver import CudaError

LOG = logging.getLogger("kernelwright.sandbox.judge")
AHEAD = 2
"""Workers that are started together, what most verdicts need. Only the first gets ready before it is due: the driver
makes contexts one after the other, half a second each, however many wait for theirs, and what is wrong needs but one.
"""
GRANTED = 1.5
"""Times what a reference takes, that a candidate may take before it is to blame."""
Made = TypeVar("Made")


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
        """Have the tools of the settings look at a candidate once the judging inside has ended."""
        return disassembled(subject) if self.settings.profile else nullcontext()

    def free_device_memory(self) -> None:
        """Give back device memory that this process keeps; processors have none."""

    def release_memory(self) -> None:
        """Give back all memory that this process keeps, so that it does not count for another problem."""
        release_freed_memory()


class GpuBackend(CpuBackend):
    """One device, timed beside builds and beside what judges of other devices do on the same cores."""

    kind = "cuda"
    most_parallel = None
    import_wall = 1  # others wait for the device
    measures_peaks_first = True
    unknown_spread, least_spread = GPU_UNKNOWN, GPU_LEAST

    def __init__(self, settings: JudgeSettings) -> None:
        super().__init__(settings)
        self.timed_threads = 2  # the judge, and a child that issues work
        self.worker_cores = list(settings.cores)
        self.workers_ahead = min(AHEAD, settings.worker_pairs)

    @property
    def device(self) -> CudaDevice:
        """Opened when first needed."""
        return device_of(self.settings)

    @cached_property
    def place(self) -> DeviceVersions | None:
        try:
            device = self.device
        except MachineError as error:
            LOG.info("no fact of this device is stored, since it cannot be named: %s", error)
            return None
        facts = device.clocks.facts()
        found = {"architecture": device.architecture, "cuda": str(torch.version.cuda)}
        return DeviceVersions(device.name, versions() | found | {"driver": facts.driver if facts else ""})

    @property
    def architecture(self) -> str:
        return self.device.architecture

    def open_session(self, kind: Kind, folder: WorkFolder) -> Session:
        """Start a child. A builder needs no device: what it compiles with runs on the processor."""
        if kind == "builder":
            return super().open_session(kind, folder)
        return GpuSession(kind, folder, self.settings, self.device)

    def device_lock(self, waiting: WaitLimit = PATIENT) -> AbstractContextManager[None]:
        """Keep other judges of this machine from the device."""
        return self.device.hold(waiting.stopped)

    def timing_lock(self, waiting: WaitLimit = PATIENT) -> AbstractContextManager[None]:
        """Keep timings of processors from the cores, and share them with builds."""
        return processor_lock(self.settings.cores, shared=True, waiting=waiting)

    def build_lock(self, waiting: WaitLimit = PATIENT) -> AbstractContextManager[None]:
        return nullcontext()

    def _in_thread(self, work: Callable[[], Made]) -> Made:
        with self.device.as_guest():
            return work()

    def _open_reference(self, problem: Problem, form: Form, folder: WorkFolder | None = None) -> GpuReference:
        return GpuReference(problem, self, form, folder)

    def baselines(self, problem: Problem) -> GpuBaselines:
        return GpuBaselines(problem, self)

    def timing(self, baselines: Baselines, best_speedup: float | None) -> Timing:
        assert isinstance(baselines, GpuBaselines)
        return DeviceTiming(baselines, self.settings, self.device, best_speedup)

    def may_observe_timed_worker(self, baselines: Baselines) -> bool:
        """A fresh one serves where that one may hold much memory, or where the problem's status is still to be found.

        For that no memory must be missing.
        """
        assert isinstance(baselines, GpuBaselines)
        return baselines.known_status is not None and not baselines.first.needs.is_large

    @contextmanager
    def memory_explained(self, problem: Problem, baselines: Baselines, built: Built) -> Iterator[None]:
        """Raise `StageFailed` or `UnsupportedHere` where the device's memory does not suffice.

        It may lack to the judge or to the reference, and for both the candidate may be why.
        """
        said = None
        try:
            yield
            return
        except torch.OutOfMemoryError:
            pass
        except UnsupportedHere as error:
            said = error
        except CudaError as error:
            if error.code != OUT_OF_MEMORY:
                raise
        assert isinstance(baselines, GpuBaselines)
        taken, needs = self._taken_by_candidate(built), baselines.first.needs
        granted = GRANTED * (needs.weights + needs.peak + LINKS * needs.result + CONTEXT_BYTES)  # a chain
        if taken > granted:
            raise StageFailed(
                "run",
                f"the candidate takes {gib(taken)} of the device's memory, more than {GRANTED:g} times what the "
                f"reference does, and there is none left to judge it; {gib(granted)} can be granted",
            )
        raise said or UnsupportedHere(refusal(problem.name, needs, self.device.total_bytes(), ON_DEVICE))

    def _taken_by_candidate(self, built: Built) -> int:
        """Bytes that are free once its worker has ended, over those before, without what the judge shared with it."""
        self.device.make_current()
        free_cached_memory()
        before, shared = self.device.free_bytes(), 0
        if built.worker is not None:
            shared = built.worker.shared_bytes
            built.worker.close()
        return max(0, self.device.free_bytes() - before - shared)

    def refusal_by_text(self, problem: Problem) -> str | None:
        return None  # a call is measured on the device instead

    def require_room(self, problem: Problem, session: Session, source: str) -> None:
        """Check nothing in advance: measuring a call is faster."""

    def peaks(self, again: bool = False) -> Peaks:
        return (measured_again if again else peaks_here)(True, self.settings.threads)

    def looking(self, subject: Subject) -> AbstractContextManager[None]:
        return looked_at(subject) if self.settings.sanitize or self.settings.profile else nullcontext()

    def free_device_memory(self) -> None:
        free_cached_memory()

    def release_memory(self) -> None:
        self.free_device_memory()


def backend_of(settings: JudgeSettings) -> CpuBackend:
    """Return what judges under these settings: the one place where it is chosen."""
    return GpuBackend(settings) if settings.gpu else CpuBackend(settings)
