"""Whether a stopped process stands still, as the kernel tells it: nothing of it is on a core, or will be by itself."""

import os
import time

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
