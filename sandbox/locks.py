"""Timing locks: one for this machine's processors, with a place for each core, and one for each GPU; and plain locks.

A timing has its cores alone; on a GPU it has that GPU alone, and shares its cores with builds. A build on cores that a
timing would need shares them with other builds. Measuring the processors disturbs every timing, so it takes all of
them. So parts of a processor are timed on side by side, and everything else waits, and says for whom.

The locks are advisory, on single bytes of files (of an open file each, so that threads wait for each other like
processes do). They end with their holder, however that ends. Nobody waits for ever: each place has a door that the one
who waits keeps closed, and places are taken in one order, a GPU before the processors.
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
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright_child.supervisor import descendants

LOG = logging.getLogger(__name__)

OWN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
EVERYBODYS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


def try_lock(fd: int, how: int = fcntl.LOCK_EX) -> bool:
    """Take a lock on an open file, if no conflicting one is held; whether it was taken."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(fd: int) -> None:
    """Give back the lock of `try_lock` for all that have this file open, such as a fork; it goes with the last."""
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
    """Open a file of this user that locks are taken on, made where it is not there.

    Its name may be known to others, who may have put something of theirs in its place: never through a link, and
    `MachineError`, which names it, for what is another user's or no file.
    """
    try:
        fd = os.open(path, OWN, 0o600)
    except OSError as error:
        raise _useless(path, error.strerror or str(error)) from None
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
        return fd
    os.close(fd)
    raise _useless(path, "it belongs to another user" if stat.S_ISREG(found.st_mode) else "it is no file")


def open_everybodys(path: Path) -> int:
    """Open a file that locks of all users are taken on, made where it is not there. Raises `MachineError`."""
    try:
        try:
            fd = os.open(path, EVERYBODYS)  # with O_CREAT the kernel may refuse another user's file in a sticky folder
        except FileNotFoundError:
            fd = os.open(path, EVERYBODYS | os.O_CREAT, 0o666)
    except OSError as error:
        raise MachineError(f"{path} can not be opened ({error.strerror}); remove it or change its owner") from None
    with contextlib.suppress(OSError):  # another user's file keeps that user's permissions
        os.fchmod(fd, 0o666)
    return fd


def _useless(path: Path, why: str) -> MachineError:
    return MachineError(
        f"the lock {path} can not be used ({why}); remove it, or set TMPDIR to a folder that only you can write to"
    )


POLL_S = 0.02
REPORT_AFTER_S = 1.0
"""Waiting for longer is reported."""
MEASURING_S = 600.0
"""The longest that anybody waits to measure the processors."""
LOOKS, LOOK_S, REPORT_S = 5, 0.1, 10.0
"""Looks at the load that count as one, and seconds between them; seconds between reports of waiting."""
RAN_ON = 36
"""The core that a thread was last on, among the fields of its `stat` from the state on."""
DOORS = 2**20
"""The byte of the first place's door."""
NAME_BYTES = 16
"""Of the file's text, for each place: the number of the process that has it."""
WHOLE = 0
"""The place of the processors as a whole; that of a core comes after it, by the core's number."""


class WaitLimit(NamedTuple):
    limit_s: float | None = None
    stopped: Callable[[], bool] = lambda: False
    """Asked repeatedly: whether nobody wants the lock any more."""


PATIENT = WaitLimit()


@contextmanager
def processor_lock(cores: tuple[int, ...], shared: bool = False, waiting: WaitLimit = PATIENT) -> Iterator[None]:
    """Keep others from timing on these cores, and from measuring; shared, others may share them.

    Not to be nested, nor to be held around `measuring`. Raises `MachineError` where the waiting is stopped.
    """
    with _lock(processor_path(), "the processor", waiting) as lock:
        lock.take(WHOLE, shared=True)
        for core in sorted(set(cores)):
            lock.take(1 + core, shared)
        yield


@contextmanager
def measuring(wait_s: float = MEASURING_S) -> Iterator[None]:
    """Keep everybody from timing and from measuring. Raises `MachineError` where that does not come about."""
    with _lock(processor_path(), "the processor", WaitLimit(wait_s)) as lock:
        lock.take(WHOLE)
        yield


