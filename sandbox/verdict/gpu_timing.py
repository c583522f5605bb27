"""What a record tells of timing on a device, beside the samples themselves."""

from typing import Any

from pydantic import Field

from kernelwright.problems.record.base import Record

AGREES_WITHIN, AGREES_WITHIN_MS = 0.03, 0.01
"""Events are believed where the judge's clock leaves them no more room than the larger of this share and this time."""


class Burst(Record):
    """Several calls on distinct inputs in one go, every result checked: shows whether events can be believed.

    What the protocol costs is in it once, however many calls there are, so the judge's clock becomes sharp. What it
    costs is known from the same burst of the reference, whose events can be believed.
    """

    calls: int
    bound_ms: float
    """Of all calls, on the judge's clock."""
    device_ms: float | None
    """Of all calls, by the device's events, as the worker reports them."""
    protocol_ms: float
    """What the judge's clock shows beyond the device's events, in the same burst of the reference."""

    sustained: float = Field(default=1.0, ge=1)
    """How many times longer a call of the reference takes within its burst than alone: power and clocks."""

    @property
    def call_ms(self) -> float:
        """A call's time that rests on no word of the candidate."""
        return max(0.0, self.bound_ms - self.protocol_ms) / self.calls / self.sustained

    def confirms(self, device_ms: float) -> bool:
        """Whether this leaves no room for a call to take longer than the events of single calls say."""
        return self.call_ms - device_ms <= max(AGREES_WITHIN * device_ms, AGREES_WITHIN_MS)


class DeviceRecord(Record):
    """How the samples of a measurement came about on a device."""

    device: str
    architecture: str
    driver: str
    switches: dict[str, dict[str, Any]]
    """Torch's precision switches, by side, as its worker reported them."""
    copies_outputs: bool = False
    """Whether all outputs were copied within the clock, since the driver let the judge map nothing."""
    shipped_is_eager: bool = False
    """Whether torch's own precision switches change no bit of what eager gives, so that it is not timed under them."""
    bound_ms: dict[str, tuple[float, ...]]
    """By side, each sample on the judge's clock: an upper bound that nobody can fool."""
    device_ms: dict[str, tuple[float | None, ...]]
    """By side, the same samples by the device's events."""
    sm_mhz: tuple[int | None, ...] = ()
    """The clock of the multiprocessors after each of the candidate's samples."""
    dropped: dict[str, int] = Field(default_factory=dict)
    """Pairs that do not count, by reason."""
    burst: Burst | None = None
