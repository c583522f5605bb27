"""Starting, stopping, continuing and ending a child; talking to it in bounded packets."""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sandbox.capture import Capture
from sandbox.child import keeper
from sandbox.errors import MachineError
from sandbox.settings import Settings
from sandbox.workfolder import WorkFolder

PACKET_BYTES = 64 * 1024
FREEZE_TIMEOUT_S = 5
POLL_S = 20e-6


class ChildGone(Exception):
    """The child ended, or broke the protocol; the text says how."""


class ChildLate(Exception):
    """The child did not answer in time."""


class Child:
    """One child process tree under a keeper, with a packet channel.

    `layers` names what contains it. The keeper ends the whole tree when this object is closed or this process dies.
    """

    layers = ("own session", "scrubbed environment", "no new privileges", "resource limits", "reaper of orphans")

    def __init__(self, module: str, folder: WorkFolder, settings: Settings, steady: bool = False) -> None:
        self._capture = Capture()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * PACKET_BYTES)
        lifeline_read, self._lifeline = os.pipe()
        self._status, status_write = os.pipe()
        command = [sys.executable, "-I", "-S", keeper.__file__, str(lifeline_read), str(status_write)]
        command += [json.dumps(_limits(settings)), "--"]
        command += [sys.executable, "-I", "-m", module, str(theirs.fileno())]
        try:
            self._keeper = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._capture.write_fd,
                stderr=self._capture.write_fd,
                cwd=folder.path / "tmp",
                env=folder.environment(settings.threads, steady),
                pass_fds=(lifeline_read, status_write, theirs.fileno()),
                start_new_session=True,
            )
        except OSError as error:
            raise MachineError(f"no child process can be started ({error.strerror}); end some processes") from None
        finally:
            theirs.close()
            os.close(lifeline_read)
            os.close(status_write)
        self._capture.start()
        self.pid = 0
        """The process that speaks; known once it has greeted."""
        self.ending = ""

    def greet(self, deadline: float) -> None:
        """Wait for the child's first word, which tells its process number; checked against the process tree."""
        claimed = self.receive(deadline).get("pid")
        if not isinstance(claimed, int) or claimed not in keeper.descendants(self._keeper.pid):
            raise ChildGone("the child gave a process number that is not its own")
        self.pid = claimed

    def send(self, message: dict[str, Any], *fds: int) -> None:
        """Send one message. Anything that the child said unasked is a breach of the protocol."""
        if select.select([self._channel], [], [], 0)[0]:
            self.receive(time.monotonic())
            raise ChildGone("the child spoke without being asked")
        data = json.dumps(message).encode()
        if len(data) > PACKET_BYTES:
            raise MachineError(f"a call needs a message of {len(data)} bytes; the limit is {PACKET_BYTES}")
        try:
            if fds:
                socket.send_fds(self._channel, [data], list(fds))
            else:
                self._channel.send(data)
        except OSError:
            raise ChildGone(f"the child closed its channel{self._how_it_ended()}") from None

    def receive(self, deadline: float) -> dict[str, Any]:
        """The next message, before `deadline` on the monotonic clock."""
        ready, _, _ = select.select([self._channel], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise ChildLate
        try:
            data = self._channel.recv(PACKET_BYTES)
        except OSError:
            data = b""
        if not data:
            raise ChildGone(f"the child ended without an answer{self._how_it_ended()}")
        try:
            message = json.loads(data)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise ChildGone("the child sent something that is no message")
        return message

    def freeze(self) -> None:
        """Stop the child, and return only when every thread of it stands still."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)
        limit = time.monotonic() + FREEZE_TIMEOUT_S
        while not _stands_still(self.pid):
            if time.monotonic() > limit:
                raise ChildGone("the child could not be stopped")
            time.sleep(POLL_S)  # gives the core back: the thread that has yet to stop may need this very one

    def offspring(self) -> list[int]:
        """Processes that the child has started and that still live."""
        return [pid for pid in keeper.descendants(self._keeper.pid) if pid != self.pid]

    def thaw(self) -> None:
        """Let the child go on."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def _how_it_ended(self) -> str:
        ready, _, _ = select.select([self._status], [], [], 1)
        if ready and not self.ending:
            self.ending = os.read(self._status, 64).decode()
        kind, _, number = self.ending.partition(" ")
        if kind == "signal":
            return f" (killed by {signal.Signals(int(number)).name})"
        return f" (exit code {number})" if kind == "exit" else ""

    def output(self) -> str:
        """What the child printed, head and tail; call after `close`."""
        return self._capture.text()

    def close(self) -> None:
        """End the whole tree and wait for it."""
        if self._lifeline < 0:
            return
        os.close(self._lifeline)
        self._lifeline = -1
        self._channel.close()
        try:
            self._keeper.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        os.close(self._status)


def _stands_still(pid: int) -> bool:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        states = [(task / "stat").read_bytes().rpartition(b")")[2].split()[0] for task in tasks]
    except OSError:
        return True
    return all(state in (b"T", b"t", b"Z", b"X") for state in states)


def _limits(settings: Settings) -> dict[str, int]:
    names = {
        "RLIMIT_CORE": 0,
        "RLIMIT_DATA": settings.memory_bytes,
        "RLIMIT_FSIZE": settings.file_bytes,
        "RLIMIT_NOFILE": settings.open_files,
    }
    return {name: value for name, value in names.items() if hasattr(resource, name)}
