"""The parent of one child: starts it confined, and leaves nothing of it behind.

`python -I -S keeper.py LIFELINE STATUS PLAN -- COMMAND...`: LIFELINE is a descriptor whose end of file means "end it";
it closes too when the judge dies. STATUS receives one line at the end: `exit N`, `signal N`, or `limit WHAT`. Orphans
of the child come to this process (sub-reaper), so a daemon that forks twice is found and killed. PLAN is JSON: see
`confine.confine`, and `memory` and `folder` for the watch over what no resource limit bounds. Standard library only,
so that it starts in milliseconds.
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

PR_SET_CHILD_SUBREAPER = 36
WATCH_S = 0.5
"""How often memory and folder are looked at."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def main(arguments: list[str]) -> int:
    """Run the command until it ends, breaks a limit or the lifeline closes; then kill whatever it left."""
    lifeline, status, plan = int(arguments[0]), int(arguments[1]), json.loads(arguments[2])
    command = arguments[arguments.index("--") + 1 :]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = os.fork()
    if child == 0:
        _become(command, plan, (lifeline, status))
    ending = _wait(child, lifeline, wake_read, plan)
    kill_descendants()
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


def _wait(child: int, lifeline: int, wake: int, plan: dict[str, Any]) -> str:
    """Wait for the child's end, a broken limit or the lifeline's end; orphans that end meanwhile are collected."""
    while True:
        readable, _, _ = select.select([lifeline, wake], [], [], WATCH_S)
        if wake in readable:
            os.read(wake, 4096)
            ending = _reap(child)
            if ending:
                return ending
        if lifeline in readable:
            return "ended"
        broken = _broken_limit(plan)
        if broken:
            return f"limit {broken}"


def _broken_limit(plan: dict[str, Any]) -> str:
    """What all processes together hold, and what lies in the work folder: resource limits bound neither."""
    if plan["memory"] is not None and _resident(descendants(os.getpid())) > plan["memory"]:
        return "memory"
    if plan["folder"] is not None and _size(plan["folder"], plan["folder_bytes"]) > plan["folder_bytes"]:
        return "folder"
    return ""


def _resident(pids: list[int]) -> int:
    """Bytes of memory of these processes. Pages that they share are counted for each: an upper bound."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                _, resident, shared = file.read().split()[:3]
        except OSError:
            continue
        total += (int(resident) - int(shared)) * PAGE_BYTES
    return total


def _size(folder: str, enough: int) -> int:
    """Bytes on disk below a folder, counted until there are more than `enough`."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(f"{path}/{name}").st_blocks * 512
            except OSError:
                continue
        if total > enough:
            break
    return total


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
