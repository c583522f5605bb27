"""What a closer look at a candidate on a device found: kernels, counters, faulty accesses. Evidence, never proof.

All of it was produced around the candidate's own process, which can hide from a tool or spoil its report. So a fault
that is found counts against the candidate, and that none is found says nothing for it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from pydantic import Field

from kernelwright.problems.record.base import Record

MOST_KERNELS, MOST_FAULTS = 64, 8
WIDEST_NAME = 100


class MemoryFault(Record):
    """One faulty access as compute-sanitizer's memcheck reports it, in the tool's words."""

    what: str
    """`Invalid __global__ write of size 4 bytes`."""
    kernel: str = ""
    where: str = ""
    """File and line, where the kernel was compiled with line numbers."""
    relation: str = ""
    """Of the address to what is allocated: `out of bounds, 1 bytes after the nearest allocation of size 64 bytes`."""
    by: str = ""
    """Thread and block."""

    def __str__(self) -> str:
        place = f" in kernel {self.kernel}" if self.kernel else ""
        place += f" ({self.where})" if self.where else ""
        return f"{self.what}{place}" + "".join(
            [f": {self.relation}" if self.relation else "", f"; by {self.by}" if self.by else ""]
        )


class Memcheck(Record):
    """The outcome of a run under memcheck."""

    state: Literal["found", "clean", "silent"]
    """`clean`: it ended and reported nothing. `silent`: there is no report to go by; `why` says what there is."""
    faults: tuple[MemoryFault, ...] = Field(default=(), max_length=MOST_FAULTS)
    errors: int = 0
    """All that it counted; one for each thread that went wrong, so mostly more than `faults`."""
    why: str = ""

    def __str__(self) -> str:
        if self.state == "clean":
            return "no faulty access seen in two calls, which proves nothing"
        if self.state == "silent":
            return f"nothing can be said: {self.why}"
        more = f"\n{self.errors} errors in all" if self.errors > 1 else ""
        return "\n".join(map(str, self.faults[:1])) + more


class KernelTime(Record):
    """One kernel of a call by torch's profiler."""

    name: str
    launches: int
    ms: float
    """Of all launches together."""


class KernelFacts(Record):
    """One launch as ncu saw it."""

    kernel: str
    metrics: dict[str, str]
    """By the words of `profile.METRICS`, value with unit."""

    def __str__(self) -> str:
        return "\n".join([self.kernel, *(f"  {name}: {value}" for name, value in self.metrics.items())])


class Look(Record):
    """All that was seen of one candidate beside its timing."""

    kernels: tuple[KernelTime, ...] = Field(default=(), max_length=MOST_KERNELS)
    """By torch's profiler, in an untimed call."""
    counters: tuple[KernelFacts, ...] = ()
    """The hardware's, by ncu, launch by launch; only where they were asked for."""
    obstacle: str = ""
    """Why there are no counters although they were asked for, with the remedy."""
    memcheck: Memcheck | None = None
    """None where it was not asked for, or the candidate did not come so far."""

    @classmethod
    def at(cls, kernels: Sequence[tuple[str, int, float]]) -> "Look | None":
        """From what a worker observed (name, launches, microseconds); None where nothing ran on a device."""
        found = tuple(
            KernelTime(name=name[: 2 * WIDEST_NAME], launches=count, ms=us / 1e3)
            for name, count, us in kernels[:MOST_KERNELS]
            if count > 0 and 0 <= us < math.inf  # a worker may say anything
        )
        return cls(kernels=found) if found else None

    def lines(self, widest: int = 8) -> Iterator[str]:
        """In words, for a prompt: the kernels with their share of the time, then the counters of some launches."""
        if self.kernels:
            yield "kernels of a call, by torch's profiler:"
            yield table([(one.name, one.launches, one.ms) for one in self.kernels], widest)
        if self.counters:
            yield "hardware counters of its launches, by ncu:"
            yield from map(str, self.counters[:widest])
        if self.obstacle:
            yield f"no hardware counters: {self.obstacle}"


def table(kernels: Iterable[tuple[str, int, float]], widest: int = 8) -> str:
    """Kernels (name, launches, ms) with their share of the time, the longest first."""
    rows = sorted(kernels, key=lambda row: -row[2])
    total = sum(ms for _, _, ms in rows) or 1.0
    lines = [f"{ms / total:6.1%} {ms:9.4f} ms {count:5d} x  {name[:WIDEST_NAME]}" for name, count, ms in rows[:widest]]
    rest = rows[widest:]
    if rest:
        ms = sum(row[2] for row in rest)
        lines.append(f"{ms / total:6.1%} {ms:9.4f} ms        {len(rest)} other kernels")
    return "\n".join(lines)
