"""Finished builds by content: a candidate that was built once is not built again.

The judge copies a build folder in after its builder has ended, and out into a fresh work folder before a worker
starts. No child ever sees the store. What a candidate built is found again only under its own whole source, so nobody
reads or changes the products of another.
"""

import contextlib
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from sandbox.building.cache import Cache, cache_root
from sandbox.building.toolchain import Toolchain

INDEX = "built.json"
"""The builder's list of what it built, see `sandbox.child.inline`, which imports torch and so is not imported here."""

LIMIT_BYTES = 4 * 2**30
BUILD_BYTES, BUILD_FILES, BUILD_DEPTH = 2**29, 4096, 8
"""A build above these is not kept."""
CHUNK_BYTES = 2**20
READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
FORMAT = "1"


class BuildStore:
    """Nothing here raises for what is on disk: a build that can not be kept or read is simply built again."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._cache = Cache(cache_root() / "builds", limit_bytes)

    @staticmethod
    def key(source: str, toolchain: Toolchain | None, **more: str) -> str:
        """What a finished build depends on, as 64 hex digits: the source, the toolchain, and what the caller adds.

        To add: the constructor's arguments, the architecture of the device, settings that change how things are built.
        """
        facts = [FORMAT, source, toolchain.digest if toolchain else "", str(toolchain and toolchain.nvcc)]
        facts += [f"{name}={value}" for name, value in sorted(more.items())]
        parts = (fact.encode(errors="surrogatepass") for fact in facts)
        return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()

    def keep(self, key: str, build: Path) -> bool:
        """Copy a finished build folder in; the builder must have ended. False where it is not fit to be kept."""
        if self._cache.use(key) is not None:
            return True
        try:
            if not _is_complete(build):
                return False
            with self._cache.making(key) as folder:
                digests = _copy(build, folder / "build")
                (folder / "entry.json").write_text(json.dumps(digests, sort_keys=True))
        except (OSError, _Unfit):
            return False
        return self._cache.use(key) is not None

    def restore(self, key: str, build: Path) -> bool:
        """Fill an empty build folder, if this build is known and every file of it is as it was; else leave it empty."""
        folder = self._cache.use(key)
        if folder is None:
            return False
        try:
            wanted = json.loads((folder / "entry.json").read_text())
            if _copy(folder / "build", build) == wanted:
                return True
        except (OSError, ValueError, _Unfit):
            pass
        _clear(build)
        shutil.rmtree(folder, ignore_errors=True)
        return False

    def size_bytes(self) -> int:
        """What all builds take."""
        return self._cache.size_bytes()

    def __len__(self) -> int:
        return len(self._cache.entries())


class _Unfit(Exception):
    """A build with links, devices or sockets in it, or too large."""


def _is_complete(build: Path) -> bool:
    """Whether all that the builder has noted lies in the build folder: else a worker elsewhere could not load it."""
    try:
        with open(os.open(build / INDEX, READING), "rb") as file:
            built = json.loads(file.read(BUILD_BYTES))
        names = [entry["path"] for entry in built.values()]
        return all(".." not in Path(name).parts and (build / name).is_file() for name in names)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False


def _copy(source: Path, target: Path) -> dict[str, str]:
    """Copy a tree of plain files, readable for all; their digests by relative path. Follows no link."""
    target.mkdir(exist_ok=True)
    digests: dict[str, str] = {}
    left = BUILD_BYTES
    for path in _files(source, BUILD_DEPTH):
        name = str(path.relative_to(source))
        to = target / name
        to.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(path, READING)
        with open(fd, "rb") as file:
            facts = os.fstat(fd)
            left -= facts.st_size
            if not stat.S_ISREG(facts.st_mode) or left < 0 or len(digests) >= BUILD_FILES:
                raise _Unfit
            digest = hashlib.sha256()
            with to.open("xb") as copy:
                while chunk := file.read(CHUNK_BYTES):
                    digest.update(chunk)
                    copy.write(chunk)
        to.chmod(0o755 if facts.st_mode & 0o100 else 0o644)
        os.utime(to, ns=(facts.st_mtime_ns, facts.st_mtime_ns))
        digests[name] = digest.hexdigest()
    return digests


def _files(folder: Path, depth: int) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                if depth == 0:
                    raise _Unfit
                yield from _files(Path(entry.path), depth - 1)
            elif entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
            else:
                raise _Unfit


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
