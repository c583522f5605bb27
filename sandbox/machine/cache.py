"""A folder of entries that processes share: each appears whole or not at all, and the oldest go when it is full.

All such folders together have a limit too, `KERNELWRIGHT_CACHE_GIB`: the longest unused of all go first.
"""

import contextlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

LOG = logging.getLogger("kernelwright.sandbox.machine")
VARIABLE = "KERNELWRIGHT_CACHE"
UNFINISHED = ".making-"
MARK = "entry.json"
LIMIT_VARIABLE = "KERNELWRIGHT_CACHE_GIB"
LIMIT_GIB = 2.0
DEEPEST = 5
"""Parts that an entry's name below the root of all caches has at most."""
FULL_BYTES = 16 * 2**20
FORGOTTEN_S = 3600
"""An unfinished entry older than this was left by a process that died."""


def cache_root() -> Path:
    """Where everything of ours that can be made again lies: `KERNELWRIGHT_CACHE`, or a folder in the user's cache."""
    if given := os.environ.get(VARIABLE):
        return Path(given).absolute()
    above = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - may have no account
    return Path(above).absolute() / "kernelwright"


def state_root() -> Path:
    """Where what can not be made again lies, as jobs that were accepted: a folder in the user's state."""
    above = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111 - as above
    return Path(above).absolute() / "kernelwright"


def limit_bytes() -> int:
    """What all that is kept may take on disk together; a limit that is no number is the usual one."""
    given = _given_limit()
    return int((LIMIT_GIB if given is None else given) * 2**30)


def limit_fault() -> str:
    """What is wrong with the limit that was set; empty where nothing is."""
    if _given_limit() is not None:
        return ""
    return f"{LIMIT_VARIABLE} is {os.environ[LIMIT_VARIABLE]!r}, which is no number of GiB, so {LIMIT_GIB} are kept"


def _given_limit() -> float | None:
    try:
        given = float(os.environ.get(LIMIT_VARIABLE, LIMIT_GIB))
    except ValueError:
        return None
    return given if 0 <= given < float("inf") else None


def all_entries() -> "Cache":
    """The entries of every cache of ours as one."""
    return Cache(cache_root(), limit_bytes(), depth=None)


def is_writable(root: Path) -> bool:
    """Whether something can be put below this folder, which need not be there yet; nothing is created."""
    there = _nearest(root)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def is_full(root: Path) -> bool:
    """Whether the disk of this folder, which need not be there yet, has less room than a build or two."""
    return shutil.disk_usage(_nearest(root)).free < FULL_BYTES


def _nearest(path: Path) -> Path:
    return next(above for above in (path, *path.parents) if is_there(above))


def is_there(path: Path) -> bool:
    """False too where a folder above is closed to this user, as another's home is; `Path` raises there."""
    return os.path.exists(path)  # noqa: PTH110


class Cache:
    """Entries are folders below `root`, each with a file `entry.json`; a use renews an entry's date."""

    def __init__(self, root: Path, limit_bytes: int, depth: int | None = 1) -> None:
        """Entries' names have `depth` parts, or any number of them where it is None."""
        self.root = root
        self.limit_bytes = limit_bytes
        self._depths = range(1, DEEPEST + 1) if depth is None else (depth,)

    @contextlib.contextmanager
    def making(self, name: str) -> Iterator[Path]:
        """A fresh folder that becomes the entry `name` at the end of the block, if it ends well. Raises `OSError`."""
        final = self.root / name
        final.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=self.root))
        try:
            yield folder
            folder.chmod(0o755)
            # Fails where another process was quicker, whose entry is as good.
            with contextlib.suppress(OSError):
                folder.rename(final)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.trim(keep=final)

    def use(self, name: str) -> Path | None:
        """The entry's folder, renewed; None where there is none."""
        folder = self.root / name
        try:
            os.utime(folder)
        except OSError:
            return folder if is_there(folder) else None
        return folder

    def entries(self) -> list[Path]:
        """All entries, the longest unused first."""
        found = []
        # `os.walk` passes over what other processes remove meanwhile; `Path.glob` raises there.
        for above, folders, files in os.walk(self.root):
            path = Path(above)
            depth = len(path.relative_to(self.root).parts)
            is_entry = MARK in files and depth in self._depths
            if is_entry:
                found.append(path)
            # Neither what is being made nor a file of that name within an entry.
            goes_on = not is_entry and depth < max(self._depths)
            folders[:] = [name for name in folders if not name.startswith(".")] if goes_on else []
        return sorted(found, key=_date)

    def size_bytes(self) -> int:
        """What the entries take on disk."""
        return sum(map(_size, self.entries()))

    def trim(self, keep: Path | None = None) -> None:
        """Remove the longest unused entries until the rest fits, and what dead processes left."""
        _, folders, _ = next(os.walk(self.root), ("", [], []))
        for path in (self.root / name for name in folders if name.startswith(UNFINISHED)):
            if time.time() - _date(path) > FORGOTTEN_S:
                LOG.info("%s is removed: whoever made it ended before it was whole", path)
                shutil.rmtree(path, ignore_errors=True)
        sizes = {path: _size(path) for path in self.entries()}
        total = sum(sizes.values())
        for path, size in sizes.items():
            if total <= self.limit_bytes:
                return
            if path != keep:
                LOG.info(
                    "%s is removed as the longest unused: %s holds more than %d bytes",
                    path,
                    self.root,
                    self.limit_bytes,
                )
                shutil.rmtree(path, ignore_errors=True)
                total -= size


def _date(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(folder: Path) -> int:
    """Of what is removed meanwhile, nothing."""
    total = 0
    for above, folders, files in os.walk(folder):
        for name in folders + files:
            with contextlib.suppress(OSError):
                total += Path(above, name).lstat().st_blocks * 512
    return total
