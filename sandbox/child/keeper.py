"""The parent of one child: starts it under limits, and leaves nothing of it behind.

`python -I -S keeper.py LIFELINE STATUS LIMITS -- COMMAND...`: LIFELINE is a descriptor whose end of file means "end
it"; it closes too when the judge dies. STATUS receives one line at the end: `exit N` or `signal N`. Orphans of the
child come to this process (sub-reaper), so a daemon that forks twice is found and killed. Standard library only, so
that it starts in milliseconds.
"""

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38


def main(arguments: list[str]) -> int:
    """Run the command until it ends or the lifeline closes; then kill whatever it left."""
    lifeline, status, limits = int(arguments[0]), int(arguments[1]), json.loads(arguments[2])
    command = arguments[arguments.index("--") + 1 :]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = os.fork()
    if child == 0:
        _become(command, limits, libc, (lifeline, status))
    ending = _wait(child, lifeline, wake_read)
    kill_descendants()
    os.write(status, ending.encode())
    return 0


def _become(command: list[str], limits: dict[str, int], libc: ctypes.CDLL, private: tuple[int, ...]) -> None:
    """In the child: its own session, no way to gain rights, limits, and then the command."""
    try:
        for fd in private:
            os.close(fd)
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        for name, value in limits.items():
            kind = getattr(resource, name)
            hard = resource.getrlimit(kind)[1]
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (bound, bound))
        os.execv(command[0], command)
    except BaseException as error:
        print(f"could not start {command[0]}: {error}", file=sys.stderr, flush=True)
    os._exit(127)


def _wait(child: int, lifeline: int, wake: int) -> str:
    """Wait for the child's end or the lifeline's; orphans that end meanwhile are collected."""
    while True:
        readable, _, _ = select.select([lifeline, wake], [], [])
        if wake in readable:
            os.read(wake, 4096)
            ending = _reap(child)
            if ending:
                return ending
        if lifeline in readable:
            os.kill(child, signal.SIGKILL)
            return "ended"


def _reap(child: int) -> str:
    ending = ""
    while True:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ending
        if pid == 0:
            return ending
        if pid == child:
            number = os.waitstatus_to_exitcode(code)
            ending = f"signal {-number}" if number < 0 else f"exit {number}"


def kill_descendants() -> None:
    """Stop all descendants first, so that none can fork on; then kill them; again, until no child is left."""
    while True:
        found = descendants(os.getpid())
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


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
    sys.exit(main(sys.argv[1:]))
