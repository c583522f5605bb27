"""The judge: from a candidate to a verdict, without ever importing the candidate."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from problems import Problem
from sandbox import diagnose, scan
from sandbox.authenticity import read_authenticity
from sandbox.children import ChildGone, ChildLate
from sandbox.compare import mismatch, tolerance_of
from sandbox.families import schedule, vary
from sandbox.machine import versions
from sandbox.peek import PeekError
from sandbox.reference import ReferenceSession
from sandbox.sessions import Misbehaved, Refused, Session
from sandbox.settings import Settings
from sandbox.verdict import Candidate, Evidence, Failed, Measurement, Pairing, Passed, Stage, Verdict
from sandbox.workfolder import WorkFolder

SLOWEST_CALL_S = 5.0
"""A call is never cut off before this, however fast the baseline is."""


class Stopped(Exception):
    """A stage ended the judging: stage, reason, log."""

    def __init__(self, stage: Stage, reason: str, log: str = "") -> None:
        super().__init__(reason)
        self.stage, self.reason, self.log = stage, reason, log


class Built:
    """A candidate whose build is done (or failed), waiting for its turn on the device. Close it."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.folder = WorkFolder()
        self.worker: Session | None = None
        """Started beside the builder, so that both import torch at once; it stands still until the build is done."""
        self.failure: Stopped | None = None
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: Stage) -> Iterator[None]:
        """Time a stage, and turn what goes wrong with the child in it into this stage's failure."""
        start = time.perf_counter()
        try:
            yield
        except Refused as error:
            raise Stopped(name, error.reason, diagnose.trim_traceback(error.log)) from None
        except ChildLate:
            raise Stopped(name, f"no answer within {time.perf_counter() - start:.0f} s") from None
        except (ChildGone, PeekError, Misbehaved) as error:
            raise Stopped(name, str(error)) from None
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def close(self) -> None:
        """End the worker and remove the work folder."""
        if self.worker is not None:
            self.worker.close()
        self.folder.close()


