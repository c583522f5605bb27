"""Processes, locks and memory of a judging on processors; `sandbox/backends.py` has those of a device."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError

from kernelwright.problems import Problem
from kernelwright.problems.arithmetic import input_bytes
from kernelwright.sandbox.calls.sessions import Refused, Session
from kernelwright.sandbox.calls.timeouts import WALL
from kernelwright.sandbox.jail.layers import Kind
from kernelwright.sandbox.locks import PATIENT, WaitLimit, processor_lock
from kernelwright.sandbox.machine import free_bytes, gib, processor_name, versions
from kernelwright.sandbox.peaks import measured_again, peaks_here
from kernelwright.sandbox.storage import Store, plan_key
from kernelwright.sandbox.verdict.errors import UnsupportedHere
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


CERTAIN_BYTES = 2**26
"""Inputs and weights below this need no plan, which takes seconds."""
HALVES = ("float16", "bfloat16")


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
        self.side_by_side = settings.side_by_side
        """Whether children may work next to each other."""
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
        shown = input_bytes(problem.source) // (2 if problem.dtype in HALVES else 1)
        least = Needs(inputs=shown, result=0, exact=0, peak=0, weights=0)
        if child_bytes(least) <= self.settings.memory_bytes:
            return None
        return child_refusal(problem.name, least, self.settings.memory_bytes, inputs_only=True)

    def require_room(self, problem: Problem, session: Session, source: str) -> None:
        """Raise `UnsupportedHere` where a reference with large inputs takes more host memory than there is.

        `session` is a child that has loaded nothing; `source` is the path of the reference.
        """
        if input_bytes(problem.source) < self.certain_bytes:
            return
        if said := self.refusal_by_text(problem):
            raise UnsupportedHere(said)
        limit_bytes = self.settings.memory_bytes
        needs = planned(problem, session, source, self.settings.start_timeout_s)
        if needs is None:
            return
        if child_bytes(needs) > limit_bytes:
            raise UnsupportedHere(child_refusal(problem.name, needs, limit_bytes))
        if references_kept(needs, 1, there := free_bytes(), ON_HOST) == 0:
            raise UnsupportedHere(refusal(problem.name, needs, there, ON_HOST))

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


# The memory of a call, by a plan or by the inputs alone.

CONTEXT_BYTES = 640 * 2**20
"""Device memory of each process that uses the device, before any work."""
LOOK_BYTES = 3 * 2**29
"""Device memory for comparisons in float64, and for the flush of the cache."""
LARGE_BYTES = 2**30
"""Above this, memory that only saves time is freed after use."""


class Needs(NamedTuple):
    """Memory of one call of the reference, in bytes."""

    inputs: int
    result: int
    exact: int
    """Result in float64."""
    peak: int
    """Peak of result and intermediate values."""
    weights: int
    scratch: int = 0
    """Scratch memory of a convolution on a processor, which is kept for the next."""

    @property
    def exact_peak(self) -> int:
        """Peak of a call in float64, with widened inputs and weights."""
        return 2 * (self.inputs + self.peak + self.weights) + self.scratch

    @property
    def is_large(self) -> bool:
        """True if unused memory must be freed."""
        return self.inputs + self.peak + self.weights > LARGE_BYTES


class ProcessBytes(NamedTuple):
    """Memory of processes without a problem, in bytes."""

    child: int
    judge: int


ON_DEVICE, ON_HOST = ProcessBytes(CONTEXT_BYTES, CONTEXT_BYTES + LOOK_BYTES), ProcessBytes(2**25, 2**28)
"""On the host, children share their imported modules."""
EXACT_COPIES = 2.5
"""Float64 results on the host for an output with a large error: on the inputs, on perturbed inputs, and their
difference in float32."""


def taken_bytes(needs: Needs, references: int, own: ProcessBytes) -> int:
    """Estimate the bytes of a judging in which this number of references keep the memory of their calls.

    Inputs exist four times: shared with the candidate and with the references, held by the judge, and while they are
    drawn or changed. The judge copies the candidate's result; the candidate may take as much as a reference. With
    several references on a device, a float64 check must fit next to them; a single one frees its memory first. On the
    host the check always replaces one call, and the judge copies all results and weights.
    """
    child = needs.weights + needs.peak + own.child
    judge = 4 * needs.inputs + needs.result + own.judge
    beside = needs.exact_peak + needs.exact + needs.result if references > 2 else 0
    if own == ON_HOST:
        kept = int(EXACT_COPIES * needs.exact) + needs.result + 2 * needs.weights
        beside = needs.exact_peak - needs.peak + kept
    return judge + (references + 1) * child + beside


def references_kept(needs: Needs, wanted: int, free_bytes: int, own: ProcessBytes) -> int:
    """Return the number of references that fit, at most `wanted`; 0 for none."""
    fitting = (count for count in range(wanted, 0, -1) if taken_bytes(needs, count, own) <= free_bytes)
    return next(fitting, 0)


def fit_easily(needs: Needs, references: int, device_bytes: int, host_bytes: int) -> bool:
    """Return whether free memory holds so many at once easily: a child that starts cannot be asked to free its own."""
    each = CONTEXT_BYTES + 2 * (needs.inputs + needs.weights) + needs.peak
    return references * each <= device_bytes / 2 and references * needs.weights <= host_bytes


def child_bytes(needs: Needs) -> int:
    """Estimate the host memory in bytes of a reference on the processor, float64 included."""
    return needs.weights + needs.inputs + needs.peak + needs.exact_peak + ON_HOST.child


def refusal(name: str, needs: Needs, free_bytes: int, own: ProcessBytes) -> str:
    where, other = ("the device", ", end what else uses it") if own == ON_DEVICE else ("this machine", ", or a GPU")
    return (
        f"judging {name} takes {gib(taken_bytes(needs, 1, own))} of memory (a call has {gib(needs.inputs)} of inputs, "
        f"{gib(needs.weights)} of weights and takes {gib(needs.peak)} beside them) and {where} has "
        f"{gib(free_bytes)}; use one with more{other}, or make the problem smaller"
    )


def child_refusal(name: str, needs: Needs, limit_bytes: int, inputs_only: bool = False) -> str:
    """Phrase the refusal of a reference that is too large for a child; `inputs_only` where only inputs are known."""
    of = f"{gib(needs.inputs)} of inputs, {gib(needs.weights)} of weights and takes {gib(needs.peak)} beside them"
    least, call = "", f"a call has {of}"
    if inputs_only:
        least, call = "at least ", f"its inputs alone have {gib(needs.inputs)}"
    return (
        f"the reference of {name} takes {least}{gib(child_bytes(needs))} of memory in float64 ({call}) and a child may "
        f"take {gib(limit_bytes)}; give more with --memory, or use a machine that has more"
    )


def planned(problem: Problem, session: Session, source: str, timeout_s: float) -> Needs | None:
    """Plan the memory of a call by its shapes, in a child, and store it; None where that is not possible."""
    store, key = Store("needs"), plan_key(problem.digest)
    kept = store.get(key)
    if kept is None:
        differentiated = problem.direction != "forward"
        question = {"op": "plan", "source": source, "dtype": problem.dtype, "backward": differentiated}
        try:
            kept = session.ask(question, timeout_s).get("plan")
        except Refused:
            kept = {}
        store.put(key, kept if isinstance(kept, dict) else {})
    try:
        return TypeAdapter(Needs).validate_python(kept)
    except ValidationError:
        return None
