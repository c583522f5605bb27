"""A child's process tree, spawned or forked from a zygote: stopped, resumed and ended; and its channel."""

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
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

from kernelwright.sandbox.jail.bubblewrap import namespaces
from kernelwright.sandbox.jail.layers import Jail, Kind, jail_for
from kernelwright.sandbox.jail.zygote import ZYGOTES, Capture, Zygote, ZygoteGone, Zygotes
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import WorkFolder, shared_environment
from kernelwright_child import supervisor

LOG = logging.getLogger("kernelwright.sandbox.jail")
CREDENTIALS = struct.Struct("3i")
"""The kernel's `struct ucred`: process, user, group."""
PACKET_BYTES = 160 * 1024
STOP_TIMEOUT_S, ENDING_TIMEOUT_S, LEAVING_S = 5, 15, 2
POLL_S, LONGEST_POLL_S = 20e-6, 10e-3
STARVED_S, STARVING = 0.25, 10
"""A thread without a core for this long is not late; in total it may take this many times the limit."""


def _readable(fd: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(1000 * max(0.0, timeout_s)))


class Ends(NamedTuple):
    """Descriptors of a child's tree: its channel, its output, and its supervisor's lifeline and status."""

    channel: int
    output: int
    lifeline: int
    status: int


class ChildSpec(NamedTuple):
    kind: Kind
    jail: Jail
    environment: dict[str, str]
    module: str
    """The module of `kernelwright_child` whose `main` runs in the child."""


def spawn(order: ChildSpec, ends: Ends) -> "StartedSupervisor":
    """Start a new interpreter with supervisor and child. Raises `OSError`."""
    command = order.jail.command(["-m", order.module, str(ends.channel)], ends.lifeline, ends.status)
    cores = os.sched_getaffinity(0)
    if order.kind != "builder":  # a timed child has one core per thread; it inherits those of this thread
        os.sched_setaffinity(0, sorted(cores)[: int(order.environment["OMP_NUM_THREADS"])])
    try:
        return _run(command, order, ends, (ends.channel, *order.jail.fds))
    finally:
        os.sched_setaffinity(0, cores)


def fork(order: ChildSpec, ends: Ends, zygote: Zygote) -> "StartedSupervisor | ForkedSupervisor":
    """Let the zygote fork the child; with namespaces, into those of the child's own supervisor.

    Raises `ZygoteGone` and `OSError`. Nothing waits for the zygote: its failure shows when no greeting comes.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    jail = order.jail
    plan = dict(jail.plan)
    if plan["filter"] is not None:
        plan["filter"] = plan["filter"] | {"guarded": [*plan["filter"]["guarded"], zygote.pid]}
    message = {
        "module": order.module,
        "is_timed": order.kind != "builder",
        "environment": order.environment,
        "groups": len(jail.fds),
    }
    try:
        if not jail.prefix:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            fds = (theirs.fileno(), ends.channel, ends.output, ends.lifeline, ends.status, *jail.fds)
            zygote.order(message | {"plan": plan, "namespaces": 0}, fds)
            return ForkedSupervisor(ours.dup(), zygote)
        # A process that enters a user namespace has all capabilities there until it drops them.
        order_to_enter = message | {"plan": plan | {"drop": True}, "namespaces": namespaces()}
        zygote.order(order_to_enter, (theirs.fileno(), ends.channel, ends.output, *jail.fds))
        command = jail.command(["-f", str(ours.fileno())], ends.lifeline, ends.status)
        return _run(command, order, ends, (ours.fileno(),))
    finally:
        ours.close()
        theirs.close()


def _run(command: list[str], order: ChildSpec, ends: Ends, fds: Sequence[int]) -> "StartedSupervisor":
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
    return StartedSupervisor(started)


class StartedSupervisor:
    """A supervisor that is a child of this process, the first of its tree and the last to end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def wait(self, timeout: float | None = None) -> None:
        """Wait for its end; raises `subprocess.TimeoutExpired`. Python's own wait polls only every 50 ms."""
        if self._process.returncode is None and timeout is not None:
            fd = os.pidfd_open(self.pid)
            try:
                if not _readable(fd, timeout):
                    raise subprocess.TimeoutExpired(self._process.args, timeout)
            finally:
                os.close(fd)
        self._process.wait()

    def kill(self) -> None:
        self._process.kill()


