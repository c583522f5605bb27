"""Every reference of KernelBench's levels 1 to 3 as its own candidate: judged, or why not; never faster than itself.

`python -m bench kernelbench TREE` goes through a checkout of the benchmark (or a folder of its levels) on every CUDA
device that this process sees, one process a device, and prints a line a problem: outcome, speedup against itself with
its interval, what eager takes as torch ships and strictly, the most device memory that all processes together held,
and seconds. Lines are kept in `kernelbench-DTYPE.jsonl`, in the folder that `KERNELWRIGHT_OUT` names or here: what is
there is not judged again, so a run may be stopped at any time.

`KERNELWRIGHT_BENCH=level1/22,level3/44` picks problems, `KERNELWRIGHT_DTYPE` casts them, `KERNELWRIGHT_DEVICE_GIB`
bounds the device memory that may be used, `KERNELWRIGHT_MINUTES` ends it in time, `KERNELWRIGHT_PAIRS` says how many
worker pairs the first look has, and `KERNELWRIGHT_LOG=DEBUG` tells what each call leaves of the device's memory.
"""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.chosen import Kept
from bench.gpu_facts import NO_DEVICE, Report
from kernelwright.problems import Problem
from kernelwright.problems.formats import read_collection
from kernelwright.sandbox.calls.device import device_of
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.logs import show_logs_as_asked
from kernelwright.sandbox.verdict.errors import SandboxError, UnsupportedProblem
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import Candidate, Passed
from kernelwright_child import driver

LEVELS = ("level1", "level2", "level3")
PAIRS = int(os.environ.get("KERNELWRIGHT_PAIRS", "2"))
FIRST: dict[str, Any] = {"worker_pairs": PAIRS, "min_pairs": 4 * PAIRS, "max_pairs": 8 * PAIRS, "interval_target": 0.02}
AGAIN: dict[str, Any] = {"worker_pairs": 4, "min_pairs": 16, "max_pairs": 48, "interval_target": 0.01}
"""With few worker pairs an interval is too narrow at times: what is not called the same is judged once more."""
OFF = ("faster", "unconfirmed", "slower", "failed", "crashed")
SAMPLE_S = 0.02
PART = "KERNELWRIGHT_BENCH_PART"
HEADER = (
    f"{'problem':12} {'outcome':12} {'self':>6} {'interval':>16} {'shipped':>9} {'strict':>9} {'GiB':>6} {'s':>6}  why"
)


def run(*words: str) -> Report:
    """A line for each problem that has none yet; then counts by outcome."""
    if len(words) != 1:
        return Report("  give the folder of KernelBench: python -m bench kernelbench TREE", holds=False)
    show_logs_as_asked()
    count = driver.device_count()
    if count == 0:
        return NO_DEVICE
    if PART not in os.environ:
        print(HEADER, flush=True)
    if count > 1 and PART not in os.environ:
        _on_each_device(words[0], count)
    else:
        _go_through(words[0])
    return _told() if PART not in os.environ else Report("")


def _on_each_device(tree: str, count: int) -> None:
    seen = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    command = [sys.executable, "-m", "bench", "kernelbench", tree]
    parts = []
    for number in range(count):
        own = {"CUDA_VISIBLE_DEVICES": seen[number] if seen else str(number), PART: f"{number}/{count}"}
        parts.append(subprocess.Popen(command, env=os.environ | own))
    for part in parts:
        part.wait()


def _go_through(tree: str) -> None:
    number, _, count = os.environ.get(PART, "0/1").partition("/")
    end = time.monotonic() + 60 * float(os.environ.get("KERNELWRIGHT_MINUTES", "inf"))
    known = {row["problem"] for row in _kept().rows()}
    picked = [name for name in os.environ.get("KERNELWRIGHT_BENCH", "").split(",") if name]
    entries = [entry for entry in read_collection(Path(tree)).entries if entry.id.partition("/")[0] in LEVELS]
    for entry in entries[int(number) :: int(count)]:
        if entry.id in known or (picked and entry.id not in picked) or time.monotonic() > end:
            continue
        if entry.problem is None:
            row = {"problem": entry.id, "outcome": entry.status, "why": entry.why}
        else:
            row = {"problem": entry.id} | judged(entry.problem.model_copy(update={"dtype": _dtype()}))
        _kept().add(row)
        print(line(row), flush=True)


