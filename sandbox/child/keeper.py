"""The parent of one child: starts it confined, and leaves nothing of it behind.

`main([LIFELINE, STATUS, PLAN, COMMAND...])` in a process of its own: LIFELINE is a descriptor whose end of file means
"end it"; it closes too when the judge dies. STATUS receives one line at the end: `exit N`, `signal N`, or `limit WHAT`.
Orphans of the child come to this process (sub-reaper), so a daemon that forks twice is found and killed. PLAN is in
hexadecimal digits what `marshal` makes of a dictionary: see `confine.confine` and `watch.Watch`. COMMAND is `-m MODULE
...`, or `-S -c CODE ...` to do without site-packages; the child runs it by itself, since another interpreter's start
would double what a jail costs.

In a process namespace of its own it is process 1: nothing inside can send it a signal that it does not want, and when
it ends, however it ends, the kernel ends all others. Elsewhere it ends them itself.

Every child waits for this one's start, so it imports next to nothing: `signal`, `json` or `typing` would each cost as
much as all of bubblewrap.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import select
import sys
import time

from sandbox.child.confine import confine
from sandbox.child.watch import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sandbox.child.start import Entering

PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGSTOP = 1, 2, 9, 15, 19
DEFAULT, IGNORE = 0, 1
WATCH_S = 0.5
"""How often the folder is looked at, and orphans that have ended are collected."""
MEMORY_WATCH_S = 0.1
"""The same for memory, where no control group bounds it: it fills at gigabytes a second."""
REAPED_AT_ONCE = 4096
"""Then the lifeline is looked at again: orphans may come as fast as they are collected."""
INIT = 1


def main(arguments: list[str], entering: Entering) -> None:
    """Run the command until it ends, breaks a limit or the lifeline closes; kill whatever it left; never return."""
    lifeline, status, plan = int(arguments[0]), int(arguments[1]), marshal.loads(bytes.fromhex(arguments[2]))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _handle_signals(libc, IGNORE)
    if plan["filter"] is not None:
        plan["filter"]["guarded"].append(os.getpid())
    entering.wait()
    child = os.fork()
    if child == 0:
        _become(libc, arguments[3:], plan, (lifeline, status))
    # Where the child is of the same user it could otherwise read and write this process.
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    ending = ""
    try:
        ending = _wait(child, lifeline, Watch(plan))
    finally:
        end_all()
        os.write(status, ending.encode())
        os._exit(0)


def _handle_signals(libc: ctypes.CDLL, how: int) -> None:
    for number in (SIGHUP, SIGINT, SIGTERM):
        libc.signal(number, ctypes.c_void_p(how))


def _become(libc: ctypes.CDLL, command: list[str], plan: dict[str, Any], private: tuple[int, ...]) -> None:
    """In the child: its own session, all that confines it, and then the command."""
    try:
        for fd in private:
            os.close(fd)
        os.setsid()
        _handle_signals(libc, DEFAULT)
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
    """What `python -I` would do with these arguments."""
    del sys.path[0]  # `sandbox` is imported already, and what lies beside it is not for the child
    if command[0] == "-S":
        sys.argv = ["-c", *command[3:]]
        exec(command[2], {"__name__": "__main__"})
        return
    import runpy
    import site

    site.main()
    sys.argv = command[1:]
    runpy.run_module(command[1], run_name="__main__", alter_sys=True)


def _wait(child: int, lifeline: int, watch: Watch) -> str:
    """Wait for the child's end, a broken limit or the lifeline's end; orphans that end meanwhile are collected."""
    interval = WATCH_S if watch.memory is None else MEMORY_WATCH_S
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.register(os.pidfd_open(child), select.POLLIN)
    searched = time.monotonic()
    while True:
        ready = [fd for fd, _ in poll.poll(1000 * interval)]
        if lifeline in ready:
            return "ended"
        ending = _reap(child)
        if ending:
            return ending
        tree = offspring(os.getpid())
        broken = watch.quick(tree)
        if not broken and time.monotonic() - searched >= WATCH_S:
            broken, searched = watch.thorough(tree), time.monotonic()
        if broken:
            return f"limit {broken}"


def _reap(child: int) -> str:
    """Collect ended processes; how the child ended, if it is among them."""
    for _ in range(REAPED_AT_ONCE):
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ""
        if pid == 0:
            return ""
        if pid == child:
            number = os.waitstatus_to_exitcode(code)
            return f"signal {-number}" if number < 0 else f"exit {number}"
    return ""


def end_all() -> None:
    """Kill every process below this one and collect it; process 1 leaves that to the kernel, which can not miss one."""
    while os.getpid() != INIT:
        found: set[int] = set()
        # Stop all before killing one: each that is killed makes room for another's fork.
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
    """The processes below `root`, quickly: one that is just being started or handed on may be missing."""
    found = [root]
    for pid in found:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                    found.extend(map(int, file.read().split()))
        except FileNotFoundError:
            if pid == root:  # a kernel without these files
                return descendants(root)
        except OSError:
            continue
    return found[1:]


def descendants(root: int) -> list[int]:
    """All processes below `root`, parents before children, as /proc shows them."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with open(f"/proc/{entry.name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = list(children.get(root, []))
    for pid in found:
        found.extend(children.get(pid, []))
    return found
