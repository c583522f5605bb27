"""What a test sees and does of processes: holders of the processor lock, a full disk, an ordinary user."""

import contextlib
import os
import resource
from contextlib import contextmanager
from pathlib import Path

from kernelwright.sandbox.locks import GATES, processor_path

HEARING_CTRL_C = """
import signal
from kernelwright.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born deaf to it
main()
"""


def locked_bytes(path=None):
    """The bytes on which there are locks, each as often as it is locked, and whether for one alone."""
    path = path or processor_path()
    if not path.exists():
        return []
    inode = f":{path.stat().st_ino}"
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    found = [line for line in lines if line[1] == "OFDLCK" and line[5].endswith(inode)]
    return [(byte, line[3] == "WRITE") for line in found for byte in range(int(line[6]), int(line[7]) + 1)]


def waiters(path=None):
    """Doors of cores that are closed. Where somebody has the cores, each is somebody's who waits."""
    return sum(byte > GATES for byte, _ in locked_bytes(path))


def holders(path=None):
    """Cores that somebody has alone."""
    return sorted(byte - 1 for byte, alone in locked_bytes(path) if alone and 0 < byte < GATES)


@contextmanager
def no_room():
    """No file of this process may grow. Within the block alone, since whatever runs the tests writes files too."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


NOBODY = 65534


@contextlib.contextmanager
def ordinary_user():
    """Within it this process may what an ordinary user may: root gives its rights up for a while."""
    own = os.geteuid()
    if own == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(own)
