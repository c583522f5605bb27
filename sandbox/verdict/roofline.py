"""The floor: necessary work over the device's peaks. Pure."""

from typing import Any

from pydantic import Field

from kernelwright.problems.record.base import Record
from kernelwright.problems.record.problem import PrecisionPolicy
from kernelwright.sandbox.verdict.peaks import Peaks


class NecessaryWork(Record):
    """What `trace` tells, checked for form: it comes from a child."""

    read_bytes: int = Field(ge=0)
    written_bytes: int = Field(ge=0)
    flops: dict[str, int] = Field(default_factory=dict)
    """Of the direct algorithm, by dtype."""
    least_flops: dict[str, int] = Field(default_factory=dict)
    """Of the best algorithm known, where nothing can be rearranged."""

    @classmethod
    def of(cls, traced: dict[str, Any]) -> "NecessaryWork":
        """From the answer of `trace`. Raises `pydantic.ValidationError` or `KeyError` where it has another form."""
        return cls(
            read_bytes=traced["bytes"]["read"],
            written_bytes=traced["bytes"]["written"],
            flops=traced["flops"],
            least_flops=traced["least_flops"],
        )

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.written_bytes


class Floor(Record):
    """Two bounds for one problem on one device, in ms."""

    work: NecessaryWork
    memory_ms: float
    """Every needed byte, once, through the narrowest level that it must pass."""
    direct_ms: float
    """The operations of the reference's own algorithm. A better algorithm may beat this one honestly."""
    least_ms: float
    """The operations that no known algorithm saves."""
    copy_ms: float | None = None
    """What a plain copy takes that reads and writes as many bytes, all of them in memory; None where not measured."""

    @property
    def floor_ms(self) -> float:
        """What the device could do at best with the reference's algorithm: the measure of how good a kernel is."""
        return max(self.memory_ms, self.direct_ms)

    @property
    def impossible_below_ms(self) -> float:
        """No correct program is faster: a time below is no win but something to explain."""
        return max(self.memory_ms, self.least_ms)

    def fraction(self, time_ms: float) -> float:
        """`fraction_of_floor`: 1 is as fast as the device can be; above 1, with fewer operations than the reference."""
        return self.floor_ms / time_ms

    def is_impossible(self, time_ms: float) -> bool:
        """Whether the time is to be quarantined, once peaks that were measured again say so too."""
        return time_ms < self.impossible_below_ms


def floor_of(work: NecessaryWork, peaks: Peaks, precision: PrecisionPolicy) -> Floor:
    """The floor of some work on a device, under a problem's precision policy."""
    return Floor(
        work=work,
        memory_ms=peaks.memory_ms(work.bytes),
        direct_ms=peaks.arithmetic_ms(work.flops, precision),
        least_ms=peaks.arithmetic_ms(work.least_flops, precision),
        copy_ms=1e3 * work.bytes / peaks.copy_bytes_per_s if peaks.copy_bytes_per_s else None,
    )
