"""Memory of this machine, and the share that a child may take. Standard library only."""

import os
from pathlib import Path

CHILD_SHARE = 0.75
"""The share of memory that one child may take. It stops runaway processes; several are planned separately."""
CONTROL_GROUPS = (
    ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Version 2 and 1: where groups lie, a group's limit, what it uses, and the part of that that is given back at once."""
ROOT = Path("/")
"""The folder that holds the kernel's `proc` and `sys`."""


def machine_bytes(root: Path = ROOT) -> int:
    """Memory that this process may use at most: the machine's, or that of its control groups if they have less."""
    return min([_meminfo("MemTotal", root), *(limit for limit, _ in _groups(root))])


def free_bytes(root: Path = ROOT) -> int:
    return max(0, min([_meminfo("MemAvailable", root), *(limit - used for limit, used in _groups(root))]))


def child_limit_bytes() -> int:
    return int(CHILD_SHARE * machine_bytes())


def gib(count: float) -> str:
    """`12.3 GiB`."""
    return f"{count / 2**30:.3g} GiB" if count >= 2**30 else f"{count / 2**20:.3g} MiB"


def _meminfo(name: str, root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _groups(root: Path) -> list[tuple[int, int]]:
    """Limit and use of each control group around this process that has a limit."""
    found = []
    for place, limit, used, spare in CONTROL_GROUPS:
        for folder in _around(root, root / place):
            bounds = _number(folder / limit), _number(folder / used)
            if bounds[0] is not None and bounds[1] is not None:
                found.append((bounds[0], max(0, bounds[1] - _stat(folder, spare))))
    return found


def _around(root: Path, top: Path) -> list[Path]:
    """The folders of this process's control group and of those around it, in the hierarchy that begins at `top`."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    named = [line.split(":", 2) for line in lines]
    wanted = "memory" if top.name == "memory" else ""
    paths = [path for _, kinds, path in named if wanted in kinds.split(",")]
    inner = top / paths[0].lstrip("/") if paths else top
    # In a container the path may be the host's, which is not there: then the root stands for the container's own group.
    return [inner, *(folder for folder in inner.parents if folder.is_relative_to(top))]


def _stat(folder: Path, name: str) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # `max` says that there is no limit
        return None
