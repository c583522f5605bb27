"""The judge: from a candidate to a verdict, without importing the candidate."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Self, get_args

from kernelwright.sandbox.authenticity import scan
from kernelwright.sandbox.authenticity.evidence import (
    Observed,
    judge_authenticity,
    needed_symbols,
    read_authenticity,
    refusal,
)
from kernelwright.sandbox.authenticity.scan import (
    GivenProblem,
    GivenSource,
    candidate_given,
    checked_source,
    problem_of,
)
from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.build import read_ptxas
from kernelwright.sandbox.calls.reference import ReferenceSession, fresh_seed
from kernelwright.sandbox.calls.sessions import Refused, Session
from kernelwright.sandbox.calls.timeouts import ImportTimeout
from kernelwright.sandbox.correctness.checks import evidence_of, require_known
from kernelwright.sandbox.gpu_tools import Subject
from kernelwright.sandbox.judge.stages import Built, SpareWorkers, attempts, compares_by_name, compile_candidate
from kernelwright.sandbox.locks import WaitLimit, report_load
from kernelwright.sandbox.machine import usual_device, versions, versions_used
from kernelwright.sandbox.timing.baseline_facts import Floors
from kernelwright.sandbox.timing.paired import in_background
from kernelwright.sandbox.toolchain import require_headers
from kernelwright.sandbox.verdict.errors import StageFailed, UnsupportedProblem
from kernelwright.sandbox.verdict.judge_version import JUDGE, JUDGE_VERSION
from kernelwright.sandbox.verdict.settings import Accuracy, JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Candidate, Evidence, Failed, Look, Measurement, Passed, Verdict

UNOBSERVED = "which kernels and operators run in a call"


class Judge:
    """Judge of candidates for one problem. Its reference processes serve all of them; use it as a context.

    Raises `ValueError` for tools at effort `screen`, and `UnsupportedProblem`.
    """

    def __init__(self, problem: GivenProblem, settings: JudgeSettings | None = None) -> None:
        self.problem = problem = problem_of(problem)
        chosen = settings or JudgeSettings()
        if chosen.effort == "screen" and (chosen.sanitize or chosen.profile):
            raise ValueError("effort screen runs no tools; choose effort search, or leave sanitize and profile out")
        self.settings = chosen.at(chosen.effort)
        require_known(self.settings.without)
        if self.settings.weights == "seed" and compares_by_name(problem):
            raise UnsupportedProblem(
                f"{problem.name} compares gradients or buffers by the names of weights; judge it with --weights copy"
            )
        self.spare: SpareWorkers | None = None
        """Warm workers for the next candidate of any problem; closed by their owner."""
        self.backend = backend_of(self.settings)
        self._baselines = self.backend.baselines(problem)
        self._floors = Floors(problem, self.backend)
        self._layers: tuple[str, ...] = ()
        self._is_stopped = False
        self._waiting = WaitLimit(stopped=lambda: self._is_stopped)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def reference(self) -> ReferenceSession:
        """The first reference child, started when first needed."""
        return self._baselines.first

    def start(self) -> None:
        """Start all reference children now; otherwise each starts when it is first needed."""
        self._baselines.start()

    def stop(self) -> None:
        """Wait for no lock any more: a thread of this judge that does ends with `MachineError`."""
        self._is_stopped = True

    def close(self) -> None:
        self.stop()
        self._baselines.close()
        self.backend.free_device_memory()

    def judge(self, candidate: GivenSource) -> Verdict:
        """Scan, build, load, run, check and time one candidate."""
        return self.evaluate(self.build(candidate_given(checked_source(candidate))))

    def build(self, candidate: Candidate, ahead: bool = True) -> Built:
        """Scan and compile, in a child of its own, beside other builds; while no core that it needs is timed on.

        `ahead`: whether the first worker is started meanwhile; without, where the build is not evaluated here.
        """
        start = time.perf_counter()
        refusal = scan.refuse(candidate.source)
        scanned_s = time.perf_counter() - start
        built = Built(candidate, self.backend, self.spare.take() if self.spare and ahead and not refusal else None)
        built.seconds["scan"] = scanned_s
        try:
            if refusal:
                raise StageFailed("scan", refusal)
            with self.backend.build_lock(self._waiting):
                require_headers(candidate.source)
                if ahead:
                    built.warm.start_ahead()
                with built.timed("reference"):
                    arguments = self._baselines.arguments
                compile_candidate(built, arguments, self._load_message(built))
        except StageFailed as stop:
            built.failure = stop
        except BaseException:
            built.close()
            raise
        return built

    def evaluate(self, built: Built, best_speedup: float | None = None) -> Verdict:
        """Load, run, check and time what was built; removes its work folder. Waits for the locks.

        `best_speedup`: of the best so far; at effort `search` a candidate clearly below it is measured no further.
        """
        with closing(built), self.backend.device_lock(self._waiting):
            try:
                if built.failure:
                    raise built.failure
                if self.backend.measures_peaks_first:
                    with built.timed("reference"):
                        self._floors.of(self.reference)
                with self._timing(built):
                    for attempt in attempts(built, self._baselines):
                        with attempt:
                            measurement = self._measure(built, best_speedup)  # load, every check, paired timing
                            forbidden = self._observe(built)
                    if forbidden:
                        raise StageFailed("check", forbidden)
                measurement = self._floors.added(self.reference, measurement)
                self._baselines.remember(measurement)
                return Passed(measurement=measurement, evidence=self._evidence(built))
            except StageFailed as failure:
                log = built.log_after(failure)
                return Failed(stage=failure.stage, reason=failure.reason, log=log, evidence=self._evidence(built))
            finally:
                built.close()

    @contextmanager
    def _timing(self, built: Built) -> Iterator[None]:
        """Hold the timing lock. CUDA tools that the settings ask for run at the end, then its workers are ended."""
        with self.backend.timing_lock(self._waiting):
            try:
                report_load(self.settings.cores, self.backend.timed_threads, self.settings.wait_quiet, self._waiting)
                looking = self.backend.looking(self.subject(built))
                with looking, self.backend.memory_explained(self.problem, self._baselines, built):
                    yield
            finally:
                built.end_workers()  # nothing of it may disturb the next timing

    def _measure(self, built: Built, best_speedup: float | None) -> Measurement:
        """Worker pair after worker pair: a fresh process for the candidate against one of the baseline's."""
        if built.worker is not None:  # started while the candidate was built
            with built.stage("load"):
                built.worker.greet()
        with self.backend.timing(self._baselines, best_speedup) as timing:
            built.errors, built.seen = timing.errors, timing.seen
            timing.is_seeded, timing.draws_constants = built.weight_seed is not None, built.draws_constants
            timing.warm = built.warm if self.backend.side_by_side else None
            is_enough = False
            while not is_enough:
                session = built.worker or built.next_worker()
                with built.timed("reference"):
                    reference = timing.begin(session)
                seeded: AbstractContextManager[None] = nullcontext()
                if built.weight_seed is not None:  # a fresh one for each worker pair
                    built.weight_seed = fresh_seed()
                    seeded = reference.seeded(built.weight_seed, built.draws_constants)
                with seeded:
                    with built.stage("load"):
                        self._load(built, session, reference)
                    with built.stage("run"):
                        timing.warm_up(session)
                        built.is_called = True
                    with built.stage("time"):
                        timing.measure(session)
                        is_enough = timing.is_enough
                        if is_enough and self.settings.effort == "screen":
                            built.not_met = (*timing.untested, *(() if self._is_observed else (UNOBSERVED,)))
                        elif is_enough:
                            timing.run_last()
                observes = is_enough and self._is_observed and self.backend.may_observe_timed_worker(self._baselines)
                built.worker = session if observes else None
                if not observes:
                    timing.retire(session)
        return timing.samples.measurement(self.settings)

    @property
    def _is_observed(self) -> bool:
        """Return whether it is seen what runs in a call; a screen wants it only where the problem has a policy."""
        return self.settings.effort != "screen" or self.problem.operators != "any"

    def _observe(self, built: Built) -> str:
        """See what runs in a call, in a process that is not timed any more; return why the policy forbids it."""
        if not self._is_observed:
            return ""
        if not self.backend.side_by_side:
            with built.timed("reference"):
                _ = self._baselines.status  # before a worker has memory of the device, or known already
        reference, gradients = self.reference, self.problem.direction != "forward"
        is_loaded = built.worker is not None
        session, values = built.worker or built.next_worker(), reference.draw()
        try:
            spare = self.spare if self.spare and self.spare.has_more and not self._baselines.is_tight else None
            warming = in_background(spare.make) if spare else nullcontext()
            with warming, built.stage("check"):
                if not is_loaded:
                    self._load(built, session, reference)
                with in_background(lambda: self._baselines.status, beside=self.backend.side_by_side):
                    observed = Observed.read(session.observe(values, gradients))
        except StageFailed as stop:
            observed = Observed(error=stop.reason[:200] or "it ended without a word")
        source = built.candidate.source
        built.authenticity = judge_authenticity(source, observed)
        built.look = Look.at(observed.kernels)
        if built.look is not None:  # it ran on a device
            compiled, warnings = read_ptxas(built.folder.path / "build")
            built.look = built.look.model_copy(update={"compiled": compiled, "warnings": warnings})
        symbols = frozenset(needed_symbols(built.folder.path) if self.problem.operators != "any" else ())
        return refusal(self.problem, source, observed, symbols)

    def subject(self, built: Built) -> Subject:
        """The candidate as a tool runs it."""
        return Subject(built, lambda: self._load_message(built), lambda: self.reference, self.settings)

    def _load_message(self, built: Built) -> dict[str, object]:
        """Write the source into the work folder; return the question that has a worker load it."""
        source = built.folder.write("candidate.py", built.candidate.source)
        return {
            "source": str(source),
            "entry": "ModelNew",
            "built": str(built.folder.path / "build"),
            "threads": self.settings.threads,
            "cores": self.backend.worker_cores,
            "dtype": self.problem.dtype,
            "seed": built.weight_seed,
            "vary": built.draws_constants,
        }

    def _load(self, built: Built, session: Session, reference: ReferenceSession) -> None:
        message = self._load_message(built) | {"op": "load", "arguments": reference.arguments.tree}
        reference.share_memory(session)
        limit_all = ImportTimeout.of(self.settings, wall=self.backend.import_wall)
        session.ask(message, limit_all, reference.arguments)
        if reference.weights.tensors:
            built.weights = "copied" if built.weight_seed is None else "seeded"
        if built.weights == "copied":
            try:
                session.copy_weights(reference.weight_names, reference.weights)
            except Refused:
                built.refuses_weights = True
                raise
        if built.weights == "seeded" and "weights" not in self.settings.without:
            built.has_constants = reference.replace_constants(session)
        reference.prepare_worker(session)

    def _evidence(self, built: Built) -> Evidence:
        allowed = self._baselines.allowed
        self._layers = built.layers or self._layers
        return Evidence(
            jail=self._layers,
            seconds={stage: round(seconds, 3) for stage, seconds in built.seconds.items()},
            authenticity=built.authenticity or read_authenticity(built.candidate.source),
            problem_status=self._baselines.known_status,
            exact=self._baselines.exact_ways,
            device=self.settings.device,
            versions=versions() | versions_used(built.candidate.source) | {JUDGE: str(JUDGE_VERSION)},
            builds=built.ways,
            hidden_builds=tuple(failed.line for failed in built.failed_builds),
            look=built.look,
            families_left_out=self._baselines.left_out,
            baselines_left_out=tuple(f"{name}: {why}" for name, why in self._baselines.unavailable.items()),
            weights=built.weights,
            without=self.settings.without,
            accuracy=self.settings.accuracy,
            errors=built.errors,
            errors_allowed={one: found for one in get_args(Accuracy) if (found := allowed(one, find=False))},
            effort=self.settings.effort,
            not_met=built.not_met,
            **evidence_of(built.seen),
        )


def judge(problem: GivenProblem, candidate: GivenSource, settings: JudgeSettings | None = None) -> Verdict:
    """One verdict for one candidate; for several of the same problem, keep a `Judge`.

    Where the settings name no device it is judged where its language runs; plain Python on a GPU where there is one,
    unless the problem's size is for a processor. Raises `ValueError` for a bad problem or source.
    """
    problem, candidate = problem_of(problem), candidate_given(checked_source(candidate))
    chosen = settings or JudgeSettings()
    if "device" not in chosen.model_fields_set:
        device = usual_device(candidate.language, problem.size)
        chosen = chosen.on(device)
    with Judge(problem, chosen) as its_judge:
        return its_judge.judge(candidate)
