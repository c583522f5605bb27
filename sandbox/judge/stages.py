"""A candidate on its way to a verdict: its folder, its children, its builds, the stage it has reached, what stopped it.

Workers start before they are needed: with torch, on a device with its context, without anyone's code. Each is used
once, for one candidate. Workers of one candidate share a work folder and see no other; it is empty until the candidate
comes. So a warm worker holds nothing of any problem or candidate, and can see nothing of them.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Literal

from kernelwright.problems import Problem
from kernelwright.sandbox.build import BuildStore, FailedBuild, read_failures, read_record
from kernelwright.sandbox.calls.backend import Backend
from kernelwright.sandbox.calls.reference import fresh_seed
from kernelwright.sandbox.calls.sessions import Misbehaved, Refused, Session, Unbuilt
from kernelwright.sandbox.calls.timeouts import CandidateLate, ImportTimeout
from kernelwright.sandbox.correctness.checks import DrawingReference
from kernelwright.sandbox.correctness.compare import Shares
from kernelwright.sandbox.jail.process import ChildGone, ChildLate
from kernelwright.sandbox.logs import build_reason, names_an_error, trim_build_log, trim_traceback
from kernelwright.sandbox.machine import versions_used
from kernelwright.sandbox.tensors import MemoryReadError, Values
from kernelwright.sandbox.timing.baselines import Baselines
from kernelwright.sandbox.toolchain import MakingHeaders, Toolchain, missing_headers, toolchain
from kernelwright.sandbox.verdict.errors import SandboxError, Stage, StageFailed
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Authenticity, Candidate, Look
from kernelwright.sandbox.workfolder import WorkFolder

LOG = logging.getLogger("kernelwright.sandbox.judge")
MEASURING = {
    *("effort", "warm_up", "worker_pairs", "min_pairs", "max_pairs", "time_budget_s", "interval_target"),
    *("accuracy", "compiled", "baselines", "sanitize", "profile", "wait_quiet"),
}
"""Settings that no worker knows of."""


class WarmWorkers:
    """The folder of the next candidate, and workers that were started in it. Close it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.folder = WorkFolder()
        self.sessions: list[Session] = []
        """Started ones, the next to be used first."""

    def start_ahead(self) -> None:
        """Start the workers that any candidate needs, those that are there aside."""
        self.start(self._backend.workers_ahead - len(self.sessions))

    def take(self) -> Session:
        """Take the next worker, started if there is none; it is ready."""
        if not self.sessions:
            self.start(1)
        self.sessions[0].greet()
        return self.sessions.pop(0)

    def start(self, count: int) -> None:
        """Begin to start this many more; on a device nothing is done yet."""
        for _ in range(count):
            self.sessions.append(self._backend.open_session("worker", self.folder))

    def wait_started(self) -> None:
        for session in self.sessions:
            session.wait_started()

    def close(self) -> None:
        ending, self.sessions = self.sessions, []
        try:
            close_all(ending)
        finally:
            self.folder.close()


def close_all(sessions: Sequence[Session]) -> None:
    with ThreadPoolExecutor(max(1, len(sessions))) as pool:
        for done in [pool.submit(session.close) for session in sessions]:
            done.result()


class SpareWorkers:
    """Warm workers for the next candidate on a device, started while nothing is timed. Thread-safe; close it."""

    def __init__(self, backend: Backend, has_more: bool = True) -> None:
        """`has_more`: whether there is another candidate after the next."""
        self._backend, self.has_more = backend, has_more
        self._workers: WarmWorkers | None = None
        self._choosing = threading.Lock()
        self._forget: Callable[[], None] | None = None
        self._is_closed = False

    def fits(self, settings: JudgeSettings) -> bool:
        """Return whether these settings would start the same workers: they may differ in how much is measured."""
        return settings.model_dump(exclude=MEASURING) == self._backend.settings.model_dump(exclude=MEASURING)

    def make(self) -> None:
        """Start the processes, and have the first make its context; hold the device. All end where memory runs short.

        For a background thread: an error is only logged, since the next user of a worker gets it again.
        """
        if self._is_closed:
            return
        try:
            warm = self.take() or WarmWorkers(self._backend)
            try:
                warm.start_ahead()
                warm.wait_started()
                self._backend.in_parallel([warm.sessions[0].greet])
            except BaseException:
                warm.close()
                raise
        except SandboxError as error:
            LOG.info("no warm workers for the next candidate: %s", error)
            return
        with self._choosing:
            is_late = self._is_closed or self._workers is not None
            if not is_late:
                self._workers = warm
        if is_late:
            warm.close()
        if self._forget is None:
            from kernelwright.sandbox.calls.gpu_buffers import register

            self._forget = register(self.give_up, self._backend.settings.ordinal)

    def take(self) -> WarmWorkers | None:
        """Hand them over to the caller."""
        with self._choosing:
            warm, self._workers = self._workers, None
        return warm

    def give_up(self) -> None:
        warm = self.take()
        if warm is not None:
            warm.close()

    def close(self) -> None:
        self._is_closed = True
        self.give_up()
        if self._forget is not None:
            self._forget()
            self._forget = None