def judged(problem: Problem) -> dict[str, Any]:
    """The figures of one problem."""
    start = time.perf_counter()
    with _watching(settings(FIRST)) as most:
        try:
            found = _against_itself(problem, FIRST)
            if found["outcome"] in ("faster", "unconfirmed", "slower", "too_noisy"):
                first, found = found, _against_itself(problem, AGAIN)
                found |= {"at first": [first["outcome"], first["speedup"]]}
        except UnsupportedProblem as error:
            found = {"outcome": "unsupported", "why": str(error)}
        except SandboxError as error:
            found = {"outcome": "broken", "why": str(error)}
        except Exception as error:  # the others are to be seen too
            found = {"outcome": "crashed", "why": f"{type(error).__name__}: {error}"}
    found["device"] = device_of(settings(FIRST)).name
    return found | {"gib": round(max(most) / 2**30, 2), "seconds": round(time.perf_counter() - start, 1)}


def _against_itself(problem: Problem, effort: dict[str, Any]) -> dict[str, Any]:
    with Judge(problem, settings(effort)) as judge:
        verdict = judge.judge(Candidate(source=f"{problem.source}\n\nModelNew = Model\n"))
    evidence = verdict.evidence
    found: dict[str, Any] = {"stages": evidence.seconds, "exact": evidence.exact}
    if evidence.problem_status is not None and evidence.problem_status.status == "weak":
        found["weak"] = evidence.problem_status.why
    if not isinstance(verdict, Passed):
        return found | {"outcome": "failed", "why": f"{verdict.stage}: {verdict.reason}"}
    measured = verdict.measurement
    itself = next(pairing for pairing in measured.pairings if pairing.baseline == "eager")
    against = measured.model_copy(update={"pairings": (itself,)})
    return found | {
        "outcome": against.comparison,
        "speedup": against.speedup,
        "interval": list(against.interval),
        "baselines_ms": measured.baselines_ms,
        "clock": measured.timing_clock,
        "floor_ms": measured.floor_ms,
        "placebo": list(measured.placebo.interval) if measured.placebo else None,
    }


def settings(effort: dict[str, Any]) -> Settings:
    """The judge's, with the bound on device memory."""
    bound = os.environ.get("KERNELWRIGHT_DEVICE_GIB")
    memory = None if bound is None else int(float(bound) * 2**30)
    return Settings(device="cuda", device_memory_bytes=memory, **effort)


@contextmanager
def _watching(chosen: Settings) -> Iterator[list[int]]:
    """What all processes together hold of the device, sampled; the most is the maximum of the list."""
    device, done, seen = device_of(chosen), threading.Event(), [0]

    def sample() -> None:
        device.make_current()
        while not done.wait(SAMPLE_S):
            seen.append(max(seen.pop(), device.used_bytes()))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def line(row: dict[str, Any]) -> str:
    """The figures as columns."""
    speedup = f"{row['speedup']:6.3f}" if "speedup" in row else f"{'-':>6}"
    interval = "[{:.3f}, {:.3f}]".format(*row["interval"]) if "interval" in row else "-"
    times = row.get("baselines_ms") or {}
    strict = times.get("eager")
    shipped = times.get("eager as shipped", strict)
    took = " ".join(f"{ms:9.3f}" if ms is not None else f"{'-':>9}" for ms in (shipped, strict))
    weak = "weak: " + "; ".join(row["weak"]) if row.get("weak") else ""
    said = "; ".join(part for part in (row.get("why", ""), weak, ", ".join(row.get("exact", ()))) if part)
    figures = f"{row.get('gib', 0):6.1f} {row.get('seconds', 0):6.1f}"
    return f"{row['problem']:12} {row['outcome']:12} {speedup} {interval:>16} {took} {figures}  {said[:200]}"


def _told() -> Report:
    rows = _kept().rows()
    counts = Counter(row["outcome"] for row in rows)
    same = sum(counts[outcome] for outcome in ("same", "too_noisy", "unconfirmed", "faster", "slower"))
    off = [row["problem"] for row in rows if row["outcome"] in OFF]
    weak = sum(bool(row.get("weak")) for row in rows)
    most = max((row.get("gib", 0) for row in rows), default=0)
    seconds = sorted(row["seconds"] for row in rows if "seconds" in row)
    listed = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    middle = seconds[len(seconds) // 2] if seconds else 0
    return Report(
        f"{len(rows)} problems: {listed}; {same} judged, {weak} of them weak; at most {most} GiB of the device; "
        f"{middle} s each (median); found faster or slower than itself, wrong or crashed: {', '.join(off) or 'none'}",
        not off,
    )


def _dtype() -> str | None:
    return os.environ.get("KERNELWRIGHT_DTYPE") or None


def _kept() -> Kept:
    return Kept(f"kernelbench-{_dtype() or 'float32'}.jsonl", ".")
