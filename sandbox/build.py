"""A store of finished builds by content, and the record of a build as evidence.

The judge copies a build folder in after its builder has ended, and out into a new work folder before a worker starts.
No child ever sees the store. The key contains the complete source, so no candidate reads or changes the build of
another. The record and the list of failed extensions are claims of the child.
"""

import json
import logging
import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import ValidationError

from kernelwright.problems.problem import Record
from kernelwright.sandbox.logs import build_reason, escaped, names_an_error, one_line, trim_build_log
from kernelwright.sandbox.storage import (
    LIMIT_VARIABLE,
    Bounds,
    FolderStore,
    all_entries,
    cache_root,
    digest_of,
    open_read,
)
from kernelwright.sandbox.toolchain import Toolchain, headers_are_ready, toolchain
from kernelwright.sandbox.verdict.diagnoses import base_name
from kernelwright.sandbox.verdict.verdicts import MOST_FAULTS, MOST_KERNELS, Compiled
from kernelwright_child.compiling import PTXAS, REPORT

LOG = logging.getLogger(__name__)

MAX_BYTES = 256 * 1024
MAX_LINES = 64
LONGEST_WAY = 200
"""Characters of the line on one compilation."""
Way = Literal["stock", "light", "fast linker"]


class Compilation(Record):
    extension: str
    """Name of the build folder."""
    file: str
    way: Way
    """`light`: with the light header; `stock`: without shortcuts."""
    failed: tuple[Way, ...] = ()
    """Earlier ways that did not compile."""
    seconds: float
    compiled: bool = True
    """False where every way failed."""


class BuildRecord(Record):
    """The record of a candidate's build, a claim of the child that never decides a verdict."""

    compilations: tuple[Compilation, ...] = ()

    @property
    def ways(self) -> tuple[str, ...]:
        return tuple(
            one_line(
                f"{run.extension} {run.file}: {run.way}, {run.seconds:.1f} s{'' if run.compiled else ', failed'}",
                LONGEST_WAY,
            )
            for run in self.compilations
        )


def read_record(work_folder: Path) -> BuildRecord:
    """Read the builder's record in this work folder after its end. Skips malformed lines."""
    try:
        with open_read(work_folder / "home" / REPORT) as file:
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
"""The index of `kernelwright_child.builder`, which is not imported here since it imports torch."""

LIMIT_BYTES = 2 * 2**30
BUILD_BYTES, BUILD_FILES, BUILD_DEPTH = 2**29, 4096, 8
FORMAT = "3"


class BuildStore(FolderStore):
    """The store of finished builds. A build that cannot be kept or read is built again; nothing raises."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        super().__init__("builds", limit_bytes, Bounds(BUILD_BYTES, BUILD_FILES, BUILD_DEPTH))

    @staticmethod
    def key(source: str, toolchain: Toolchain | None, **more: str) -> str:
        """Compute the key of a finished build, as 64 hex digits, from source, toolchain and `more`.

        `more` has the constructor's arguments, the device's architecture, and settings that change a build.
        """
        facts = [FORMAT, source, toolchain.digest if toolchain else "", str(toolchain and toolchain.nvcc)]
        return digest_of(facts + [f"{name}={value}" for name, value in sorted(more.items())])

    def keep(self, key: str, folder: Path) -> bool:
        """Copy a finished build folder in after the builder's end. False where it cannot be kept."""
        if self.use(key) is None and not _is_complete(folder):
            LOG.info("the build in %s is not kept: files of its index are missing", folder)
            return False
        return super().keep(key, folder)

    def keep_more(self, key: str, folder: Path) -> bool:
        """Replace the entry under this key, which lacks a later build."""
        if not _is_complete(folder):
            return False
        self.forget(key)
        return self.keep(key, folder)


def _is_complete(build: Path) -> bool:
    """Check that every built file is in the build folder, since a worker elsewhere could not load others.

    A failed build needs no file.
    """
    try:
        with open_read(build / INDEX) as file:
            built = json.loads(file.read(BUILD_BYTES))
        names = [entry["path"] for entry in built.values() if "error" not in entry]
        return all(".." not in Path(name).parts and (build / name).is_file() for name in names)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False


MAX_INDEX_BYTES = 4 * 2**20
MAX_FAILURES = 8
LONGEST_NAME = 60
LONGEST_LINE = 400
"""Characters of the line on one failure."""


