"""The zygote: a process that has imported torch once, and forks every child.

`main([CONTROL, JUDGE, CORES, IMPORTS])`: CONTROL is a descriptor of packets, each an `Order` with descriptors; JUDGE is
the number of the process that sends them. CORES are those of its children. IMPORTS are further modules to import. Both
are separated by commas. It ends when the judge closes the other end of CONTROL, or dies.

It is trusted and not confined: it runs nothing of a candidate, reads nothing that a candidate wrote, and its
environment is scrubbed. It has one thread, since a fork keeps only the calling one, and never uses CUDA, which does
not survive a fork.

A fork becomes a child by forking again, since a process enters another process namespace only when it is started
there. Where bubblewrap has made namespaces, a supervisor is process 1 in them. The first fork enters them, forks the
child inside, and stays outside to report the child's end to the supervisor. Elsewhere the first fork becomes the
supervisor.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import itertools
import marshal
import os
import random
import select
import signal
import socket
import sys
import tempfile
import traceback
from typing import Any, NamedTuple, NoReturn

from kernelwright_child import supervisor
from kernelwright_child.confine import confine

ORDER_BYTES = 192 * 1024
MOST_DESCRIPTORS = 16
IMPORTED = ("kernelwright_child.builder", "kernelwright_child.worker", "kernelwright_child.reference")
"""All modules of children; any other module is imported by the child that needs it."""
HUGE_PAGES_AT = 32
"""The order at which memory moves to huge pages, which costs the time that some forty forks save."""
UNFIT = 3
"""The exit code of a process that cannot be forked safely."""
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
HUGE_PAGE = 2**21
MADV_COLLAPSE = 25
CLOSE_RANGE = 436
"""The system call's number, the same on all architectures."""
CHANNEL = 3
"""The one descriptor of a child besides its standard streams, until the judge shares memory."""
FAILED = 127


class UnfitError(Exception):
    """This process cannot be forked safely, for the reason in the text."""


def main(arguments: list[str]) -> None:
    """Import, and serve until the judge ends; never return."""
    # Other processes of the user could otherwise read it, write to it, or take its descriptors.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    control, judge = socket.socket(fileno=int(arguments[0])), int(arguments[1])
    try:
        parent = os.pidfd_open(judge)
        if os.getppid() != judge:
            raise UnfitError("the judge has ended")
        cores, imports = (argument.split(",") for argument in arguments[2:4])
        affinity = _prepared(frozenset(map(int, cores)), list(filter(None, imports)))
    except (UnfitError, ImportError, OSError) as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(UNFIT)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects what has ended
    _serve(affinity, control, parent)
    os._exit(0)


def _prepared(cores: frozenset[int], imports: list[str]) -> Affinity:
    # OpenMP takes the cores that it sees now for all, and a timed child has one core per thread.
    os.sched_setaffinity(0, sorted(cores)[: int(os.environ["OMP_NUM_THREADS"])])
    gc.disable()  # collections took a sixth of the import's time
    for name in (*IMPORTED, *imports):
        importlib.import_module(name)
    importlib.import_module("kernelwright_child.wire").call_vector_functions()
    del sys.path[0]  # this package is imported, and its neighbours are not for a child
    _settle()
    bound = frozenset(os.sched_getaffinity(0))
    # OpenMP may have bound this thread to one core, where every fork would wait for other programs.
    os.sched_setaffinity(0, cores)
    gc.freeze()  # a collection in a child would write to, and so copy, every page of what was imported
    gc.enable()
    return Affinity(bound, cores)


