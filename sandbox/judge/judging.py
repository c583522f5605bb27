"""The judge: from a candidate to a verdict, without ever importing the candidate."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Self, get_args

from kernelwright.sandbox.authenticity import scan
from kernelwright.sandbox.authenticity.evidence import Observed, judge_authenticity, read_authenticity, refusal
from kernelwright.sandbox.authenticity.native import needed_symbols
from kernelwright.sandbox.build import BuildStore, Toolchain, require_headers, toolchain
from kernelwright.sandbox.build import build_store as diagnose
from kernelwright.sandbox.build.build_store import read_failures
from kernelwright.sandbox.calls.backend import build_turn, device_held, timing_turn
from kernelwright.sandbox.calls.reference import ReferenceSession
from kernelwright.sandbox.calls.sessions import Refused, Session
from kernelwright.sandbox.calls.timeouts import WALL, ImportTimeout
from kernelwright.sandbox.judge.floors import Floors
from kernelwright.sandbox.judge.given import GivenProblem, GivenSource, candidate_given, checked_source, problem_of
from kernelwright.sandbox.judge.stages import Built, Spare, build_key, built_by, shortcuts_for, with_late_builds
from kernelwright.sandbox.machine.identity import needs_device, versions, versions_used
from kernelwright.sandbox.machine.timing_locks import WaitLimit, meet_load
from kernelwright.sandbox.timing.baselines import Baselines
from kernelwright.sandbox.timing.fresh_values import in_background
from kernelwright.sandbox.timing.paired import DrawingReference, Timing, weight_seed
from kernelwright.sandbox.verdict.errors import StageFailed, UnsupportedProblem
from kernelwright.sandbox.verdict.judge_version import JUDGE, JUDGE_VERSION
from kernelwright.sandbox.verdict.settings import Accuracy, Settings
from kernelwright.sandbox.verdict.verdicts import Candidate, Evidence, Failed, Look, Measurement, Passed, Verdict

if TYPE_CHECKING:
    from kernelwright.sandbox.judge.tools import Subject

STORED = "taken from the store of finished builds"
UNOBSERVED = "which kernels and operators run in a call"


class Judge:
    """Judges candidates for one problem. Its reference children serve them all; use it as a context."""

    def __init__(self, problem: GivenProblem, settings: Settings | None = None) -> None:
        self.problem = problem = problem_of(problem)
        chosen = settings or Settings()
        self.settings = chosen.at(chosen.effort)
        if self.settings.weights == "seed" and self._compares_by_name:
            raise UnsupportedProblem(
                f"{problem.name} compares gradients or buffers by the names of weights; judge it with --weights copy"
            )
        self.spare: Spare | None = None
        """Where workers stand for the next candidate of any problem, if somebody lends one, who closes it."""
        self._baselines = Baselines(problem, self.settings)
        self._floors = Floors(problem, self.settings)
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
        """Wait for no turn any more: a thread of this judge that does ends with `MachineError`."""
        self._is_stopped = True

    def close(self) -> None:
        self.stop()
        self._baselines.close()
        if self.settings.gpu:
            from kernelwright.sandbox.calls.memory_relief import free_cached_memory

            free_cached_memory()

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
        built = Built(candidate, self.spare.take() if self.spare and ahead and not refusal else None)
        built.seconds["scan"] = scanned_s
        try:
            if refusal:
                raise StageFailed("scan", refusal)
            with build_turn(self.settings, self._waiting):
                self._compile(built, ahead)
        except StageFailed as stop:
            built.failure = stop
        except BaseException:
            built.close()
            raise
        return built

    def _compile(self, built: Built, ahead: bool) -> None:
        """Have the builder compile, or take what the same source has given before."""
        require_headers(built.candidate.source)
        if ahead:
            built.stand.start_first(self.settings)
        tools = toolchain() if self.settings.shortcuts else None
        built.key = build_key(built.candidate.source, tools, self._baselines.arguments, self.settings)
        with built.stage("build"):
            if tools is not None and BuildStore().restore(built.key, built.folder.path / "build"):
                self._greet_ahead(built)
                built.ways, built.failed_builds = (STORED,), read_failures(built.folder.path / "build")
                return
        with built_by(built, tools, self.settings) as (session, limit):
            self._layers = session.layers
            # Both, before the candidate's code runs anywhere: what goes wrong later is its own doing.
            self._greet_ahead(built)
            session.greet()
            self._ask_to_build(built, session, limit, tools)

    def _greet_ahead(self, built: Built) -> None:
        built.stand.come_up()
        if built.stand.sessions:
            built.worker = built.stand.sessions.pop(0)
            self._layers = built.worker.layers

    def _ask_to_build(self, built: Built, session: Session, limit: ImportTimeout, tools: Toolchain | None) -> None:
        arguments = self._baselines.arguments
        shortcuts = shortcuts_for(tools, self.settings)
        message = self._load_message(built) | {"op": "build", "arguments": arguments.tree, "shortcuts": shortcuts}
        try:
            session.ask(message, limit, arguments)
        except Refused as error:
            if error.compiling:
                log = error.log
                if not diagnose.names_an_error(log):  # a verbose build prints what its compiler says
                    log = f"{session.close()}\n{log}"
                raise StageFailed("build", diagnose.build_reason(log), diagnose.trim_build_log(log)) from None
            raise StageFailed("load", error.reason, diagnose.trim_traceback(error.log)) from None

    def evaluate(self, built: Built, beat: float | None = None) -> Verdict:
        """Load, run, check and time what was built; removes its work folder. Waits for its turn.

        `beat`: the speedup of the best so far; at effort `search` what is clearly below it is measured no further.
        """
        with closing(built), device_held(self.settings, self._waiting), ExitStack() as turn:
            try:
                if built.failure:
                    raise built.failure
                if self.settings.gpu:  # elsewhere only what is right has need of it
                    self._floors.of(self._baselines.first)  # what it may measure takes all processors
                turn.enter_context(timing_turn(self.settings, self._waiting))
                threads = 2 if self.settings.gpu else self.settings.threads  # the judge, and a child that issues work
                meet_load(self.settings.cores, threads, self.settings.wait_quiet, self._waiting)
                with self._looking(built), self._memory_watched(built):
                    measurement = with_late_builds(built, self.settings, lambda: self._measured(built, turn, beat))
            except StageFailed as stop:
                log = built.log_after(stop)
                return Failed(stage=stop.stage, reason=stop.reason, log=log, evidence=self._evidence(built))
            finally:
                built.close()  # before the turn ends
            return Passed(measurement=measurement, evidence=self._evidence(built))

    def _measured(self, built: Built, turn: ExitStack, beat: float | None) -> Measurement:
        if built.worker is not None:  # which came up while the candidate was built
            with built.stage("load"):
                built.worker.greet()
        if self.settings.weights == "seed" and self._may_seed_weights:
            measurement = self._measure_under_one_seed(built, beat)
        else:
            try:
                measurement = self._measure_seeded_alike(built, beat)
            except StageFailed as stop:
                failed_by_weights = built.refuses_weights or stop.stage == "check"
                if self.settings.weights != "auto" or not self._may_seed_weights or not failed_by_weights:
                    raise
                measurement = self._measure_under_one_seed(built, beat, stop)
        if self._is_observed:
            self._observe(built)
        if not self.settings.gpu:
            built.end_workers()  # nothing of it is to be heard by whoever comes next
        turn.close()  # the floor may have to be measured again
        measurement = self._floors.added(self._baselines.first, measurement)
        self._baselines.remember(measurement)
        return measurement

    def _measure_seeded_alike(self, built: Built, beat: float | None) -> Measurement:
        """Measure; once more, with both sides seeded alike, where the reference draws in `forward`."""
        try:
            return self._measure(built, beat)
        except DrawingReference:
            self._baselines.is_seeded = True
            built.end_workers()
            return self._measure(built, beat)

    @property
    def _compares_by_name(self) -> bool:
        """Whether gradients or buffers of both models are compared."""
        return self.problem.direction != "forward" or self.problem.state == "followed"

    @property
    def _may_seed_weights(self) -> bool:
        first = self._baselines.first
        return bool(first.weights.tensors) and not self._compares_by_name and not first.followed

    def _measure_under_one_seed(
        self, built: Built, beat: float | None, copied: StageFailed | None = None
    ) -> Measurement:
        """Measure with both models constructed under one seed; `copied`: how it failed with copied weights.

        Weights that a constructor sets to constants look alike in a model that leaves them out. So those of one value
        and size get other values in both finished models; or else, for candidates that compute with them before, as
        torch's layers are constructed.
        """
        built.weight_seed = weight_seed()
        for built.draws_constants in (False, True):
            built.end_workers()
            try:
                return self._measure_seeded_alike(built, beat)
            except StageFailed as stop:
                seeded = stop
                if stop.stage != "check" or not built.has_constants:
                    break
        first = seeded if copied is None or built.refuses_weights else copied
        if first.stage != "check":
            raise seeded
        reason = (
            f"{first.reason}; it fails with both models constructed under one seed too: either the order in which its "
            "constructor draws or the kernel is wrong"
        )
        raise StageFailed(first.stage, reason, f"{first.log}\n{seeded.reason}".strip())

    @contextmanager
    def _memory_watched(self, built: Built) -> Iterator[None]:
        """Device memory that is missing here is the candidate's doing where it has more than it was granted."""
        if not self.settings.gpu:
            yield
            return
        from kernelwright.sandbox.judge.device_memory_errors import explained

        with explained(self.problem, self.settings, self._baselines, built):
            yield

    def _measure(self, built: Built, beat: float | None) -> Measurement:
        """Worker pair after worker pair: a fresh process for the candidate against one of the baseline's."""
        with self._timing(beat) as timing:
            built.errors = timing.errors
            if self.settings.side_by_side:
                timing.at_the_end = lambda: self._start_ahead(built, timing)
            is_enough = False
            while not is_enough:
                session = built.worker or self._next_worker(built)
                with self._weights_shared(built, timing.baseline):
                    with built.stage("load"):
                        self._load(built, session, timing.baseline)
                    with built.stage("run"):
                        repeats = timing.warm_up(session)
                    if timing.number == 0:
                        built.deterministic = repeats
                    with built.stage("time"):
                        timing.measure(session)
                        is_enough = timing.is_enough
                        if is_enough:
                            self._meet_the_rest(built, timing, session)
                built.worker = session if is_enough and self._is_observed_last else None
                if built.worker is None:
                    timing.retire(session)
        return timing.samples.measurement(self.settings)

    @contextmanager
    def _weights_shared(self, built: Built, reference: ReferenceSession) -> Iterator[None]:
        """For one worker pair: where both models are constructed under one seed, a fresh one."""
        if built.weight_seed is None:
            yield
            return
        built.weight_seed = weight_seed()
        with reference.seeded(built.weight_seed, built.draws_constants):
            yield

    def _meet_the_rest(self, built: Built, timing: Timing, session: Session) -> None:
        """All that a verdict is about and no timed call has met; a screen only says what that is."""
        if self.settings.effort == "screen":
            built.not_met = (*timing.unmet, *(() if self._is_observed else (UNOBSERVED,)))
        else:
            timing.meet_the_rest(session)
            if built.weight_seed is not None:
                timing.meet_other_seeds(session, built.draws_constants)

    @property
    def _is_observed(self) -> bool:
        """Whether it is seen what runs in a call; a screen wants it only where the problem has a policy."""
        return self.settings.effort != "screen" or self.problem.operators != "any"

    @property
    def _is_observed_last(self) -> bool:
        """Whether in the worker that was timed last, after all else.

        On a device a fresh one serves where that one may hold much memory, or where the problem's status is still to be
        found, for which none must be missing.
        """
        if not self.settings.gpu:
            return self._is_observed
        is_known = self._baselines.known_status is not None
        return self._is_observed and is_known and not self._baselines.first.needs.is_large

    def _start_ahead(self, built: Built, timing: Timing) -> None:
        """Start another worker while fewer were timed than are wanted; whether it is needed is not known yet."""
        if timing.number + 1 < self.settings.worker_pairs:
            timing.fresh.warm(timing.number + 1)
            built.stand.start(self.settings, 1)

    def _next_worker(self, built: Built) -> Session:
        """One that stands already, or else is started now; it has greeted."""
        built.worker = session = built.stand.take(self.settings)
        self._layers = session.layers
        return session

    def _spare_made(self) -> AbstractContextManager[None]:
        """Meanwhile workers for the next candidate are started, where there will be one and memory holds it."""
        if self.spare is None or not (self.spare.is_lasting and self._baselines.has_room_for_two):
            return nullcontext()
        return in_background(self.spare.make)

    def _timing(self, beat: float | None) -> Timing:
        if not self.settings.gpu:
            return Timing(self._baselines, self.settings, beat)
        from kernelwright.sandbox.calls.device import device_of
        from kernelwright.sandbox.gpu_timing import DeviceTiming

        return DeviceTiming(self._baselines, self.settings, device_of(self.settings), beat)

    def _observe(self, built: Built) -> None:
        """See what runs in a call, in a process that is not timed any more; refuse what the policy forbids."""
        if not self.settings.side_by_side:
            _ = self._baselines.status  # before a worker has memory of the device, or known already
        reference, gradients = self._baselines.first, self.problem.direction != "forward"
        is_loaded = built.worker is not None
        session, values = built.worker or self._next_worker(built), reference.draw()
        try:
            with self._spare_made(), built.stage("check"):
                if not is_loaded:
                    self._load(built, session, reference)
                with in_background(lambda: self._baselines.status, beside=self.settings.side_by_side):
                    observed = Observed.read(session.observe(values, gradients))
        except StageFailed as stop:
            observed = Observed(error=stop.reason[:200] or "it ended without a word")
        source = built.candidate.source
        built.authenticity = judge_authenticity(source, observed)
        built.look = Look.at(observed.kernels)
        symbols = frozenset(needed_symbols(built.folder.path) if self.problem.operators != "any" else ())
        refused = refusal(self.problem, source, observed, symbols)
        if refused:
            raise StageFailed("check", refused)

    def _looking(self, built: Built) -> AbstractContextManager[None]:
        """What the settings ask to be looked at, on a device, once the judging inside has ended."""
        if not self.settings.gpu or not (self.settings.sanitize or self.settings.profile):
            return nullcontext()
        from kernelwright.sandbox.judge.tools import looked_at

        return looked_at(self._subject(built))

    def _subject(self, built: Built) -> "Subject":
        """The candidate as a tool runs it."""
        from kernelwright.sandbox.judge.tools import Subject

        return Subject(built, lambda: self._load_message(built), lambda: self.reference, self.settings)

    def _load_message(self, built: Built) -> dict[str, object]:
        """What a worker is asked to load; writes the source into the work folder."""
        source = built.folder.write("candidate.py", built.candidate.source)
        return {
            "source": str(source),
            "entry": "ModelNew",
            "built": str(built.folder.path / "build"),
            "threads": self.settings.threads,
            "cores": list(self.settings.cores[: None if self.settings.gpu else self.settings.threads]),
            "dtype": self.problem.dtype,
            "seed": built.weight_seed,
            "vary": built.draws_constants,
        }

    def _load(self, built: Built, session: Session, reference: ReferenceSession) -> None:
        limit = self.settings.start_timeout_s
        message = self._load_message(built) | {"op": "load", "arguments": reference.arguments.tree}
        reference.admit(session)
        wall = 1 if self.settings.gpu else WALL  # others wait for the device
        session.ask(message, ImportTimeout.of(self.settings, wall=wall), reference.arguments)
        if reference.weights.tensors:
            built.weights = "copied" if built.weight_seed is None else "seeded"
        if built.weights == "copied":
            try:
                session.ask({"op": "weights", "names": reference.weight_names}, limit, reference.weights)
            except Refused:
                built.refuses_weights = True
                raise
        if built.weights == "seeded" and "weights" not in self.settings.without:
            built.has_constants = reference.replace_constants(session)
        reference.equip(session)

    def _evidence(self, built: Built) -> Evidence:
        allowed = self._baselines.allowed
        return Evidence(
            jail=self._layers,
            seconds={stage: round(seconds, 3) for stage, seconds in built.seconds.items()},
            authenticity=built.authenticity or read_authenticity(built.candidate.source),
            problem_status=self._baselines.known_status,
            exact=self._baselines.exact_ways,
            device=self.settings.device,
            versions=versions() | versions_used(built.candidate.source) | {JUDGE: str(JUDGE_VERSION)},
            deterministic=built.deterministic,
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
        )


def judge(problem: GivenProblem, candidate: GivenSource, settings: Settings | None = None) -> Verdict:
    """One verdict for one candidate; for several of the same problem, keep a `Judge`.

    Where the settings name no device it is judged where its language runs; plain Python on a GPU where there is one,
    unless the problem's size is for a processor. Raises `ValueError` for what is no problem or no source.
    """
    problem, candidate = problem_of(problem), candidate_given(checked_source(candidate))
    chosen = settings or Settings()
    if "device" not in chosen.model_fields_set:
        device = "cuda" if needs_device(candidate.language, problem.size) else "cpu"
        chosen = chosen.on(device)
    with Judge(problem, chosen) as keeper:
        return keeper.judge(candidate)
