"""A profile of one call of a candidate: operators and kernels with their time, native functions, source lines.

Beside it the machine code of its libraries. All this happens after the timing, so nothing here changes a time. The
candidate shares the process and can falsify the profile, which is evidence, never proof.
"""

import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

MOST_NAMES, MOST_LINES, LONGEST_NAME = 48, 2000, 96
"""Limits of an answer, which is one small packet."""
OWN_FILE = "candidate.py"
SHORT_US, REPEATS = 50_000, 3
"""A call on a processor that takes less is repeated, and the median counts: a scheduler may interrupt any one.

What did not run in a call took no time there, so that one call of three cannot speak for all.
"""


class Place(threading.local):
    """The line that a thread executes, and since when."""

    line = 0
    since = 0


class ExecutionTrace:
    """Executed lines of the candidate's file, and native functions that its own code called."""

    def __init__(self) -> None:
        self.lines: dict[int, float] = {}
        """Microseconds by line, calls outside this file included."""
        self._at = Place()
        self.natives: set[str] = set()
        self.dynamic = False
        """Whether the candidate's code ran code without a file."""

    def on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Trace the candidate's own frames only; for `sys.settrace`."""
        if _is_own(frame):
            return self.on_line
        if frame.f_code.co_filename == "<string>" and frame.f_back is not None and _is_own(frame.f_back):
            self.dynamic = True
        return None

    def on_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        at = self._at
        if at.line in self.lines:
            self.lines[at.line] += (time.perf_counter_ns() - at.since) / 1e3
        if event == "line":
            at.line = frame.f_lineno
            if len(self.lines) < MOST_LINES:
                self.lines.setdefault(at.line, 0.0)
        elif event == "return":
            at.line = frame.f_back.f_lineno if frame.f_back is not None and _is_own(frame.f_back) else 0
        at.since = time.perf_counter_ns()
        return self.on_line

    def on_profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and _is_own(frame) and len(self.natives) < MOST_NAMES:
            owner = getattr(argument, "__module__", None) or type(getattr(argument, "__self__", None)).__module__
            self.natives.add(f"{owner}.{getattr(argument, '__name__', '?')}"[:LONGEST_NAME])


class CallProfile(NamedTuple):
    """Operators and kernels by name, with their calls and microseconds."""

    wall_us: float
    operators: dict[str, tuple[int, float]]
    kernels: dict[str, tuple[int, float]]


