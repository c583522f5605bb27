"""Finished builds by content: a candidate that was built once is not built again; and a build's record, as evidence.

The judge copies a build folder in after its builder has ended, and out into a fresh work folder before a worker starts.
No child ever sees the store. A candidate's build is found again only under its own complete source, so nobody reads or
changes the products of another. The record, and which extensions failed, are its own child's claims.
"""

import json
import logging
import os
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import ValidationError

from kernelwright.problems.problem import Record
from kernelwright.sandbox.logs import build_reason, escaped, names_an_error, one_line, trim_build_log
from kernelwright.sandbox.storage import (
    LIMIT_VARIABLE,
    READING,
    Bounds,
    FolderStore,
    all_entries,
    cache_root,
    digest_of,
)
from kernelwright.sandbox.toolchain import Toolchain, headers_are_ready, toolchain
from kernelwright_child.compiling import REPORT

LOG = logging.getLogger(__name__)

MAX_BYTES = 256 * 1024
MAX_LINES = 64
LONGEST_WAY = 200
"""In characters, of what is told of one compilation."""
Way = Literal["stock", "light", "fast linker"]


class Compilation(Record):
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
    """The record of a candidate's build. The child's claim: it explains a build and never decides a verdict."""

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
    """Read the record of the builder in this work folder; call it when that has ended. Skips malformed lines."""
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


INDEX = "built.json"
"""The builder's list of what it built, see `kernelwright_child.builder`; it imports torch, and is not imported
here."""

LIMIT_BYTES = 2 * 2**30
BUILD_BYTES, BUILD_FILES, BUILD_DEPTH = 2**29, 4096, 8
"""A build above these is not kept."""
FORMAT = "2"


class BuildStore(FolderStore):
    """Nothing raises for what is on disk: a build that cannot be kept or read is simply built again."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        super().__init__("builds", limit_bytes, Bounds(BUILD_BYTES, BUILD_FILES, BUILD_DEPTH))

    @staticmethod
    def key(source: str, toolchain: Toolchain | None, **more: str) -> str:
        """Compute the key of a finished build, as 64 hex digits: the source, the toolchain, and `more` from the caller.

        To add: the constructor's arguments, the architecture of the device, settings that change how things are built.
        """
        facts = [FORMAT, source, toolchain.digest if toolchain else "", str(toolchain and toolchain.nvcc)]
        return digest_of(facts + [f"{name}={value}" for name, value in sorted(more.items())])

    def keep(self, key: str, folder: Path) -> bool:
        """Copy a finished build folder in; the builder must have ended. False where it is not fit to be kept."""
        if self.use(key) is None and not _is_complete(folder):
            LOG.info("the build in %s is not kept: not all that its index names lies in it", folder)
            return False
        return super().keep(key, folder)

    def keep_more(self, key: str, folder: Path) -> bool:
        """Keep it in place of the entry under this key: something was built that is not in it."""
        if not _is_complete(folder):
            return False
        self.forget(key)
        return self.keep(key, folder)


def _is_complete(build: Path) -> bool:
    """Whether everything that the builder has made is in the build folder: else a worker elsewhere could not load it.

    A failed build is replayed from its words, and needs nothing more.
    """
    try:
        with open(os.open(build / INDEX, READING), "rb") as file:
            built = json.loads(file.read(BUILD_BYTES))
        names = [entry["path"] for entry in built.values() if "error" not in entry]
        return all(".." not in Path(name).parts and (build / name).is_file() for name in names)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False


MAX_INDEX_BYTES = 4 * 2**20
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
        return one_line(f"{self.extension}: {build_reason(self.text)}", LONGEST_LINE)

    @property
    def log(self) -> str:
        return f"the build of {self.extension} failed, and that was hidden:\n{trim_build_log(self.text)}"


def read_failures(build: Path, printed: str = "") -> tuple[FailedBuild, ...]:
    """Read the failures that the index in a build folder names, each once; call it when the builder has ended.

    `printed` is the builder's output: of a verbose build the compiler's words are only there.
    """
    try:
        with open(os.open(build / INDEX, READING), "rb") as file:
            entries = list(json.loads(file.read(MAX_INDEX_BYTES)).values())
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
            escaped(text if names_an_error(text) else f"{printed}\n{text}"),
        )
        for extension, text in list(told)[:MAX_TOLD]
    )


GIB = 2**30


def shortcuts_found() -> str | None:
    """Describe the compiler and what is kept for it; None where there is no compiler to shorten anything for."""
    found = toolchain()
    if found is None or not found.is_gcc:
        return None
    everything = all_entries()
    linker = f", linked by {found.linker}" if found.linker else ""
    header = "torch's light header" if headers_are_ready(found) else "no light header of torch's yet"
    return (
        f"{found.compiler}{linker}; {header} and {len(BuildStore())} finished builds; all that is kept takes "
        f"{everything.size_bytes() / GIB:.1f} of {everything.limit_bytes / GIB:.1f} GiB ({LIMIT_VARIABLE}) in "
        f"{cache_root()}"
    )
