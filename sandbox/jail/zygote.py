"""The judge's side of the zygote, one process for each environment, and settings of the judge's own process.

See docs/decisions/zygote.md for the reasons, and `kernelwright_child.zygote` for the process.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib.util
import logging
import marshal
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright.sandbox.machine import CHILD_ROOT
from kernelwright.sandbox.workfolder import shared_environment, sweep

LOG = logging.getLogger("kernelwright.sandbox.jail")

KEPT_BYTES = 64 * 1024
"""Bytes of the head, and of the tail, that are kept."""


class Capture:
    """A thread that drains a pipe, so that much output neither blocks the child nor fills memory."""

    def __init__(self) -> None:
        self._read, self.write_fd = os.pipe()
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0
        self._thread = threading.Thread(target=self._drain, daemon=True)

    def start(self) -> None:
        """Start to drain; call after the child has its copy of `write_fd`, which is closed here."""
        os.close(self.write_fd)
        self._thread.start()

    def _drain(self) -> None:
        while chunk := os.read(self._read, 65536):
            room = KEPT_BYTES - len(self._head)
            self._head += chunk[:room]
            self._tail += chunk[room:] if room > 0 else chunk
            excess = len(self._tail) - KEPT_BYTES
            if excess > 0:
                del self._tail[:excess]
                self._dropped += excess
        os.close(self._read)

    def so_far(self) -> str:
        """Return the end of the output so far, on one line: the reason why a child did not start."""
        return " ".join((bytes(self._head) + bytes(self._tail)).decode(errors="replace").split())[-400:]

    def text(self) -> str:
        """Return the kept output; call after the child has ended."""
        self._thread.join(timeout=1)
        middle = f"\n[... {self._dropped} bytes left out ...]\n".encode() if self._dropped else b""
        return (bytes(self._head) + middle + bytes(self._tail)).decode(errors="replace")


START = (
    f"import sys; sys.path.insert(0, {str(CHILD_ROOT)!r}); "
    "from kernelwright_child.zygote import main; main(sys.argv[1:])"
)
OWN_VARIABLES = {"HOME": "/nonexistent", "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "CUDA_VISIBLE_DEVICES": ""}
"""Besides `shared_environment`. The latter two keep torch from opening a GPU when it imports
`torch.utils.cpp_extension`. Children have their own environment."""
MARK = "KERNELWRIGHT_JUDGE"
"""The variable with the judge's process number, by which the zygote and its forks can be attributed."""
MOST = 4
"""Zygotes with different environments or imports at a time; each takes the memory of `import torch`."""
RECYCLED_BYTES = 2 * 2**30
"""A zygote does not grow; one above this leaks, and is replaced."""
UNFIT = 3
"""Exit code of a zygote that cannot be forked: the value in `kernelwright_child.zygote`, which imports torch."""
FAILURES = 3
"""After this many in a row, children of this process are spawned."""
ENDING_S = 5


class ZygoteGone(Exception):
    """The zygote has ended."""


class ZygoteKey(NamedTuple):
    environment: tuple[tuple[str, str], ...]
    cores: tuple[int, ...]
    torch: tuple[int, ...]
    imports: tuple[str, ...] = ()
    """Modules that it imports besides torch and the child's own."""


class Zygote:
    """A process that imports torch; it takes orders from the start."""

    def __init__(self, form: ZygoteKey) -> None:
        self.form = form
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.capture = Capture()  # sockets are closed where this fails; a pipe would not be
        cores, imports = ",".join(map(str, form.cores)), ",".join(form.imports)
        arguments = [str(theirs.fileno()), str(os.getpid()), cores, imports]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", START, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=self.capture.write_fd,
                stderr=self.capture.write_fd,
                cwd="/",
                env={**dict(form.environment), **OWN_VARIABLES, MARK: str(os.getpid())},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()
            self.capture.start()
        self.pid = self._process.pid

    @property
    def is_fit(self) -> bool:
        return self._process.poll() is None and resident_bytes(self.pid) < RECYCLED_BYTES

    def order(self, order: dict[str, Any], fds: Sequence[int]) -> None:
        """Order a fork, as `kernelwright_child.zygote.Order` describes it. Raises `ZygoteGone`."""
        try:
            socket.send_fds(self._control, [marshal.dumps(order)], list(fds))
        except OSError:
            raise ZygoteGone("the zygote has ended") from None

    @property
    def is_unfit(self) -> bool:
        return self._process.poll() == UNFIT

    def retire(self) -> None:
        """Give no more orders. It ends once the supervisors that it forked have ended."""
        self._control.close()

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self.retire()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=0.05)
        self._process.kill()
        self._process.wait(timeout=ENDING_S)

    def disown(self) -> None:
        """Release it without ending it, in a fork of the process that started it."""
        self._control.close()
        self._process.returncode = 0


