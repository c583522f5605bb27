"""Evidence for prompts: which kernels ran (torch's profiler, in the child), and why one is slow (ncu's counters).

Nothing here decides anything: what a child reports of itself is a hint. ncu slows a program many times over, so it runs
apart from all timing.
"""

import csv
import io
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from sandbox.record import Record

METRICS = {
    "gpu__time_duration.sum": "time",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "device memory, % of its peak",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "multiprocessors, % of their peak",
    "dram__bytes.sum": "bytes from and to device memory",
    "lts__t_sector_hit_rate.pct": "L2 hits, %",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy reached, %",
    "launch__registers_per_thread": "registers a thread",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct": "bytes used of each global load, %",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": "shared memory bank conflicts",
    "smsp__inst_executed_op_local_ld.sum": "loads of spilled registers",
}
"""The few that decide what to do next: memory or arithmetic, how full, how wasteful."""
PERMISSION = "ERR_NVGPUCTRPERM"
"""What ncu prints where the driver keeps the counters for administrators; a code of its documentation."""
COUNTER_REMEDY = (
    "run as root, or let everybody read the counters: options nvidia NVreg_RestrictProfilingToAdminUsers=0 in "
    "/etc/modprobe.d and a reboot; in a container: --cap-add SYS_ADMIN"
)
SANITIZER_CODE = 77
SANITIZER_ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
TRIAL = "import torch; torch.ones(1 << 20, device='cuda').mul_(2); torch.cuda.synchronize()"
TRIAL_S = 180
PLACES = ("/opt/nvidia/nsight-compute/*", "/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")


class KernelFacts(Record):
    """One launch as ncu saw it."""

    kernel: str
    metrics: dict[str, str]
    """By the words of `METRICS`, value with unit."""

    def __str__(self) -> str:
        return "\n".join([self.kernel, *(f"  {name}: {value}" for name, value in self.metrics.items())])


def program(name: str) -> str | None:
    """Path of a tool of the CUDA toolkit; None where it is not installed."""
    found = shutil.which(name)
    if found:
        return found
    below = (path for pattern in PLACES for path in Path("/").glob(f"{pattern.lstrip('/')}/{name}"))
    return next((str(path) for path in sorted(below, reverse=True) if path.is_file()), None)


def ncu_command(path: str, inner: Sequence[str], launches: int = 20) -> list[str]:
    """The command line that runs `inner` under ncu. Clocks are left alone: the card may be others' too."""
    options = ["--csv", "--clock-control", "none", "--target-processes", "all"]
    options += ["--launch-count", str(launches), "--metrics", ",".join(METRICS)]
    return [path, *options, *inner]


def read_report(text: str) -> list[KernelFacts]:
    """The launches in ncu's CSV, in their order; lines of the program's own are passed over."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    rows = csv.DictReader(io.StringIO("\n".join(line for line in lines[start:] if line.startswith('"'))))
    by_launch: dict[str, tuple[str, dict[str, str]]] = {}
    for row in rows:
        words = METRICS.get(row.get("Metric Name") or "")
        if words is not None:
            unit, value = row.get("Metric Unit") or "", row.get("Metric Value") or ""
            by_launch.setdefault(row["ID"], (row["Kernel Name"], {}))[1][words] = f"{value} {unit}".strip()
    return [KernelFacts(kernel=kernel, metrics=metrics) for kernel, metrics in by_launch.values()]


def failure(output: str) -> str:
    """One sentence for a run of ncu that gave nothing."""
    if PERMISSION in output:
        return f"the driver lets only administrators read the counters ({PERMISSION})"
    told = [line for line in output.splitlines() if line.startswith("==ERROR==")]
    return told[0].removeprefix("==ERROR==").strip() if told else "ncu reported no kernel"


def counter_obstacle(path: str) -> str:
    """Why ncu can not read the counters; empty where it can. Tries it on a small kernel, which takes some seconds."""
    command = ncu_command(path, [sys.executable, "-c", TRIAL], launches=1)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TRIAL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not run ({type(error).__name__})"
    return "" if read_report(done.stdout) else failure(done.stdout + done.stderr)


def sanitizer_command(path: str, inner: Sequence[str]) -> list[str]:
    """The command line that runs `inner` under compute-sanitizer's memcheck; errors give `SANITIZER_CODE`.

    torch must not reuse freed blocks, or writes beyond one of them are within another: set `SANITIZER_ENVIRONMENT`.
    """
    options = ["--tool", "memcheck", "--target-processes", "all", "--error-exitcode", str(SANITIZER_CODE)]
    return [path, *options, *inner]


def sanitizer_findings(output: str) -> list[str]:
    """What memcheck found: the first line of each error, without the tool's mark."""
    lines = [line.removeprefix("=========").strip() for line in output.splitlines() if line.startswith("=========")]
    return [line for line in lines if line.startswith(("Invalid __", "Program hit", "Malloc/Free error", "Leaked"))]


def table(kernels: Iterable[tuple[str, int, float]], widest: int = 8) -> str:
    """Kernels as `sandbox.child.gpu_profile` lists them (name, launches, ms), with their share of the time."""
    rows = sorted(kernels, key=lambda row: -row[2])
    total = sum(ms for _, _, ms in rows) or 1.0
    lines = [f"{ms / total:6.1%} {ms:9.4f} ms {count:5d} x  {name[:100]}" for name, count, ms in rows[:widest]]
    rest = rows[widest:]
    if rest:
        ms = sum(row[2] for row in rest)
        lines.append(f"{ms / total:6.1%} {ms:9.4f} ms        {len(rest)} other kernels")
    return "\n".join(lines)
