"""The two ways to start a child's process tree: by itself, importing everything anew, or forked from a zygote."""

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import struct
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

from kernelwright.sandbox.jail.bubblewrap import namespaces
from kernelwright.sandbox.jail.layers import Jail, Kind
from kernelwright.sandbox.jail.zygote import ZYGOTES, Zygote
from kernelwright.sandbox.machine.workfolder import shared_environment, sweep
from kernelwright_child import keeper

MODULES: dict[Kind, str] = {
    "builder": "kernelwright_child.builder",
    "worker": "kernelwright_child.worker",
    "reference": "kernelwright_child.reference",
}
CREDENTIALS = struct.Struct("3i")
"""The kernel's `struct ucred`: process, user, group."""

LEAVING_S = 2


class Ends(NamedTuple):
    """The descriptors that a child's tree gets: what it speaks through, what it prints to, and its keeper's two."""

    channel: int
    output: int
    lifeline: int
    status: int


class ChildSpec(NamedTuple):
    """What is to be started."""

    kind: Kind
    jail: Jail
    environment: dict[str, str]


class Root(Protocol):
    """The first process of a tree. It ends when the whole tree has."""

    def wait(self, timeout: float | None = None) -> object:
        """Until it has ended; raises `subprocess.TimeoutExpired`."""

    def kill(self) -> None:
        """End this one by force."""


def spawn(order: ChildSpec, ends: Ends) -> Root:
    """Start interpreter, keeper and child anew. Raises `OSError`."""
    inner = ["-m", MODULES[order.kind], str(ends.channel)]
    command = order.jail.command(inner, ends.lifeline, ends.status)
    cores = os.sched_getaffinity(0)
    if order.kind != "builder":  # a child that is timed has a core a thread; it inherits this thread's
        os.sched_setaffinity(0, sorted(cores)[: int(order.environment["OMP_NUM_THREADS"])])
    try:
        return _run(command, order, ends, (ends.channel, *order.jail.fds))
    finally:
        os.sched_setaffinity(0, cores)


def fork(order: ChildSpec, ends: Ends, zygote: Zygote) -> Root:
    """Have the zygote fork the child; where there are namespaces, into those that a keeper of its own makes.

    Raises `ZygoteGone` and `OSError`. Nobody has to wait for the zygote: what it does not do shows in the greeting.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    jail = order.jail
    plan = dict(jail.plan)
    if plan["filter"] is not None:
        plan["filter"] = plan["filter"] | {"guarded": [*plan["filter"]["guarded"], zygote.pid]}
    message = {
        "module": MODULES[order.kind],
        "is_timed": order.kind != "builder",
        "environment": order.environment,
        "groups": len(jail.fds),
    }
    try:
        if not jail.prefix:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            fds = (theirs.fileno(), ends.channel, ends.output, ends.lifeline, ends.status, *jail.fds)
            zygote.order(message | {"plan": plan, "namespaces": 0}, fds)
            return ForkedKeeper(ours.dup(), zygote)
        # In a user namespace of its own, whoever enters has all capabilities there until it gives them up.
        order_to_enter = message | {"plan": plan | {"drop": True}, "namespaces": namespaces()}
        zygote.order(order_to_enter, (theirs.fileno(), ends.channel, ends.output, *jail.fds))
        return _run(jail.guard(ours.fileno(), ends.lifeline, ends.status), order, ends, (ours.fileno(),))
    finally:
        ours.close()
        theirs.close()


def _run(command: list[str], order: ChildSpec, ends: Ends, fds: Sequence[int]) -> Root:
    started = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=ends.output,
        stderr=ends.output,
        cwd="/",
        env=order.environment,
        pass_fds=(ends.lifeline, ends.status, *fds),
        start_new_session=True,
    )
    return StartedKeeper(started)


class StartedKeeper:
    """A keeper that is a child of this process. Python's own wait with a limit would look only every 50 ms."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def wait(self, timeout: float | None = None) -> None:
        """Until it has ended; raises `subprocess.TimeoutExpired`."""
        if self._process.returncode is None and timeout is not None and not _has_ended(self.pid, timeout):
            raise subprocess.TimeoutExpired(self._process.args, timeout)
        self._process.wait()

    def kill(self) -> None:
        self._process.kill()