class FailedBuild(NamedTuple):
    """An extension that failed to build, with its output: a claim of the child that decides nothing."""

    extension: str
    text: str

    @property
    def line(self) -> str:
        return one_line(f"{self.extension}: {build_reason(self.text)}", LONGEST_LINE)

    @property
    def log(self) -> str:
        return f"the build of {self.extension} failed, and that was hidden:\n{trim_build_log(self.text)}"


def read_failures(build: Path, printed: str = "") -> tuple[FailedBuild, ...]:
    """Read the failures in the index of a build folder, each once, after the builder's end.

    `printed` is the builder's output, the only place of the compiler's output in a verbose build.
    """
    try:
        with open_read(build / INDEX) as file:
            entries = list(json.loads(file.read(MAX_INDEX_BYTES)).values())
    except (OSError, ValueError, AttributeError, RecursionError):
        return ()
    failures: dict[tuple[str, str], None] = {}  # an entry has several keys
    for entry in entries:
        match entry:
            case {"extension": str() as extension, "error": str(), "text": str() as text}:
                failures[extension, text] = None
    return tuple(
        FailedBuild(one_line(extension, LONGEST_NAME), escaped(text if names_an_error(text) else f"{printed}\n{text}"))
        for extension, text in list(failures)[:MAX_FAILURES]
    )


MAX_PTXAS_FILES, MAX_PTXAS_LINE = 16, 500
LATE = "late-"
"""Beginning of the folders of what was built in a call."""
_ENTRY = re.compile(r"ptxas info\s*: Compiling entry function '(\w*)")
_SPILLED = re.compile(r"\b(\d{1,6}) bytes spill stores, (\d{1,6}) bytes spill loads")
_USED = re.compile(r"ptxas info\s*: Used (\d{1,4}) registers")
_LOSS = re.compile(r"ptxas info\s*: \(\w+\) (Potential Performance Loss.*)")


def read_ptxas(build: Path) -> tuple[tuple[Compiled, ...], tuple[str, ...]]:
    """Read what ptxas said of the kernels of a build: their figures, and its warnings on speed.

    A claim of the child that decides nothing. Of several instances of a kernel the one that spills most counts.
    """
    kernels: dict[str, Compiled] = {}
    warnings: dict[str, None] = {}
    name, spilled = "", 0
    for line in _ptxas_lines(build):
        if entry := _ENTRY.search(line):
            name, spilled = base_name(entry[1]), 0
        elif found := _SPILLED.search(line):
            spilled = int(found[1]) + int(found[2])
        elif (used := _USED.search(line)) and name:
            one = Compiled(kernel=name, registers=int(used[1]), spilled_bytes=spilled)
            before = kernels.get(name, one)
            kernels[name] = max(before, one, key=lambda each: (each.spilled_bytes, each.registers))
        elif loss := _LOSS.search(line):
            warnings[one_line(loss[1], LONGEST_WAY)] = None
    return tuple(kernels.values())[:MOST_KERNELS], tuple(warnings)[:MOST_FAULTS]


def _folders(parent: Path | str) -> list[str]:
    try:
        with os.scandir(parent) as entries:
            some = islice(entries, MAX_PTXAS_FILES)
            return sorted(entry.path for entry in some if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _ptxas_lines(build: Path) -> Iterator[str]:
    folders = _folders(build)
    late = [path for folder in folders if Path(folder).name.startswith(LATE) for path in _folders(folder)]
    for folder in [*folders, *late][:MAX_PTXAS_FILES]:
        try:
            with open_read(f"{folder}/{PTXAS}") as file:
                text = file.read(MAX_BYTES).decode(errors="replace")
        except OSError:
            continue
        yield from (line[:MAX_PTXAS_LINE] for line in text.splitlines())


def shortcuts_found() -> str | None:
    """Describe the compiler and the caches for it; None without a supported compiler."""
    found = toolchain()
    if found is None or not found.is_gcc:
        return None
    everything = all_entries()
    linker = f", linked by {found.linker}" if found.linker else ""
    header = "torch's light header" if headers_are_ready(found) else "no light header of torch's yet"
    return (
        f"{found.compiler}{linker}; {header} and {len(BuildStore())} finished builds; all caches take "
        f"{everything.size_bytes() / 2**30:.1f} of {everything.limit_bytes / 2**30:.1f} GiB ({LIMIT_VARIABLE}) in "
        f"{cache_root()}"
    )
