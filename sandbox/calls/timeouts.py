"""Limits on the time of a candidate: for its import and construction, and for one call.

A candidate's compilers may take long, its own code may not. The judge looks from outside for a compiler at work, by the
program that a process runs and by whether it computes. A name that a process gives itself counts for nothing. Neither
does a program that the child could have written, or a compiler that waits for its input. A candidate that keeps a real
compiler computing gains no more than the time that is allowed for compilation.
"""

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from kernelwright.sandbox.jail.bubblewrap import needed_paths
from kernelwright.sandbox.jail.process import ChildLate
from kernelwright.sandbox.verdict.settings import Settings

LOOK_S = 0.25
"""Interval of the looks for compilers, in seconds."""
WALL = 10
"""A call or a build may take this many times its limit where the machine is too busy to run it."""
LATE = 4
"""Of the time since the last look at a child, this many intervals are counted at most."""
LEAST_SHARE = 0.2
"""Of a core, over the time since the last look: a compiler that takes less, and does not want more, waits."""
PROGRAM = re.compile(
    r"(?:[\w.]+-)*(?:g\+\+|gcc|c\+\+|cc|cpp|clang\+\+|clang|as|ld(?:\.\w+)?|gold|mold|lld|llvm-\w+)(?:-[\d.]+)?"
    r"|collect2|cc1|cc1plus|lto1|lto-wrapper|nvcc|cicc|ptxas|cudafe\+\+|fatbinary|nvlink|bin2c|nvc\+\+|hipcc|icpx|dpcpp"
)
"""Names of compilers, assemblers and linkers."""
TICKS = os.sysconf("SC_CLK_TCK")


class CandidateLate(ChildLate):
    """The candidate took too long by itself; the text says what was allowed."""


class Watched(Protocol):
    """A child that is waited for."""

    def has_spoken(self, timeout_s: float) -> bool:
        """Whether its answer has come; waits for so long."""

    def processes(self) -> list[int]:
        """All processes of its tree."""


@dataclass
class ImportTimeout:
    """Seconds for what the candidate does by itself, and for all of it with the compilers that it starts.

    Time in which it waits for a core, or for what the judge makes for it, is not counted: `wall` times the limit is the
    end in any case.
    """

    alone_s: float
    in_all_s: float
    wall: int = WALL
    cores: int = 1
    """Processor time on this number of cores at once counts as that of one."""
    is_made_for_it: Callable[[], bool] = lambda: False
    """Whether the judge, or another one, is making what it may wait for."""
    used_s: float = 0.0
    """Seconds that have been counted."""

    @classmethod
    def of(cls, settings: Settings, used_s: float = 0.0, wall: int = WALL) -> "ImportTimeout":
        """The limit of one import and construction, where this part of the build's time is used."""
        return cls(settings.import_timeout_s, settings.build_timeout_s - used_s, wall, len(settings.cores))

    def wait(self, child: Watched) -> None:
        """Return when the child has something to say. Raises `CandidateLate`, and `ChildLate` over all of it."""
        clock = WorkClock(child, time.monotonic(), self.cores)
        try:
            while not child.has_spoken(LOOK_S):
                clock.look(is_counted=not self.is_made_for_it())
                if clock.used_s - clock.compiling_s >= self.alone_s:
                    words = f"importing and constructing it was not done within {self.alone_s:g} s"
                    raise CandidateLate(f"{words}, and no compiler was at work")
                if clock.used_s >= self.in_all_s or clock.wall_s >= self.wall * self.in_all_s:
                    raise ChildLate
        finally:
            self.used_s += clock.used_s


class CallTimeout(NamedTuple):
    """The limit of one call on a processor: time in which a thread waits for a core is the machine's and not counted.

    Nor does it help to wait for each other: see `WorkClock`. Compilers that it starts have `compiling_s` beside it.
    `WALL` times the limit, and that, is the end in any case.
    """

    limit_s: float
    compiling_s: float = 0.0
    cores: int = 1

    def wait(self, child: Watched) -> None:
        """Return when the child has something to say. Raises `ChildLate`."""
        start = time.monotonic()
        if child.has_spoken(min(LOOK_S, self.limit_s / WALL)):
            return
        clock = WorkClock(child, start, self.cores)
        while (left := self.limit_s + min(clock.compiling_s, self.compiling_s) - clock.used_s) > 0:
            if clock.wall_s >= WALL * self.limit_s + self.compiling_s:
                break
            if child.has_spoken(min(left, LOOK_S)):
                return
            clock.look()
        raise ChildLate


