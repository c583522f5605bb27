"""One judge a device: an advisory lock on a file named after the device, seen by all users of the machine."""

import contextlib
import fcntl
import os
import tempfile
import time
from pathlib import Path

from sandbox.errors import MachineError
from sandbox.flocks import taken

POLL_S = 0.05
OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


def lock_path(uuid: str) -> Path:
    """The file; in the folder for temporary files of the whole machine, whatever TMPDIR says."""
    folder = Path("/tmp") if Path("/tmp").is_dir() else Path(tempfile.gettempdir())
    return folder / f"kernelwright-{uuid}.lock"


class DeviceLock:
    """Held until `close` or the end of this process, however it ends."""

    def __init__(self, uuid: str, wait_s: float) -> None:
        """Wait for at most so long. Raises `MachineError`, which names the holder."""
        self._fd = _open(lock_path(uuid))
        end = time.monotonic() + wait_s
        while not taken(self._fd):
            if time.monotonic() > end:
                os.close(self._fd)
                who = holder(uuid) or "another process"
                raise MachineError(f"device {uuid} has been taken by {who} for {wait_s:.0f} s; wait for it or end it")
            time.sleep(POLL_S)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"process {os.getpid()}".encode(), 0)

    def close(self) -> None:
        """Let the next one have the device."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1


def holder(uuid: str) -> str | None:
    """Who has the device now, as `process 123`; None where nobody has."""
    try:
        fd = os.open(lock_path(uuid), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if taken(fd, fcntl.LOCK_SH):
            return None
        return os.pread(fd, 64, 0).decode(errors="replace") or "another process"
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    try:
        try:
            fd = os.open(path, OPEN)  # with O_CREAT the kernel may refuse another user's file in a sticky folder
        except FileNotFoundError:
            fd = os.open(path, OPEN | os.O_CREAT, 0o666)
    except OSError as error:
        raise MachineError(f"{path} can not be opened ({error.strerror}); remove it or change its owner") from None
    with contextlib.suppress(OSError):  # another user's file keeps that user's permissions
        os.fchmod(fd, 0o666)
    return fd
