"""Advisory locks on open files, and on single bytes of them, taken without waiting."""

import contextlib
import errno
import fcntl
import os
import stat
import struct
from pathlib import Path

from kernelwright.sandbox.verdict.errors import MachineError

OWN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
EVERYBODYS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


def try_lock(fd: int, how: int = fcntl.LOCK_EX) -> bool:
    """Take a lock on an open file, if nobody holds one that stands against it; whether it was."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(fd: int) -> None:
    """Give back the lock of `try_lock` for all that have this very file open, such as a fork; it goes with the last."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def try_lock_byte(fd: int, byte: int, shared: bool = False) -> bool:
    """Take a lock on one byte for this open file, if no other open file holds one that stands against it."""
    try:
        _lock_byte(fd, byte, fcntl.F_RDLCK if shared else fcntl.F_WRLCK)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def unlock_byte(fd: int, byte: int) -> None:
    """Give back the lock on a byte; all of them go when the file is closed."""
    _lock_byte(fd, byte, fcntl.F_UNLCK)


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
