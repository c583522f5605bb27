"""Advisory locks on open files, taken without waiting."""

import fcntl


def taken(fd: int, how: int = fcntl.LOCK_EX) -> bool:
    """Take a lock on an open file, if nobody holds one that stands against it; whether it was."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
