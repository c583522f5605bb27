"""The removal of temporary folders whose owner was killed.

A process that is killed can not tidy up. What it leaves is known by its lock (`HeldFolder`), which the kernel lets go
of when the process ends, however it ends: whoever judges next removes the folders of this user that nobody holds.
"""

import contextlib
import os
import re
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from kernelwright.sandbox.machine.file_locks import try_lock
from kernelwright.sandbox.machine.workfolder import FOLDER, PLACES, empty, is_held_kind

IDLE_S = 600.0
"""How long a folder has to be as it is: it is made a moment before it is locked."""
UNLOCKED_IDLE_S = 6 * 3600.0
"""The same for work folders without a lock, as older versions made them: their owner may live and not be seen."""
UNLOCKED = re.compile(r"kernelwright-[a-z0-9_]{8}")
TELLING = ("cmdline", "environ", "mountinfo")
"""Files of a process in /proc that name the folder which it works in."""


def sweep(place: str | None = None, idle_s: float = IDLE_S, unlocked_idle_s: float = UNLOCKED_IDLE_S) -> list[Path]:
    """Remove what killed processes of this user have left in a folder, that for temporary files; what was removed.

    Links are not followed; what another user owns, what a living process holds or names and what something is mounted
    in is left alone. Never raises for what the disk refuses.
    """
    with contextlib.suppress(OSError):
        ours = _own_folders(Path(place or tempfile.gettempdir()).resolve())
        found = [path for path in ours if is_held_kind(path.name) and _look(path).idle_s > idle_s]
        found += _abandoned([path for path in ours if UNLOCKED.fullmatch(path.name)], unlocked_idle_s)
        mounts = _mounts() if found else ()
        return [path for path in found if not _is_mounted(path, mounts) and _removed(path)]
    return []


def _own_folders(top: Path) -> list[Path]:
    """Folders of this user with names of ours. A link is none, wherever it points to."""
    with os.scandir(top) as entries:
        ours = [entry for entry in entries if entry.name.startswith("kernelwright-")]
    return [Path(entry.path) for entry in ours if _is_own_folder(entry)]


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    """False too where it has gone meanwhile, as those of living judges do."""
    try:
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    except OSError:
        return False


class FolderState(NamedTuple):
    """What a folder holds, and since when nothing has come to it or gone from it, nor from the folders in it."""

    names: frozenset[str]
    idle_s: float


def _look(path: Path) -> FolderState:
    try:
        with os.scandir(path) as entries:
            changed = {entry.name: entry.stat(follow_symlinks=False).st_mtime for entry in entries}
        return FolderState(frozenset(changed), time.time() - max((path.stat().st_mtime, *changed.values())))
    except OSError:
        return FolderState(frozenset(), 0.0)


def _abandoned(paths: list[Path], idle_s: float) -> list[Path]:
    """Those of folders without a lock that are old, are work folders, and are named by no process."""
    looks = {path: _look(path) for path in paths}
    old = [path for path, look in looks.items() if look.idle_s > idle_s and look.names >= frozenset(PLACES)]
    named = _named_by_processes() if old else set()
    return [path for path in old if path.name not in named]


def _named_by_processes() -> set[str]:
    """Names of unlocked folders that a process of this machine has in its command line, environment or mounts."""
    pattern = re.compile(UNLOCKED.pattern.encode())
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        for file in TELLING:
            with contextlib.suppress(OSError):
                found.update(name.decode() for name in pattern.findall((process / file).read_bytes()))
    return found


def _mounts() -> tuple[str, ...]:
    """Where something is mounted, as this process sees it."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return tuple(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), line.split(" ")[4]) for line in lines)


def _is_mounted(path: Path, mounts: tuple[str, ...]) -> bool:
    return any(Path(mount).is_relative_to(path) for mount in mounts)


def _removed(path: Path) -> bool:
    """Remove a folder unless somebody holds it; whether it is gone by our doing."""
    try:
        fd = os.open(path, FOLDER)
    except OSError:
        return False
    try:
        # What stands there may have changed since the look at it.
        if os.fstat(fd).st_uid != os.geteuid() or not try_lock(fd):
            return False
        empty(fd)
        path.rmdir()
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
