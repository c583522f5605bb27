"""The only folder that a candidate's children may write to, and the removal of folders of killed processes.

The kernel releases the lock of a folder (`HeldFolder`) when its process ends in any way. The next judge removes the
unlocked folders of this user.
"""

import contextlib
import hashlib
import itertools
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kernelwright.sandbox.locks import try_lock
from kernelwright.sandbox.machine import language_environment
from kernelwright.sandbox.verdict.errors import MachineError

KEPT_VARIABLES = ("CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CC", "CXX", "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES")
"""Variables that children take from the user's environment, besides PATH; none is a key or token."""
PLACES = ("home", "tmp", "build", "triton")
"""Folders that children may write to. Their parent is the judge's, so `build` cannot be replaced by a link."""
STEADY = {
    "OMP_PROC_BIND": "close",
    "OMP_PLACES": "threads",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "CUDA_SCALE_LAUNCH_QUEUES": "4x",  # for calls of up to 4,000 kernels that are issued ahead
}
COMPILING = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
"""For torch.compile: no pool of processes, which would outlive the call, and no precompiled headers."""
LEAST_FREE_BYTES = 512 * 2**20
"""With less, a build would fill the disk and the candidate would fail."""
GONE_S, AGAIN_S = 3.0, 0.02
"""Time and interval of attempts to remove a folder: killed compilers write until the kernel has ended them."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class HeldFolder:
    """A private temporary folder in `place`, locked until `close` or the end of this process.

    `purpose` is a word for its name. `sweep` removes the folders of killed processes. Raises `OSError`.
    """

    def __init__(self, purpose: str, place: str | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"kernelwright-{purpose}-{_host()}-", dir=place))
        self._fd = os.open(self.path, FOLDER)
        with contextlib.suppress(OSError):  # on a disk without locks `sweep` removes nothing either
            try_lock(self._fd)
        _held.add(self)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder with its contents; its children must have ended."""
        if self._fd < 0:
            return
        _held.discard(self)
        end = time.monotonic() + GONE_S
        remove(self.path)
        while self.path.exists() and time.monotonic() < end:
            time.sleep(AGAIN_S)
            remove(self.path)
        os.close(self._fd)
        self._fd = -1


_held: set[HeldFolder] = set()


def close_all() -> None:
    """Remove every folder of this process, right before its end, when its children have been killed."""
    for folder in list(_held):
        folder.close()


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]


class WorkFolder:
    """A private temporary folder with subfolders for compilers and torch, removed at the end."""

    imports: tuple[str, ...] = ()
    """Modules that its children need besides torch, imported by their zygote."""

    def __init__(self) -> None:
        place = temporary_place()
        if (free := shutil.disk_usage(place).free) < LEAST_FREE_BYTES:
            found, least = free // 2**20, LEAST_FREE_BYTES // 2**20
            raise MachineError(
                f"only {found} MiB are free in {place}, and judging needs {least}; free some space or set TMPDIR"
            )
        try:
            self._held = HeldFolder("work", place)
            self.path = self._held.path
            try:
                for name in PLACES:
                    (self.path / name).mkdir(mode=0o700)
            except OSError:
                self._held.close()
                raise
        except OSError as error:
            raise MachineError(
                f"no work folder can be made in {place} ({error.strerror}); free some space or set TMPDIR"
            ) from None
        self.user: int | None = None
        """The owner of the subfolders; None for the user of this process."""
        self.shown: tuple[str, ...] = ()
        """Further folders that later children may read."""

    def places(self, *without: str) -> list[str]:
        return [str(self.path / name) for name in PLACES if name not in without]

    def write(self, name: str, text: str) -> Path:
        """Write a text file that children can read, in place of anything with that name."""
        path = self.path / name
        try:
            path.unlink(missing_ok=True)
            # Never through a link, which a candidate without a jail may have left.
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(fd, "w", encoding="utf-8", errors="surrogatepass") as file:
                file.write(text)
                if self.user is not None:
                    os.fchown(fd, self.user, self.user)
        except OSError as error:
            raise MachineError(f"{path} cannot be written ({error.strerror}); free some space or set TMPDIR") from None
        return path

    def give_to(self, user: int) -> None:
        """Make another user the owner of subfolders and files; needs root. Later calls must name the same user.

        This comes before any child runs, so that no name in the folder is a candidate's choice.
        """
        if self.user is not None:
            if self.user != user:
                raise ValueError(f"the folder belongs to user {self.user} already")
            return
        try:
            for path in self.path.iterdir():
                os.chown(path, user, user, follow_symlinks=False)
            self.path.chmod(0o711)
        except OSError as error:
            raise MachineError(
                f"{self.path} cannot be given to another user ({error.strerror}); set TMPDIR to a local disk"
            ) from None
        self.user = user

    def environment(self, threads: int, steady: bool = False) -> dict[str, str]:
        """Return the complete environment of a child: `shared_environment` and its own folders."""
        return shared_environment(threads, steady) | {
            "HOME": str(self.path / "home"),
            "TMPDIR": str(self.path / "tmp"),
            "TORCH_EXTENSIONS_DIR": str(self.path / "build"),
            "TRITON_CACHE_DIR": str(self.path / "triton"),
            **COMPILING,
            **language_environment(self.path / "triton"),
        }

    def close(self) -> None:
        self._held.close()


