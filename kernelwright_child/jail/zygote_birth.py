"""What a fork of the zygote does to become a child in a jail of its own.

It forks once more: a process enters another process namespace only by being started there. Where bubblewrap has made
namespaces, with a keeper as process 1 in them, the first fork enters all of them, starts the child inside, and stays
outside to tell the keeper how the child ended. Elsewhere the first fork becomes the keeper itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import random
import signal
import socket
import sys
import tempfile
import traceback
from typing import Any, NamedTuple, NoReturn

from kernelwright_child.jail import keeper
from kernelwright_child.jail.confine import confine

Order = dict[str, Any]
"""`module` (whose `main()` serves on the descriptor in `sys.argv[1]`), `is_timed`, `environment`, `plan` (see
`confine.confine`), `namespaces` (the flags of setns(2); 0: become the keeper) and `groups` (how many control groups to
enter). Its descriptors: meeting point, channel, output, then lifeline and status where it becomes the keeper, then the
groups."""
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
CLOSE_RANGE = 436
"""The system call's number, the same on all architectures."""
CHANNEL = 3
"""The one descriptor of a child beside its standard streams, until the judge lends it memory."""
FAILED = 127


class Affinity(NamedTuple):
    """The cores that a child may run on."""

    bound: frozenset[int]
    """Those that the main thread of a program has once torch is imported: its OpenMP may bind it to one."""
    cores: frozenset[int]
    """Those that it had before."""


def born(affinity: Affinity, order: Order, fds: list[int]) -> NoReturn:
    """Go through with the order; never returns. What fails is said on the child's output."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        meeting, channel, output, *rest = fds
        for stream in (1, 2):
            os.dup2(output, stream)
        os.close(output)
        os.setsid()
        for fd in rest[len(rest) - order["groups"] :]:
            os.write(fd, b"0")  # the process that writes enters the group
            os.close(fd)
        birth = _Birth(affinity, order, socket.socket(fileno=meeting), channel)
        if order["namespaces"]:
            birth.enter()
        else:
            birth.keep(*rest[:2])
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(FAILED)


class _Birth:
    def __init__(self, affinity: Affinity, order: Order, meeting: socket.socket, channel: int) -> None:
        self._affinity = affinity
        self._order = order
        self._meeting = meeting
        self._channel = channel
        self._libc = ctypes.CDLL(None, use_errno=True)

    def enter(self) -> NoReturn:
        """Start the child in the namespaces of the keeper at the meeting point, and tell that one of its end."""
        _, fds, _, _ = socket.recv_fds(self._meeting, 1, 1)
        if not fds:
            os._exit(FAILED)  # the keeper has ended before there was anything to keep
        # All at once: entering the user namespace first would take away the right to enter those around it.
        if self._libc.setns(fds[0], self._order["namespaces"]) != 0:
            raise OSError(ctypes.get_errno(), "the namespaces could not be entered")
        os.close(fds[0])
        os.chdir("/tmp")  # it came to the root with the mounts
        child = os.fork()
        if child == 0:
            self._meeting.send(b"!")  # the kernel adds which process this is, in the receiver's numbering
            self._live()
        os.close(self._channel)
        _, code = os.waitpid(child, 0)
        with contextlib.suppress(OSError):  # the keeper may be what has ended
            self._meeting.send(keeper.how(code).encode())
        os._exit(0)

    def keep(self, lifeline: int, status: int) -> NoReturn:
        """Be the keeper, with the child below."""
        self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        keeper.handle_signals(self._libc, keeper.IGNORE)
        plan = self._order["plan"]
        if plan["filter"] is not None:
            plan["filter"]["guarded"].append(os.getpid())
        self._meeting.send(b"!")
        child = os.fork()
        if child == 0:
            self._live()
        os.close(self._channel)
        keeper.keep(keeper.ForkedChild(child), lifeline, status, plan)

    def _live(self) -> NoReturn:
        """In the child: nothing left of the zygote that is not meant for it; then confined, then its module."""
        try:
            keeper.handle_signals(self._libc, keeper.DEFAULT)
            self._leave_descriptors()
            self._libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # otherwise its own files below /proc are closed to it
            os.setsid()
            self._take_environment()
            draw_afresh()
            confine(self._libc, self._order["plan"])
        except BaseException as error:
            print(f"the child could not be confined: {error}", file=sys.stderr, flush=True)
            os._exit(FAILED)
        sys.argv = [self._order["module"], str(CHANNEL)]
        try:
            importlib.import_module(self._order["module"]).main()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)

    def _leave_descriptors(self) -> None:
        self._meeting.detach()
        os.dup2(self._channel, CHANNEL, inheritable=False)
        everything_above = CHANNEL + 1
        if self._libc.syscall(CLOSE_RANGE, everything_above, ctypes.c_uint(-1), 0) != 0:
            os.closerange(everything_above, os.sysconf("SC_OPEN_MAX"))

    def _take_environment(self) -> None:
        os.environ.clear()
        os.environ.update(self._order["environment"])
        tempfile.tempdir = None  # it may hold what the zygote's environment said
        # A builder's compilers are for all cores, and inherit what it has.
        os.sched_setaffinity(0, self._affinity.bound if self._order["is_timed"] else self._affinity.cores)


def draw_afresh() -> None:
    """Random numbers differ between forks as they do between programs."""
    random.seed()
    sys.modules["torch"].default_generator.seed()
    numbers = sys.modules.get("numpy.random")
    if numbers is not None:
        numbers.seed()
