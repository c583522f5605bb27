"""The peaks of memory and arithmetic of this machine's processor or GPU, measured once and stored.

The reference's child finds a problem's necessary work, and `verdict/roofline.py` divides it by the peaks. The result is
a lower bound on every correct program's time, so each step errs downwards (docs/judge.md). A small C++ program,
`measure.cpp`, measures the processor, and `python -m kernelwright.sandbox.peaks` the GPU in a separate process.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright.sandbox.clocks import Clocks
from kernelwright.sandbox.locks import measuring
from kernelwright.sandbox.machine import compiler, cpu_facts, processor_name, versions
from kernelwright.sandbox.storage import Store
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.roofline import Level, Peaks
from kernelwright.sandbox.workfolder import HeldFolder
from kernelwright_child import driver

MEASURE = 2
"""The version of the measurement; figures of other versions are not used."""


def peaks_here(gpu: bool, threads: int, store: Store | None = None) -> Peaks:
    """Return the peaks of the first GPU, or of the processor with this many threads; measure them if not stored.

    One of several processes measures the processor, once nothing is timed on this machine, and the others wait: do not
    call it inside a `processor_lock`. On a GPU hold the device's lock. Raises `MachineError`.
    """
    store = store or Store("peaks")
    try:
        key = _key(gpu, threads)
        kept = store.get(key)
        if kept is None:
            with nullcontext() if gpu else measuring():
                kept = store.get(key)
                if kept is None:
                    kept = _measured(gpu, threads).model_dump(mode="json")
                    store.put(key, kept)
    except driver.CudaError as error:
        raise MachineError(f"device 0 could not be measured ({error}); see `kernelwright doctor`") from None
    return Peaks.model_validate(kept)


def known_peaks_here(gpu: bool, threads: int, store: Store | None = None) -> Peaks | None:
    """Return the stored peaks; None without any, or without a GPU."""
    try:
        kept = (store or Store("peaks")).get(_key(gpu, threads))
    except driver.CudaError:
        return None
    return None if kept is None else Peaks.model_validate(kept)


def measured_again(gpu: bool, threads: int, store: Store | None = None) -> Peaks:
    """Measure again and store the better figures, before a time is called impossible.

    A first measurement under load may have been too low, and so the bound too high.
    """
    store = store or Store("peaks")
    known = peaks_here(gpu, threads, store)
    with nullcontext() if gpu else measuring():
        raised = known.raised(_measured(gpu, threads))
        store.put(_key(gpu, threads), raised.model_dump(mode="json"))
    return raised


def _key(gpu: bool, threads: int) -> dict[str, Any]:
    if gpu:
        import torch

        return {"measure": MEASURE, "uuid": driver.device_uuid(), **_driver_facts(), "torch": torch.__version__}
    return {
        "measure": MEASURE,
        "processor": processor_name(),
        "facts": {name: cpu_facts().get(name, "") for name in ("cpu family", "model", "stepping")},
        "threads": threads,
        "cores": len(os.sched_getaffinity(0)),
        "compiler": versions().get("compiler", ""),
        "caches": list(caches()),
    }


def _driver_facts() -> dict[str, Any]:
    clocks = Clocks(driver.device_uuid())
    facts = clocks.facts()
    clocks.close()
    return {
        "driver": facts.driver if facts else driver.driver_version(),
        "highest_sm_mhz": facts.highest_sm_mhz if facts else None,
    }


def _measured(gpu: bool, threads: int) -> Peaks:
    return _device_measured() if gpu else _processor_measured(threads)


# The processor.

PROGRAM = Path(__file__).with_name("measure.cpp")
TIMEOUT_S = 120
SMALL_BYTES = 16 * 2**10
"""Fits the first level of every processor of the last decades."""
SPILL = 4
"""Size of the memory measurement, as a multiple of the largest cache."""
LARGEST_BYTES = 2**31
SHORT_TYPES = {
    "amx_bf16": ("bfloat16", 16.0),
    "amx_fp16": ("float16", 16.0),
    "avx512_bf16": ("bfloat16", 2.0),
    "avx512_fp16": ("float16", 2.0),
    "asimdhp": ("float16", 2.0),
}
"""A short type and its rate relative to float32 by flag of /proc/cpuinfo: a property of the units, not measured."""


class Caches(NamedTuple):
    """Bytes of all cores of this process together by cache level; 0 for a missing or unknown level."""

    first: int
    second: int
    third: int


def caches_of(core: int) -> Iterator[tuple[int, str, int, str]]:
    """Yield level, type, bytes and sharing cores of a core's data and unified caches, smallest first."""
    for folder in sorted(Path(f"/sys/devices/system/cpu/cpu{core}/cache").glob("index*")):
        with suppress(OSError):
            names = ("type", "level", "size", "shared_cpu_list")
            kind, level, size, shared = ((folder / name).read_text().strip() for name in names)
            if kind != "Instruction" and size.endswith("K"):
                yield int(level), kind, int(size[:-1]) * 1024, shared


@cache
def caches() -> Caches:
    """Read the caches from sysfs; a shared cache counts once."""
    cores = os.sched_getaffinity(0)
    found = {(level, shared): size for core in cores for level, _, size, shared in caches_of(core)}
    return Caches(*(sum(size for (level, _), size in found.items() if level == wanted) for wanted in (1, 2, 3)))