def report_load(cores: tuple[int, ...], threads: int, wait: bool, waiting: WaitLimit = PATIENT) -> None:
    """Report others that compute on these cores where this many threads are timed; with `wait`, wait for their end.

    Hold the timing lock meanwhile: nothing of ours runs then. Raises `MachineError` where the waiting is stopped.
    """
    start, reported_s = time.monotonic(), -REPORT_S
    if not wait and "load" in _REPORTED:
        return
    while found := _disturbance(cores, threads):
        waited_s = time.monotonic() - start
        load = f"load {found} on {len(cores)} core{'s' if len(cores) > 1 else ''}"
        if not wait:
            _report_once("load", f"{load}: times will be noisy; --wait-quiet lets it pass first")
            return
        if waited_s - reported_s >= REPORT_S:
            reported_s = waited_s
            words = f"{load}: waiting until it has gone, for {waited_s:.0f} s so far; Ctrl-C ends it"
            print(f"kernelwright: {words}", file=sys.stderr, flush=True)
        if waiting.stopped():
            raise MachineError("the judging was stopped before the load on its cores had gone")
        time.sleep(LOOK_S)


def _disturbance(cores: tuple[int, ...], threads: int) -> int:
    """Return the load, where each of some looks finds too much of it beside this many threads; else 0."""
    for _ in range(LOOKS):
        found = foreign_load(cores)
        if not found or found + threads <= len(cores):
            return 0
        time.sleep(LOOK_S)
    return found


def foreign_load(cores: tuple[int, ...]) -> int:
    """Count the threads that compute on these cores, or wait for one, beside this process and its descendants."""
    if int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) <= 1:  # this thread
        return 0
    own = {os.getpid(), *descendants(os.getpid())}
    return sum(computing(process, cores) for process in Path("/proc").glob("[0-9]*") if int(process.name) not in own)


def computing(process: Path, cores: tuple[int, ...]) -> int:
    """Count the threads of a process in /proc that compute on these cores, or wait for one; none where it has ended."""
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
    """Return the path of a GPU's lock, for all users: in the machine's temporary folder, whatever TMPDIR says."""
    folder = Path("/tmp") if Path("/tmp").is_dir() else Path(tempfile.gettempdir())
    return folder / f"kernelwright-{uuid}.lock"


class DeviceLock:
    """One judge a GPU. Held until `close` or the end of this process, however it ends."""

    def __init__(self, uuid: str, waiting: WaitLimit) -> None:
        """Take the lock. Raises `MachineError`, which names the holder, where it is not given in time."""
        self._held = contextlib.ExitStack()
        with contextlib.ExitStack() as held:
            held.enter_context(_lock(device_path(uuid), f"device {uuid}", waiting, everybodys=True)).take(WHOLE)
            self._held = held.pop_all()

    def close(self) -> None:
        self._held.close()


def device_holder(uuid: str) -> str | None:
    """Return the GPU's holder, as `process 123`; None where there is none."""
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
    _closed_in_forks()
    _OPEN.add(fd)
    lock = _Lock(fd, what, waiting)
    try:
        yield lock
    finally:
        lock.forget()
        _OPEN.discard(fd)
        os.close(fd)


class _Lock:
    def __init__(self, fd: int, what: str, waiting: WaitLimit) -> None:
        self._fd, self._what, self._waiting = fd, what, waiting
        self._places: list[int] = []
        self._since = time.monotonic()
        self._is_logged = False

    def take(self, place: int, shared: bool = False) -> None:
        """Wait at the place's door, and then for the place."""
        self._wait_for(DOORS + place, place)
        try:
            self._wait_for(place, place, shared)
        finally:
            _lock_byte(self._fd, DOORS + place, fcntl.F_UNLCK)
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
        """Take this process's number off its places, before they are given back."""
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


@cache
def _closed_in_forks() -> None:
    """Have a fork of this process, which nobody here knows of, close the locks that are held here."""
    os.register_at_fork(after_in_child=_close_all)


def _close_all() -> None:
    for fd in _OPEN:
        with contextlib.suppress(OSError):
            os.close(fd)
    _OPEN.clear()


_OPEN: set[int] = set()
"""Lock files that this process has open."""
_REPORTED: set[object] = set()
_REPORTING = threading.Lock()
