"""Starting, stopping, continuing and ending a child; talking to it in bounded packets."""

import contextlib
import json
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from kernelwright.sandbox.jail.bubblewrap import namespaces
from kernelwright.sandbox.jail.layers import Jail, Kind, jail_for
from kernelwright.sandbox.jail.zygote import ZYGOTES, Capture, Zygote, ZygoteGone, Zygotes
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.workfolder import WorkFolder, shared_environment
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


STOPPED, ENDED = b"Tt", b"ZX"
"""States of a thread in /proc."""
ON_A_CORE = b"running\n"
"""What /proc/PID/task/TID/syscall holds of a thread that runs; of another it tells once that one has left its core."""
TELLS_REST = os.path.exists("/proc/self/syscall")  # noqa: PTH110 - this file is about calls that take microseconds
"""Whether this kernel tells when a stopped thread has left its core; Linux on x86_64 and aarch64 does."""
SCHEDULED_CLOCK = 2


def stands_still(pid: int) -> bool:
    """Whether every thread is stopped and off its core; also where the process has gone.

    From then on `cpu_ms` stays the same to the nanosecond for as long as nothing wakes a thread.
    """
    try:
        tasks = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return True
    return all(_rests(f"/proc/{pid}/task/{task}") for task in tasks)


def cpu_ms(pid: int) -> float:
    """Processor time of all threads of a process so far, ended ones included; 0 where it has gone."""
    try:
        # The clock of another process, as clock_getcpuclockid(3) makes it.
        return time.clock_gettime_ns((~pid << 3) | SCHEDULED_CLOCK) / 1e6
    except OSError:
        return 0.0


def _rests(task: str) -> bool:
    """Whether a thread is stopped and off its core, or has ended.

    It counts as stopped a moment before it leaves its core, and others may keep it from leaving: so it is asked for the
    system call that it is in, which the kernel tells only of one that has left.
    """
    try:
        state = _read(f"{task}/stat").rpartition(b") ")[2][:1]
    except OSError:
        return True
    if state in ENDED:
        return True
    return state in STOPPED and (not TELLS_REST or _is_off_its_core(task))


def _is_off_its_core(task: str) -> bool:
    try:
        return _read(f"{task}/syscall") != ON_A_CORE
    except OSError:  # it has ended, or closed itself to the judge: then its result can not be read either
        return True


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


LOG = logging.getLogger("kernelwright.sandbox.jail")
PACKET_BYTES = 160 * 1024
FREEZE_TIMEOUT_S, ENDING_TIMEOUT_S = 5, 15
POLL_S, LONGEST_POLL_S = 20e-6, 2e-3


class ChildGone(Exception):
    """The child ended, or broke the protocol; the text says how."""


class ChildLate(Exception):
    """The child did not answer in time."""


