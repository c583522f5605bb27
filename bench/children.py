"""A child from the request until it is ready (greeted, in a jail of its own, torch imported): spawned against forked.

The zygote is there already, as it is for all children but the first. Ending a child is measured apart.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

from bench.comparison import Comparison, in_turn
from kernelwright.sandbox.jail.process import Child
from kernelwright.sandbox.jail.zygote import ZYGOTES, Zygotes, private_bytes, resident_bytes
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.workfolder import WorkFolder

ROUNDS = 12
LIMIT_MS = 60
LEAST_RATIO = 20
PATIENCE_S = 120


def run() -> Comparison:
    """A worker in the best jail that this machine offers, started both ways in turn."""
    folder, settings = WorkFolder(), Settings()
    endings_ms: list[float] = []
    start = partial(_start, folder, settings, endings_ms)
    try:
        plain, ours = in_turn(partial(start, None), partial(start, ZYGOTES), ROUNDS)
        _report(folder, settings, endings_ms)
    finally:
        folder.close()
    names = ("spawned, torch imported anew", "forked from the zygote")
    return Comparison(names, tuple(plain), tuple(ours), None, ours_limit_ms=LIMIT_MS, least_ratio=LEAST_RATIO)


def _start(
    folder: WorkFolder, settings: Settings, endings_ms: list[float], zygotes: Zygotes | None
) -> Callable[[], None]:
    child = Child("worker", folder, settings, zygotes)
    child.greet(time.monotonic() + PATIENCE_S)
    if (child.way == "forked") != (zygotes is not None):
        raise RuntimeError(f"children can not be forked here: {ZYGOTES.obstacle}")
    return partial(_end, child, endings_ms)


def _end(child: Child, endings_ms: list[float]) -> None:
    start = time.perf_counter_ns()
    child.close()
    if child.way == "forked":
        endings_ms.append((time.perf_counter_ns() - start) / 1e6)


def _report(folder: WorkFolder, settings: Settings, endings_ms: list[float]) -> None:
    child = Child("worker", folder, settings)
    try:
        child.greet(time.monotonic() + PATIENCE_S)
        sizes = [size / 2**20 for size in (resident_bytes(ZYGOTES.pids[0]), private_bytes(child.pid))]
    finally:
        child.close()
    print(f"  layers: {', '.join(child.layers)}")
    print(f"  the zygote holds {sizes[0]:.0f} MiB, a fresh child {sizes[1]:.0f} MiB of its own")
    print(f"  ending a forked child takes {statistics.median(endings_ms):.1f} ms")
