"""The one folder that a candidate's children may write to, and the removal of those whose owner was killed.

A process that is killed cannot tidy up. Its folder is known by its lock (`HeldFolder`), which the kernel releases when
the process ends, however it ends. The next judge removes the folders of this user that nobody holds.
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
"""What a child's environment takes over from the user's, beside PATH; no key or token is among them."""
PLACES = ("home", "tmp", "build", "triton")
"""What children may write to. The folder around them is the judge's: nobody can put a link in place of `build`."""
STEADY = {
    "OMP_PROC_BIND": "close",
    "OMP_PLACES": "threads",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "CUDA_SCALE_LAUNCH_QUEUES": "4x",  # calls of up to 4,000 kernels can be issued ahead
}
COMPILING = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
"""For torch.compile: no pool of processes, which would outlive the call, and no headers that only one folder has."""
LEAST_FREE_BYTES = 512 * 2**20
"""With less a build would fill the disk, and the candidate would be blamed."""
GONE_S, AGAIN_S = 3.0, 0.02
"""How long a folder is tried to be removed. What was killed in it may still be on its way out: the processes of a jail
go when its first one has gone, and a compiler among them writes until then."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class HeldFolder:
    """A private temporary folder in `place`, locked for as long as this process lives and has not closed it.

    `purpose` is a word for its name. What killed processes leave is removed by `leftovers`. Raises `OSError`.
    """

    def __init__(self, purpose: str, place: str | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"kernelwright-{purpose}-{_host()}-", dir=place))
        self._fd = os.open(self.path, FOLDER)
        with contextlib.suppress(OSError):  # on a disk without locks nobody can take it for a left-over either
            try_lock(self._fd)
        _held.add(self)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder with all that is in it; its children must have ended."""
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
"""Those that this process holds."""


def close_all() -> None:
    """Remove every folder that this process holds: right before it ends, when its children have been killed."""
    for folder in list(_held):
        folder.close()


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]


class WorkFolder:
    """A private temporary folder with the places that compilers and torch want, removed at the end."""

    imports: tuple[str, ...] = ()
    """What its children need beside torch: a process that has it is forked for them."""

    def __init__(self) -> None:
        place = temporary_place()
        _require_space(place)
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
        """The user whom the places belong to; None for the user of this process."""
        self.shown: tuple[str, ...] = ()
        """Folders elsewhere that children started from now on may read."""

    def places(self, *without: str) -> list[str]:
        return [str(self.path / name) for name in PLACES if name not in without]

    def write(self, name: str, text: str) -> Path:
        """Put a text file into the folder, in place of whatever has that name; children can read it."""
        path = self.path / name
        try:
            path.unlink(missing_ok=True)
            # Never through a link: a candidate that ran without a jail may have left one.
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(fd, "w", encoding="utf-8", errors="surrogatepass") as file:
                file.write(text)
                if self.user is not None:
                    os.fchown(fd, self.user, self.user)
        except OSError as error:
            raise MachineError(f"{path} can not be written ({error.strerror}); free some space or set TMPDIR") from None
        return path

    def give_to(self, user: int) -> None:
        """Make another user the owner of the places and files; needs root. It happens once, later calls must agree.

        It is done before any child runs, so that no name in the folder is a candidate's choice.
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
                f"{self.path} can not be given to another user ({error.strerror}); set TMPDIR to a local disk"
            ) from None
        self.user = user

    def environment(self, threads: int, steady: bool = False) -> dict[str, str]:
        """Return the complete environment of a child: `shared_environment`, and where its own places are."""
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
    """Return the folder for temporary files, as Python finds it; `MachineError` where no usual place can be written."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        raise MachineError(
            "no folder for temporary files can be written to; set TMPDIR to one on a disk with at least 2 GiB free"
        ) from None


def _require_space(folder: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        least = LEAST_FREE_BYTES // 2**20
        raise MachineError(
            f"only {free // 2**20} MiB are free in {folder}, and judging needs {least}; free some space or set TMPDIR"
        )


def shared_environment(threads: int, steady: bool) -> dict[str, str]:
    """Return what the environments of children have in common: nothing else of the user's is passed on.

    `steady` is for children that are timed: OpenMP threads stay on their cores, and freed memory is kept for the next
    call. Without it a call that is stopped and continued wandered between 2.5 and 31 ms, with it between 3.8 and 4.9
    ms. The causes are two threads that wake on one core, and a page fault for every 4 KiB of each fresh result.
    """
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    tools = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return kept | {
        "PATH": os.pathsep.join(tools),
        # Caches are named after it, and the jail has no list of accounts to look it up in.
        "USER": "sandbox",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "MAX_JOBS": str(threads),
        "PYTHONDONTWRITEBYTECODE": "1",
        **(STEADY if steady else {}),
    }


def remove(root: Path) -> None:
    """Remove a tree however it was left: folders closed to their owner, thousands of levels deep, with any names.

    Every folder is moved up below `root` before it is emptied, so no path grows long and nothing recurses.
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
    """Take everything out of an open folder; its folders go to `top`. Whether anything could be taken out."""
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
"""How long a folder has to be as it is: it is made a moment before it is locked."""


def sweep(place: str | None = None, idle_s: float = IDLE_S) -> list[Path]:
    """Remove what killed processes of this user have left in a folder, that for temporary files; what was removed.

    Links are not followed; what another user owns, what a living process holds and what something is mounted in is
    left alone. Never raises for what the disk refuses.
    """
    with contextlib.suppress(OSError):
        ours = _own_folders(Path(place or tempfile.gettempdir()).resolve())
        found = [path for path in ours if _idle_s(path) > idle_s]
        mounts = _mounts() if found else ()
        free = [path for path in found if not any(Path(mount).is_relative_to(path) for mount in mounts)]
        return [path for path in free if _removed(path)]
    return []


def _own_folders(top: Path) -> list[Path]:
    """Held folders of this user and machine. On a disk that several share, locks may be known to each machine alone.

    A link is none, wherever it points to.
    """
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


def _mounts() -> tuple[str, ...]:
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return tuple(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), line.split(" ")[4]) for line in lines)


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
