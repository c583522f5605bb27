"""How long the judge waits for a candidate: for its import and construction, and for one call.

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
from pathlib import Path
from typing import NamedTuple, Protocol

from kernelwright.sandbox.jail.bubblewrap import needed_paths
from kernelwright.sandbox.jail.children import ChildLate
from kernelwright.sandbox.verdict.settings import Settings

LOOK_S = 0.25
"""How often it is looked for compilers."""
WALL = 10
"""A call may take so many times its limit where the machine is too busy to run it."""
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


class ImportTimeout(NamedTuple):
    """Seconds for what the candidate does by itself, and for all of it with the compilers that it starts."""

    alone_s: float
    in_all_s: float

    @classmethod
    def of(cls, settings: Settings) -> "ImportTimeout":
        """What one import and construction may take."""
        return cls(settings.import_timeout_s, settings.build_timeout_s)

    def wait(self, child: Watched) -> None:
        """Return when the child has something to say. Raises `CandidateLate`, and `ChildLate` over all of it."""
        compilers, start = Compilers(), time.monotonic()
        alone, last, were_at_work = 0.0, start, False
        while not child.has_spoken(LOOK_S):
            now = time.monotonic()
            are_at_work = compilers.are_at_work(child.processes())
            # One look between two compilers finds neither.
            alone += 0.0 if are_at_work or were_at_work else now - last
            last, were_at_work = now, are_at_work
            if alone >= self.alone_s:
                raise CandidateLate(
                    f"importing and constructing it was not done within {self.alone_s:g} s, and no compiler was at work"
                )
            if now - start >= self.in_all_s:
                raise ChildLate


class CallTimeout(NamedTuple):
    """The limit of one call on a processor: time in which a thread waits for a core is the machine's and not counted.

    `WALL` times the limit is the end in any case.
    """

    limit_s: float

    def wait(self, child: Watched) -> None:
        """Return when the child has something to say. Raises `ChildLate`."""
        start = time.monotonic()
        if child.has_spoken(min(LOOK_S, self.limit_s / WALL)):
            return
        queued_s, before = 0.0, _queued_s(child.processes())
        while True:
            passed = time.monotonic() - start
            left = min(self.limit_s + queued_s, WALL * self.limit_s) - passed
            if left <= 0:
                raise ChildLate
            if child.has_spoken(min(left, LOOK_S)):
                return
            now = _queued_s(child.processes())
            queued_s += max((waited - before.get(task, 0.0) for task, waited in now.items()), default=0.0)
            before = now


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
            if is_compiler(pid):
                state, used[pid] = _state(pid)
                since = used[pid] - self._used_s.get(pid, 0.0)
                found = found or state in ("R", "D") or since >= LEAST_SHARE * passed > 0
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


def _state(pid: int) -> tuple[str, float]:
    """The letter of a process's state, and its processor time in seconds; of none where it has gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[0].decode(), (int(fields[11]) + int(fields[12])) / TICKS
    except (OSError, IndexError):
        return "", 0.0
