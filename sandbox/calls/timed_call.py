"""What is known of one timed call: its result and its time, and on a GPU how it came about."""

from typing import NamedTuple

from kernelwright.sandbox.calls.device import Prepared
from kernelwright.sandbox.machine.clocks import ClockSample
from kernelwright.sandbox.tensors.values import Values
from kernelwright.sandbox.verdict.settings import Settings

CLOCKS, CLOCKS_MS = 0.02, 0.05
"""By how much, of the time and at least, the kernel's clock of a process may be off the judge's in one call."""


class Witnessed(NamedTuple):
    """What is known of one call on the device beside its time on the judge's clock."""

    device_ms: float | None
    """What the worker says that the device's events said. A hint."""
    prepared: Prepared
    clocks: ClockSample | None
    made_twice: bool = False
    """Whether a candidate made it once more on the same values, after one for which memory was missing: the first may
    have done the work."""


class Timed(NamedTuple):
    """One call's result, its time on the judge's clock, and the processor time of all threads of the child."""

    output: Values
    milliseconds: float
    cpu_ms: float
    device: Witnessed | None = None
    """What else is known of a call on a GPU."""


def beyond_threads(settings: Settings, milliseconds: float, cpu_ms: float) -> str:
    """What is wrong with a candidate's call on a processor that used more of it than its threads can; mostly nothing.

    A child that is timed has a core a thread, and all threads that it starts stay there, however many they are. So it
    takes moving them to other cores.
    """
    threads = settings.threads
    if threads >= len(settings.cores) or cpu_ms <= threads * (milliseconds * (1 + CLOCKS) + CLOCKS_MS):
        return ""
    used = f"{cpu_ms:.2f} ms of processor time in a call of {milliseconds:.2f} ms"
    return f"the candidate used {used}, more than --threads {threads} allows"
