"""Records of timing on a device, beside the samples themselves."""

import math
import statistics
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from kernelwright.problems.problem import Record

CHAIN_SHARE, CHAIN_MS = 0.03, 0.006
"""Excess of a call by a chain over its events: the larger of a share of its time and a time. Measured
on an H200, see docs/decisions/gpu-clock.md."""
CHAIN_SHORT_MS = 0.008
"""Shortfall of it: a program that raises the done flag before the work has ended hides the hand-over, 6 us."""
CALLS_MS = 0.3
"""Error of single calls on the judge's clock, both ways."""


class ClockCheck(Record):
    """The candidate's time on the judge's own clock. Nothing here rests on the word of the candidate's process.

    `chain`: the judge's process reveals each input on the device once the call before has ended, and stamps both.
    `calls`: single calls by the host's clock, for programs that wait for the device themselves.
    """

    method: Literal["chain", "calls"]
    candidate_ms: tuple[float, ...] = Field(min_length=1)
    """One call each, with what the protocol takes."""
    empty_ms: tuple[float, ...] = Field(min_length=1)
    """The same of calls of a trusted process that only read the inputs and fill results of the same sizes."""
    empty_gpu_ms: float = 0.0
    """Time of such a call by the device's events."""
    moves_data: bool = False
    """Whether a part of the results only moves inputs, which copy engines can do while kernels run."""

    @property
    def time_ms(self) -> float:
        return self._time(statistics.median(self.candidate_ms))

    @property
    def least_ms(self) -> float:
        """No smaller time of the candidate is believed, whatever its process reports."""
        return self._least(self.time_ms)

    def supported(self, reported: Sequence[float | None]) -> tuple[float, ...]:
        """The times in ms that the candidate's process reports, each and their median raised to what is believed.

        Where a call has none, all are `most_ms`.
        """
        known = [ms for ms in reported if ms is not None]
        if len(known) < len(reported):
            return (self.most_ms,) * len(reported)
        if len(known) == len(self.candidate_ms):
            leasts = [self._least(self._time(ms)) for ms in self.candidate_ms]
            known = [max(ms, least) for ms, least in zip(known, leasts, strict=True)]
        # Of logarithms, as in a speedup: half of the calls, reported as long, must not compensate for the other half.
        raised = max(1.0, self.least_ms / math.exp(statistics.median(map(math.log, known))))
        return tuple(raised * ms for ms in known)

    def _time(self, taken_ms: float) -> float:
        return max(0.0, taken_ms - statistics.median(self.empty_ms) + self.empty_gpu_ms)

    def _least(self, time_ms: float) -> float:
        margin = CALLS_MS if self.method == "calls" else max(CHAIN_MS, CHAIN_SHARE * time_ms)
        return max(0.0, time_ms - margin)

    @property
    def most_ms(self) -> float:
        """The candidate takes no longer than this. What a baseline takes beyond it is a saving that is confirmed."""
        if self.method == "calls":
            return self.time_ms + CALLS_MS
        idle_ms = statistics.median(self.empty_ms) if self.moves_data else 0.0
        return self.time_ms + CHAIN_SHORT_MS + idle_ms


class Burst(Record):
    """Several calls in one go, by which records of older releases confirmed the device's events."""

    calls: int
    bound_ms: float
    device_ms: float | None
    protocol_ms: float
    sustained: float = Field(default=1.0, ge=1)


class DeviceRecord(Record):
    """Facts of the samples of a measurement on a device. Lists by side: `candidate`, or a baseline's name."""

    device: str
    architecture: str
    driver: str
    switches: dict[str, dict[str, Any]]
    """Torch's precision switches, by side, as its worker reported them."""
    copies_outputs: bool = False
    """Whether all outputs were copied within the clock, since the driver let the judge map nothing."""
    shipped_is_eager: bool = False
    """Whether torch's own precision switches change no bit of what eager gives, so that it is not timed under them."""
    device_ms: dict[str, tuple[float | None, ...]]
    """GPU time of each sample, by events, as the side's own process reports it."""
    latency_ms: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    """Call latency: from an idle device to the result, as the worker reports it; of separate calls."""
    host_ms: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    """Host time: until the call returns, as the worker reports it, in the same calls."""
    positions: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    """Which place in the order of its round each sample had, from 0."""
    check: ClockCheck | None = None
    """None in records of older releases."""
    sm_mhz: tuple[int | None, ...] = ()
    """The clock of the multiprocessors after each of the candidate's samples."""
    dropped: dict[str, int] = Field(default_factory=dict)
    """Pairs that do not count, by reason."""
    errors: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Of each baseline beside strict eager, its largest errors over all input distributions, as shares of the
    candidate's bounds. Above 1 it is less accurate than a candidate may be."""
    bound_ms: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    """Samples on the judge's clock, in records of older releases."""
    burst: Burst | None = None
    """In records of older releases."""
