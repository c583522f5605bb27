"""Samples of paired times: what is kept, how far they spread, and when they are enough."""

import logging
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property

from kernelwright.problems import Problem
from kernelwright.sandbox.calls.sessions import Timed
from kernelwright.sandbox.storage import Key, Store, baseline_key
from kernelwright.sandbox.timing.baseline_facts import place_of
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.statistics import KnownSpread, known_spread
from kernelwright.sandbox.verdict.verdicts import NOISE_LIMIT, SAME_WITHIN, Measurement, Pairing

PLACEBO = "eager again"


class PairedSamples:
    """Measurements of one candidate so far; all times in ms, sample i of all lists on the same values."""

    def __init__(self, known_spread: KnownSpread | None = None) -> None:
        self.known_spread = known_spread
        self.candidate: list[float] = []
        self.candidate_cpu: list[float] = []
        self.eager_cpu: list[float] = []
        self.baselines: dict[str, list[float]] = defaultdict(list)
        self.workers: list[int] = []
        self.placebo: list[tuple[float, float, int]] = []
        """Two processes of the eager baseline on the same values, and the worker pair."""
        self.protocol: list[float] = []

    def add(self, number: int, mine: Timed, theirs: Timed) -> None:
        """One pair of the candidate and eager, by worker pair `number`; the baselines' lists are the caller's."""
        self.candidate.append(mine.milliseconds)
        self.candidate_cpu.append(mine.cpu_ms)
        self.eager_cpu.append(theirs.cpu_ms)
        self.workers.append(number)

    def measurement(self, settings: Settings) -> Measurement:
        candidate, workers = tuple(self.candidate), tuple(self.workers)
        placebo = None
        if self.placebo:
            again, eager, groups = zip(*self.placebo, strict=True)
            placebo = Pairing(baseline=PLACEBO, candidate_ms=eager, baseline_ms=again, workers=groups)
        return Measurement(
            pairings=tuple(
                Pairing(baseline=name, candidate_ms=candidate, baseline_ms=tuple(times), workers=workers)
                for name, times in self.baselines.items()
            ),
            threads=settings.threads,
            cores=settings.cores,
            placebo=placebo,
            protocol_ms=tuple(self.protocol),
            candidate_cpu_ms=tuple(self.candidate_cpu),
            eager_cpu_ms=tuple(self.eager_cpu),
            known_spread=self.known_spread,
        )


LOG = logging.getLogger("kernelwright.sandbox.timing")
KEPT, KEPT_OF_ALL = 32, 96
"""The latest ratios of one problem, and of all together; older ones are of a machine as it was."""
ALL = "*"
"""In place of a problem's digest: of all problems."""


class Spreads:
    """Those of one problem under some settings; nothing is kept where the device cannot be named."""

    def __init__(self, problem: Problem, settings: Settings, store: Store | None = None) -> None:
        self._problem, self._settings = problem, settings
        self._store = store or Store("spreads")

    @cached_property
    def _place(self) -> tuple[str, dict[str, str]] | None:
        """Found when it is needed: to name a GPU takes a context on it."""
        try:
            return place_of(self._settings)
        except MachineError:
            LOG.info("what is seen of %s is not kept: the device can not be named", self._problem.name)
            return None

    def known(self) -> KnownSpread:
        """The expected spread between worker pairs."""
        own, others = self._ratios(self._problem.digest), self._ratios(ALL)
        return known_spread(own, self._settings.worker_pairs, others, self._settings.gpu)

    def keep(self, ratios: Sequence[float]) -> None:
        """Keep logarithms of ratios, each of two processes that have not been compared before."""
        for problem, most in ((self._problem.digest, KEPT), (ALL, KEPT_OF_ALL)):
            if ratios and (key := self._key(problem)) is not None:
                self._store.put(key, [*self._ratios(problem), *ratios][-most:])

    def _key(self, problem: str) -> Key | None:
        return None if self._place is None else baseline_key(problem, *self._place, PLACEBO)

    def _ratios(self, problem: str) -> list[float]:
        key = self._key(problem)
        found = self._store.get(key) if key is not None else None
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


EFFORT = 0.8
"""The share of worker pairs and of pairs that is measured in any case."""
FEWEST = 4
"""Worker pairs: from three, intervals are too narrow too often."""
SHARE_OF_DISTANCE = 1 / 6
"""The half width, as a share of the distance of the logarithm from 0: 1 lies at least six half widths away."""
TO_CHOOSE = 0.05
"""The half width that is enough of what is clearly the best so far: it is judged again before it is published. Where it
is better by far, `SHARE_OF_DISTANCE` is, up to `FAR_BETTER`.
"""
FAR_BETTER = 0.1
AT_LEAST, FAR_FROM_IT = 2, 1.5
"""Worker pairs before it is given up to become as sure as that, where the last one would leave a half width of this
many times what is wanted.
"""
STUDENT = {4: 3.182, 5: 2.776}
"""By number of worker pairs, the 97.5 % point of Student's t with one degree less."""


def is_clearly_slower(measurement: Measurement) -> bool:
    """Whether the slowdown is beyond doubt.

    An interval from four processes is too narrow more often than one from five, so it is widened here by what Student's
    t has for four over what it has for five. It still has to be narrow enough for a claim (`NOISE_LIMIT`),
    and narrow against its distance from 1; and the placebo has to be steady.
    """
    groups = len(set(measurement.closest.workers))
    if groups < FEWEST or not measurement.is_steady:
        return False
    interval = measurement.interval
    centre, half = math.log(interval.low * interval.high) / 2, math.log(interval.high / interval.low) / 2
    half *= STUDENT.get(groups, STUDENT[5]) / STUDENT[5]
    is_beyond = centre + half < -math.log(1 + SAME_WITHIN)
    return is_beyond and half < min(math.log(1 + NOISE_LIMIT), SHARE_OF_DISTANCE * -centre)


def is_enough_to_choose(measurement: Measurement, best_speedup: float | None, target: float) -> bool:
    """Whether a search knows enough of what is clearly below the best speedup (of the reference, where there is none
    yet), of what is clearly above it, or, with an interval as narrow as `target`, of what is neither.
    """
    interval, threshold = measurement.interval, best_speedup or 1.0
    if not measurement.is_steady:
        return False
    if interval.high < threshold / (1 + SAME_WITHIN) or interval.half_width < target:
        return True
    if interval.low <= threshold * (1 + SAME_WITHIN):
        return False
    enough = min(FAR_BETTER, max(TO_CHOOSE, SHARE_OF_DISTANCE * math.log(interval.low / threshold)))
    return interval.half_width < enough or _is_in_vain(measurement, enough)


def _is_in_vain(measurement: Measurement, enough: float) -> bool:
    """Whether all looks together would not make it sure `enough`, and do not decide either whether a claim holds."""
    groups, known = len(set(measurement.closest.workers)), measurement.known_spread
    if known is None or groups < AT_LEAST:
        return False
    half = measurement.interval.half_width
    in_the_end = half * math.sqrt(groups / known.looks)
    may_become_a_claim = in_the_end <= NOISE_LIMIT <= half
    return in_the_end > FAR_FROM_IT * enough and not may_become_a_claim
