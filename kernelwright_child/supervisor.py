"""The supervisor of one child: it starts the child confined, and ends all of its processes.

`main([LIFELINE, STATUS, PLAN, COMMAND...])` runs in a separate process. LIFELINE is a descriptor whose end of file
means "end the child"; it closes too when the judge dies. STATUS receives one line at the end: `exit N`, `signal N`, or
`limit WHAT`. This process is the sub-reaper of the child's orphans, so a daemon that forks twice is found and killed.
PLAN is a dictionary, marshalled and in hexadecimal digits; see `confine.confine` and `Watch`. COMMAND is one of

- `-m MODULE ...`: call the module's `main()` in this interpreter, since another start would double the cost;
- `-S -c CODE ...`: run the code without site-packages;
- `-f MEETING`: the child is a fork of the zygote, which enters this process's namespaces through the descriptor
  MEETING (see `kernelwright_child.zygote`).

In its own process namespace it is process 1: nothing inside can send it an unwanted signal, and the kernel ends all
others when it ends. Elsewhere it ends them itself.

Every child waits for this process's start, so it imports next to nothing: `signal`, `json` or `typing` would each cost
as much as bubblewrap.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import select
import sys
import time

from kernelwright_child.confine import confine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, NoReturn

PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGSTOP = 1, 2, 9, 15, 19
DEFAULT, IGNORE = 0, 1
WATCH_S = 0.5
"""Interval of the checks of the folder, and of the collection of ended orphans."""
MEMORY_WATCH_S = 0.1
"""Interval of the checks of memory without a control group: it fills at gigabytes a second."""
REAPED_AT_ONCE = 4096
"""After this many the lifeline is checked again: orphans may appear as fast as they are collected."""
INIT = 1
CREDENTIALS_BYTES = 12
"""The kernel's `struct ucred`: process, user, group."""
FAILED = 127


def main(arguments: list[str], wait_for_groups: Callable[[], None]) -> None:
    """Run the command until it ends, exceeds a limit or the lifeline closes; kill its processes; never return.

    `wait_for_groups` returns when this process is in its control groups, and raises `OSError` where it cannot enter.
    """
    lifeline, status, plan = int(arguments[0]), int(arguments[1]), marshal.loads(bytes.fromhex(arguments[2]))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    handle_signals(libc, IGNORE)
    if plan["filter"] is not None:
        plan["filter"]["guarded"].append(os.getpid())
    wait_for_groups()
    command = arguments[3:]
    if command[0] == "-f":
        child: ForkedChild | Guest | None = _invite(int(command[1]), lifeline)
    else:
        pid = os.fork()
        if pid == 0:
            _become(libc, command, plan, (lifeline, status))
        child = ForkedChild(pid)
    # A child of the same user could otherwise read and write this process.
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    supervise(child, lifeline, status, plan)


def supervise(child: ForkedChild | Guest | None, lifeline: int, status: int, plan: dict[str, Any]) -> NoReturn:
    """Wait for the child (None: it never came), an exceeded limit or the lifeline; end all, and report the reason."""
    ending = ""
    try:
        ending = _wait(child, lifeline, Watch(plan)) if child else f"exit {FAILED}"
    finally:
        end_all()
        os.write(status, ending.encode())
        os._exit(0)


class ForkedChild:
    def __init__(self, pid: int) -> None:
        self.fd = os.pidfd_open(pid)
        self._pid = pid

    def tree(self) -> list[int]:
        return offspring(os.getpid())

    def ending(self) -> str:
        """Collect ended processes; return the child's ending, empty while it lives."""
        return _reap(self._pid)


class Guest:
    """A fork of the zygote inside this process's namespaces. Its parent outside reports its end through `fd`."""

    def __init__(self, pid: int, fd: int) -> None:
        self.fd = fd
        self._pid = pid
        self._reports = select.poll()
        self._reports.register(fd, select.POLLIN)

    def tree(self) -> list[int]:
        return [self._pid, *offspring(self._pid), *offspring(os.getpid())]

    def ending(self) -> str:
        _reap(self._pid)
        if not self._reports.poll(0):
            return ""
        return os.read(self.fd, 64).decode() or f"signal {SIGKILL}"


def _invite(meeting: int, lifeline: int) -> Guest | None:
    """Let a fork of the zygote into the namespaces of this process; None where it does not come."""
    import _socket  # the module `socket` costs as much as all other imports together

    point = _socket.socket(fileno=meeting)
    point.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)
    own = os.pidfd_open(os.getpid())
    point.sendmsg([b"!"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, own.to_bytes(4, sys.byteorder))])
    os.close(own)
    poll = select.poll()
    poll.register(meeting, select.POLLIN)
    poll.register(lifeline, select.POLLIN)
    if lifeline in [fd for fd, _ in poll.poll()]:
        return None
    try:
        data, ancillary, _, _ = point.recvmsg(1, _socket.CMSG_SPACE(CREDENTIALS_BYTES))
    except ConnectionError:  # it ended before it read the message
        return None
    if not data:
        return None
    return Guest(int.from_bytes(ancillary[0][2][:4], sys.byteorder), point.detach())


def handle_signals(libc: ctypes.CDLL, how: int) -> None:
    """Set the handling of signals that request an end, which the supervisor ignores: its judge ends it."""
    for number in (SIGHUP, SIGINT, SIGTERM):
        libc.signal(number, ctypes.c_void_p(how))


