"""Who times and who measures on this machine's processors.

Many may time, each on cores of its own. To measure what the processors can do takes all of them, and would be heard in
every timing. Advisory locks on two files tell, the same for all processes of a user: whoever measures first closes the
door to those who come to time, and then waits for those who are at it.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sandbox.errors import MachineError
from sandbox.flocks import open_own, taken

WAIT_S = 600.0
POLL_S = 0.02


@contextmanager
def timing() -> Iterator[None]:
    """Within it nothing is measured anywhere on this machine. Not to be nested around `measuring`."""
    with ExitStack() as held:
        with _locked("door", fcntl.LOCK_SH, WAIT_S):
            held.enter_context(_locked("turn", fcntl.LOCK_SH, WAIT_S))
        yield


@contextmanager
def measuring(wait_s: float = WAIT_S) -> Iterator[None]:
    """Within it nothing is timed, nor measured by another. Raises `MachineError` where that does not come about."""
    with _locked("door", fcntl.LOCK_EX, wait_s), _locked("turn", fcntl.LOCK_EX, wait_s):
        yield


@contextmanager
def _locked(name: str, how: int, wait_s: float) -> Iterator[None]:
    path = Path(tempfile.gettempdir()) / f"kernelwright-{os.getuid()}-processor.{name}"
    fd = open_own(path)
    end = time.monotonic() + wait_s
    try:
        while not taken(fd, how):
            if time.monotonic() > end:
                raise MachineError(
                    f"another judge of this machine has kept its processors for {wait_s:.0f} s; wait for it or end it"
                )
            time.sleep(POLL_S)
        yield
    finally:
        os.close(fd)
