"""Processes, locks and memory of a judging on processors; `sandbox/backends.py` has those of a device."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import NamedTuple, TypeVar

from kernelwright.problems import Problem
from kernelwright.sandbox.calls.memory_planning import CERTAIN_BYTES, refusal_by_text, require_room
from kernelwright.sandbox.calls.sessions import Session
from kernelwright.sandbox.calls.timeouts import WALL
from kernelwright.sandbox.jail.layers import Kind
from kernelwright.sandbox.locks import PATIENT, WaitLimit, processor_lock
from kernelwright.sandbox.machine import processor_name, versions
from kernelwright.sandbox.peaks import measured_again, peaks_here
from kernelwright.sandbox.verdict.roofline import Peaks
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.statistics import LEAST, UNKNOWN
from kernelwright.sandbox.workfolder import WorkFolder

Made = TypeVar("Made")


class DeviceVersions(NamedTuple):
    """Equal where times can be compared."""

    device: str
    """A GPU by its name; a processor by its name and the number of threads."""
    versions: dict[str, str]


class Backend:
    """The processors of this machine. A backend is chosen once, by `backend_of`."""

    kind = "cpu"
    """In keys of stored facts."""
    workers_ahead = 1
    """Workers that are started before a candidate's build is done: each more would disturb a timing."""
    most_parallel: int | None = 2
    """References that start at a time: more would only wait for each other's memory. None for all."""
    certain_bytes = CERTAIN_BYTES
    """Inputs below this are no reason to plan a call's memory before one; 0 to plan it whatever the inputs."""
    unknown_spread, least_spread = UNKNOWN, LEAST
    """The spread between worker pairs that is assumed before any is known, and the least that is ever assumed."""
    measures_peaks_first = False
    """Whether the roofline's peaks are measured before a candidate is timed; else only what is right needs them."""
    import_wall = WALL
    """An import may take this many times its limit by the wall clock."""

    def __init__(self, settings: JudgeSettings) -> None:
        self.settings = settings
        self.timed_threads = settings.threads
        """Threads that compute during a timing."""
        self.worker_cores = list(settings.cores[: settings.threads])
        """Cores of the processor that a worker may use."""

    @cached_property
    def place(self) -> DeviceVersions | None:
        """The device and the versions that times depend on; None where the device cannot be named."""
        return DeviceVersions(f"{processor_name()}, {self.settings.threads} threads", versions())

    @property
    def architecture(self) -> str:
        """Of the device, as `9.0`; empty where there is none."""
        return ""

    def open_session(self, kind: Kind, folder: WorkFolder) -> Session:
        """Start a child in a work folder."""
        return Session(kind, folder, self.settings)

    def device_lock(self, waiting: WaitLimit = PATIENT) -> AbstractContextManager[None]:
        """Keep other judges of this machine from the device; processors have none."""
        return nullcontext()

    def timing_lock(self, waiting: WaitLimit = PATIENT) -> AbstractContextManager[None]:
        """Keep what disturbs a timing from the cores; taken after the device's lock."""
        return processor_lock(self.settings.cores, waiting=waiting)

    def build_lock(self, waiting: WaitLimit = PATIENT) -> AbstractContextManager[None]:
        """Keep timings from the cores that a build would take from them, unless there are some to spare."""
        if self.settings.threads < len(self.settings.cores):
            return nullcontext()
        return processor_lock(self.settings.cores, shared=True, waiting=waiting)

    def peaks(self, again: bool = False) -> Peaks:
        """Measured where they are not stored; the better of these and another measurement if `again`.

        Raises `MachineError` where they cannot be measured.
        """
        return (measured_again if again else peaks_here)(False, self.settings.threads)

    def refusal_by_text(self, problem: Problem) -> str | None:
        """Return the refusal of a problem whose inputs are too large by its source alone; None otherwise."""
        return refusal_by_text(problem, self.settings)

    def require_room(self, problem: Problem, session: Session, source: str) -> None:
        """Raise `UnsupportedHere` where a reference takes more memory than there is; see `require_room`."""
        require_room(problem, self.settings, session, source, self.certain_bytes)

    def in_parallel(self, works: Sequence[Callable[[], Made]], most: int | None = None) -> list[Made]:
        """Run all while nothing is timed and return their results in order; hold the device's lock meanwhile.

        The first error is raised once all have ended.
        """
        if not works:
            return []
        with ThreadPoolExecutor(most or len(works)) as pool:
            futures = [pool.submit(self._in_thread, work) for work in works]
        return [future.result() for future in futures]

    def _in_thread(self, work: Callable[[], Made]) -> Made:
        return work()
