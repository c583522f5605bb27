"""Clocks and throttle reasons of a device, by ctypes on NVML, and the timed samples that they invalidate."""

import ctypes
import statistics
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_uint, c_ulonglong, c_void_p
from typing import NamedTuple

from kernelwright.problems.problem import Record

LIBRARY = "libnvidia-ml.so.1"
SM, MEMORY = 1, 2
REASONS = {
    0x1: "idle",
    0x2: "clocks set by an application",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "synchronised with other devices",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
    0x100: "clocks set for a display",
}
"""Bits of NVML's clock event reasons."""
SEVERE = 0x8 | 0x20 | 0x40 | 0x80
SLOW_SHARE = 0.9
"""A sample below this share of the session's median clock does not count."""
BUSY = 99
"""Utilisation in per cent."""


class ClockSample(Record):
    sm_mhz: int
    memory_mhz: int
    reasons: int
    """Bits of `REASONS`."""

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(text for bit, text in REASONS.items() if self.reasons & bit)


def steady(samples: Sequence[ClockSample | None]) -> list[bool]:
    """Mark the samples that count: not those at a low clock or with a severe reason. Without NVML all count."""
    known = [sample.sm_mhz for sample in samples if sample is not None]
    least = SLOW_SHARE * statistics.median(known) if known else 0
    return [s is None or (s.sm_mhz >= least and not s.reasons & SEVERE) for s in samples]


class Facts(NamedTuple):
    driver: str
    highest_sm_mhz: int | None
    celsius: int | None
    watts: float | None
    processes: tuple[int, ...]
    """Processes with a compute context on the device, as NVML numbers them."""


class _Process(ctypes.Structure):
    _fields_ = (("pid", c_uint), ("memory", c_ulonglong), ("gpu", c_uint), ("compute", c_uint))


class Clocks:
    """An NVML handle of one device, to be closed. Answers are None where NVML or a value is missing."""

    def __init__(self, uuid: str) -> None:
        self._library: ctypes.CDLL | None = None
        self._handle = c_void_p()
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError:
            return
        if library.nvmlInit_v2() != 0:
            return
        if library.nvmlDeviceGetHandleByUUID(c_char_p(uuid.encode()), byref(self._handle)) != 0:
            library.nvmlShutdown()
            return
        self._library = library

    def sample(self) -> ClockSample | None:
        """Read clocks and throttle reasons in tens of microseconds; never within a timed call."""
        sm, memory = (self._number("nvmlDeviceGetClockInfo", kind) for kind in (SM, MEMORY))
        reasons = c_ulonglong()
        known = self._asks("nvmlDeviceGetCurrentClocksThrottleReasons", byref(reasons)) or self._asks(
            "nvmlDeviceGetCurrentClocksEventReasons", byref(reasons)
        )
        if sm is None or memory is None:
            return None
        return ClockSample(sm_mhz=sm, memory_mhz=memory, reasons=reasons.value if known else 0)

    def is_busy(self) -> bool:
        """Check that kernels ran all the time in the last part of a second; false without NVML."""
        shares = (c_uint * 2)()
        return self._asks("nvmlDeviceGetUtilizationRates", shares) and shares[0] >= BUSY

    def facts(self) -> Facts | None:
        if self._library is None:
            return None
        version = ctypes.create_string_buffer(96)
        self._library.nvmlSystemGetDriverVersion(version, c_uint(96))
        milliwatts = self._number("nvmlDeviceGetPowerUsage")
        return Facts(
            driver=version.value.decode(),
            highest_sm_mhz=self._number("nvmlDeviceGetMaxClockInfo", SM),
            celsius=self._number("nvmlDeviceGetTemperature", 0),
            watts=None if milliwatts is None else milliwatts / 1e3,
            processes=self._processes(),
        )

    def _processes(self) -> tuple[int, ...]:
        count = c_uint(64)
        found = (_Process * 64)()
        if not self._asks("nvmlDeviceGetComputeRunningProcesses_v3", byref(count), found):
            return ()
        return tuple(found[index].pid for index in range(count.value))

    def _number(self, name: str, *arguments: int) -> int | None:
        value = c_uint()
        return value.value if self._asks(name, *map(c_uint, arguments), byref(value)) else None

    def _asks(self, name: str, *arguments: object) -> bool:
        if self._library is None or not hasattr(self._library, name):
            return False
        answer: int = getattr(self._library, name)(self._handle, *arguments)
        return answer == 0

    def close(self) -> None:
        if self._library is not None:
            self._library.nvmlShutdown()
            self._library = None
