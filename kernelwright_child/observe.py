"""A profile of one call of a candidate: operators and kernels with their time, native functions, source lines.

This happens after the timing, so nothing here changes a time. The candidate shares it and can falsify the profile,
which is evidence, never proof.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

MOST_NAMES, MOST_LINES, LONGEST_NAME = 48, 2000, 96
"""Limits of an answer, which is one small packet."""
OWN_FILE = "candidate.py"


class ExecutionTrace:
    """Executed lines of the candidate's file, and native functions that its own code called."""

    def __init__(self) -> None:
        self.lines: dict[int, float] = {}
        """Microseconds by line, calls outside this file included."""
        self._line, self._since = 0, 0
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
        if self._line in self.lines:
            self.lines[self._line] += (time.perf_counter_ns() - self._since) / 1e3
        if event == "line":
            self._line = frame.f_lineno
            if len(self.lines) < MOST_LINES:
                self.lines.setdefault(self._line, 0.0)
        elif event == "return":
            self._line = frame.f_back.f_lineno if frame.f_back is not None and _is_own(frame.f_back) else 0
        self._since = time.perf_counter_ns()
        return self.on_line

    def on_profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and _is_own(frame) and len(self.natives) < MOST_NAMES:
            owner = getattr(argument, "__module__", None) or type(getattr(argument, "__self__", None)).__module__
            self.natives.add(f"{owner}.{getattr(argument, '__name__', '?')}"[:LONGEST_NAME])


def observe(call: Callable[[], object], restore: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Call three times, plain, traced and profiled, with `restore` in between; return plain JSON of bounded size.

    Keys: `operators` and `kernels`, each a list of `[name, calls, microseconds of its own]`, longest first; `wall_us`
    of the profiled call; `lines` with their `line_us`, `natives` and `dynamic` of `ExecutionTrace`; `error`, the reason
    for a missing observation.
    """
    found: dict[str, Any] = {"operators": [], "kernels": [], "wall_us": 0.0, "error": ""}
    trace = ExecutionTrace()
    call()
    try:
        restore()
        _traced(call, trace)
        restore()
        found |= _profiled(call)
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"[:LONGEST_NAME]
    return found | {
        "lines": sorted(trace.lines),
        "line_us": [round(us, 1) for _, us in sorted(trace.lines.items())],
        "natives": sorted(trace.natives),
        "dynamic": trace.dynamic,
    }


def _traced(call: Callable[[], object], trace: ExecutionTrace) -> None:
    threading.settrace(trace.on_call)
    sys.settrace(trace.on_call)
    sys.setprofile(trace.on_profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        sys.settrace(None)
        threading.settrace(None)


def _profiled(call: Callable[[], object]) -> dict[str, Any]:
    gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    # Not `torch.profiler.profile`, which first imports eight hundred modules of torch's compiler.
    with torch.autograd.profiler.profile(use_kineto=True, use_device="cuda" if gpu else None) as profile:
        start = time.perf_counter_ns()
        call()
        if gpu:
            torch.cuda.synchronize()
        wall_us = (time.perf_counter_ns() - start) / 1e3
    events = profile.key_averages()
    on_device = [event for event in events if event.device_type != torch.profiler.DeviceType.CPU]
    on_host = [event for event in events if event.device_type == torch.profiler.DeviceType.CPU]
    return {
        "operators": _longest([(event.key, event.count, event.self_cpu_time_total) for event in on_host]),
        "kernels": _longest([(event.key, event.count, event.self_device_time_total) for event in on_device]),
        "wall_us": wall_us,
    }


def _longest(rows: list[tuple[str, int, float]]) -> list[list[Any]]:
    rows.sort(key=lambda row: -row[2])
    return [[name[:LONGEST_NAME], count, round(float(us), 1)] for name, count, us in rows[:MOST_NAMES]]


def _is_own(frame: FrameType) -> bool:
    return os.path.basename(frame.f_code.co_filename) == OWN_FILE
