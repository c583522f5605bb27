"""Timing locks: one for this machine's processors, with a slot for each core, and one for each GPU; and file locks.

A timing on processors has its cores alone. A timing on a GPU has that GPU alone, and shares its cores with builds.
Builds share cores with each other. Measuring the processors' peaks disturbs every timing, so it takes all cores.
Separate cores are timed on at the same time; everything else waits, and reports the holder.

The locks are advisory, on single bytes of files. They belong to an open file, so that threads wait for each other as
processes do, and end with their holder. Each slot has a second byte, the gate, that a waiting process holds, so that
nothing starves. Slots are taken in one order, a GPU before the processors.
"""

import contextlib
import errno
import fcntl
import logging
import os
import stat
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import NamedTuple
from weakref import WeakSet

from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright_child.supervisor import descendants

LOG = logging.getLogger(__name__)

OWN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
EVERYBODYS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


def try_lock(fd: int, how: int = fcntl.LOCK_EX) -> bool:
    """Take a lock on an open file, if no conflicting one is held; return whether it was taken."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(fd: int) -> None:
    """Release the lock of `try_lock` for all processes with this open file, such as a fork."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def try_lock_byte(fd: int, byte: int, shared: bool = False) -> bool:
    """Take a lock on one byte for this open file, if no other open file holds a conflicting one."""
    try:
        _lock_byte(fd, byte, fcntl.F_RDLCK if shared else fcntl.F_WRLCK)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _lock_byte(fd: int, byte: int, kind: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0))


def open_own(path: Path) -> int:
    """Open this user's lock file, or create it.

    Others may know its name and place something there: links are refused, and `MachineError` names what is another
    user's or not a file.
    """
    try:
        fd = os.open(path, OWN, 0o600)
    except OSError as error:
        raise _useless(path, error.strerror or str(error)) from None
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
        return fd
    os.close(fd)
    raise _useless(path, "it belongs to another user" if stat.S_ISREG(found.st_mode) else "it is not a file")


def open_everybodys(path: Path) -> int:
    """Open the lock file of all users, or create it. Raises `MachineError`."""
    try:
        try:
            fd = os.open(path, EVERYBODYS)  # with O_CREAT the kernel may refuse another user's file in a sticky folder
        except FileNotFoundError:
            fd = os.open(path, EVERYBODYS | os.O_CREAT, 0o666)
    except OSError as error:
        raise MachineError(f"{path} cannot be opened ({error.strerror}); remove it or change its owner") from None
    with contextlib.suppress(OSError):  # another user's file keeps that user's permissions
        os.fchmod(fd, 0o666)
    return fd


def _useless(path: Path, why: str) -> MachineError:
    return MachineError(
        f"the lock {path} cannot be used ({why}); remove it, or set TMPDIR to a folder that only you can write to"
    )


POLL_S = 0.02
REPORT_AFTER_S = 1.0
MEASURING_S = 600.0
LOOKS, LOOK_S, REPORT_S = 5, 0.1, 10.0
"""Consecutive checks of the load, seconds between them, and seconds between reports of waiting."""
RAN_ON = 36
"""Index of a thread's last core among the fields of its `stat` from the state on."""
GATES = 2**20
"""The byte of the first slot's gate."""
NAME_BYTES = 16
"""Bytes of the file's text per slot, for the number of the holding process."""
WHOLE = 0
"""The slot of all processors; the slots of cores follow by number."""


class WaitLimit(NamedTuple):
    limit_s: float | None = None
    stopped: Callable[[], bool] = lambda: False
    """Polled: whether the lock is no longer wanted."""


PATIENT = WaitLimit()


@contextmanager
def processor_lock(cores: tuple[int, ...], shared: bool = False, waiting: WaitLimit = PATIENT) -> Iterator[None]:
    """Keep others from timing on these cores, and from measuring; `shared`: allow other shared holders.

    Do not nest it, or hold it around `measuring`. Raises `MachineError` where the waiting is stopped.
    """
    with _lock(processor_path(), "the processor", waiting) as lock:
        lock.take(WHOLE, shared=True)
        for core in sorted(set(cores)):
            lock.take(1 + core, shared)
        yield


@contextmanager
def measuring(wait_s: float = MEASURING_S) -> Iterator[None]:
    """Keep all others from timing and from measuring. Raises `MachineError` after `wait_s`."""
    with _lock(processor_path(), "the processor", WaitLimit(wait_s)) as lock:
        lock.take(WHOLE)
        yield


def report_load(cores: tuple[int, ...], threads: int, wait: bool, waiting: WaitLimit = PATIENT) -> None:
    """Report other programs on these cores next to this many timed threads; with `wait`, wait for their end.

    Hold the timing lock, so that no other judge runs. Raises `MachineError` where the waiting is stopped.
    """
    start, reported_s = time.monotonic(), -REPORT_S
    if not wait and "load" in _REPORTED:
        return
    while found := _disturbance(cores, threads):
        waited_s = time.monotonic() - start
        load = f"other programs' load is {found} on {len(cores)} core{'s' if len(cores) > 1 else ''}"
        if not wait:
            _report_once("load", f"{load}: times will be noisy; --wait-quiet waits for their end")
            return
        if waited_s - reported_s >= REPORT_S:
            reported_s = waited_s
            words = f"{load}: waiting for their end, for {waited_s:.0f} s so far; Ctrl-C ends it"
            print(f"kernelwright: {words}", file=sys.stderr, flush=True)
        if waiting.stopped():
            raise MachineError("the judging was stopped before the load on its cores had ended")
        time.sleep(LOOK_S)