def observe(call: Callable[[], object], restore: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Call plain, traced and profiled, with `restore` in between; return plain JSON of bounded size.

    Keys: `operators` and `kernels`, each a list of `[name, calls, microseconds of its own]`, longest first; `wall_us`
    of the profiled call; `lines` with their `line_us`, `natives` and `dynamic` of `ExecutionTrace`; `error`, the reason
    for a missing observation.
    """
    traces: list[ExecutionTrace] = []
    profiles: list[CallProfile] = []
    error = ""
    call()
    try:
        for _ in range(REPEATS):
            restore()
            traces.append(_traced(call))
            restore()
            profiles.append(_profiled(call))
            if profiles[0].kernels or profiles[-1].wall_us > SHORT_US:
                break
    except Exception as fault:
        error = f"{type(fault).__name__}: {fault}"[:LONGEST_NAME]
    lines = sorted(set().union(*(trace.lines for trace in traces)))[:MOST_LINES]
    return {
        "operators": _longest([one.operators for one in profiles]),
        "kernels": _longest([one.kernels for one in profiles]),
        "wall_us": statistics.median(one.wall_us for one in profiles) if profiles else 0.0,
        "error": error,
        "lines": lines,
        "line_us": [round(statistics.median(trace.lines.get(line, 0.0) for trace in traces), 1) for line in lines],
        "natives": sorted(set().union(*(trace.natives for trace in traces)))[:MOST_NAMES],
        "dynamic": any(trace.dynamic for trace in traces),
    }


def _traced(call: Callable[[], object]) -> ExecutionTrace:
    trace = ExecutionTrace()
    with _traced_threads(trace):
        sys.settrace(trace.on_call)
        sys.setprofile(trace.on_profile)
        try:
            call()
        finally:
            sys.setprofile(None)
            sys.settrace(None)
    return trace


@contextmanager
def _traced_threads(trace: ExecutionTrace) -> Iterator[None]:
    """Trace other threads: all from Python 3.12 on; before, those that are started now, and those of thread pools."""
    if sys.version_info >= (3, 12):
        threading.settrace_all_threads(trace.on_call)
        threading.setprofile_all_threads(trace.on_profile)
        try:
            yield
        finally:
            threading.setprofile_all_threads(None)
            threading.settrace_all_threads(None)
        return
    item: Any = getattr(sys.modules.get("concurrent.futures.thread"), "_WorkItem", None)
    run: Any = item and item.run

    def traced_run(work: Any) -> None:
        sys.settrace(trace.on_call)
        sys.setprofile(trace.on_profile)
        try:
            run(work)
        finally:
            sys.setprofile(None)
            sys.settrace(None)

    threading.settrace(trace.on_call)
    if item:
        item.run = traced_run
    try:
        yield
    finally:
        if item:
            item.run = run
        threading.settrace(None)


def _profiled(call: Callable[[], object]) -> CallProfile:
    gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    # Not `torch.profiler.profile`, which first imports eight hundred modules of torch's compiler.
    device = "cuda" if gpu else None
    with torch.autograd.profiler.profile(
        use_kineto=True, use_device=device, experimental_config=None if gpu else _all_threads()
    ) as profile:
        start = time.perf_counter_ns()
        call()
        if gpu:
            torch.cuda.synchronize()
        wall_us = (time.perf_counter_ns() - start) / 1e3
    found = CallProfile(wall_us, {}, {})
    for event in profile.key_averages():
        on_host = event.device_type == torch.profiler.DeviceType.CPU
        rows = found.operators if on_host else found.kernels
        us = event.self_cpu_time_total if on_host else event.self_device_time_total
        count, before_us = rows.get(event.key, (0, 0.0))
        rows[event.key] = count + event.count, before_us + float(us)
    return found


def _all_threads() -> Any:
    """Return the setting by which the profiler sees threads that run already; None where this torch has none."""
    try:
        return torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    except TypeError:
        return None


def _longest(found: list[dict[str, tuple[int, float]]]) -> list[list[Any]]:
    """Return the median row of each name, longest first."""
    rows = [
        (name, *(statistics.median(column) for column in zip(*(one.get(name, (0, 0.0)) for one in found), strict=True)))
        for name in dict.fromkeys(name for one in found for name in one)
    ]
    rows.sort(key=lambda row: -row[2])
    return [[name[:LONGEST_NAME], int(count), round(us, 1)] for name, count, us in rows[:MOST_NAMES]]


def _is_own(frame: FrameType) -> bool:
    return os.path.basename(frame.f_code.co_filename) == OWN_FILE


MOST_LIBRARIES, MOST_OPCODES, LONGEST_SYMBOL = 8, 4000, 300
FUNCTION = re.compile(r"\s*Function : (\S+)|[0-9a-f]+ <(.+)>:$")
INSTRUCTION = re.compile(
    r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)"  # of cuobjdump
    r"|\s+[0-9a-f]+:\t(\w+)(.*)"  # of objdump
)
WIDTHS = ("zmm", "ymm", "xmm")


def machine_code(command: list[str]) -> list[list[Any]]:
    """Return `[function, {opcode: number}]` of all built libraries, which `command` disassembles.

    An opcode of a processor ends in its widest vector register, as in `vaddps.ymm`. Functions with the most such
    opcodes, or with modifiers, come first, as many as fit into an answer; those without any are left out.
    """
    found: dict[str, Counter[str]] = {}
    libraries = [path for path in Path(os.environ["TORCH_EXTENSIONS_DIR"]).rglob("*.so") if path.is_file()]
    for library in sorted(libraries)[:MOST_LIBRARIES]:
        with subprocess.Popen(
            [*command, str(library)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace"
        ) as process:
            assert process.stdout is not None
            counted: Counter[str] = Counter()
            for line in process.stdout:
                if function := FUNCTION.match(line):
                    counted = found.setdefault(function[1] or function[2], Counter())
                elif instruction := INSTRUCTION.match(line):
                    width = next((f".{one}" for one in WIDTHS if one in (instruction[3] or "")), "")
                    counted[instruction[1] or instruction[2] + width] += 1
    marked = {name: sum(count for opcode, count in of.items() if "." in opcode) for name, of in found.items()}
    most = sorted(filter(marked.get, marked), key=lambda name: -marked[name])
    room = accumulate(len(found[name]) for name in most)
    fitting = [name for name, used in zip(most, room, strict=True) if used <= MOST_OPCODES]
    return [[name[:LONGEST_SYMBOL], dict(found[name])] for name in fitting]