class ForkedKeeper:
    """A keeper that is no child of this process. It holds the other end of a socket for as long as it lives."""

    def __init__(self, meeting: socket.socket, zygote: Zygote) -> None:
        self._meeting = meeting
        self._zygote = zygote

    @cached_property
    def pid(self) -> int:
        """Its number; the kernel vouches for it. -1 where it ended before it said a word."""
        try:
            data, ancillary, _, _ = self._meeting.recvmsg(1, socket.CMSG_SPACE(CREDENTIALS.size))
        except OSError:
            return -1
        return int(CREDENTIALS.unpack(ancillary[0][2])[0]) if data else -1

    def wait(self, timeout: float | None = None) -> None:
        """Until it has ended; raises `subprocess.TimeoutExpired`."""
        poll = select.poll()
        poll.register(self._meeting, 0)  # the end of the connection is always told
        if not poll.poll(None if timeout is None else 1000 * timeout):
            raise subprocess.TimeoutExpired("a forked keeper", timeout or 0)

    def kill(self) -> None:
        """End it; where it has not even begun, the zygote that should have made it."""
        poll = select.poll()
        poll.register(self._meeting, select.POLLIN)
        if not poll.poll(0):
            self._zygote.kill()
        elif self.pid > 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Starter:
    """The process outside a child's namespaces that has started it there; it ends soon after the child."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def wait(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.poll(1000 * LEAVING_S)
        os.close(self._fd)


def _has_ended(pid: int, timeout: float) -> bool:
    """Whether a process that nobody has collected ends within so many seconds."""
    fd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(1000 * timeout))
    finally:
        os.close(fd)


def processes_of(*firsts: Root | Starter | None) -> list[int]:
    """The trees' processes with the first of each; empty where there is none yet."""
    roots = _pids(firsts)
    return [*roots, *keeper.descendants(*roots)]


def quick_processes_of(*firsts: Root | Starter | None) -> list[int]:
    """The same in a tenth of the time; one that is just being started or handed on may be missing."""
    roots = _pids(firsts)
    return [*roots, *(pid for root in roots for pid in keeper.offspring(root))]


def _pids(firsts: Iterable[Root | Starter | None]) -> list[int]:
    pids = [int(getattr(first, "pid", -1)) for first in firsts]
    return [pid for pid in pids if pid > 0]


def starter_of(child: int, zygote: Zygote | None) -> Starter | None:
    """The parent of a child, where it is a fork of this zygote; None where the child was started by itself."""
    if zygote is None:
        return None
    parent = _parent(child)
    return Starter(parent) if parent and _parent(parent) == zygote.pid else None


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def become_a_judge(threads: int | None = None, behind: bool = False) -> None:
    """Keep freed memory, leave cores alone, be closed to other processes of the same user, and have children prepared.

    Call it before torch is imported here: the process that children are forked from imports it meanwhile. `threads` as
    in the settings; None for as many as there are cores. What killed judges have left is removed.
    `behind`: for a process that another waits for: ends with it, leaves Ctrl-C to it, and is killed first.
    """
    if behind:
        parent_death_signal = 1
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("500")
    keep_freed_memory()
    rest_between_loops()
    give_back_device_memory_whole()
    protect_this_process()
    ZYGOTES.find(shared_environment(threads or len(os.sched_getaffinity(0)), steady=True))
    sweep()


@contextmanager
def imports_that_stay() -> Iterator[None]:
    """For imports of torch and what needs it: meanwhile the garbage collector rests, and it passes over them later.

    Looking through them takes a sixth of the time of importing them, and 80 ms each time that it comes to it later,
    which may be in a timed call.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees.

    The judge handles results of tens of megabytes thousands of times; with glibc's defaults each one is mapped afresh
    and costs a page fault for every 4 KiB, which took most of the time of a comparison. All threads share what is kept:
    a thread's own store gives such pieces back each time.
    """
    mmap_max, trim_threshold, arena_max = -4, -1, -8
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(arena_max, 1)
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, 2**31 - 1)


def give_back_freed_memory() -> None:
    """Give what `keep_freed_memory` keeps back to the machine, which else counts it as taken: before a new problem."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def rest_between_loops() -> None:
    """Let the threads of torch's loops here sleep as soon as a loop has ended; call it before torch is imported.

    Otherwise they wait for the next one on their cores, for milliseconds: while a call is timed there already, which
    then took three times as long as others.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def give_back_device_memory_whole() -> None:
    """Let torch give back device memory of which a piece is still in use; call it before torch uses the device here.

    The judge handles results of gigabytes. Where a small one is cut off the memory of a large one, the rest could
    otherwise not be given back for as long as the small one lives. Children choose for themselves.
    """
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")


def protect_this_process() -> None:
    """Let no process of the same user read or write this one's memory.

    It costs core dumps and debuggers. Processes that this one starts are not affected.
    """
    set_dumpable = 4
    ctypes.CDLL(None).prctl(set_dumpable, 0, 0, 0, 0)