def _disturbance(cores: tuple[int, ...], threads: int) -> int:
    """Return the load, where several checks all find too much for this many threads; else 0."""
    for _ in range(LOOKS):
        found = foreign_load(cores)
        if not found or found + threads <= len(cores):
            return 0
        time.sleep(LOOK_S)
    return found


def foreign_load(cores: tuple[int, ...]) -> int:
    """Count other processes' threads that run or are ready to run on these cores."""
    if int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) <= 1:  # this thread
        return 0
    own = {os.getpid(), *descendants(os.getpid())}
    return sum(computing(process, cores) for process in Path("/proc").glob("[0-9]*") if int(process.name) not in own)


def computing(process: Path, cores: tuple[int, ...]) -> int:
    count = 0
    with contextlib.suppress(OSError):
        for thread in (process / "task").iterdir():
            with contextlib.suppress(OSError):
                fields = (thread / "stat").read_bytes().rpartition(b")")[2].split()
                count += fields[0] == b"R" and int(fields[RAN_ON]) in cores
    return count


def processor_path() -> Path:
    return Path(tempfile.gettempdir()) / f"kernelwright-{os.getuid()}-processor.turn"


def device_path(uuid: str) -> Path:
    """Return the path of a GPU's lock for all users, in the machine's temporary folder regardless of TMPDIR."""
    folder = Path("/tmp") if Path("/tmp").is_dir() else Path(tempfile.gettempdir())
    return folder / f"kernelwright-{uuid}.lock"


class DeviceLock:
    """The lock of a GPU, held until `close` or the end of this process."""

    def __init__(self, uuid: str, waiting: WaitLimit) -> None:
        """Take the lock. Raises `MachineError` with the holder where it is not free in time."""
        self._held = contextlib.ExitStack()
        with contextlib.ExitStack() as held:
            held.enter_context(_lock(device_path(uuid), f"device {uuid}", waiting, everybodys=True)).take(WHOLE)
            self._held = held.pop_all()

    def close(self) -> None:
        self._held.close()


def device_holder(uuid: str) -> str | None:
    """Return the GPU's holder, as `process 123`; None for none."""
    try:
        fd = os.open(device_path(uuid), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return None if try_lock_byte(fd, WHOLE, shared=True) else _named(fd, WHOLE)
    finally:
        os.close(fd)


@contextmanager
def _lock(path: Path, what: str, waiting: WaitLimit, everybodys: bool = False) -> Iterator["_Lock"]:
    fd = open_everybodys(path) if everybodys else open_own(path)
    file = FileIO(fd, "r+")
    close_in_forks(file)
    lock = _Lock(fd, what, waiting)
    try:
        yield lock
    finally:
        lock.forget()
        file.close()


class _Lock:
    def __init__(self, fd: int, what: str, waiting: WaitLimit) -> None:
        self._fd, self._what, self._waiting = fd, what, waiting
        self._places: list[int] = []
        self._since = time.monotonic()
        self._is_logged = False

    def take(self, place: int, shared: bool = False) -> None:
        self._wait_for(GATES + place, place)
        try:
            self._wait_for(place, place, shared)
        finally:
            _lock_byte(self._fd, GATES + place, fcntl.F_UNLCK)
        self._places.append(place)
        os.pwrite(self._fd, str(os.getpid()).encode().ljust(NAME_BYTES), place * NAME_BYTES)

    def _wait_for(self, byte: int, place: int, shared: bool = False) -> None:
        while not try_lock_byte(self._fd, byte, shared):
            who = _named(self._fd, place)
            if not self._is_logged:
                self._is_logged = True
                LOG.info("waiting for %s: %s has it", self._what, who)
            waited_s, limit_s = time.monotonic() - self._since, self._waiting.limit_s
            if self._waiting.stopped():
                raise MachineError(f"the judging was stopped before its turn on {self._what} came")
            if limit_s is not None and waited_s > limit_s:
                raise MachineError(f"{self._what} has been taken by {who} for {limit_s:.0f} s; wait for it or end it")
            if waited_s > REPORT_AFTER_S and who != _own_name():  # threads of one process wait silently
                _report_once((who, self._what), f"{who} is judging on {self._what}; this one waits for its turn")
            time.sleep(POLL_S)

    def forget(self) -> None:
        for place in self._places:
            if _named(self._fd, place) == _own_name():
                os.pwrite(self._fd, bytes(NAME_BYTES), place * NAME_BYTES)


def _named(fd: int, place: int) -> str:
    number = os.pread(fd, NAME_BYTES, place * NAME_BYTES).strip(b" \0")
    return f"process {int(number)}" if number.isdigit() else "another process"


def _own_name() -> str:
    return f"process {os.getpid()}"


def _report_once(about: object, line: str) -> None:
    with _REPORTING:
        if about in _REPORTED:
            return
        _REPORTED.add(about)
    print(f"kernelwright: {line}", file=sys.stderr, flush=True)


def close_in_forks(lock_file: FileIO) -> None:
    """Close it in every fork, which may outlive this process."""
    _OPEN.add(lock_file)


_OPEN: WeakSet[FileIO] = WeakSet()
os.register_at_fork(after_in_child=lambda: list(map(FileIO.close, list(_OPEN))))
_REPORTED: set[object] = set()
_REPORTING = threading.Lock()
