"""By how much processes of a problem's reference differ from each other on this device, kept between runs.

From a single worker pair it can not be seen; what was seen of the reference's own processes says what to expect, and
before that what was seen of all references here.
"""

import logging
import math
import statistics
from collections.abc import Sequence
from functools import cached_property

from kernelwright.problems import Problem
from kernelwright.sandbox.machine.fact_store import Key, Store, baseline_key
from kernelwright.sandbox.timing.device_versions import place_of
from kernelwright.sandbox.timing.paired_samples import PLACEBO
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import Pairing
from kernelwright.sandbox.verdict.worker_intervals import KnownSpread, known_spread

LOG = logging.getLogger("kernelwright.sandbox.timing")
KEPT, KEPT_OF_ALL = 32, 96
"""The latest ratios of one problem, and of all together; older ones are of a machine as it was."""
ALL = "*"
"""In place of a problem's digest: of all problems."""


class Spreads:
    """Those of one problem under some settings; nothing is kept where the device can not be named."""

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
        """What a worker pair is expected to differ by from another."""
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
