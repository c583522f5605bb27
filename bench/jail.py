"""The jail around a child that does nothing: from its start until it has greeted and its whole tree is gone.

The child sends one packet and ends, without importing torch. The bare one is started in the same way, with the same
environment and pipe, but by itself. A work folder stands ready for both.
"""

import os
import socket
import subprocess
import sys

from bench.comparison import Comparison, in_turn
from kernelwright.sandbox.jail.layers import jail_for
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.workfolder import WorkFolder

ROUNDS = 40
LIMIT_MS = 25
NO_OP = "import os, sys; os.write(int(sys.argv[1]), b'{}')"


def run() -> Comparison:
    """Bare against the best jail that this machine offers."""
    folder = WorkFolder()
    settings = Settings()
    try:
        plain, ours = in_turn(lambda: _bare(folder), lambda: _jailed(folder, settings), ROUNDS)
        jail = jail_for("worker", folder, settings)
        jail.close()
    finally:
        folder.close()
    print(f"  layers: {', '.join(jail.layers)}")
    return Comparison(("a bare child", "a child in the jail"), tuple(plain), tuple(ours), LIMIT_MS)


def _bare(folder: WorkFolder) -> None:
    _greeted(lambda inner: [sys.executable, "-I", *inner], folder, ())


def _jailed(folder: WorkFolder, settings: Settings) -> None:
    jail = jail_for("worker", folder, settings)
    lifeline, held = os.pipe()
    told, status = os.pipe()
    try:
        _greeted(lambda inner: jail.command(inner, lifeline, status), folder, (lifeline, status, *jail.fds))
    finally:
        for fd in (lifeline, held, told, status):
            os.close(fd)
        jail.close()


def _greeted(around, folder: WorkFolder, fds: tuple[int, ...]) -> None:  # type: ignore[no-untyped-def]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = around(["-S", "-c", NO_OP, str(theirs.fileno())])
    environment = folder.environment(1)
    with subprocess.Popen(command, cwd="/", env=environment, pass_fds=(*fds, theirs.fileno())) as child:
        theirs.close()
        if ours.recv(16) != b"{}":
            raise RuntimeError(f"the child did not greet: {child.wait()}")
    ours.close()