class Judge:
    """Judges candidates for one problem. One reference child serves them all; use it as a context."""

    def __init__(self, problem: Problem, settings: Settings | None = None) -> None:
        self.problem = problem
        self.settings = settings or Settings()
        self._reference: ReferenceSession | None = None
        self._layers: tuple[str, ...] = ()
        self._families = schedule(random.SystemRandom())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def reference(self) -> ReferenceSession:
        """The reference child, started when first needed."""
        if self._reference is None:
            self._reference = ReferenceSession(self.problem, self.settings)
        return self._reference

    def close(self) -> None:
        """End the reference child."""
        if self._reference is not None:
            self._reference.close()
            self._reference = None

    def judge(self, candidate: Candidate) -> Verdict:
        """Scan, build, load, run, check and time one candidate."""
        return self.evaluate(self.build(candidate))

    def build(self, candidate: Candidate) -> Built:
        """Scan and compile, in a child of its own; needs no device and may run beside other builds."""
        built = Built(candidate)
        try:
            with built.stage("scan"):
                refusal = scan.refuse(candidate.source)
            if refusal:
                raise Stopped("scan", refusal)
            self._compile(built)
        except Stopped as stop:
            built.failure = stop
        except BaseException:
            built.close()
            raise
        return built

    def _compile(self, built: Built) -> None:
        arguments = self.reference.arguments
        built.worker = Session("worker", built.folder, self.settings)
        with built.stage("build"), Session("builder", built.folder, self.settings) as session:
            self._layers = session.layers
            # Both, before the candidate's code runs anywhere: what goes wrong later is its own doing.
            built.worker.greet()
            session.greet()
            message = self._load_message(built) | {"op": "build", "arguments": arguments.tree}
            try:
                session.ask(message, self.settings.build_timeout_s, arguments)
            except Refused as error:
                if error.compiling:
                    reason = diagnose.build_reason(error.log)
                    raise Stopped("build", reason, diagnose.trim_build_log(error.log)) from None
                raise Stopped("load", error.reason, diagnose.trim_traceback(error.log)) from None

    def evaluate(self, built: Built) -> Verdict:
        """Load, run, check and time what was built; removes its work folder."""
        try:
            if built.failure:
                raise built.failure
            measurement = self._measure(built)
        except Stopped as stop:
            return Failed(stage=stop.stage, reason=stop.reason, log=stop.log, evidence=self._evidence(built))
        finally:
            built.close()
        return Passed(measurement=measurement, evidence=self._evidence(built))

    def _measure(self, built: Built) -> Measurement:
        session = built.worker
        assert session is not None, "what was not built is not measured"
        with built.stage("load"):
            self._load(built, session)
        with built.stage("run"):
            self._warm_up(session)
        with built.stage("time"):
            return self._time(session)

    def _load_message(self, built: Built) -> dict[str, object]:
        source = built.folder.write("candidate.py", built.candidate.source)
        return {
            "source": str(source),
            "entry": "ModelNew",
            "built": str(built.folder.path / "build"),
            "threads": self.settings.threads,
            "cores": sorted(os.sched_getaffinity(0)),
        }

    def _load(self, built: Built, session: Session) -> None:
        reference, limit = self.reference, self.settings.start_timeout_s
        message = self._load_message(built) | {"op": "load", "arguments": reference.arguments.tree}
        session.ask(message, limit, reference.arguments)
        if reference.weights.tensors:
            session.ask({"op": "weights", "names": reference.weight_names}, limit, reference.weights)
        session.lend(reference.draw())

    def _warm_up(self, session: Session) -> None:
        """Untimed calls, checked like the timed ones."""
        for _ in range(self.settings.warm_up):
            self._pair(session, self.settings.call_timeout_s, reference_first=True)

    def _time(self, session: Session) -> Measurement:
        """Candidate and baseline in turn on the same fresh values, each value once a side; every output checked."""
        pairs: list[tuple[float, float]] = []
        end = time.monotonic() + self.settings.time_budget_s
        while True:
            limit = self._call_limit([baseline for _, baseline in pairs])
            pairs.append(self._pair(session, limit, reference_first=len(pairs) % 4 in (1, 2)))
            candidate_ms, baseline_ms = zip(*pairs, strict=True)
            pairing = Pairing(baseline="eager", candidate_ms=candidate_ms, baseline_ms=baseline_ms)
            if self._enough(pairing, end):
                return Measurement(pairings=(pairing,), threads=self.settings.threads)

    def _pair(self, session: Session, limit_s: float, reference_first: bool) -> tuple[float, float]:
        """Both sides once on the same fresh values; the candidate's output checked. Their times in ms."""
        family = next(self._families)
        values = vary(self.reference.draw(), family)
        if reference_first:
            theirs = self.reference.call(values)
            mine = session.call(values, limit_s)
        else:
            mine = session.call(values, limit_s)
            theirs = self.reference.call(values)
        exact = self.reference.exact(values)
        wrong = mismatch(mine.output, exact, theirs.output, tolerance_of(self.problem))
        if wrong:
            raise Stopped("check", f"{wrong.reason} (on inputs {family})", wrong.details)
        return mine.milliseconds, theirs.milliseconds

    def _call_limit(self, baseline_ms: list[float]) -> float:
        if not baseline_ms:
            return self.settings.call_timeout_s
        bound = max(SLOWEST_CALL_S, self.settings.call_factor * max(baseline_ms) / 1e3)
        return min(self.settings.call_timeout_s, bound)

    def _enough(self, pairing: Pairing, end: float) -> bool:
        count = len(pairing.candidate_ms)
        if count < self.settings.min_pairs or count % 4:
            return False
        if count >= self.settings.max_pairs or time.monotonic() > end:
            return True
        return pairing.interval.half_width < self.settings.interval_target

    def _evidence(self, built: Built) -> Evidence:
        return Evidence(
            jail=self._layers,
            seconds={stage: round(seconds, 3) for stage, seconds in built.seconds.items()},
            authenticity=read_authenticity(built.candidate.source),
            problem_status=self._reference.status if self._reference else None,
            versions=versions(),
        )


def judge(problem: Problem, candidate: Candidate, settings: Settings | None = None) -> Verdict:
    """One verdict for one candidate; for several of the same problem, keep a `Judge`."""
    with Judge(problem, settings) as keeper:
        return keeper.judge(candidate)
