"""The lock of a run's folder: one process at a time goes on with the run, and others may read it meanwhile.

The lock goes with the process that holds it, however that ends, so a run that was killed can be gone on with at once.
"""

import contextlib
import logging
import os
import re
import socket
from functools import cache
from io import FileIO
from pathlib import Path
from weakref import WeakSet

from kernelwright.agent.log.events import RunLogError
from kernelwright.sandbox.machine.file_locks import open_everybodys, try_lock, unlock
from kernelwright.sandbox.verdict.errors import MachineError

LOG = logging.getLogger("kernelwright.agent.log")
LOCK = "lock"
NAMED = re.compile(r"(\d+) ([\w.-]+)")
NAME_BYTES = 300
_OPEN: WeakSet[FileIO] = WeakSet()


class RunLock:
    """Whether the run in `folder` is gone on with here; held from `take` to `release`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: FileIO | None = None

    def take(self) -> None:
        """Keep all others from going on with the run; `RunLogError`, which names the one who does, where one does.

        Where the file system has no locks, or the file can not be made, nobody is kept from anything, as a log says.
        """
        if self._file is not None:
            return
        try:
            self._file = _locked(self._folder)
        except (MachineError, OSError) as error:
            LOG.warning("nothing keeps other processes from going on with %s: %s", self._folder, error)

    def release(self) -> None:
        """Let others go on with the run, at once: a fork just made may still have the file open."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                unlock(self._file.fileno())
            self._file.close()
            self._file = None


def _locked(folder: Path) -> FileIO:
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(FileIO(open_everybodys(folder / LOCK), "r+"))
        _closed_in_forks()
        _OPEN.add(file)
        if not try_lock(file.fileno()):
            raise RunLogError(_refusal(file, folder))
        _name(file)
        stack.pop_all()
        return file


def _name(file: FileIO) -> None:
    """Write down who holds it; where there is no room nobody, rather than an earlier one."""
    with contextlib.suppress(OSError):
        file.truncate(0)
        file.write(f"{os.getpid()} {socket.gethostname()}".encode())


def _refusal(file: FileIO, folder: Path) -> str:
    """The sentence that names the holder, if it has written itself down."""
    found = NAMED.fullmatch(os.pread(file.fileno(), NAME_BYTES, 0).decode(errors="replace"))
    who, remedy = "another process", "wait until it has ended, or end it"
    if found is not None:
        who = f"process {found[1]}"
        if found[2] != socket.gethostname():
            who += f" on {found[2]}"
            remedy += f"; if that machine is gone, delete {folder / LOCK}"
    return f"{who} goes on with the run in {folder}; {remedy}"


@cache
def _closed_in_forks() -> None:
    """A fork of this process may outlive it, and must not keep what is held here."""
    os.register_at_fork(after_in_child=_close_all)


def _close_all() -> None:
    for file in list(_OPEN):
        file.close()
