"""Facts of a problem that are kept: times and errors of its baselines, and its roofline."""

import datetime
import hashlib
import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from pydantic import ValidationError

from kernelwright.problems import Problem
from kernelwright.problems.problem import Record
from kernelwright.sandbox.calls.backend import Backend, DeviceVersions
from kernelwright.sandbox.calls.reference import ReferenceSession
from kernelwright.sandbox.calls.sessions import Timed
from kernelwright.sandbox.correctness.compare import (
    Checks,
    ExactCase,
    Shares,
    add_shares,
    mismatch,
    mismatch_shaken,
    tolerance_of,
)
from kernelwright.sandbox.correctness.families import DRAWN, Domain, vary
from kernelwright.sandbox.machine import cpu_facts
from kernelwright.sandbox.storage import Store, baseline_key, work_key
from kernelwright.sandbox.tensors import Values
from kernelwright.sandbox.verdict.errors import MachineError, StageFailed
from kernelwright.sandbox.verdict.roofline import Floor, NecessaryWork, Peaks, floor_of
from kernelwright.sandbox.verdict.statistics import KnownSpread, known_spread, ratio_interval
from kernelwright.sandbox.verdict.verdicts import Measurement, Pairing


class BaselineErrors(NamedTuple):
    """The errors of one baseline on all input distributions."""

    errors: Shares
    """As `Evidence.errors` has them."""
    is_equal: bool
    """Whether each result was right as a candidate's has to be."""


def accuracy_of(
    baselines: Mapping[str, Callable[[Values], Timed]], eager: ReferenceSession, domain: Domain
) -> dict[str, BaselineErrors]:
    """Compare baselines that have the weights of `eager` with it and with float64, on every input distribution."""
    found, tolerance = dict.fromkeys(baselines, BaselineErrors({}, True)), tolerance_of(eager.problem)
    for family in (DRAWN, *domain.families):
        values = vary(eager.draw(), family)
        near = eager.keep(eager.show(values).output)
        want = eager.keep(eager.exact(values, near))
        exact = partial(_exact, eager, near, values, want)
        if domain.excludes(family, near, partial(exact, values)):
            continue
        asked = ExactCase(values, exact, domain.defines_nan(family))
        for name, call in baselines.items():
            shares: Shares = {}
            output = call(values).output
            wrong = mismatch_shaken(output, asked, near, tolerance, shares)
            if family == DRAWN:
                mismatch(output, near, near, tolerance_of(eager.problem, "kernelbench"), Checks(shares=shares))
            eager.release_result()
            errors, is_equal = found[name]
            add_shares(shares, errors)
            found[name] = BaselineErrors(shares, is_equal and wrong is None)
    return found


def _exact(eager: ReferenceSession, near: Values, values: Values, want: Values, asked: Values) -> Values:
    return want if asked is values else eager.exact(asked, near)


KIND_OF_PROCESSOR = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU part", "CPU variant")
"""Lines of /proc/cpuinfo that say what code a processor can run."""


def processor_kind() -> str:
    """A digest that differs between processors that may need other code."""
    facts = [f"{name}={cpu_facts().get(name, '')}" for name in KIND_OF_PROCESSOR]
    return hashlib.sha256("\n".join([*facts, os.uname().machine]).encode()).hexdigest()


QUICK = 12
"""A measurement on fewer samples, which is a check rather than a timing, never replaces what is known."""


class BaselineTime(Record):
    """One baseline of one problem on one device."""

    baseline: str
    """`eager`, or `torch.compile` and its mode."""
    device: str
    versions: dict[str, str]
    median_ms: float
    low_ms: float
    """The ends of the median's 95 % interval."""
    high_ms: float
    samples: int
    clock: str
    """The clock of these times, see `Measurement.clock`."""
    measured_at: str
    """In ISO 8601, UTC."""


