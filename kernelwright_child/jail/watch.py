"""What no resource limit bounds, looked at from outside: the memory of a whole tree, and what it puts on the disk.

Standard library only. A process that the keeper may not look into counts for what can be seen of it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

ENTRY_BYTES = 4096
"""Counted for each file and folder beside its blocks: a million empty files fill a disk too."""
LONGEST_PATH = 2048
"""No build makes longer ones, and beyond 4096 the kernel could not be asked about them."""
RESERVE_BYTES = 2**30


class Watch:
    """Compares what a tree uses with the plan's `memory` (None: not watched), `folder` and `folder_bytes`."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.memory: int | None = plan["memory"]
        self.folder: str | None = plan["folder"]
        self.folder_bytes: int = plan["folder_bytes"] or 0
        if self.folder is not None:
            self._device = os.stat(self.folder).st_dev  # noqa: PTH116 - pathlib costs milliseconds at start
            self._reserve = min(RESERVE_BYTES, _free(self.folder) // 2)

    def quick(self, pids: Iterable[int]) -> str:
        """`memory` where these processes hold too much of it in what they have mapped. Tens of microseconds."""
        return "memory" if self.memory is not None and sum(map(resident, pids)) > self.memory else ""

    def thorough(self, pids: Iterable[int]) -> str:
        """Which limit these processes break: `memory`, `folder`, `disk`, or none. About a millisecond."""
        if self.folder is None:
            return ""
        nameless: dict[tuple[int, int], int] = {}
        for pid in pids:
            nameless.update(_nameless(pid))
        on_disk = sum(held for (device, _), held in nameless.items() if device == self._device)
        # The others are memory: of memfd_create(2), or unlinked from a tmpfs. Mapped ones were counted already.
        if self.memory is not None and sum(nameless.values()) - on_disk > self.memory:
            return "memory"
        if on_disk + size(self.folder, self.folder_bytes) > self.folder_bytes:
            return "folder"
        # The last resort, for what can be hidden from the counting.
        return "disk" if _free(self.folder) < self._reserve else ""


def resident(pid: int) -> int:
    """Bytes of anonymous and shared memory of a process; mapped files are not counted, the kernel can drop them.

    Pages that processes share count for each, so a sum over several is an upper bound.
    """
    total = 0
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith((b"RssAnon:", b"RssShmem:")):
                    total += int(line.split()[1]) * 1024
    except OSError:
        return 0
    return total


def _nameless(pid: int) -> Iterator[tuple[tuple[int, int], int]]:
    """Open regular files that were unlinked: which one, and its bytes."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208
    except OSError:
        return
    for name in names:
        try:
            found = os.stat(f"/proc/{pid}/fd/{name}")  # noqa: PTH116
        except OSError:
            continue
        if found.st_nlink == 0 and found.st_blocks:
            yield (found.st_dev, found.st_ino), found.st_blocks * 512


def size(folder: str, enough: int) -> int:
    """Bytes on disk below a folder, counted until there are more than `enough`.

    A folder that its own user can not read, or that lies too deep, counts as too much: nothing else could be said.
    """
    total, folders = 0, [folder]
    while folders and total <= enough:
        path = folders.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    total += ENTRY_BYTES + _blocks(entry)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return enough + 1
        if len(path) > LONGEST_PATH:
            return enough + 1
    return total


def _blocks(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except OSError:
        return 0


def _free(folder: str) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