def _become(libc: ctypes.CDLL, command: list[str], plan: dict[str, Any], private: tuple[int, ...]) -> None:
    """Start a session, confine this process, and run the command."""
    try:
        for fd in private:
            os.close(fd)
        os.setsid()
        handle_signals(libc, DEFAULT)
        confine(libc, plan)
    except BaseException as error:
        print(f"the child could not be confined: {error}", file=sys.stderr, flush=True)
        os._exit(127)
    try:
        _run(command)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _run(command: list[str]) -> None:
    del sys.path[0]  # this package is imported, and its neighbours are not for the child
    if command[0] == "-S":
        sys.argv = ["-c", *command[3:]]
        exec(command[2], {"__name__": "__main__"})
        return
    import importlib
    import site

    site.main()
    sys.argv = command[1:]
    importlib.import_module(command[1]).main()


def _wait(child: ForkedChild | Guest, lifeline: int, watch: Watch) -> str:
    """Wait for the child's end, an exceeded limit or the lifeline's end, and collect orphans."""
    interval = WATCH_S if watch.memory is None else MEMORY_WATCH_S
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.register(child.fd, select.POLLIN)
    searched = time.monotonic()
    while True:
        ready = [fd for fd, _ in poll.poll(1000 * interval)]
        if lifeline in ready:
            return "ended"
        ending = child.ending()
        if ending:
            return ending
        tree = child.tree()
        broken = watch.quick(tree)
        if not broken and time.monotonic() - searched >= WATCH_S:
            broken, searched = watch.thorough(tree), time.monotonic()
        if broken:
            return f"limit {broken}"


def _reap(child: int) -> str:
    """Collect ended processes; return the child's ending, if it is among them."""
    for _ in range(REAPED_AT_ONCE):
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ""
        if pid == 0:
            return ""
        if pid == child:
            return how(code)
    return ""


def how(code: int) -> str:
    number = os.waitstatus_to_exitcode(code)
    return f"signal {-number}" if number < 0 else f"exit {number}"


def end_all() -> None:
    """Kill and collect every process below this one; process 1 leaves that to the kernel, which misses none."""
    while os.getpid() != INIT:
        found: set[int] = set()
        # Stop all before killing one: each that is killed allows another one to fork.
        while new := set(descendants(os.getpid())) - found:
            _signal(new, SIGSTOP)
            found |= new
        _signal(found, SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue


def offspring(root: int) -> list[int]:
    """Return the processes below `root`, quickly: one that is starting or changing its parent may be missing."""
    found = [root]
    for pid in found:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                    found.extend(map(int, file.read().split()))
        except FileNotFoundError:
            if pid == root:  # a kernel without these files
                return descendants(root)
        except OSError:
            continue
    return found[1:]


def descendants(*roots: int) -> list[int]:
    """Return all processes below `roots` from one scan of /proc, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with open(f"/proc/{entry.name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid for root in roots for pid in children.get(root, [])]
    for pid in found:
        found.extend(children.get(pid, []))
    return found


# Limits that no resource limit of the kernel covers: the memory of a process tree, and its files on disk. A process
# that the supervisor may not inspect counts with its visible part.

ENTRY_BYTES = 4096
"""Counted for each file and folder besides its blocks: a million empty files fill a disk too."""
LONGEST_PATH = 2048
"""No build makes longer paths, and the kernel refuses paths beyond 4096."""
RESERVE_BYTES = 2**30


class Watch:
    """A comparison of a tree's use with the plan's `memory` (None: not limited), `folder` and `folder_bytes`."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.memory: int | None = plan["memory"]
        self.folder: str | None = plan["folder"]
        self.folder_bytes: int = plan["folder_bytes"] or 0
        if self.folder is not None:
            self._device = os.stat(self.folder).st_dev
            self._reserve = min(RESERVE_BYTES, _free(self.folder) // 2)

    def quick(self, pids: Iterable[int]) -> str:
        """Return `memory` where these processes have mapped too much, else nothing. Tens of microseconds."""
        return "memory" if self.memory is not None and sum(map(resident, pids)) > self.memory else ""

    def thorough(self, pids: Iterable[int]) -> str:
        """Return the exceeded limit, `memory`, `folder` or `disk`, or nothing. About a millisecond."""
        if self.folder is None:
            return ""
        nameless: dict[tuple[int, int], int] = {}
        for pid in pids:
            nameless.update(_nameless(pid))
        on_disk = sum(held for (device, _), held in nameless.items() if device == self._device)
        # The others are memory of memfd_create(2), or unlinked from a tmpfs. Mapped ones were counted already.
        if self.memory is not None and sum(nameless.values()) - on_disk > self.memory:
            return "memory"
        if on_disk + size_on_disk(self.folder, self.folder_bytes) > self.folder_bytes:
            return "folder"
        # The last resort, for files that can be hidden from the count.
        return "disk" if _free(self.folder) < self._reserve else ""


def resident(pid: int) -> int:
    """Return the anonymous and shared memory of a process in bytes, without mapped files, which the kernel can drop.

    Shared pages count for each process, so a sum over several is an upper bound.
    """
    total = 0
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith((b"RssAnon:", b"RssShmem:")):
                    total += int(line.split()[1]) * 1024
    except OSError:
        return 0
    return total


def _nameless(pid: int) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield device, number and bytes of open files that were unlinked."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        try:
            found = os.stat(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if found.st_nlink == 0 and found.st_blocks:
            yield (found.st_dev, found.st_ino), found.st_blocks * 512


def size_on_disk(folder: str, enough: int) -> int:
    """Count the bytes on disk below a folder until there are more than `enough`.

    A folder that its own user cannot read, or that lies too deep, counts as too much.
    """
    total, folders = 0, [folder]
    while folders and total <= enough:
        path = folders.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    total += ENTRY_BYTES + _blocks(entry)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return enough + 1
        if len(path) > LONGEST_PATH:
            return enough + 1
    return total


def _blocks(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except OSError:
        return 0


def _free(folder: str) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