def _processor_measured(threads: int) -> Peaks:
    """Measure levels and rates. The rates of private units are one core's best times the number of threads."""
    known = caches()
    cores = max(1, len(os.sched_getaffinity(0)))
    shared = known.third or known.second
    sizes = [
        min(SMALL_BYTES, known.first // cores // 2) if known.first else SMALL_BYTES,
        known.second // cores // 2,
        known.third // 2,
        min(SPILL * shared, LARGEST_BYTES, (os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) // 4),
    ]
    rates = _run([threads, *sizes])
    flops = {name: rates.pop(name) for name in ("float32", "float64")}
    copied = rates.pop("copy", None)
    flags = set(cpu_facts().get("flags", cpu_facts().get("Features", "")).split())
    for flag, (dtype, factor) in SHORT_TYPES.items():
        if flag in flags:
            flops[dtype] = max(flops.get(dtype, 0.0), factor * flops["float32"])
    inside = {"first": 0, "second": known.first, "third": known.first + known.second, "memory": sum(known)}
    return Peaks(
        device=f"{processor_name()}, {threads} threads",
        levels=tuple(Level(name=name, inside_bytes=inside[name], bytes_per_s=rate) for name, rate in rates.items()),
        flops_per_s=flops,
        copy_bytes_per_s=copied,
        versions={"compiler": versions().get("compiler", ""), "measure": str(MEASURE)},
    )


def _run(numbers: list[int]) -> dict[str, float]:
    path = compiler()
    if path is None:
        raise MachineError("the roofline needs a C++ compiler to measure this processor; install g++ or set CXX")
    with HeldFolder("peaks") as folder:
        binary = f"{folder}/measure"
        build = [path, "-O3", "-march=native", "-std=c++17", "-pthread", "-o", binary, str(PROGRAM)]
        for command in (build, [binary, *map(str, numbers)]):
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise MachineError(
                    f"this processor could not be measured ({error}); try again when it is idle"
                ) from None
            if done.returncode != 0:
                last = (done.stderr.strip().splitlines() or ["no output"])[-1]
                raise MachineError(f"this processor could not be measured: {Path(command[0]).name} said {last!r}")
    return {name: float(rate) for name, rate in (line.split() for line in done.stdout.splitlines())}


# The GPU. Only rates of many long calls are measured; the best burst counts. Products run on zeros too, which take less
# power than random numbers and so run at a higher clock: the bound must hold for all values.

DEVICE_TIMEOUT_S = 300
BYTES_A_CLOCK = 128
"""Most bytes between a multiprocessor and the caches per clock (both directions, compute capability 7.0 to 10.0: 64
bytes of L2 each way). Not measured, since a kernel that fits the L2 cache is mostly launch."""
UNKNOWN_MHZ = 3000
"""Clock without NVML, above every device's."""
BUFFER_BYTES = 2**30
SIDE = 8192
BURSTS, CALLS = 8, 4
UNITS = {
    "float16": ("float16", False),
    "bfloat16": ("bfloat16", False),
    "tf32": ("float32", True),
    "float32": ("float32", False),
    "float64": ("float64", False),
}
"""Dtype of the product, and whether TF32 is allowed, by kind of unit."""
SLOW = ("float32", "float64")
"""Kinds measured at half the side, in an eighth of the time."""


def _device_measured() -> Peaks:
    import torch

    code = "from kernelwright.sandbox.peaks import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEVICE_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise MachineError(f"device 0 could not be measured ({last}); end other programs on it")
    found = json.loads(done.stdout.splitlines()[-1])
    context = driver.Context(0)
    try:
        name, l2_bytes = context.name, context.attribute("l2_bytes")
        units = context.attribute("multiprocessors")
    finally:
        context.close()
    facts = _driver_facts()
    clock = 1e6 * float(facts["highest_sm_mhz"] or UNKNOWN_MHZ)
    levels = (
        Level(name="caches", inside_bytes=0, bytes_per_s=units * BYTES_A_CLOCK * clock),
        Level(name="memory", inside_bytes=l2_bytes, bytes_per_s=max(found["memory"].values())),
    )
    return Peaks(
        device=name,
        levels=levels,
        flops_per_s=found["arithmetic"],
        copy_bytes_per_s=found["memory"]["copy"],
        versions={"driver": str(facts["driver"]), "torch": torch.__version__},
    )


def best_ms(run: Callable[[], object]) -> float:
    """Return the milliseconds of one call, on the device's events, in the best of several bursts."""
    import torch

    run()
    times = []
    for _ in range(BURSTS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(CALLS):
            run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / CALLS)
    least: float = min(times)
    return least


def memory() -> dict[str, float]:
    import torch

    count = BUFFER_BYTES // 4
    source, target = torch.ones(count, device="cuda"), torch.empty(count, device="cuda")
    ways: dict[str, tuple[float, Callable[[], object]]] = {
        "copy": (2, lambda: target.copy_(source)),
        "read": (1, lambda: torch.max(source)),
        "write": (1, lambda: target.fill_(1.5)),
    }
    return {name: 1e3 * share * BUFFER_BYTES / best_ms(run) for name, (share, run) in ways.items()}


def arithmetic() -> dict[str, float]:
    import torch

    found = {}
    for kind, (dtype, tf32) in UNITS.items():
        torch.backends.cuda.matmul.allow_tf32 = tf32
        side = SIDE // 2 if kind in SLOW else SIDE
        times = []
        for make in (torch.zeros, torch.randn):
            left, right = (make(side, side, device="cuda").to(getattr(torch, dtype)) for _ in range(2))
            times.append(best_ms(lambda left=left, right=right: left @ right))  # type: ignore[misc]
        found[kind] = 2e3 * side**3 / min(times)
    return found


def main() -> None:
    """Print the GPU's rates as one JSON object."""
    print(json.dumps({"memory": memory(), "arithmetic": arithmetic()}))


if __name__ == "__main__":
    main()
