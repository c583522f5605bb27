"""ncu: why a kernel is slow, by a few of the hardware's counters. How it is started, and what its report says.

Nothing here decides anything: what runs around a candidate's process is a hint. ncu slows a program many times over, so
it runs apart from all timing.
"""

import csv
import io
import subprocess
import sys

from kernelwright.sandbox.judge.cuda_toolkit import PROFILE, TOOLS
from kernelwright.sandbox.verdict.verdicts import KernelFacts

PROGRAM = TOOLS[PROFILE]
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
LAUNCHES = 8
"""Of the call, from its first one: each is run again and again, once for every few metrics."""
ENVIRONMENT = {
    # A jailed child has no other sockets.
    "NV_COMPUTE_PROFILER_LOCAL_CONNECTION_OVERRIDE": "uds",
    "NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT": "1",
}
PERMISSION = "ERR_NVGPUCTRPERM"
"""What ncu prints where the driver keeps the counters for administrators; a code of its documentation."""
COUNTER_REMEDY = (
    "run as root, or let everybody read the counters: options nvidia NVreg_RestrictProfilingToAdminUsers=0 in "
    "/etc/modprobe.d and a reboot; in a container: --cap-add SYS_ADMIN"
)
IN_JAIL = "children of the judge are never administrators, so the latter setting is the one that helps"
TRIAL = "import torch; torch.ones(1 << 20, device='cuda').mul_(2); torch.cuda.synchronize()"
TRIAL_S = 180
WIDEST = 200


def command(path: str, report: str) -> list[str]:
    """The words in front of a program's own: launches between its marks are profiled, the report goes to a file."""
    marked = ["--target-processes", "application-only", "--profile-from-start", "off"]
    return [*_command(path, LAUNCHES), *marked, "--print-kernel-base", "function", "--log-file", report]


def _command(path: str, launches: int) -> list[str]:
    """Clocks are left alone: the card may be others' too."""
    options = ["--csv", "--clock-control", "none", "--launch-count", str(launches)]
    return [path, *options, "--metrics", ",".join(METRICS)]


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
        unit, value = row.get("Metric Unit") or "", row.get("Metric Value") or ""
        if words is not None and value not in ("", "n/a"):
            kernel = (row.get("Kernel Name") or "")[:WIDEST]
            by_launch.setdefault(row["ID"], (kernel, {}))[1][words] = f"{value} {unit}".strip()[:WIDEST]
    return [KernelFacts(kernel=kernel, metrics=metrics) for kernel, metrics in by_launch.values()]


def failure(output: str) -> str:
    """One sentence for a run of ncu that gave nothing."""
    if PERMISSION in output:
        return f"the driver lets only administrators read the counters ({PERMISSION})"
    told = [line for line in output.splitlines() if line.startswith("==ERROR==")]
    return told[0].removeprefix("==ERROR==").strip()[:WIDEST] if told else "ncu reported no kernel"


def obstacle(output: str) -> str:
    """The same for a run in a jail, with what can be done about it."""
    why = failure(output)
    return f"{why}; {COUNTER_REMEDY}; {IN_JAIL}" if PERMISSION in output else why


def counter_obstacle(path: str) -> str:
    """Why ncu can not read the counters; empty where it can. Tries it on a small kernel, which takes some seconds."""
    words = [*_command(path, launches=1), sys.executable, "-c", TRIAL]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TRIAL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not run ({type(error).__name__})"
    return "" if read_report(done.stdout) else failure(done.stdout + done.stderr)
