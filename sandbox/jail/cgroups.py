"""A control group for one child tree: the only bound on the memory and number of all its processes together."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kernelwright.sandbox.machine import own_paths

ROOT = Path("/sys/fs/cgroup")
LIMITS = ("memory.max", "memory.limit_in_bytes", "pids.max")
"""Limits of memory under version 2 and 1, and of processes under both."""
REMOVAL_S = 2.0
OWN_PROCESSES = 8
"""Processes of the jail itself, allowed on top of the limit."""
ENTER = "import os, sys; [os.write(int(fd), b'0') for fd in sys.argv[1:]]"
UNIFIED, MEMORY, PROCESSES = "", "memory", "pids"


class ControlGroup:
    """A group in any writable hierarchy. A process enters by writing `0` to each of the descriptors `entries`."""

    def __init__(self, parents: tuple[Path, ...], memory_bytes: int, processes: int) -> None:
        name = f"kernelwright-{os.getpid()}-{secrets.token_hex(4)}"
        self.folders = [parent / name for parent in parents]
        self.procs = [str(folder / "cgroup.procs") for folder in self.folders]
        self.entries: tuple[int, ...] = ()
        try:
            for folder in self.folders:
                folder.mkdir()
            self._set("memory.max", memory_bytes)
            self._set("memory.swap.max", 0)
            self._set("memory.limit_in_bytes", memory_bytes)
            self._set("memory.memsw.limit_in_bytes", memory_bytes)
            self._set("pids.max", processes + OWN_PROCESSES)
            for path in self.procs:
                self.entries += (os.open(path, os.O_WRONLY | os.O_CLOEXEC),)
        except OSError:
            self.close()
            raise

    def _set(self, file: str, value: int) -> None:
        """Write where the file exists: versions 1 and 2 differ, and swap is not always accounted."""
        for folder in self.folders:
            if (folder / file).exists():
                with contextlib.suppress(OSError):
                    (folder / file).write_text(str(value))

    def members(self) -> list[int]:
        """Return all living processes of the group, a hundred times as fast as a search through /proc.

        A process that may not write to other groups cannot leave it.
        """
        return [int(pid) for pid in Path(self.procs[0]).read_text().split()]

    def ran_out(self) -> bool:
        for folder in self.folders:
            for file in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError):
                    counts = dict(line.split() for line in (folder / file).read_text().splitlines())
                    if counts.get("oom_kill", "0") != "0":
                        return True
        return False

    def kill(self) -> None:
        """Kill every process of the group; none can fork during this."""
        self._set("pids.max", 0)
        self._set("cgroup.kill", 1)
        for path in self.procs:
            with contextlib.suppress(OSError):
                for pid in Path(path).read_text().split():
                    with contextlib.suppress(OSError):
                        os.kill(int(pid), signal.SIGKILL)

    def close(self) -> None:
        """Remove the group once its processes have been killed; wait briefly for those that are still exiting."""
        for fd in self.entries:
            os.close(fd)
        self.entries = ()
        end = time.monotonic() + REMOVAL_S
        for folder in self.folders:
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError:
                    if time.monotonic() > end:
                        break
                    time.sleep(0.005)


@cache
def _parents() -> tuple[Path, ...]:
    """Find where groups with memory and process limits can be made: one folder under version 2, two under version 1."""
    own = own_paths(Path("/proc/self/cgroup").read_text())
    return next((parents for parents in places(ROOT, own) if _is_usable(parents)), ())


def places(root: Path, own: dict[str, str]) -> Iterator[tuple[Path, ...]]:
    """Yield parent folders for groups, the nearest first.

    Under version 2 a group that contains processes cannot delegate controllers, so the parent is above the own group.
    In a systemd session it is the user's slice.
    """
    if UNIFIED in own:
        group = root / own[UNIFIED].lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(root):
                break
            control = folder / "cgroup.subtree_control"
            if control.exists() and {MEMORY, PROCESSES} <= set(control.read_text().split()):
                yield (folder,)
    if MEMORY in own and PROCESSES in own:
        yield tuple(root / kind / own[kind].lstrip("/") for kind in (MEMORY, PROCESSES))


def _is_usable(parents: tuple[Path, ...]) -> bool:
    try:
        group = ControlGroup(parents, 2**30, 64)
    except OSError:
        return False
    try:
        words = [sys.executable, "-I", "-S", "-c", ENTER, *map(str, group.entries)]
        done = subprocess.run(words, capture_output=True, pass_fds=group.entries, check=False)
        found = [folder / file for folder in group.folders for file in LIMITS]
        values = [file.read_text().strip() for file in found if file.exists()]
        return done.returncode == 0 and len(values) == len(LIMITS) - 1 and "max" not in values
    except OSError:
        return False
    finally:
        group.close()


def limited_group(memory_bytes: int, processes: int) -> ControlGroup | None:
    """Make a group; None where memory and processes of a whole child tree cannot be limited."""
    parents = _parents()
    try:
        return ControlGroup(parents, memory_bytes, processes) if parents else None
    except OSError:
        return None


def available() -> bool:
    return bool(_parents())