listeners: list[Callable[[str], None]] = []
"""Called with each stage of this process's judgings as it begins."""


def announce(stage: str) -> None:
    for listener in listeners:
        listener(stage)


class Built:
    """A candidate whose build is done (or failed), waiting for the lock of the device. Close it."""

    def __init__(self, candidate: Candidate, backend: Backend, warm: WarmWorkers | None = None) -> None:
        self.candidate, self.backend = candidate, backend
        self.warm = warm or WarmWorkers(backend)
        """Its folder, and the workers that were started ahead."""
        self.worker: Session | None = None
        """The one that is at work, or will be first: it is stopped until the build is done."""
        self.layers: tuple[str, ...] = ()
        """The isolation layers of its children."""
        self.failure: StageFailed | None = None
        self.key = ""
        """Under which digest the store of finished builds keeps it; empty before it is known."""
        self.seconds: dict[str, float] = {}
        """By stage; also `reference`, what its processes take beside these, and `headers`, the time to make parts of
        torch's light header beside the build."""
        self.ways: tuple[str, ...] = ()
        """Ways in which its extensions were built, as the builder reports them."""
        self.failed_builds: tuple[FailedBuild, ...] = ()
        """Those of its extensions that could not be built, as the builder reports it."""
        self.weight_seed: int | None = None
        """Both models are constructed under it; None where the reference's weights are copied."""
        self.failed_copied: StageFailed | None = None
        """Its failure with copied weights."""
        self.draws_constants, self.has_constants = False, False
        """Whether torch's layers then draw what they set to constants; whether there are other weights that are."""
        self.weights: Literal["copied", "seeded"] | None = None
        """As in the evidence."""
        self.refuses_weights = False
        """Whether they could not be copied."""
        self.build_s = 0.0
        """Seconds that count towards the limit on all builds."""
        self.is_called = False
        """Whether one of its workers has made a call, in which it may ask for builds."""
        self.late_builds = 0
        """Extensions that were asked for only in a worker."""
        self.errors: Shares = {}
        self.seen: dict[str, Any] = {}
        """Results of checks, by the names of these."""
        self.authenticity: Authenticity | None = None
        """From a run that was observed; None until there was one."""
        self.not_met: tuple[str, ...] = ()
        """Checks that effort `screen` skips."""
        self.look: Look | None = None
        """Kernels and reports of tools on a device; None where there are none."""

    @property
    def folder(self) -> WorkFolder:
        return self.warm.folder

    @contextmanager
    def stage(self, name: Stage) -> Iterator[None]:
        """Time a stage, and raise `StageFailed` for errors of the child in it."""
        start = time.perf_counter()
        announce(name)
        try:
            with self.timed(name):
                yield
        except Refused as error:
            if error.compiling:
                raise StageFailed("build", build_reason(error.log), trim_build_log(error.log)) from None
            raise StageFailed(name, error.reason, trim_traceback(error.log)) from None
        except CandidateLate as error:
            raise StageFailed("load", str(error)) from None
        except ChildLate:
            raise StageFailed(name, f"no answer within {time.perf_counter() - start:.0f} s") from None
        except (ChildGone, MemoryReadError, Misbehaved) as error:
            raise StageFailed(name, str(error)) from None

    @contextmanager
    def timed(self, name: Stage | Literal["reference"]) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def log_after(self, stop: "StageFailed") -> str:
        """The log of the failure, and what a build that was hidden said, since that may be why."""
        if stop.stage == "build":
            self.failed_builds = ()  # nothing was hidden: it is the failure
        return "\n".join([part for part in (stop.log, *(failed.log for failed in self.failed_builds[:1])) if part])

    def take_started(self) -> None:
        """Wait for the workers that were started ahead, of which the first is to be used first."""
        self.warm.wait_started()
        if self.warm.sessions:
            self.worker = self.warm.sessions.pop(0)
            self.layers = self.worker.layers

    def next_worker(self) -> Session:
        """Take a warm worker, or start one; it is ready."""
        self.worker = session = self.warm.take()
        self.layers = session.layers
        return session

    def end_workers(self) -> None:
        """End the one that is there and those that were started ahead."""
        ending = [*([] if self.worker is None else [self.worker]), *self.warm.sessions]
        self.worker, self.warm.sessions = None, []
        close_all(ending)

    def close(self) -> None:
        with ExitStack() as all_of_it:
            all_of_it.callback(self.folder.close)
            all_of_it.callback(self.end_workers)