def _settle() -> None:
    """Check that a fork is safe, or raise `UnfitError`. Libraries end idle threads before a fork, so fork once."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise UnfitError(f"importing torch leaves {threads} threads running here, and a fork would lose them")
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia"):
                raise UnfitError("importing torch opens the GPU here, which does not survive a fork")


def _use_huge_pages() -> None:
    """Move imported memory to huge pages, as far as the kernel allows; a fork then takes a quarter of the time.

    The memory that children allocate is not affected.
    """
    libc = ctypes.CDLL(None)
    with open("/proc/self/maps") as table:
        mappings = [line.split() for line in table]
    for span, rights, _, device, _, *name in mappings:
        if rights == "rw-p" and device == "00:00" and name in ([], ["[heap]"]):
            start, end = (int(number, 16) for number in span.split("-"))
            start, end = -(-start // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
            if start < end:
                libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_COLLAPSE)


def _serve(affinity: Affinity, control: socket.socket, parent: int) -> None:
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(parent, select.POLLIN)
    for number in itertools.count(1):
        ready = [fd for fd, _ in poll.poll()]
        if parent in ready:
            return
        data, fds, _, _ = socket.recv_fds(control, ORDER_BYTES, MOST_DESCRIPTORS)
        if not data:
            # Forked supervisors may outlive the last order, and no other parent may collect them.
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.waitpid(-1, 0)
            return
        if number == HUGE_PAGES_AT:  # the judge waits for this child, so nothing is timed now
            _use_huge_pages()
        if os.fork() == 0:
            control.close()
            os.close(parent)
            become_child(affinity, marshal.loads(data), fds)
        for fd in fds:
            os.close(fd)


Order = dict[str, Any]
"""An order: `module` (whose `main()` serves on the descriptor in `sys.argv[1]`), `is_timed`, `environment`, `plan` (see
`confine.confine`), `namespaces` (the flags of setns(2); 0: become the supervisor) and `groups` (the number of control
groups to enter). Its descriptors: meeting point, channel, output, then lifeline and status for a supervisor, then the
groups."""


class Affinity(NamedTuple):
    bound: frozenset[int]
    """Cores of the main thread after the import of torch, whose OpenMP may bind it to one."""
    cores: frozenset[int]
    """Cores before it."""


def become_child(affinity: Affinity, order: Order, fds: list[int]) -> NoReturn:
    """Carry out the order; never return. Errors go to the child's output."""
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
        fork = _Fork(affinity, order, socket.socket(fileno=meeting), channel)
        if order["namespaces"]:
            fork.enter()
        else:
            fork.supervise(*rest[:2])
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(FAILED)


class _Fork:
    def __init__(self, affinity: Affinity, order: Order, meeting: socket.socket, channel: int) -> None:
        self._affinity = affinity
        self._order = order
        self._meeting = meeting
        self._channel = channel
        self._libc = ctypes.CDLL(None, use_errno=True)

    def enter(self) -> NoReturn:
        """Fork the child in the namespaces of the supervisor at the meeting point, and report its end there."""
        _, fds, _, _ = socket.recv_fds(self._meeting, 1, 1)
        if not fds:
            os._exit(FAILED)  # the supervisor has ended
        # All at once: entering the user namespace first would take away the right to enter those around it.
        if self._libc.setns(fds[0], self._order["namespaces"]) != 0:
            raise OSError(ctypes.get_errno(), "the namespaces could not be entered")
        os.close(fds[0])
        os.chdir("/tmp")  # entering the mounts has changed it to the root
        child = os.fork()
        if child == 0:
            self._meeting.send(b"!")  # the kernel adds this process's number, as the receiver sees it
            self._live()
        os.close(self._channel)
        _, code = os.waitpid(child, 0)
        with contextlib.suppress(OSError):  # the supervisor may have ended
            self._meeting.send(supervisor.how(code).encode())
        os._exit(0)

    def supervise(self, lifeline: int, status: int) -> NoReturn:
        self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        supervisor.handle_signals(self._libc, supervisor.IGNORE)
        plan = self._order["plan"]
        if plan["filter"] is not None:
            plan["filter"]["guarded"].append(os.getpid())
        self._meeting.send(b"!")
        child = os.fork()
        if child == 0:
            self._live()
        os.close(self._channel)
        supervisor.supervise(supervisor.ForkedChild(child), lifeline, status, plan)

    def _live(self) -> NoReturn:
        """Drop everything of the zygote that is not for the child, confine it, and run its module."""
        try:
            supervisor.handle_signals(self._libc, supervisor.DEFAULT)
            self._meeting.detach()
            os.dup2(self._channel, CHANNEL, inheritable=False)
            everything_above = CHANNEL + 1
            if self._libc.syscall(CLOSE_RANGE, everything_above, ctypes.c_uint(-1), 0) != 0:
                os.closerange(everything_above, os.sysconf("SC_OPEN_MAX"))
            self._libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # otherwise it cannot read its files below /proc
            os.setsid()
            os.environ.clear()
            os.environ.update(self._order["environment"])
            tempfile.tempdir = None  # it may come from the zygote's environment
            # A builder's compilers inherit its cores, and may use all.
            os.sched_setaffinity(0, self._affinity.bound if self._order["is_timed"] else self._affinity.cores)
            reseed()
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


def reseed() -> None:
    random.seed()
    sys.modules["torch"].default_generator.seed()
    numbers = sys.modules.get("numpy.random")
    if numbers is not None:
        numbers.seed()
