"""Extensions of a candidate that could not be built, as the builder's index tells it: for a verdict's evidence."""

import json
import os
from pathlib import Path
from typing import NamedTuple

from kernelwright.sandbox.build import diagnose
from kernelwright.sandbox.build.build_store import INDEX
from kernelwright.sandbox.machine.cache import READING
from kernelwright.sandbox.machine.logs import escaped, one_line

MAX_BYTES = 4 * 2**20
MAX_TOLD = 8
LONGEST_NAME = 60
LONGEST_LINE = 400
"""In characters, of what is told of one of them."""


class FailedBuild(NamedTuple):
    """One extension, and what was said when it could not be built. The child's claim: it decides nothing."""

    extension: str
    text: str

    @property
    def line(self) -> str:
        """Its name and the deciding line."""
        return one_line(f"{self.extension}: {diagnose.build_reason(self.text)}", LONGEST_LINE)

    @property
    def log(self) -> str:
        """The same with the lines around it."""
        return f"the build of {self.extension} failed, and that was hidden:\n{diagnose.trim_build_log(self.text)}"


def read_failures(build: Path, printed: str = "") -> tuple[FailedBuild, ...]:
    """Those that the index in a build folder names, each once; call it when the builder has ended.

    `printed` is what the builder printed: of a verbose build the compiler's words stand only there.
    """
    try:
        with open(os.open(build / INDEX, READING), "rb") as file:
            entries = list(json.loads(file.read(MAX_BYTES)).values())
    except (OSError, ValueError, AttributeError, RecursionError):
        return ()
    told: dict[tuple[str, str], None] = {}  # an entry stands there under several keys
    for entry in entries:
        match entry:
            case {"extension": str() as extension, "error": str(), "text": str() as text}:
                told[extension, text] = None
    return tuple(
        FailedBuild(
            one_line(extension, LONGEST_NAME),
            escaped(text if diagnose.names_an_error(text) else f"{printed}\n{text}"),
        )
        for extension, text in list(told)[:MAX_TOLD]
    )