MOST_LATE_BUILDS = 16
STORED = "taken from the store of finished builds"


def build_key(source: str, tools: Toolchain | None, arguments: Values, backend: Backend) -> str:
    """The digest under which a finished build is kept: of all that can make another one of the same source."""
    digest = hashlib.sha256(repr(arguments.tree).encode())
    for raw in arguments.tensors:
        digest.update(repr((raw.dtype, raw.shape)).encode() + raw.on_host)
    more = {"arguments": digest.hexdigest()} | ({"device": backend.architecture} if backend.architecture else {})
    return BuildStore.key(source, tools, **more, **versions_used(source))


def compile_candidate(built: Built, arguments: Values, load: Mapping[str, object]) -> None:
    """Have a builder compile, or take what the same source has given before. `load` has a worker load the source."""
    settings, source, build = built.backend.settings, built.candidate.source, built.folder.path / "build"
    tools = toolchain() if settings.shortcuts else None
    built.key = build_key(source, tools, arguments, built.backend)
    with built.stage("build"):
        if tools is not None and BuildStore().restore(built.key, build):
            built.take_started()
            built.ways, built.failed_builds = (STORED,), read_failures(build)
            return
    with built_by(built, tools) as (session, limit):
        built.layers = session.layers
        # Both, before the candidate's code runs anywhere: what goes wrong later is its own doing.
        built.take_started()
        session.greet()
        message = {"op": "build", "arguments": arguments.tree, "shortcuts": shortcuts_for(tools, built.backend)}
        try:
            session.ask({**load, **message}, limit, arguments)
        except Refused as error:
            if not error.compiling:
                raise StageFailed("load", error.reason, trim_traceback(error.log)) from None
            log = error.log
            if not names_an_error(log):  # a verbose build prints what its compiler says
                log = f"{session.close()}\n{log}"
            raise StageFailed("build", build_reason(log), trim_build_log(log)) from None


@contextmanager
def built_by(built: Built, tools: Toolchain | None) -> Iterator[tuple[Session, ImportTimeout]]:
    """A builder, not yet greeted, and its limit. What it has made is kept, and what it reports is noted, in the end.

    What its extensions need of the light header and is not there yet is made beside it, at no cost of the limit.
    """
    folder, settings = built.folder.path, built.backend.settings
    before, printed = len(read_record(folder).compilations), ""
    limit = ImportTimeout.of(settings, built.build_s)
    try:
        with header_made(built, tools) as limit.is_made_for_it, built.stage("build"):
            with Session("builder", built.folder, settings) as session:
                yield session, limit
                starved = session.ran_out_of_memory(0)
            printed = session.close()
            if tools is not None and not starved:  # with more memory it might have been built
                store = BuildStore()
                (store.keep_more if built.late_builds else store.keep)(built.key, folder / "build")
    finally:
        built.build_s += limit.used_s
        built.failed_builds = read_failures(folder / "build", printed)
        if tools is not None:
            built.ways = (*built.ways, *read_record(folder).ways[before:])


