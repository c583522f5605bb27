"""What a program that judges does to its own process, once, at its start. Not for libraries."""

import ctypes
import gc
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kernelwright.sandbox.jail.zygote import ZYGOTES
from kernelwright.sandbox.machine.workfolder import shared_environment, sweep


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
