"""Folders of plain files kept by content: copied in, and copied out again only where every file is as it was.

Who made a folder writes to it under another user, or has ended; nobody but the judge ever sees what is kept.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kernelwright.sandbox.machine.cache import MARK, Cache, all_entries, cache_root

LOG = logging.getLogger("kernelwright.sandbox.machine")
CONTENT = "build"
"""The folder within an entry, beside the digests of its files."""
CHUNK_BYTES = 2**20
READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Bounds(NamedTuple):
    """A folder above any of these is not kept."""

    bytes: int
    files: int
    depth: int


class FolderStore:
    """Nothing here raises for what is on disk: a folder that can not be kept or read is simply made again."""

    def __init__(self, kind: str, limit_bytes: int, bounds: Bounds) -> None:
        """`kind` is the folder's name in the cache of ours, `limit_bytes` what all entries together may take."""
        self._cache = Cache(cache_root() / kind, limit_bytes)
        self._bounds = bounds

    def keep(self, key: str, folder: Path) -> bool:
        """Copy a folder in, unless there is one under this key; nobody may write to it meanwhile.

        False where it is not fit to be kept: it holds links, devices or sockets, or too much.
        """
        if self._cache.use(key) is not None:
            return True
        try:
            with self._cache.making(key) as made:
                digests = _copy(folder, made / CONTENT, self._bounds)
                (made / MARK).write_text(json.dumps(digests, sort_keys=True))
        except (OSError, _Unfit) as error:
            LOG.info("%s is not kept in %s: %s", folder, self._cache.root, error)
            return False
        all_entries().trim(keep=self._cache.root / key)
        return self._cache.use(key) is not None

    def restore(self, key: str, folder: Path) -> bool:
        """Fill an empty folder, if there is one under this key with every file as it was; else leave it empty."""
        entry = self._cache.use(key)
        if entry is None:
            return False
        try:
            wanted = json.loads((entry / MARK).read_text())
            if _copy(entry / CONTENT, folder, self._bounds) == wanted:
                return True
            why = "its files are not as they were"
        except (OSError, ValueError, _Unfit) as error:
            why = str(error)
        LOG.info("%s is thrown away: %s", entry, why)
        _clear(folder)
        self.forget(key)
        return False

    def forget(self, key: str) -> None:
        """Have no entry under this key; who reads it at this moment finds it incomplete, and does without."""
        shutil.rmtree(self._cache.root / key, ignore_errors=True)

    def size_bytes(self) -> int:
        """What all entries take."""
        return self._cache.size_bytes()

    def __len__(self) -> int:
        return len(self._cache.entries())


def digest_of(facts: list[str]) -> str:
    """A key of 64 hex digits for facts in this order."""
    parts = (fact.encode(errors="surrogatepass") for fact in facts)
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()


class _Unfit(Exception):
    """A folder with links, devices or sockets in it, or too large."""


def _copy(source: Path, target: Path, bounds: Bounds) -> dict[str, str]:
    """Copy a tree of plain files, readable for all; their digests by relative path. Follows no link."""
    target.mkdir(exist_ok=True)
    digests: dict[str, str] = {}
    left = bounds.bytes
    for path in _files(source, bounds.depth):
        name = str(path.relative_to(source))
        to = target / name
        to.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(path, READING)
        with open(fd, "rb") as file:
            facts = os.fstat(fd)
            left -= facts.st_size
            if not stat.S_ISREG(facts.st_mode) or left < 0 or len(digests) >= bounds.files:
                raise _Unfit(f"it is too large, or {name} is no plain file")
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
                    raise _Unfit(f"{entry.path} lies too deep")
                yield from _files(Path(entry.path), depth - 1)
            elif entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
            else:
                raise _Unfit(f"{entry.path} is neither a file nor a folder")


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
