"""What is known of one timed call: its result and its time, and on a GPU how it came about."""

from typing import NamedTuple

from kernelwright.sandbox.calls.device import Prepared
from kernelwright.sandbox.machine.clocks import ClockSample
from kernelwright.sandbox.tensors.values import Values


class Witnessed(NamedTuple):
    """What is known of one call on the device beside its time on the judge's clock."""

    device_ms: float | None
    """What the worker says that the device's events said. A hint."""
    prepared: Prepared
    clocks: ClockSample | None
    mapped_anew: bool
    """Whether an output lay in an allocation that was not seen before, which costs time within the clock."""
    made_twice: bool = False
    """Whether a candidate made it once more on the same values, after one for which memory was missing: the first may
    have done the work."""
    parts: tuple[float, ...] = ()
    """By the worker's word, in ms since the clock started: reached, issued, done, described; then, by the judge's own
    clock, answered and looked at."""


class Timed(NamedTuple):
    """One call's result, its time on the judge's clock, and the processor time of all threads of the child."""

    output: Values
    milliseconds: float
    cpu_ms: float
    device: Witnessed | None = None
    """What else is known of a call on a GPU."""