class Zygotes:
    """The zygotes of this process, for use from many threads. A fork of this process starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[ZygoteKey, Zygote] = {}
        self._retired: list[Zygote] = []
        self._failures = 0
        self._unfit: set[tuple[str, ...]] = set()
        """Imports with which one cannot be forked."""
        self.obstacle = ""
        """Why children are no longer forked; empty while they are."""
        self._registered = False

    def find(self, environment: Mapping[str, str], imports: tuple[str, ...] = ()) -> Zygote | None:
        """Return the zygote for this environment and the calling thread's cores; None where children are spawned.

        Children import `imports` themselves where a zygote with these modules cannot be forked.
        """
        if self.obstacle:
            return None
        cores = tuple(sorted(os.sched_getaffinity(0)))
        imports = () if imports in self._unfit else imports
        torch: tuple[int, ...] = ()
        with contextlib.suppress(OSError):
            found_torch = os.stat(_torch_version_file())  # noqa: PTH116 - done for every child
            torch = found_torch.st_ino, found_torch.st_size, found_torch.st_mtime_ns
        form = ZygoteKey(tuple(sorted(environment.items())), cores, torch, imports)
        with self._lock:
            found = self._found.pop(form, None)
            if found is not None and imports and found.is_unfit:
                self._unfit.add(imports)
                self._retire(found)
                form = form._replace(imports=())
                found = self._found.pop(form, None)
            if found is not None and not found.is_fit:
                LOG.info("process %d is no longer forked from: it has ended, or grown beyond its limit", found.pid)
                self._retire(found)
                found = None
            if found is None:
                found = self._started(form)
            if found is not None:
                self._found[form] = found  # as the youngest
            while len(self._found) > MOST:
                self._retire(self._found.pop(next(iter(self._found))))
        return found

    def _started(self, form: ZygoteKey) -> Zygote | None:
        if not self._registered:
            self._registered = True
            os.register_at_fork(after_in_child=self._forget)
            atexit.register(self.close)
        try:
            return Zygote(form)
        except OSError as error:
            self._give_up(f"no zygote can be started ({error.strerror})")
            return None

    def _retire(self, zygote: Zygote) -> None:
        zygote.retire()
        self._retired = [old for old in self._retired if old.is_fit]
        self._retired.append(zygote)

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, zygote: Zygote, why: str) -> None:
        """Count a failed fork and retire its zygote; after several, give up forking."""
        with self._lock:
            if self._found.get(zygote.form) is zygote:
                self._retire(self._found.pop(zygote.form))
            if zygote.form.imports:
                LOG.info("children import %s by themselves: %s", ", ".join(zygote.form.imports), why)
                self._unfit.add(zygote.form.imports)
                return
            self._failures += 1
            if zygote.is_unfit or self._failures >= FAILURES:
                self._give_up(zygote.capture.so_far() or why)

    def _give_up(self, why: str) -> None:
        LOG.info("children are no longer forked, and each takes seconds to start: %s", why)
        self.obstacle = why

    def _forget(self) -> None:
        self._lock = threading.Lock()
        for zygote in (*self._found.values(), *self._retired):
            zygote.disown()
        self._found, self._retired = {}, []

    def close(self) -> None:
        with self._lock:
            for zygote in (*self._found.values(), *self._retired):
                zygote.close()
            self._found, self._retired = {}, []

    @property
    def pids(self) -> list[int]:
        return [zygote.pid for zygote in (*self._found.values(), *self._retired)]


ZYGOTES = Zygotes()


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 where it does not exist."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def private_bytes(pid: int) -> int:
    """Return the private memory of a process; 0 where it is not known."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


@cache
def _torch_version_file() -> str:
    spec = importlib.util.find_spec("torch")
    return str(Path(spec.origin).parent / "version.py") if spec and spec.origin else ""


def prepare_judge(threads: int | None = None, behind: bool = False) -> None:
    """Prepare this process for judging: memory, threads, protection, a zygote; remove leftovers of killed judges.

    Call it before torch is imported here, since the zygote imports it at the same time. `threads` as in the settings;
    None for all cores. `behind`: this process serves another one. It ends with that one, ignores Ctrl-C and is the
    first to be killed for memory.
    """
    if behind:
        parent_death_signal = 1
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("500")
    keep_freed_memory()
    set_passive_waiting()
    # Let torch free parts of device memory. The judge handles results of gigabytes, and a small tensor within the
    # memory of a large one would hold all of it. Children choose for themselves.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    protect_this_process()
    ZYGOTES.find(shared_environment(threads or len(os.sched_getaffinity(0)), steady=True))
    sweep()


@contextlib.contextmanager
def frozen_imports() -> Iterator[None]:
    """Pause the garbage collector while torch and its users are imported, and exclude them from later collections.

    A collection takes a sixth of the import's time. Later it would take 80 ms each time, perhaps in a timed call.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def keep_freed_memory() -> None:
    """Make this process keep the memory that it frees.

    The judge handles results of tens of megabytes thousands of times. With glibc's defaults each one is mapped again
    and costs a page fault for every 4 KiB, most of the time of a comparison. A single arena serves all threads, since
    the arena of a thread returns such memory each time.
    """
    mmap_max, trim_threshold, arena_max = -4, -1, -8
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(arena_max, 1)
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, 2**31 - 1)


def release_freed_memory() -> None:
    """Return the memory that `keep_freed_memory` keeps to the machine, before a new problem."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def set_passive_waiting() -> None:
    """Let OpenMP threads of this process sleep after a loop; call it before torch is imported.

    Otherwise they spin on their cores for milliseconds, and a call that is timed there took three times as long.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def protect_this_process() -> None:
    """Keep other processes of the same user from reading or writing this one's memory.

    This disables core dumps and debuggers. Processes that this one starts are not affected.
    """
    set_dumpable = 4
    ctypes.CDLL(None).prctl(set_dumpable, 0, 0, 0, 0)