class BaselineTimes:
    """The times of one problem; nothing is computed, and torch is not needed, to read them."""

    def __init__(self, problem: Problem, store: Store | None = None) -> None:
        self._digest = problem.digest
        self._store = store or Store(f"baselines/{problem.digest}")

    def keep(self, measurement: Measurement, place: DeviceVersions) -> None:
        """Keep the medians of a measurement, unless its placebo shows a noisy machine."""
        if not measurement.is_steady:
            return
        device, versions = place
        for pairing in measurement.pairings:
            key = baseline_key(self._digest, device, versions, pairing.baseline)
            if len(pairing.baseline_ms) < QUICK and self._store.get(key) is not None:
                continue
            low, high = ratio_interval(pairing.baseline_ms, (1.0,) * len(pairing.baseline_ms), pairing.workers)
            found = BaselineTime(
                baseline=pairing.baseline,
                device=device,
                versions=versions,
                median_ms=measurement.baselines_ms[pairing.baseline],
                low_ms=low,
                high_ms=high,
                samples=len(pairing.baseline_ms),
                clock=measurement.clock,
                measured_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            )
            self._store.put(key, found.model_dump(mode="json"))

    def known(self) -> list[BaselineTime]:
        """All that are kept, by device, the fastest first; what cannot be read counts as absent."""
        return sorted(self._read(), key=lambda time: (time.device, time.versions.get("torch", ""), time.median_ms))

    def _read(self) -> Iterator[BaselineTime]:
        for key, value in self._store.items():
            try:
                time = BaselineTime.model_validate(value)
            except ValidationError:
                continue
            if key == baseline_key(self._digest, time.device, time.versions, time.baseline):
                yield time


def in_words(times: list[BaselineTime]) -> list[str]:
    """One line for each device and version of torch: `NVIDIA H200 (torch 2.11): eager 1.24 ms, ... (date)`."""
    lines: dict[tuple[str, str], list[BaselineTime]] = {}
    for time in times:
        lines.setdefault((time.device, time.versions.get("torch", "")), []).append(time)
    return [f"{device} (torch {torch}): {_listed(found)}" for (device, torch), found in lines.items()]


def _listed(times: list[BaselineTime]) -> str:
    listed = ", ".join(f"{time.baseline} {time.median_ms:#.3g} ms" for time in times)
    return f"{listed}; measured {max(time.measured_at for time in times)[:10]}"


PLACEBO = "eager again"
KEPT, KEPT_OF_ALL = 32, 96
"""The latest ratios of one problem, and of all together; older ones are of a machine as it was."""
ALL = "*"
"""In place of a problem's digest: of all problems."""


class Spreads:
    """Differences between worker pairs of one problem; nothing is kept where the device cannot be named."""

    def __init__(self, problem: Problem, backend: Backend, store: Store | None = None) -> None:
        self._problem, self._backend = problem, backend
        self._store = store or Store("spreads")

    def known(self) -> KnownSpread:
        """The expected spread between worker pairs."""
        own, others = self._ratios(self._problem.digest), self._ratios(ALL)
        backend = self._backend
        looks = backend.settings.worker_pairs
        return known_spread(own, looks, others, backend.unknown_spread, backend.least_spread)

    def keep(self, ratios: Sequence[float]) -> None:
        """Keep logarithms of ratios, each of two processes that have not been compared before."""
        for problem, most in ((self._problem.digest, KEPT), (ALL, KEPT_OF_ALL)):
            if ratios and (place := self._backend.place) is not None:
                key = baseline_key(problem, *place, PLACEBO)
                self._store.put(key, [*self._ratios(problem), *ratios][-most:])

    def _ratios(self, problem: str) -> list[float]:
        place = self._backend.place
        found = self._store.get(baseline_key(problem, *place, PLACEBO)) if place is not None else None
        if not isinstance(found, list):
            return []
        return [ratio for ratio in found if isinstance(ratio, float) and math.isfinite(ratio)]


def by_worker(placebo: Pairing | None) -> dict[int, float]:
    """The median log ratio of each worker pair of a placebo."""
    logs: dict[int, list[float]] = {}
    for number, one, other in (
        zip(placebo.workers, placebo.baseline_ms, placebo.candidate_ms, strict=True) if placebo else ()
    ):
        logs.setdefault(number, []).append(math.log(one / other))
    return {number: statistics.median(found) for number, found in logs.items()}


class Floors:
    """The roofline of one problem on this machine, as far as it is known."""

    def __init__(self, problem: Problem, backend: Backend) -> None:
        self._problem, self._backend = problem, backend
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
            floor = self._found(reference, partial(self._backend.peaks, again=True))
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
        works, key = Store("works"), work_key(self._problem.digest)
        try:
            kept = works.get(key)
            work = None if kept is None else NecessaryWork.model_validate(kept)
            if work is None or work.mode is None:
                work = NecessaryWork.of(reference.work())
                works.put(key, work.model_dump(mode="json"))
        except (ValidationError, KeyError, TypeError):
            return None
        try:
            return floor_of(work, peaks(), self._problem.precision)
        except MachineError:
            return None
