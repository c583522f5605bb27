"""What each baseline of a problem last took, kept by device and versions: for tables, before anything is judged.

No verdict uses these: a speedup comes from pairs that were measured together.
"""

import datetime
from collections.abc import Iterator

from pydantic import ValidationError

from kernelwright.problems import Problem
from kernelwright.problems.record.base import Record
from kernelwright.sandbox.machine.fact_store import Store, baseline_key
from kernelwright.sandbox.timing.device_versions import place_of
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.statistics import ratio_interval
from kernelwright.sandbox.verdict.verdicts import Measurement, Pairing

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
    """Whose times these are, see `Measurement.clock`."""
    measured_at: str
    """In ISO 8601, UTC."""


class BaselineTimes:
    """The times of one problem; nothing is computed, and torch is not needed, to read them."""

    def __init__(self, problem: Problem, store: Store | None = None) -> None:
        self._digest = problem.digest
        self._store = store or Store(f"baselines/{problem.digest}")

    def keep(self, measurement: Measurement, settings: Settings) -> None:
        """Keep the medians of a measurement that the placebo does not speak against."""
        if not measurement.is_steady:
            return
        try:
            device, versions = place_of(settings)
        except MachineError:
            return
        for pairing in measurement.pairings:
            key = baseline_key(self._digest, device, versions, pairing.baseline)
            if len(pairing.baseline_ms) < QUICK and self._store.get(key) is not None:
                continue
            low, high = _interval(pairing)
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
        """All that are kept, by device, the fastest first; what can not be read counts as absent."""
        return sorted(self._read(), key=lambda time: (time.device, time.versions.get("torch", ""), time.median_ms))

    def _read(self) -> Iterator[BaselineTime]:
        for key, value in self._store.items():
            try:
                time = BaselineTime.model_validate(value)
            except ValidationError:
                continue
            if key == baseline_key(self._digest, time.device, time.versions, time.baseline):
                yield time


def _interval(pairing: Pairing) -> tuple[float, float]:
    ones = (1.0,) * len(pairing.baseline_ms)
    return ratio_interval(pairing.baseline_ms, ones, pairing.workers)


def in_words(times: list[BaselineTime]) -> list[str]:
    """One line for each device and version of torch: `NVIDIA H200 (torch 2.11): eager 1.24 ms, ... (date)`."""
    lines: dict[tuple[str, str], list[BaselineTime]] = {}
    for time in times:
        lines.setdefault((time.device, time.versions.get("torch", "")), []).append(time)
    return [f"{device} (torch {torch}): {_listed(found)}" for (device, torch), found in lines.items()]


def _listed(times: list[BaselineTime]) -> str:
    listed = ", ".join(f"{time.baseline} {time.median_ms:#.3g} ms" for time in times)
    return f"{listed}; measured {max(time.measured_at for time in times)[:10]}"
