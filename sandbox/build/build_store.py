"""Finished builds by content: a candidate that was built once is not built again; and what a build did, as evidence.

The judge copies a build folder in after its builder has ended, and out into a fresh work folder before a worker
starts. No child ever sees the store. What a candidate built is found again only under its own whole source, so nobody
reads or changes the products of another. What a build did, and which extensions failed, its own child tells.
"""

import json
import logging
import os
import re
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import ValidationError

from kernelwright.problems.problem import Record
from kernelwright.sandbox.build import build_store as diagnose
from kernelwright.sandbox.build.toolchain import Toolchain
from kernelwright.sandbox.machine.cache import READING, Bounds, FolderStore, digest_of
from kernelwright.sandbox.machine.logs import escaped, one_line
from kernelwright_child.compiling import REPORT

KEPT_CHARACTERS = 3000
CONTEXT_LINES = 3
_ERROR = re.compile(
    r"(?:^|[\s:])(?:fatal )?error\b\s*:?|undefined reference to|undefined symbol|multiple definition of"
    r"|\bld: cannot find|ptxas (?:fatal|error)",
    re.I,
)
_NOISE = re.compile(
    r"^(?:\[\d+/\d+\]|FAILED:|ninja: |(?:/\S*/)?(?:g\+\+|c\+\+|nvcc|clang\+\+) )|ninja_options|^\s*$"
    r"|^Using .* as PyTorch extensions root|^Emitting ninja build file|^Building extension module|^Loading extension"
)
_DEEP_PATH = re.compile(r"(?:/[^\s:/'\"]+){3,}/(?=[^\s:/'\"]+)")


def names_an_error(log: str) -> bool:
    """Whether a compiler's or linker's error stands in it."""
    return any(_ERROR.search(line) and "Error building extension" not in line for line in _useful(log))


def build_reason(log: str) -> str:
    """The first error of a failed build, one line, without its folder; or the last line where no error is marked."""
    lines = _useful(log)
    for line in lines:
        if _ERROR.search(line) and "Error building extension" not in line:
            return one_line(line)
    return one_line(lines[-1]) if lines else "the build failed without a word"


def trim_build_log(log: str) -> str:
    """First error with the lines after it (the compiler shows the source there), then the log's end, without noise."""
    lines = _useful(log)
    first = next((i for i, line in enumerate(lines) if _ERROR.search(line) and "Error building" not in line), None)
    if first is None:
        return _cut("\n".join(lines))
    around = lines[first : first + 1 + CONTEXT_LINES]
    rest = [
        line
        for line in lines[first + 1 + CONTEXT_LINES :]
        if _ERROR.search(line) or line.lstrip().startswith(("|", "^"))
    ]
    return _cut("\n".join(around + rest))


def trim_traceback(log: str) -> str:
    """The frames of the candidate's own file and the exception; the frames of torch and of the worker are left out."""
    kept: list[str] = []
    own = False
    for line in escaped(log).splitlines():
        frame = re.match(r'\s+File "([^"]+)", line (\d+)', line)
        if frame:
            own = frame[1].endswith("candidate.py")
            if own:
                kept.append(line.replace(frame[1], "candidate.py"))
        elif not line.startswith(" ") or own:
            kept.append(line)
    return _cut("\n".join(kept))


def _useful(log: str) -> list[str]:
    """The lines that say something, each once, with folders shortened."""
    seen: set[str] = set()
    kept = []
    for raw in escaped(log).splitlines():
        line = _DEEP_PATH.sub("", raw.rstrip())
        if not _NOISE.search(raw) and line not in seen:
            seen.add(line)
            kept.append(line)
    return kept


def _cut(text: str) -> str:
    if len(text) <= KEPT_CHARACTERS:
        return text
    half = KEPT_CHARACTERS // 2
    return f"{text[: 2 * half - 600]}\n[... {len(text) - KEPT_CHARACTERS} characters left out ...]\n{text[-600:]}"


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


LOG = logging.getLogger("kernelwright.sandbox.build")
INDEX = "built.json"
"""The builder's list of what it built, see `kernelwright_child.inline`; it imports torch, and is not imported
here."""

LIMIT_BYTES = 2 * 2**30
BUILD_BYTES, BUILD_FILES, BUILD_DEPTH = 2**29, 4096, 8
"""A build above these is not kept."""
FORMAT = "2"


class BuildStore(FolderStore):
    """Nothing here raises for what is on disk: a build that can not be kept or read is simply built again."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        super().__init__("builds", limit_bytes, Bounds(BUILD_BYTES, BUILD_FILES, BUILD_DEPTH))

    @staticmethod
    def key(source: str, toolchain: Toolchain | None, **more: str) -> str:
        """What a finished build depends on, as 64 hex digits: the source, the toolchain, and what the caller adds.

        To add: the constructor's arguments, the architecture of the device, settings that change how things are built.
        """
        facts = [FORMAT, source, toolchain.digest if toolchain else "", str(toolchain and toolchain.nvcc)]
        return digest_of(facts + [f"{name}={value}" for name, value in sorted(more.items())])

    def keep(self, key: str, folder: Path) -> bool:
        """Copy a finished build folder in; the builder must have ended. False where it is not fit to be kept."""
        if self._cache.use(key) is None and not _is_complete(folder):
            LOG.info("the build in %s is not kept: not all that its index names lies in it", folder)
            return False
        return super().keep(key, folder)

    def keep_more(self, key: str, folder: Path) -> bool:
        """The same, in place of what there is under this key: something was built that is not in it."""
        if not _is_complete(folder):
            return False
        self.forget(key)
        return self.keep(key, folder)


def _is_complete(build: Path) -> bool:
    """Whether all that the builder has made lies in the build folder: else a worker elsewhere could not load it.

    What could not be built is replayed from its words, and needs nothing more.
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
        return one_line(f"{self.extension}: {diagnose.build_reason(self.text)}", LONGEST_LINE)

    @property
    def log(self) -> str:
        return f"the build of {self.extension} failed, and that was hidden:\n{diagnose.trim_build_log(self.text)}"


def read_failures(build: Path, printed: str = "") -> tuple[FailedBuild, ...]:
    """Those that the index in a build folder names, each once; call it when the builder has ended.

    `printed` is what the builder printed: of a verbose build the compiler's words stand only there.
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
            escaped(text if diagnose.names_an_error(text) else f"{printed}\n{text}"),
        )
        for extension, text in list(told)[:MAX_TOLD]
    )