class Child:
    """One child process tree in a jail, with a packet channel.

    The keeper inside the jail ends the whole tree when this object is closed or this process dies.
    """

    def __init__(self, kind: Kind, folder: WorkFolder, settings: Settings, zygotes: Zygotes | None = ZYGOTES) -> None:
        self._wanted = kind, folder, settings
        self._zygotes = zygotes
        shared = shared_environment(settings.threads, steady=True)
        zygote = zygotes.find(shared, folder.imports) if zygotes else None
        try:
            self._start(zygote)
        except (OSError, ZygoteGone) as error:
            self._start_by_itself(error)

    def _start(self, zygote: Zygote | None) -> None:
        """Start the tree, forked where there is a zygote. Raises `OSError` and `ZygoteGone`, with nothing left open."""
        kind, folder, settings = self._wanted
        self._zygote = zygote
        self._lifeline = -1
        with contextlib.ExitStack() as ours:
            self._jail = jail_for(kind, folder, settings)
            ours.callback(self._jail.close)
            with contextlib.ExitStack() as theirs:
                ends, lifeline = self._open(ours, theirs)
                order = ChildSpec(kind, self._jail, folder.environment(settings.threads, steady=kind != "builder"))
                self._root: Root = fork(order, ends, zygote) if zygote else spawn(order, ends)
            ours.pop_all()
        self._lifeline = lifeline
        self.layers = self._jail.layers
        self.pid = 0
        """The process that speaks, in this process's numbering; known once it has greeted."""
        self._starter: Starter | None = None
        self._own: frozenset[int] = frozenset()
        self.ending = ""

    def _open(self, ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[Ends, int]:
        """What a tree gets, to be closed here in any case, and our end of its lifeline; ours are for where it fails."""
        self._capture = Capture()
        theirs.callback(self._capture.start)
        self._channel, channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.callback(self._channel.close)
        theirs.callback(channel.close)
        self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * PACKET_BYTES)
        self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        # A child that does not read must not be able to block the judge, and one that answers has read.
        self._channel.setblocking(False)
        lifeline_read, lifeline = os.pipe()
        ours.callback(os.close, lifeline)
        theirs.callback(os.close, lifeline_read)
        self._status, status_write = os.pipe()
        ours.callback(os.close, self._status)
        theirs.callback(os.close, status_write)
        return Ends(channel.fileno(), self._capture.write_fd, lifeline_read, status_write), lifeline

    def _start_by_itself(self, why: Exception) -> None:
        if self._zygote is None or self._zygotes is None:
            raise MachineError(f"no child process can be started ({why}); end some processes") from None
        LOG.info(
            "a %s is started by itself, since no fork of process %d came up: %s", self._wanted[0], self._zygote.pid, why
        )
        self._zygotes.failed(self._zygote, str(why))
        try:
            self._start(None)
        except OSError as error:
            raise MachineError(f"no child process can be started ({error}); end some processes") from None

    @property
    def way(self) -> Literal["forked", "spawned"]:
        """Whether it is a fork of a process that has torch imported, or a program that imports it anew."""
        return "spawned" if self._zygote is None else "forked"

    def greet(self, deadline: float) -> None:
        """Wait for the child's first word. A fork that fails before it is replaced by a child that needs no zygote."""
        try:
            self._hear(deadline)
        except ChildGone as error:
            if self._zygote is None:
                raise
            self.close()
            self._start_by_itself(error)
            self._hear(deadline)
        else:
            if self._zygotes is not None:
                self._zygotes.succeeded()

    def _hear(self, deadline: float) -> None:
        """The first word. The kernel says which process sent it, whatever namespaces it lives in."""
        if not _readable(self._channel.fileno(), deadline - time.monotonic()):
            raise ChildLate
        data, ancillary, _, _ = self._channel.recvmsg(PACKET_BYTES, socket.CMSG_SPACE(CREDENTIALS.size))
        if not data:
            raise ChildGone(f"the child did not start{self._how_it_ended()}: {self._capture.so_far()}")
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                self.pid = CREDENTIALS.unpack(content)[0]
        self._starter = starter_of(self.pid, self._zygote)
        if self.pid not in self._tree():
            raise ChildGone("the first word came from a process that is not the child's")
        # Nothing of the candidate has run: whatever is there is the jail's.
        self._own = frozenset(self._tree()) | frozenset(self._jail.members() or ())

    def send(self, message: dict[str, Any], *fds: int) -> None:
        """Send one message. Anything that the child said unasked is a breach of the protocol."""
        if _readable(self._channel.fileno(), 0):
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
        except BlockingIOError:
            raise ChildGone("the child does not read what it is asked") from None
        except OSError:
            raise ChildGone(f"the child closed its channel{self._how_it_ended()}") from None

    def has_spoken(self, timeout_s: float) -> bool:
        """Whether there is a message, or its end, to be received; waits for so long."""
        return _readable(self._channel.fileno(), timeout_s)

    def receive(self, deadline: float) -> dict[str, Any]:
        """The next message, before `deadline` on the monotonic clock."""
        if not _readable(self._channel.fileno(), deadline - time.monotonic()):
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
        """Stop the child, and return only when every thread of it is stopped and off its core.

        From then on `cpu_ms` stays the same to the nanosecond for as long as nothing wakes a thread of it.
        """
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)
        limit, pause_s = time.monotonic() + FREEZE_TIMEOUT_S, POLL_S
        while not stands_still(self.pid):
            if time.monotonic() > limit:
                raise ChildGone("the child could not be stopped")
            time.sleep(pause_s)  # gives the core back: the thread that has yet to stop may need this very one
            pause_s = min(2 * pause_s, LONGEST_POLL_S)  # who wakes often on a busy core may keep it from running at all

    def offspring(self) -> list[int]:
        """Processes that the child has started and that still live; the jail's own are none of them."""
        members = self._jail.members()
        if members is not None:
            return self._alien(members)
        # The whole of /proc takes a while to read, in which one could still finish its work.
        seen = self._alien(quick_processes_of(self._root, self._starter))
        return seen or self._alien(self._tree())

    def processes(self) -> list[int]:
        """All of the child and of its jail, quickly: one that is just being started may be missing."""
        return quick_processes_of(self._root, self._starter)

    def _alien(self, pids: Iterable[int]) -> list[int]:
        return [pid for pid in pids if pid not in self._own]

    def _tree(self) -> list[int]:
        return processes_of(self._root, self._starter)

    def thaw(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def cpu_ms(self) -> float:
        """Processor time of all threads of the child so far, ended ones included; 0 where it has gone."""
        return cpu_ms(self.pid)

    def _how_it_ended(self) -> str:
        if not self.ending and _readable(self._status, 1):
            self.ending = os.read(self._status, 64).decode()
        kind, _, what = self.ending.partition(" ")
        if kind == "signal":
            why = ": out of memory" if self._jail.ran_out_of_memory() else ""
            return f" (killed by {_signal_name(int(what))}{why})"
        if kind == "limit":
            return " (it filled the disk)" if what == "disk" else f" (its {what} grew above the limit)"
        return f" (exit code {what})" if kind == "exit" else ""

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether want of memory has ended it.

        A system that runs out of memory itself just kills, which a candidate may do to itself.
        """
        if self._lifeline >= 0:
            self._how_it_ended()
        killed = self._wanted[0] == "reference" and self.ending == f"signal {signal.SIGKILL:d}"
        return killed or self.ending == "limit memory" or self._jail.ran_out_of_memory()

    def output(self) -> str:
        """What the child printed, head and tail; call after `close`."""
        return self._capture.text()

    def close(self) -> None:
        if self._lifeline < 0:
            return
        os.close(self._lifeline)
        self._lifeline = -1
        self._channel.close()
        try:
            self._root.wait(timeout=ENDING_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._end_by_force()
        if self._starter:
            self._starter.wait()
        os.close(self._status)
        self._jail.close()

    def _end_by_force(self) -> None:
        """For a keeper that does not answer, which only something outside the jail can bring about."""
        self._jail.end()
        for pid in self._tree():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._root.kill()
        self._root.wait()


def _readable(fd: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(1000 * max(0.0, timeout_s)))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
