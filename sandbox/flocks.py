"""Advisory locks on open files, taken without waiting."""

import fcntl
import os
import stat
from pathlib import Path

from sandbox.errors import MachineError

OWN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def taken(fd: int, how: int = fcntl.LOCK_EX) -> bool:
    """Take a lock on an open file, if nobody holds one that stands against it; whether it was."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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


def _useless(path: Path, why: str) -> MachineError:
    return MachineError(
        f"the lock {path} can not be used ({why}); remove it, or set TMPDIR to a folder that only you can write to"
    )