class ForkedSupervisor:
    """A supervisor that is not a child of this process. It holds the other end of a socket until it ends."""

    def __init__(self, meeting: socket.socket, zygote: Zygote) -> None:
        self._meeting = meeting
        self._zygote = zygote

    @cached_property
    def pid(self) -> int:
        """The process number, as the kernel reports it; -1 where it ended before its first message."""
        try:
            data, ancillary, _, _ = self._meeting.recvmsg(1, socket.CMSG_SPACE(CREDENTIALS.size))
        except OSError:
            return -1
        return int(CREDENTIALS.unpack(ancillary[0][2])[0]) if data else -1

    def wait(self, timeout: float | None = None) -> None:
        poll = select.poll()
        poll.register(self._meeting, 0)  # the end of the connection is always reported
        if not poll.poll(None if timeout is None else 1000 * timeout):
            raise subprocess.TimeoutExpired("a forked supervisor", timeout or 0)

    def kill(self) -> None:
        """Kill it; where it has not started, kill the zygote that should have forked it."""
        if not _readable(self._meeting.fileno(), 0):
            self._zygote.kill()
        elif self.pid > 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Starter(NamedTuple):
    """The fork of the zygote outside the namespaces that forked the child inside; it ends soon after the child."""

    pid: int
    fd: int


