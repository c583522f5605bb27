"""What came of comparing a program with and without its kernels."""

from typing import NamedTuple

from pydantic import Field

from kernelwright.problems.record.base import Record
from kernelwright.sandbox.verdict.verdicts import Measurement, Pairing

KERNELS, ALONE = "kernels", "alone "
"""Names of the sides with all kernels, and with those of one part, whose id stands behind."""


class StageError(Record):
    """How far off one stage of the program is from float64, by its own code and by the kernel, on the program's inputs.

    As shares of the largest magnitude of the float64 result.
    """

    place: str
    """The module; empty for the program's outputs as a whole, with gradients where some flow."""
    own: float
    kernel: float
    wrong: str = ""
    """Why the judge's bound would refuse the kernel's result here; empty where it would not."""
    exact: bool = True
    """Whether float64 could be had; else the distance is that from the module's own result."""


class Comparison(Record):
    """A program judged end to end. What is reported is derived from the samples."""

    program: str
    run: str
    device: str
    versions: dict[str, str]
    calls: int = Field(ge=1)
    """Kinds of calls of the program's outermost modules; one of each makes up a sample."""
    backward: bool
    """Whether gradients are part of it."""
    whole: Measurement
    """With all kernels, against eager as shipped and torch.compile."""
    alone: dict[str, Pairing] = Field(default_factory=dict)
    """By part: the program with this kernel alone, against eager."""
    errors: tuple[StageError, ...] = ()
    taken: dict[str, int] = Field(default_factory=dict)
    """By place, how often the kernel was taken in one sample."""
    fallbacks: dict[str, dict[str, int]] = Field(default_factory=dict)
    """By place, how often the module's own code was taken in one sample, by the reason."""
    notes: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        """Whether no stage is off by more than the judge allows."""
        return not any(error.wrong for error in self.errors)

    @property
    def is_faster(self) -> bool:
        """Whether the whole is right, and faster than every baseline beyond doubt."""
        return self.right and self.whole.comparison == "faster"

    @property
    def shares(self) -> "list[Share]":
        """What each kernel brought, the most first."""
        found = [Share.of(part, pairing) for part, pairing in self.alone.items()]
        return sorted(found, key=lambda share: -share.saved)


class Share(NamedTuple):
    """What one kernel brought by itself."""

    part: str
    saved: float
    """The share of eager's time that is gone; below 0 it costs time."""
    low: float
    high: float
    """The ends of the 95 % interval."""

    @classmethod
    def of(cls, part: str, pairing: Pairing) -> "Share":
        """From the speedup of the program with that kernel alone."""
        return cls(part, *(1 - 1 / ratio for ratio in (pairing.speedup, *pairing.interval)))
