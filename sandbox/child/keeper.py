"""The parent of one child: starts it confined, and leaves nothing of it behind.

`python -I -S keeper.py LIFELINE STATUS PLAN -- COMMAND...`: LIFELINE is a descriptor whose end of file means "end it";
it closes too when the judge dies. STATUS receives one line at the end: `exit N`, `signal N`, or `limit WHAT`. Orphans
of the child come to this process (sub-reaper), so a daemon that forks twice is found and killed. PLAN is JSON: see
`confine.confine`, and `memory` and `folder` for the watch over what no resource limit bounds. Standard library only,
so that it starts in milliseconds.

In a process namespace of its own it is process 1: nothing inside can send it a signal that it does not want, and when
it ends, however it ends, the kernel ends all others. Elsewhere it ends them itself.
"""

import ctypes
import json
import os
import select
import signal
import sys
import time
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120

from sandbox.child.confine import confine
from sandbox.child.watch import Watch

PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
WATCH_S = 0.5
"""How often memory and folder are looked at."""
MEMORY_WATCH_S = 0.1
"""The same where no control group bounds memory: it fills at gigabytes a second."""
REAPED_AT_ONCE = 256
"""Then the lifeline is looked at again: orphans may come as fast as they are collected."""
INIT = 1


def main(arguments: list[str]) -> int:
    """Run the command until it ends, breaks a limit or the lifeline closes; then kill whatever it left."""
    lifeline, status, plan = int(arguments[0]), int(arguments[1]), json.loads(arguments[2])
    command = arguments[arguments.index("--") + 1 :]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Where the child is of the same user it could otherwise read and write this process.
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    if plan["filter"] is not None:
        plan["filter"]["guarded"].append(os.getpid())
    child = os.fork()
    if child == 0:
        _become(command, plan, (lifeline, status))
    ending = ""
    try:
        ending = _wait(child, lifeline, wake_read, Watch(plan))
    finally:
        end_all()
        os.write(status, ending.encode())
    return 0


def _become(command: list[str], plan: dict[str, Any], private: tuple[int, ...]) -> None:
    """In the child: its own session, all that confines it, and then the command."""
    try:
        for fd in private:
            os.close(fd)
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        confine(plan)
        os.execv(command[0], command)
    except BaseException as error:
        print(f"could not start {command[0]} confined: {error}", file=sys.stderr, flush=True)
    os._exit(127)


def _wait(child: int, lifeline: int, wake: int, watch: Watch) -> str:
    """Wait for the child's end, a broken limit or the lifeline's end; orphans that end meanwhile are collected."""
    interval = WATCH_S if watch.memory is None else MEMORY_WATCH_S
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.register(wake, select.POLLIN)
    looked = searched = time.monotonic()
    while True:
        ready = {fd for fd, _ in poll.poll(1000 * interval)}
        if lifeline in ready:
            return "ended"
        if wake in ready:
            os.read(wake, 4096)
        ending = _reap(child)
        now = time.monotonic()
        if not ending and now - looked >= interval:
            looked, tree = now, offspring(os.getpid())
            broken = watch.quick(tree)
            if not broken and now - searched >= WATCH_S:
                searched, broken = now, watch.thorough(tree)
            ending = f"limit {broken}" if broken else ""
        if ending:
            return ending


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
            _signal(new, signal.SIGSTOP)
            found |= new
        _signal(found, signal.SIGKILL)
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


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
