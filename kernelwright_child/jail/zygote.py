"""The zygote: a process that has imported torch once, and is forked for every child that is asked for.

`main([CONTROL, JUDGE, CORES, IMPORTS])`: CONTROL is a descriptor of packets, each an order (see `zygote_birth`) with
descriptors; JUDGE is the number of the process that gives them. CORES are those that its children may use, IMPORTS what
is imported for them beside torch and themselves, both divided by commas. It ends when the judge closes the other end of
CONTROL, or dies.

It is trusted and not confined: it runs nothing of a candidate, reads nothing that a candidate wrote, and its
environment is scrubbed. It has one thread, since a fork takes only the calling one with it, and never touches CUDA,
which does not survive a fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import itertools
import marshal
import os
import select
import signal
import socket
import sys

from kernelwright_child.jail import zygote_birth

ORDER_BYTES = 192 * 1024
MOST_DESCRIPTORS = 16
IMPORTED = (
    "kernelwright_child.programs.builder",
    "kernelwright_child.programs.worker",
    "kernelwright_child.programs.reference",
)
"""All of a child but its candidate; a module that is not among them is imported by the child that needs it."""
GATHERED_AT = 32
"""At this order memory is put into huge pages: it takes as long as some forty forks gain by it."""
UNFIT = 3
"""The exit code of a process that had better not be forked, as another would not be either."""
PR_SET_DUMPABLE = 4
HUGE_PAGE = 2**21
MADV_COLLAPSE = 25


class UnfitError(Exception):
    """This process can not be forked safely; the text says why."""


def main(arguments: list[str]) -> None:
    """Import, and serve until the judge goes; never returns."""
    # Another process of the user could otherwise read it, write to it, or take its descriptors.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    control, judge = socket.socket(fileno=int(arguments[0])), int(arguments[1])
    try:
        parent = os.pidfd_open(judge)
        if os.getppid() != judge:
            raise UnfitError("the judge has gone")
        cores, imports = (argument.split(",") for argument in arguments[2:4])
        affinity = _prepared(frozenset(map(int, cores)), list(filter(None, imports)))
    except (UnfitError, ImportError, OSError) as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(UNFIT)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects what has ended
    _serve(affinity, control, parent)
    os._exit(0)


def _prepared(cores: frozenset[int], imports: list[str]) -> zygote_birth.Affinity:
    # OpenMP takes what it sees now for all that there is, and a child that is timed has a core a thread.
    os.sched_setaffinity(0, sorted(cores)[: int(os.environ["OMP_NUM_THREADS"])])
    gc.disable()  # what is imported stays: a sixth of the time went into looking through it again and again
    for name in (*IMPORTED, *imports):
        importlib.import_module(name)
    importlib.import_module("kernelwright_child.vector_math").meet()
    del sys.path[0]  # `kernelwright_child` is imported, and what lies beside it is not for a child
    _settle()
    bound = frozenset(os.sched_getaffinity(0))
    # OpenMP may have bound this thread to one core, where every fork would wait for whatever else runs on it.
    os.sched_setaffinity(0, cores)
    gc.freeze()  # a collection in a child would write to, and so copy, every page of what was imported
    gc.enable()
    return zygote_birth.Affinity(bound, cores)


def _settle() -> None:
    """Be fit to be forked, or raise `UnfitError`. Libraries end their idle threads before a fork, so one is made."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    if threads != 1:
        raise UnfitError(f"importing torch leaves {threads} threads running here, and a fork would lose them")
    for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia"):  # noqa: PTH115
                raise UnfitError("importing torch opens the GPU here, which does not survive a fork")


def _gather_memory() -> None:
    """Put what was imported into huge pages, as far as the kernel does that; a fork then takes a quarter of the time.

    Only what is there now: a child's own memory is as it would be without.
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


def _serve(affinity: zygote_birth.Affinity, control: socket.socket, parent: int) -> None:
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(parent, select.POLLIN)
    for number in itertools.count(1):
        ready = [fd for fd, _ in poll.poll()]
        if parent in ready:
            return
        data, fds, _, _ = socket.recv_fds(control, ORDER_BYTES, MOST_DESCRIPTORS)
        if not data:
            _wait_for_children()
            return
        if number == GATHERED_AT:  # somebody waits for this child, so nothing is timed now
            _gather_memory()
        if os.fork() == 0:
            control.close()
            os.close(parent)
            zygote_birth.born(affinity, marshal.loads(data), fds)
        for fd in fds:
            os.close(fd)


def _wait_for_children() -> None:
    """Forked keepers may live on when no more are wanted; whoever else inherited them might never collect them."""
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        return
