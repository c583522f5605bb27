"""What a build did, as its own child tells it: for a verdict's evidence."""

import os
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from kernelwright.problems.record.base import Record
from kernelwright.sandbox.machine.logs import one_line
from kernelwright_child.building.shortcuts import REPORT

MAX_BYTES = 256 * 1024
MAX_LINES = 64
LONGEST_WAY = 200
"""In characters, of what is told of one compilation."""
Way = Literal["stock", "light", "fast linker"]


class Compilation(Record):
    """One run of a compiler or linker."""

    extension: str
    """The name of its build folder."""
    file: str
    way: Way
    """`light`: with the light header; `stock`: as without us."""
    failed: tuple[Way, ...] = ()
    """Ways that were tried before and did not compile."""
    seconds: float
    compiled: bool = True
    """False where no way led to the end."""


class BuildRecord(Record):
    """How a candidate was built. The child's claim: good for explaining a build, never for deciding a verdict."""

    compilations: tuple[Compilation, ...] = ()

    @property
    def ways(self) -> tuple[str, ...]:
        """One phrase for each compilation: what was compiled, how, and in how many seconds."""
        return tuple(
            one_line(
                f"{run.extension} {run.file}: {run.way}, {run.seconds:.1f} s{'' if run.compiled else ', failed'}",
                LONGEST_WAY,
            )
            for run in self.compilations
        )


def read_record(work_folder: Path) -> BuildRecord:
    """What the builder in this work folder left; call it when that has ended. Lines that are no claims are left out."""
    try:
        fd = os.open(work_folder / "home" / REPORT, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            lines = file.read(MAX_BYTES).splitlines()[:MAX_LINES]
    except OSError:
        return BuildRecord()
    found = []
    for line in lines:
        try:
            found.append(Compilation.model_validate_json(line))
        except ValidationError:
            continue
    return BuildRecord(compilations=tuple(found))