def stat_fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on; none for an ended process."""
    try:
        return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return []


def _parent(pid: int) -> int:
    fields = stat_fields(pid)
    return int(fields[1]) if fields else 0


# Detection of a stopped child. These calls must take microseconds.

STOPPED, ENDED = b"Tt", b"ZX"
"""States of a thread in /proc."""
ON_A_CORE = b"running\n"
"""Content of /proc/PID/task/TID/syscall while a thread is on a core."""
REPORTS_SYSCALLS = os.path.exists("/proc/self/syscall")  # noqa: PTH110
"""Whether this kernel reports that a stopped thread has left its core; Linux on x86_64 and aarch64 does."""
SCHEDULED_CLOCK = 2


def _has_stopped(pid: int) -> bool:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return True
    return all(_is_off_core(f"/proc/{pid}/task/{task}") for task in tasks)


def _wants_a_core(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return any(_state(f"/proc/{pid}/task/{task}") == b"R" for task in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208
    return False


def _is_off_core(task: str) -> bool:
    """Check that a thread is stopped and off its core, or has ended.

    Its state is "stopped" shortly before it leaves the core, and others may delay that. The kernel reports a thread's
    system call only once it has left.
    """
    try:
        if (state := _state(task)) in ENDED:
            return True
        return state in STOPPED and (not REPORTS_SYSCALLS or _read(f"{task}/syscall") != ON_A_CORE)
    except OSError:  # it has ended, or closed itself to the judge: then its result cannot be read either
        return True


def _state(task: str) -> bytes:
    return _read(f"{task}/stat").rpartition(b") ")[2][:1]


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


class ChildGone(Exception):
    """The child ended, or broke the protocol, as the text says."""


class ChildLate(Exception):
    """The child did not answer in time."""


class Child:
    """One child process tree in a jail, with a packet channel.

    The supervisor inside the jail ends the whole tree when this object is closed or this process dies.
    """

    def __init__(
        self, kind: Kind, folder: WorkFolder, settings: JudgeSettings, zygotes: Zygotes | None = ZYGOTES
    ) -> None:
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
                environment = folder.environment(settings.threads, steady=kind != "builder")
                order = ChildSpec(kind, self._jail, environment, f"kernelwright_child.{kind}")
                self._root = fork(order, ends, zygote) if zygote else spawn(order, ends)
            ours.pop_all()
        self._lifeline = lifeline
        self.layers = self._jail.layers
        self.pid = 0
        """The process that speaks, in this process's numbering; known once it has greeted."""
        self._starter: Starter | None = None
        self._own: frozenset[int] = frozenset()
        self.ending = ""

    def _open(self, ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[Ends, int]:
        """Return the tree's descriptors, which `theirs` closes, and our end of its lifeline.

        `ours` closes our ends where the start fails.
        """
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
        LOG.info("a %s is spawned, since no fork of process %d came up: %s", self._wanted[0], self._zygote.pid, why)
        self._zygotes.failed(self._zygote, str(why))
        try:
            self._start(None)
        except OSError as error:
            raise MachineError(f"no child process can be started ({error}); end some processes") from None

    @property
    def way(self) -> Literal["forked", "spawned"]:
        """`forked` from a process that has imported torch, or `spawned` as a program that imports it."""
        return "spawned" if self._zygote is None else "forked"

    def greet(self, deadline: float) -> None:
        """Wait for the first message. A fork that fails before it is replaced by a spawned child."""
        try:
            self._receive_greeting(deadline)
        except ChildGone as error:
            if self._zygote is None:
                raise
            self.close()
            self._start_by_itself(error)
            self._receive_greeting(deadline)
        else:
            if self._zygotes is not None:
                self._zygotes.succeeded()

    def _receive_greeting(self, deadline: float) -> None:
        """Receive the first message. The kernel reports its sender, whatever namespaces that one lives in."""
        if not self.has_spoken(deadline - time.monotonic()):
            raise ChildLate
        data, ancillary, _, _ = self._channel.recvmsg(PACKET_BYTES, socket.CMSG_SPACE(CREDENTIALS.size))
        if not data:
            raise ChildGone(f"the child did not start{self._how_it_ended()}: {self._capture.so_far()}")
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                self.pid = CREDENTIALS.unpack(content)[0]
        parent = _parent(self.pid) if self._zygote else 0
        if self._zygote and parent and _parent(parent) == self._zygote.pid:
            self._starter = Starter(parent, os.pidfd_open(parent))
        if self.pid not in self._tree():
            raise ChildGone("the first message came from a process that is not the child's")
        # Nothing of the candidate has run: all these processes are the jail's.
        self._own = frozenset(self._tree()) | frozenset(self._jail.members() or ())

    def send(self, message: dict[str, Any], *fds: int) -> None:
        """Send one message. A message of the child without a question is a breach of the protocol."""
        if self.has_spoken(0):
            self.receive(time.monotonic())
            raise ChildGone("the child sent a message without a question")
        data = json.dumps(message).encode()
        if len(data) > PACKET_BYTES:
            raise MachineError(f"a call needs a message of {len(data)} bytes; the limit is {PACKET_BYTES}")
        try:
            if fds:
                socket.send_fds(self._channel, [data], list(fds))
            else:
                self._channel.send(data)
        except BlockingIOError:
            raise ChildGone("the child does not read its messages") from None
        except OSError:
            raise ChildGone(f"the child closed its channel{self._how_it_ended()}") from None

    def has_spoken(self, timeout_s: float) -> bool:
        return _readable(self._channel.fileno(), timeout_s)

    def receive(self, deadline: float) -> dict[str, Any]:
        """Return the next message, before `deadline` on the monotonic clock."""
        if not self.has_spoken(deadline - time.monotonic()):
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
            raise ChildGone("the child sent something that is not a message")
        return message

    def stop(self) -> None:
        """Stop the child, and return only when all its threads are stopped and off their cores.

        From then on `cpu_ms` stays constant to the nanosecond until something wakes a thread.
        """
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)
        start = last = time.monotonic()
        # Its clock is first read in the loop: this is part of a timed call, and most children stop at once.
        counted_s, used_ms, pause_s = 0.0, -1.0, POLL_S
        while not _has_stopped(self.pid):
            now = time.monotonic()
            if now - last >= STARVED_S:
                before_ms, used_ms = used_ms, self.cpu_ms()
                # A ready thread without a core is kept from stopping by the machine.
                counted_s += now - last if used_ms != before_ms or not _wants_a_core(self.pid) else 0.0
                last = now
            if counted_s > STOP_TIMEOUT_S or now - start > STARVING * STOP_TIMEOUT_S:
                raise ChildGone("the child could not be stopped")
            time.sleep(pause_s)  # frees the core, which the thread that has yet to stop may need
            pause_s = min(2 * pause_s, LONGEST_POLL_S)  # frequent wakes on a busy core may keep it from running

    def resume(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def cpu_ms(self) -> float:
        """Return the processor time of all its threads so far, ended ones included; 0 after its end."""
        try:
            # The clock of another process, as clock_getcpuclockid(3) makes it.
            return time.clock_gettime_ns((~self.pid << 3) | SCHEDULED_CLOCK) / 1e6
        except OSError:
            return 0.0

    def offspring(self) -> list[int]:
        """Return living processes that the child has started, without those of the jail."""
        members = self._jail.members()
        if members is not None:
            return [pid for pid in members if pid not in self._own]
        # The quick search comes first: a process could finish its work while all of /proc is read.
        found = [pid for pid in self.processes() if pid not in self._own]
        return found or [pid for pid in self._tree() if pid not in self._own]

    def processes(self) -> list[int]:
        """Return the processes of the child and its jail, quickly: one that is just starting may be missing."""
        roots = self._roots()
        return [*roots, *(pid for root in roots for pid in supervisor.offspring(root))]

    def _tree(self) -> list[int]:
        """Return all processes of the child and its jail, ten times as slowly as `processes`."""
        roots = self._roots()
        return [*roots, *supervisor.descendants(*roots)]

    def _roots(self) -> list[int]:
        pids = [int(getattr(first, "pid", -1)) for first in (self._root, self._starter)]
        return [pid for pid in pids if pid > 0]

    def _how_it_ended(self, timeout_s: float = 1) -> str:
        if not self.ending and _readable(self._status, timeout_s):
            self.ending = os.read(self._status, 64).decode()
        kind, _, what = self.ending.partition(" ")
        if kind == "signal":
            why = ": out of memory" if self._jail.ran_out_of_memory() else ""
            names = {number.value: number.name for number in signal.Signals}
            return f" (killed by {names.get(int(what), self.ending)}{why})"
        if kind == "limit":
            return " (it filled the disk)" if what == "disk" else f" (its {what} grew above the limit)"
        return f" (exit code {what})" if kind == "exit" else ""

    def ran_out_of_memory(self, timeout_s: float = 1) -> bool:
        """True if it, or a process of it, ended for lack of memory. For a child that goes on, there is no end to await.

        A machine without memory sends SIGKILL, which a candidate may send to itself.
        """
        if self._lifeline >= 0:
            self._how_it_ended(timeout_s)
        killed = self._wanted[0] == "reference" and self.ending == f"signal {signal.SIGKILL:d}"
        return killed or self.ending == "limit memory" or self._jail.ran_out_of_memory()

    def output(self) -> str:
        """Return head and tail of the child's output; call after `close`."""
        return self._capture.text()

    def close(self) -> None:
        if self._lifeline < 0:
            return
        os.close(self._lifeline)
        self._lifeline = -1
        self._channel.close()
        try:
            self._root.wait(timeout=ENDING_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # something outside the jail has stopped the supervisor
            self._jail.end()
            for pid in self._tree():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._root.kill()
            self._root.wait()
        if self._starter:
            _readable(self._starter.fd, LEAVING_S)
            os.close(self._starter.fd)
        os.close(self._status)
        self._jail.close()