class WorkClock:
    """Seconds that the tree of a child has had since `start`, without those in which it waited for a core.

    They are at least the processor time that it used, divided by the cores that it may use.
    """

    def __init__(self, child: Watched, start: float, cores: int) -> None:
        self._child, self._cores, self._compilers = child, cores, Compilers()
        self._last, self._were_at_work = time.monotonic(), False
        pids = child.processes()
        self._queued, self._computed_s = _queued_s(pids), _computed_s(pids)
        self.wall_s = self._running_s = self.used_s = self._last - start
        self._cores_s = 0.0
        self.compiling_s = 0.0
        """Of those used, while a compiler was at work."""

    def look(self, is_counted: bool = True) -> None:
        """Count what has passed since the last look; otherwise only by the wall clock."""
        pids, now = self._child.processes(), time.monotonic()
        queued, computed_s = _queued_s(pids), _computed_s(pids)
        are_at_work = self._compilers.are_at_work(pids)
        passed_s, before_s = now - self._last, self.used_s
        self.wall_s += passed_s
        if is_counted:
            # A judge that was stopped itself, or had no core, comes late to its look. The kernel counts the time of a
            # thread that waits for a core once it has got one: that of several looks comes together.
            self._running_s += min(passed_s, LATE * LOOK_S)
            self._running_s -= max(
                (waited - self._queued.get(task, 0.0) for task, waited in queued.items()), default=0.0
            )
            self._cores_s += (computed_s - self._computed_s) / self._cores
            self.used_s = max(self._running_s, self._cores_s)
            # One look between two compilers finds neither.
            self.compiling_s += self.used_s - before_s if are_at_work or self._were_at_work else 0.0
        self._queued, self._computed_s, self._last, self._were_at_work = queued, computed_s, now, are_at_work


class FirstCallTimeout(NamedTuple):
    """The limit of a candidate's first call on a device, in which it may compile or tune.

    Where the device is busy without a pause for `busy_s`, a kernel does not end: the call is late.
    """

    busy_s: float
    in_all_s: float
    is_busy: Callable[[], bool]

    def wait(self, child: Watched) -> None:
        """Return when the child has something to say. Raises `ChildLate`."""
        start = rested = time.monotonic()
        while not child.has_spoken(LOOK_S):
            now = time.monotonic()
            rested = rested if self.is_busy() else now
            if now - rested >= self.busy_s or now - start >= self.in_all_s:
                raise ChildLate


def _queued_s(pids: list[int]) -> dict[str, float]:
    """Seconds that each thread of these processes was ready to run and had no core, by its place in /proc."""
    found = {}
    for pid in pids:
        with suppress(OSError, IndexError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                found[str(task)] = int((task / "schedstat").read_bytes().split()[1]) / 1e9
    return found


class Compilers:
    """Compilers among the processes that are asked about, look after look."""

    def __init__(self) -> None:
        self._used_s: dict[int, float] = {}
        self._looked = time.monotonic()

    def are_at_work(self, pids: list[int]) -> bool:
        """Whether any of these is a compiler that computes or reads from a disk, now or since the last look."""
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        used, found = {}, False
        for pid in pids:
            if is_compiler(pid) and (fields := _stat(pid)):
                used[pid] = (int(fields[11]) + int(fields[12])) / TICKS
                since = used[pid] - self._used_s.get(pid, 0.0)
                found = found or fields[0] in ("R", "D") or since >= LEAST_SHARE * passed > 0
        self._used_s = used
        return found


def is_compiler(pid: int) -> bool:
    """Whether a process runs a compiler of this machine: a program of that name where no child can write."""
    link = Path(f"/proc/{pid}/exe")
    try:
        path = link.readlink()
        if not PROGRAM.fullmatch(path.name) or not any(path.is_relative_to(top) for top in needed_paths()):
            return False
        # Another view of the files may have something else there.
        return link.samefile(path)
    except OSError:
        return False


def _computed_s(pids: list[int]) -> float:
    """Processor time of these processes, and of those that they have started and collected."""
    return sum(sum(map(int, _stat(pid)[11:15])) for pid in pids) / TICKS


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none where it has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()
    except OSError:
        return []
