"""The folder of a capture: `capture.json`, the problems of its parts, and the choice among them, `split.json`."""

import os
from pathlib import Path
from typing import TypeVar

from pydantic import Field, ValidationError

from kernelwright.problems.record.base import Record, first_fault
from kernelwright.problems.record.problem import ProblemError
from kernelwright.programs.record.parts import Part, Uncut
from kernelwright.programs.record.seen import ModuleSeen
from kernelwright.sandbox.machine.atomic import write_atomically

CAPTURE, SPLIT, PROBLEMS = "capture.json", "split.json", "problems"
VERSION = 1
R = TypeVar("R", bound=Record)


class OperatorSeen(Record):
    """One of torch's operators, over the whole program."""

    name: str
    calls: int
    ms: float
    """Its own: without the operators that it calls."""


class CapturedProgram(Record):
    """What a program did while it was watched. Times are of this device, under the profiler."""

    version: int = VERSION
    program: str
    """The words that started it, or the class of the model."""
    device: str
    """The processor's or GPU's name."""
    is_gpu: bool = False
    threads: int
    versions: dict[str, str] = Field(default_factory=dict)
    steps: int = Field(ge=1)
    """Calls of outermost modules that were watched; what follows each, such as a backward pass, belongs to it."""
    steps_seen: int = Field(ge=1)
    """All of them."""
    program_ms: float = Field(ge=0)
    """Of the watched steps."""
    modules: tuple[ModuleSeen, ...]
    operators: tuple[OperatorSeen, ...] = ()
    """Where most time went first."""
    parts: tuple[Part, ...]
    """All that were cut out, overlapping ones too."""
    uncut: tuple[Uncut, ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader has to know, a sentence each."""
    values: str | None = None
    """The file of weights and inputs where they were asked for."""

    def part(self, name: str) -> Part:
        """By its id; `ProblemError` where there is none."""
        found = next((part for part in self.parts if part.id == name), None)
        if found is None:
            raise ProblemError(f"the capture has no part {name!r}; there are: {', '.join(p.id for p in self.parts)}")
        return found


class Chosen(Record):
    """A part that is worth a kernel, at the sites that no part before it has taken."""

    part: str
    """Its id."""
    ms: float
    """The program's time there."""
    share: float
    """Of the program's time."""
    floor_ms: float
    """The least time for the same calls on this device; 0 where it is not known."""
    compiled_ms: float | None = None
    """For the same calls as torch.compile makes them; None where it was not measured."""
    gain_ms: float
    """What could be had at most: from the better of eager and torch.compile down to the floor."""
    sites: tuple[tuple[str, str], ...]
    """Root and module of those where a kernel would be put."""


class Split(Record):
    """The choice among a capture's parts, best first, none of them overlapping another."""

    version: int = VERSION
    program_ms: float
    chosen: tuple[Chosen, ...]
    compiled: bool = False
    """Whether torch.compile was measured."""

    def weights(self, top: int | None = None) -> dict[str, float]:
        """By part, its share of what could be had of all of them: where a budget is best spent."""
        parts = self.chosen[:top]
        total = sum(part.gain_ms for part in parts)
        return {part.part: part.gain_ms / total if total else 1 / len(parts) for part in parts}


def is_capture(path: Path | str) -> bool:
    """Whether a capture lies there."""
    return os.path.isfile(Path(path) / CAPTURE)  # noqa: PTH113 - False for a path that is too long


def read_capture(folder: Path) -> CapturedProgram:
    """The capture in a folder; `ProblemError` where there is none, or one of another version."""
    return _read(folder / CAPTURE, CapturedProgram)


def read_split(folder: Path) -> Split:
    """The choice of a capture; `ProblemError` where none was made."""
    return _read(folder / SPLIT, Split)


def write_record(folder: Path, record: CapturedProgram | Split) -> None:
    """Put it into its file of the folder, whole or not at all."""
    name = CAPTURE if isinstance(record, CapturedProgram) else SPLIT
    write_atomically(folder / name, record.model_dump_json(indent=1) + "\n")


def _read(path: Path, kind: type[R]) -> R:
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ProblemError(f"{path.parent} holds no {path.name}; make one with kernelwright capture") from None
    except ValidationError as error:
        raise ProblemError(f"{path} is of another version of kernelwright ({first_fault(error).key})") from None
