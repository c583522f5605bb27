"""By how much processes of a problem's reference differ from each other on this device, kept between runs.

From a single worker pair it can not be seen; what was seen of the reference's own processes says what to expect.
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
KEPT = 32
"""The latest ratios; older ones are of a machine as it was."""


class Spreads:
    """Those of one problem under some settings; nothing is kept where the device can not be named."""

    def __init__(self, problem: Problem, settings: Settings, store: Store | None = None) -> None:
        self._problem, self._settings = problem, settings
        self._store = store or Store("spreads")

    @cached_property
    def _key(self) -> Key | None:
        """Found when it is needed: to name a GPU takes a context on it."""
        try:
            return baseline_key(self._problem.digest, *place_of(self._settings), PLACEBO)
        except MachineError:
            LOG.info("what is seen of %s is not kept: the device can not be named", self._problem.name)
            return None

    def known(self) -> KnownSpread:
        """What a worker pair is expected to differ by from another."""
        return known_spread(self._ratios(), self._settings.worker_pairs)

    def keep(self, ratios: Sequence[float]) -> None:
        """Keep logarithms of ratios, each of two processes that have not been compared before."""
        if ratios and self._key is not None:
            self._store.put(self._key, [*self._ratios(), *ratios][-KEPT:])

    def _ratios(self) -> list[float]:
        found = self._store.get(self._key) if self._key is not None else None
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
