"""The peaks of whatever a candidate runs on here: those of the processor are measured by a small program of ours."""

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kernelwright.sandbox.machine.fact_store import Store
from kernelwright.sandbox.machine.identity import compiler, cpu_facts, processor_name, versions
from kernelwright.sandbox.machine.timing_locks import measuring
from kernelwright.sandbox.machine.workfolder import HeldFolder
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.roofline import Level, Peaks

PROGRAM = Path(__file__).with_name("measure.cpp")
MEASURE = 2
"""Raised when the program measures something else, so that older figures are not used."""
TIMEOUT_S = 120
SMALL_BYTES = 16 * 2**10
"""Fits the first level of every processor of the last decades."""
SPILL = 4
"""Memory is measured on this many times the largest cache."""
LARGEST_BYTES = 2**31
SHORT_TYPES = {"amx_bf16": ("bfloat16", 16.0), "amx_fp16": ("float16", 16.0), "avx512_bf16": ("bfloat16", 2.0)}
"""By flag of /proc/cpuinfo, a short type and its rate in float32's: what the units can do, not what was measured."""
VECTOR_HALVES = {"avx512_fp16": ("float16", 2.0), "asimdhp": ("float16", 2.0)}


class Caches(NamedTuple):
    """Bytes that all cores of this process together have in each level; 0 where there is none or it is not told."""

    first: int
    second: int
    third: int


def processor_peaks(threads: int, store: Store | None = None) -> Peaks:
    """The peaks for so many threads. Measures for a few seconds where they are not remembered.

    Of several processes that want them one measures, once nothing is timed on this machine, and the others wait for it;
    so do not call it inside a `processor_turn`. Raises `MachineError` where there is no compiler to measure with.
    """
    store, key = store or Store("peaks"), _key(threads)
    kept = store.get(key)
    if kept is None:
        with measuring():
            kept = store.get(key)
            if kept is None:
                kept = _measured(threads).model_dump(mode="json")
                store.put(key, kept)
    return Peaks.model_validate(kept)


def known_peaks(threads: int, store: Store | None = None) -> Peaks | None:
    """The peaks for so many threads; None where they are not remembered. Measures nothing."""
    kept = (store or Store("peaks")).get(_key(threads))
    return None if kept is None else Peaks.model_validate(kept)


def measured_again(threads: int, store: Store | None = None) -> Peaks:
    """Measure once more and keep the better figures: what to do before a time is called impossible.

    A first measurement under load may have been too low, and the floor too high.
    """
    store = store or Store("peaks")
    known = processor_peaks(threads, store)
    with measuring():
        raised = known.raised(_measured(threads))
        store.put(_key(threads), raised.model_dump(mode="json"))
    return raised


def _key(threads: int) -> dict[str, object]:
    cores = len(os.sched_getaffinity(0))
    facts = {name: cpu_facts().get(name, "") for name in ("cpu family", "model", "stepping")}
    told = versions().get("compiler", "")
    return {"measure": MEASURE, "processor": processor_name(), "facts": facts, "threads": threads, "cores": cores} | {
        "compiler": told,
        "caches": list(caches()),
    }


def _measured(threads: int) -> Peaks:
    """Levels and rates. What the threads have for themselves is one core's best, times their number."""
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
    inside = {"first": 0, "second": known.first, "third": known.first + known.second, "memory": sum(known)}
    levels = tuple(Level(name=name, inside_bytes=inside[name], bytes_per_s=rate) for name, rate in rates.items())
    return Peaks(
        device=f"{processor_name()}, {threads} threads",
        levels=levels,
        flops_per_s=flops | _short_rates(flops["float32"]),
        copy_bytes_per_s=copied,
        versions={"compiler": versions().get("compiler", ""), "measure": str(MEASURE)},
    )


def _short_rates(float32: float) -> dict[str, float]:
    """Rates of 16-bit types, where the processor has units for them."""
    flags = set(cpu_facts().get("flags", cpu_facts().get("Features", "")).split())
    found: dict[str, float] = {}
    for flag, (dtype, factor) in (SHORT_TYPES | VECTOR_HALVES).items():
        if flag in flags:
            found[dtype] = max(found.get(dtype, 0.0), factor * float32)
    return found


def _run(numbers: list[int]) -> dict[str, float]:
    path = compiler()
    if path is None:
        raise MachineError("the floor needs a C++ compiler to measure this processor; install g++ or set CXX")
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
                last = (done.stderr.strip().splitlines() or ["no word"])[-1]
                raise MachineError(f"this processor could not be measured: {Path(command[0]).name} said {last!r}")
    return {name: float(rate) for name, rate in (line.split() for line in done.stdout.splitlines())}


@cache
def caches() -> Caches:
    """From sysfs; caches that several cores share count once."""
    found: dict[tuple[int, str], int] = {}
    for core in sorted(os.sched_getaffinity(0)):
        for folder in Path(f"/sys/devices/system/cpu/cpu{core}/cache").glob("index*"):
            try:
                kind, level, size, shared = (
                    (folder / name).read_text().strip() for name in ("type", "level", "size", "shared_cpu_list")
                )
            except OSError:
                continue
            if kind != "Instruction" and size.endswith("K"):
                found[int(level), shared] = int(size[:-1]) * 1024
    return Caches(*(sum(size for (level, _), size in found.items() if level == wanted) for wanted in (1, 2, 3)))


def peaks_here(gpu: bool, threads: int) -> Peaks:
    """Those of the first GPU, or of the processor with so many threads; measured where they are not remembered.

    Raises `MachineError` where they can not be had.
    """
    if not gpu:
        return processor_peaks(threads)
    from kernelwright.sandbox.floor.gpu_measure import device_peaks

    return device_peaks()


def known_peaks_here(gpu: bool, threads: int, store: Store | None = None) -> Peaks | None:
    """The same without measuring: None where they are not remembered."""
    if not gpu:
        return known_peaks(threads, store)
    from kernelwright.sandbox.floor import gpu_measure as gpu_peaks

    return gpu_peaks.known_peaks(store=store)
