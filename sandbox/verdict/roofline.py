"""The roofline: necessary work over the device's peaks. Pure."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from kernelwright.problems.problem import Mode, PrecisionPolicy, Record

HEADROOM = 1.1
"""Measured rates are raised by this much: clocks wander, and no measurement reaches the very limit."""
Rate = Annotated[float, Field(gt=0)]

SPLITS: dict[str, tuple[tuple[str, float], ...]] = {
    "float64": (("float16", 2 / 28),),
    "float32": (("float16", 1 / 3), ("bfloat16", 1 / 6), ("tf32", 1 / 3)),
}
"""Emulations of a dtype's precision by units of a lower one, as (units, share of their rate).

float32 from three products of two float16 parts each, or of two TF32 parts (H. Ootomo and R. Yokota, Recovering single
precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance, IJHPCA 36, 2022); from six
of three bfloat16 parts (G. Henry, P. Tang and A. Heinecke, Leveraging the bfloat16 AI datatype for higher-precision
computations, ARITH 2019). float64 from 28 products of seven int8 parts (K. Ozaki et al., Numerical Algorithms 59,
2012), int8 at twice the rate of float16.
"""
LOWER: dict[PrecisionPolicy, tuple[str, ...]] = {"strict": (), "tf32": ("tf32", "float16"), "half": ("tf32", "float16")}
"""Units that a policy lets float32 problems use as they are. float16 has as many fraction bits as TF32."""


class Level(Record):
    """Memory at one distance. What lies beyond `inside_bytes` must come through here."""

    name: str
    inside_bytes: int = Field(ge=0)
    """Bytes that all closer levels together can hold, which may not need to pass."""
    bytes_per_s: Rate
    """Read and written together."""


class Peaks(Record):
    """One device, with the number of threads on a processor. All rates are for all units together."""

    device: str
    levels: tuple[Level, ...] = Field(min_length=1)
    flops_per_s: dict[str, Rate]
    """By dtype, and `tf32`; those that the device has no units for are absent."""
    copy_bytes_per_s: Rate | None = None
    """Of a plain copy of what fits no cache, read and written together; None where it was not measured."""
    versions: dict[str, str] = Field(default_factory=dict)

    def memory_ms(self, needed_bytes: float) -> float:
        """The least time in which this many distinct bytes can pass, wherever they happen to lie before.

        Bytes from farther away pass the nearer levels too. So a nearer level never counts as slower than a farther one,
        nor any as slower than a plain copy, even if it was measured under load.
        """
        rate, times = self.copy_bytes_per_s or 0.0, []
        for level in reversed(self.levels):
            rate = max(rate, level.bytes_per_s)
            times.append(max(0.0, needed_bytes - level.inside_bytes) / rate)
        return 1e3 * max(times) / HEADROOM

    def arithmetic_ms(self, flops: Mapping[str, float], precision: PrecisionPolicy) -> float:
        """The least time for this many operations by dtype; several kinds of units may run at once."""
        times = [count / rate for dtype, count in flops.items() if (rate := self.rate(dtype, precision))]
        return 1e3 * max(times, default=0.0) / HEADROOM

    def rate(self, dtype: str, precision: PrecisionPolicy) -> float | None:
        """Operations a second of the fastest way that keeps the dtype's precision as the policy wants it."""
        have = self.flops_per_s
        ways = [have.get(dtype), *(have[unit] * share for unit, share in SPLITS.get(dtype, ()) if unit in have)]
        if dtype == "float32":
            ways += [have.get(unit) for unit in LOWER[precision]]
            ways += [have.get("bfloat16")] if precision == "half" else []
        if dtype in ("float16", "bfloat16"):
            ways += [have.get("float16"), have.get("bfloat16"), have.get("float32")]
        return max((way for way in ways if way), default=None)

    def raised(self, other: "Peaks") -> "Peaks":
        """The better of two measurements of the same device, figure by figure."""
        rates = {level.name: level.bytes_per_s for level in other.levels}
        levels = tuple(
            level.model_copy(update={"bytes_per_s": max(level.bytes_per_s, rates.get(level.name, 0.0))})
            for level in self.levels
        )
        kinds = self.flops_per_s.keys() | other.flops_per_s.keys()
        flops = {kind: max(self.flops_per_s.get(kind, 0), other.flops_per_s.get(kind, 0)) for kind in sorted(kinds)}
        copies = [rate for rate in (self.copy_bytes_per_s, other.copy_bytes_per_s) if rate]
        return self.model_copy(
            update={"levels": levels, "flops_per_s": flops, "copy_bytes_per_s": max(copies, default=None)}
        )


class NecessaryWork(Record):
    """The answer of `trace`, checked for form: it comes from a child."""

    read_bytes: int = Field(ge=0)
    written_bytes: int = Field(ge=0)
    flops: dict[str, int] = Field(default_factory=dict)
    """Of the direct algorithm, by dtype."""
    least_flops: dict[str, int] = Field(default_factory=dict)
    """Of the best algorithm known, where nothing can be rearranged."""
    mode: Mode | None = None
    """The mode of the call that was traced; None in records from before it was kept."""

    @classmethod
    def of(cls, traced: dict[str, Any]) -> "NecessaryWork":
        """From the answer of `trace`. Raises `pydantic.ValidationError` or `KeyError` where it has another form."""
        return cls(
            read_bytes=traced["bytes"]["read"],
            written_bytes=traced["bytes"]["written"],
            flops=traced["flops"],
            least_flops=traced["least_flops"],
            mode=traced.get("mode"),
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
    """The operations of the reference's own algorithm. A better algorithm may be faster, and honest."""
    least_ms: float
    """The operations that no known algorithm saves."""
    copy_ms: float | None = None
    """Time in ms of a plain copy of as many bytes, all of them in memory; None where not measured."""

    @property
    def floor_ms(self) -> float:
        """Best time that the device could reach with the reference's algorithm."""
        return max(self.memory_ms, self.direct_ms)

    @property
    def impossible_below_ms(self) -> float:
        """No correct program is faster: a time below needs an explanation."""
        return max(self.memory_ms, self.least_ms)

    def fraction(self, time_ms: float) -> float:
        """`fraction_of_floor`: 1 is as fast as the device can be; above 1, with fewer operations than the reference."""
        return self.floor_ms / time_ms

    def is_impossible(self, time_ms: float) -> bool:
        """Return whether the time is to be quarantined, once peaks that were measured again say so too."""
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
