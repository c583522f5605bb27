"""A control group for one child tree: the only bound on the memory and number of all its processes together."""

import contextlib
import os
import secrets
import time
from functools import cache
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
REMOVAL_S = 2.0


class ControlGroup:
    """Made in whichever hierarchy is writable. `procs` are the files that a process must write its number to."""

    def __init__(self, memory_bytes: int, processes: int) -> None:
        name = f"kernelwright-{os.getpid()}-{secrets.token_hex(4)}"
        self._folders = [parent / name for parent in _parents()]
        for folder in self._folders:
            folder.mkdir()
            for file, value in (
                ("memory.max", memory_bytes),
                ("memory.swap.max", 0),
                ("memory.limit_in_bytes", memory_bytes),
                ("pids.max", processes),
            ):
                if (folder / file).exists():
                    with contextlib.suppress(OSError):
                        (folder / file).write_text(str(value))

    @property
    def procs(self) -> list[str]:
        """Paths of `cgroup.procs`."""
        return [str(folder / "cgroup.procs") for folder in self._folders]

    def close(self) -> None:
        """Remove the group; its processes must have been ended. A moment is given to those that are just dying."""
        end = time.monotonic() + REMOVAL_S
        for folder in self._folders:
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError:
                    if time.monotonic() > end:
                        break
                    time.sleep(0.005)


@cache
def _parents() -> tuple[Path, ...]:
    """Where groups with memory and process limits can be made: one folder under version 2, two under version 1."""
    own = _own_paths()
    if "" in own:
        unified = ROOT / own[""].lstrip("/")
        controllers = unified / "cgroup.subtree_control"
        if controllers.exists() and {"memory", "pids"} <= set(controllers.read_text().split()):
            return _usable((unified,))
    return _usable(tuple(ROOT / kind / own[kind].lstrip("/") for kind in ("memory", "pids") if kind in own))


def _own_paths() -> dict[str, str]:
    """This process's group by controller; under version 2 the controller is the empty string."""
    found: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        found |= dict.fromkeys(controllers.split(","), path)
    return found


def _usable(parents: tuple[Path, ...]) -> tuple[Path, ...]:
    """The parents in which a group can really be made."""
    usable = []
    for parent in parents:
        probe = parent / f"kernelwright-probe-{secrets.token_hex(4)}"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError:
            continue
        usable.append(parent)
    return tuple(usable)


def available() -> bool:
    """Whether memory and processes of a child tree can be bounded as a whole."""
    return bool(_parents())