def build_late(built: Built) -> None:
    """Have a builder make the call that a worker has noted. All builds of a candidate share one limit."""
    settings = built.backend.settings
    if built.build_s >= settings.build_timeout_s or built.late_builds >= MOST_LATE_BUILDS:
        raise StageFailed(
            "build", f"there is no end to what it builds: {built.late_builds} extensions in calls, and more"
        )
    built.late_builds += 1
    tools = toolchain() if settings.shortcuts else None
    message = {
        "op": "build noted",
        "built": str(built.folder.path / "build"),
        "shortcuts": shortcuts_for(tools, built.backend),
    }
    with built_by(built, tools) as (session, limit):
        session.greet()
        session.ask(message, limit)


def shortcuts_for(tools: Toolchain | None, backend: Backend) -> dict[str, Any]:
    return tools.plan(backend.settings.memory_bytes, cuda_architectures=backend.architecture) if tools else {}


@contextmanager
def header_made(built: Built, tools: Toolchain | None) -> Iterator[Callable[[], bool]]:
    """Make missing parts of the light header beside the block; yield a function that says whether that goes on."""
    if tools is None:
        yield lambda: False
        return
    missing = missing_headers(tools, built.candidate.source)
    if missing:
        announce("build, and torch's header once on this machine")
    making = MakingHeaders(tools, missing)
    try:
        with making:
            yield making.is_going_on
    finally:
        if making.seconds:
            built.seconds["headers"] = built.seconds.get("headers", 0.0) + making.seconds


def attempts(built: Built, baselines: Baselines) -> Iterator[AbstractContextManager[None]]:
    """Measure a candidate within each of these; after the first that needs no other, there are no more.

    Another follows where a worker asks for an extension that was not built, where the reference draws, and where the
    candidate fails in a way that the weights may cause. Any other failure passes through.
    """
    if built.backend.settings.weights == "seed" and _may_seed_weights(baselines):
        built.weight_seed = fresh_seed()
    is_settled = False

    @contextmanager
    def attempt() -> Iterator[None]:
        nonlocal is_settled
        built.is_called = False
        try:
            yield
            is_settled = True
            return
        except Unbuilt:
            if built.is_called or (built.worker and built.worker.is_called):  # or it repeats until it is lucky
                raise StageFailed("run", "it asks for a build after its first call; build all in that one") from None
            built.end_workers()
            build_late(built)
        except DrawingReference:
            baselines.is_seeded = True
        except StageFailed as failure:
            _change_weights(built, baselines, failure)
        built.end_workers()

    while not is_settled:
        yield attempt()


def _change_weights(built: Built, baselines: Baselines, failure: StageFailed) -> None:
    """Have both models constructed under one seed after a failure with copied weights; or raise the failure.

    Weights that a constructor sets to constants look alike in a model that leaves them out. So those of one value and
    size get other values in both finished models; or else, for candidates that compute with them before, as torch's
    layers are constructed.
    """
    if built.weight_seed is None:
        failed_by_weights = built.refuses_weights or failure.stage == "check"
        if built.backend.settings.weights != "auto" or not failed_by_weights or not _may_seed_weights(baselines):
            raise failure
        built.failed_copied, built.weight_seed = failure, fresh_seed()
        return
    if failure.stage == "check" and built.has_constants and not built.draws_constants:
        built.draws_constants = True
        return
    copied = built.failed_copied
    if copied is not None and not built.refuses_weights:  # they fit, if only by order and shape
        seeded = f"with both models constructed under one seed: {failure.reason}"
        raise StageFailed(copied.stage, copied.reason, f"{copied.log}\n{seeded}".strip())
    reason = f"{failure.reason}; both models were constructed under one seed"
    reason += f", since {copied.reason}" if copied else ""
    if failure.stage == "check":
        reason += "; one that draws in another order has other weights"
    raise StageFailed(failure.stage, reason, failure.log)


def compares_by_name(problem: Problem) -> bool:
    """Return whether gradients or buffers of both models are compared."""
    return problem.direction != "forward" or problem.state == "followed"


def _may_seed_weights(baselines: Baselines) -> bool:
    first = baselines.first
    return bool(first.weights.tensors) and not compares_by_name(baselines.problem) and not first.followed