def temporary_place() -> str:
    """Return Python's folder for temporary files; `MachineError` where none can be written."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        raise MachineError(
            "no folder for temporary files can be written to; set TMPDIR to one on a disk with at least 2 GiB free"
        ) from None


def shared_environment(threads: int, steady: bool) -> dict[str, str]:
    """Return the common environment of children; nothing else of the user's is passed on.

    `steady` is for timed children: OpenMP threads stay on their cores, and freed memory is kept for the next call.
    Without it a call that is stopped and resumed took between 2.5 and 31 ms, with it between 3.8 and 4.9 ms. The causes
    are two threads that wake on one core, and a page fault for every 4 KiB of each new result.
    """
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    tools = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return kept | {
        "PATH": os.pathsep.join(tools),
        # Names caches; the jail has no list of accounts.
        "USER": "sandbox",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "MAX_JOBS": str(threads),
        "PYTHONDONTWRITEBYTECODE": "1",
        **(STEADY if steady else {}),
    }


def remove(root: Path) -> None:
    """Remove a tree in any state: folders closed to their owner, thousands of levels deep, with any names.

    Every folder is moved to the top before it is emptied, so no path becomes long and nothing recurses.
    """
    try:
        top = os.open(root, FOLDER)
    except OSError:
        return
    try:
        empty(top)
    finally:
        os.close(top)
    try:
        root.rmdir()
    except OSError:
        return


def empty(top: int) -> None:
    names = (f".moved-{number}" for number in itertools.count())
    while _empty(top, top, names):
        pass


def _empty(folder: int, top: int, names: Iterator[str]) -> bool:
    """Empty an open folder by moving its folders to `top`; return whether anything was removed or moved."""
    progress = False
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=folder)
                else:
                    os.chmod(entry.name, 0o700, dir_fd=folder)
                    if folder == top:
                        _empty_and_remove(entry.name, top, names)
                    else:
                        os.rename(entry.name, next(names), src_dir_fd=folder, dst_dir_fd=top)
                progress = True
            except OSError:
                continue
    return progress


def _empty_and_remove(name: str, top: int, names: Iterator[str]) -> None:
    fd = os.open(name, FOLDER, dir_fd=top)
    try:
        while _empty(fd, top, names):
            pass
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=top)


IDLE_S = 600.0
"""Least age of a removed folder, since a folder exists shortly before its lock."""


def sweep(place: str | None = None, idle_s: float = IDLE_S) -> list[Path]:
    """Remove folders of killed processes of this user, by default among temporary files; return them.

    Links are not followed. Folders of another user or a living process, and folders with mounts, stay. File errors are
    ignored.
    """
    with contextlib.suppress(OSError):
        ours = _own_folders(Path(place or tempfile.gettempdir()).resolve())
        found = [path for path in ours if _idle_s(path) > idle_s]
        table = os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).splitlines() if found else []
        mounts = [re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), line.split(" ")[4]) for line in table]
        free = [path for path in found if not any(Path(mount).is_relative_to(path) for mount in mounts)]
        return [path for path in free if _removed(path)]
    return []


def _own_folders(top: Path) -> list[Path]:
    """List work folders of this user and machine, without links. Machines that share a disk may not share locks."""
    held, found = re.compile(rf"kernelwright-[a-z]+-{_host()}-[a-z0-9_]{{8}}"), []
    with os.scandir(top) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # those of living judges go meanwhile
                if held.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                    found += [Path(entry.path)] if entry.stat(follow_symlinks=False).st_uid == os.geteuid() else []
    return found


def _idle_s(path: Path) -> float:
    try:
        with os.scandir(path) as entries:
            changed = [entry.stat(follow_symlinks=False).st_mtime for entry in entries]
        return time.time() - max(path.stat().st_mtime, *changed, 0.0)
    except OSError:
        return 0.0


def _removed(path: Path) -> bool:
    """Remove a folder unless it is locked; return whether this call removed it."""
    try:
        fd = os.open(path, FOLDER)
    except OSError:
        return False
    try:
        # The folder may have been replaced since it was found.
        if os.fstat(fd).st_uid != os.geteuid() or not try_lock(fd):
            return False
        empty(fd)
        path.rmdir()
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
