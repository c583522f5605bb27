"""Limits on the time of a candidate: for its import and construction, and for one call.

A candidate's compilers may take long, its own code may not. The judge checks from outside for a working compiler, by
the program of a process and its processor time. A process's chosen name does not count, nor does a program that the
child could have written, or a compiler that waits for input. A candidate that keeps a real compiler busy gains at most
the time that is allowed for compilation.
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
from kernelwright.sandbox.jail.process import ChildLate, stat_fields
from kernelwright.sandbox.verdict.settings import JudgeSettings

LOOK_S = 0.25
"""Interval of the checks for compilers, in seconds."""
WALL = 10
"""Wall time of a call or build on a busy machine, as a multiple of its limit."""
LATE = 4
"""Most intervals that one check counts."""
LEAST_SHARE = 0.2
"""Least share of a core between two checks: a compiler below it that is not ready to run waits for input."""
PROGRAM = re.compile(
    r"(?:[\w.]+-)*(?:g\+\+|gcc|c\+\+|cc|cpp|clang\+\+|clang|as|ld(?:\.\w+)?|gold|mold|lld|llvm-\w+)(?:-[\d.]+)?"
    r"|collect2|cc1|cc1plus|lto1|lto-wrapper|nvcc|cicc|ptxas|cudafe\+\+|fatbinary|nvlink|bin2c|nvc\+\+|hipcc|icpx|dpcpp"
)
TICKS = os.sysconf("SC_CLK_TCK")


class CandidateLate(ChildLate):
    """The candidate itself took too long; the text names the limit."""


class Watched(Protocol):
    """A child whose answer is awaited."""

    def has_spoken(self, timeout_s: float) -> bool:
        """Wait for its answer; return whether it came."""

    def processes(self) -> list[int]:
        """Return all processes of its tree."""


@dataclass
class ImportTimeout:
    """Limits of an import in seconds: `alone_s` for the candidate itself, `in_all_s` with its compilers.

    Time in which it waits for a core, or for files that the judge makes, does not count. `wall` times the limit ends
    it in any case.
    """

    alone_s: float
    in_all_s: float
    wall: int = WALL
    cores: int = 1
    """Cores whose processor time counts as that of one."""
    is_made_for_it: Callable[[], bool] = lambda: False
    """Whether a judge is making files that it may wait for."""
    used_s: float = 0.0

    @classmethod
    def of(cls, settings: JudgeSettings, used_s: float = 0.0, wall: int = WALL) -> "ImportTimeout":
        """Make the limit of one import and construction after `used_s` of the build's time."""
        return cls(settings.import_timeout_s, settings.build_timeout_s - used_s, wall, len(settings.cores))

    def wait(self, child: Watched) -> None:
        """Wait for the child's answer. Raises `CandidateLate`, and `ChildLate` for the total."""
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
    """The limit of one call on a processor, without time in which a thread waits for a core.

    Threads that wait for each other gain nothing; see `WorkClock`. Its compilers have `compiling_s` in addition.
    `WALL` times the limit, plus that, ends the call in any case.
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
    """The seconds of a child's tree since `start`, without those in which it waited for a core.

    They are at least its processor time divided by its cores.
    """

    def __init__(self, child: Watched, start: float, cores: int) -> None:
        self._child, self._cores, self._compilers = child, cores, Compilers()
        self._last, self._were_at_work = time.monotonic(), False
        pids = child.processes()
        self._queued, self._computed_s = _queued_s(pids), _computed_s(pids)
        self.wall_s = self._running_s = self.used_s = self._last - start
        self._cores_s = 0.0
        self.compiling_s = 0.0
        """Part of `used_s` while a compiler was working."""

    def look(self, is_counted: bool = True) -> None:
        """Count the time since the last call; unless `is_counted`, only by the wall clock."""
        pids, now = self._child.processes(), time.monotonic()
        queued, computed_s = _queued_s(pids), _computed_s(pids)
        are_at_work = self._compilers.are_at_work(pids)
        passed_s, before_s = now - self._last, self.used_s
        self.wall_s += passed_s
        if is_counted:
            # A judge that was stopped, or had no core, checks late. The kernel counts the wait of a thread for a core
            # when it gets one, so waits of several intervals may come together.
            self._running_s += min(passed_s, LATE * LOOK_S)
            self._running_s -= max(
                (waited - self._queued.get(task, 0.0) for task, waited in queued.items()), default=0.0
            )
            self._cores_s += (computed_s - self._computed_s) / self._cores
            self.used_s = max(self._running_s, self._cores_s)
            # A check between two compilers finds neither.
            self.compiling_s += self.used_s - before_s if are_at_work or self._were_at_work else 0.0
        self._queued, self._computed_s, self._last, self._were_at_work = queued, computed_s, now, are_at_work


class FirstCallTimeout(NamedTuple):
    """The limit of a candidate's first call on a device, in which it may compile or tune.

    A device that is busy without a pause for `busy_s` runs an endless kernel: the call is late.
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
    """Return the seconds that each thread waited for a core, by its path in /proc."""
    found = {}
    for pid in pids:
        with suppress(OSError, IndexError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                found[str(task)] = int((task / "schedstat").read_bytes().split()[1]) / 1e9
    return found


class Compilers:
    def __init__(self) -> None:
        self._used_s: dict[int, float] = {}
        self._looked = time.monotonic()

    def are_at_work(self, pids: list[int]) -> bool:
        """Check for a compiler that computes or reads from a disk, now or since the last check."""
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        used, found = {}, False
        for pid in pids:
            if is_compiler(pid) and (fields := stat_fields(pid)):
                used[pid] = (int(fields[11]) + int(fields[12])) / TICKS
                since = used[pid] - self._used_s.get(pid, 0.0)
                found = found or fields[0] in (b"R", b"D") or since >= LEAST_SHARE * passed > 0
        self._used_s = used
        return found


def is_compiler(pid: int) -> bool:
    """Check that a process runs a compiler of this machine: a program of that name where no child can write."""
    link = Path(f"/proc/{pid}/exe")
    try:
        path = link.readlink()
        if not PROGRAM.fullmatch(path.name) or not any(path.is_relative_to(top) for top in needed_paths()):
            return False
        # In another mount namespace the path may name another file.
        return link.samefile(path)
    except OSError:
        return False


def _computed_s(pids: list[int]) -> float:
    """Return the processor time of these processes and of their collected children."""
    return sum(sum(map(int, stat_fields(pid)[11:15])) for pid in pids) / TICKS
