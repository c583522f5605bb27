"""Facts about devices for a prompt: GPUs from `data/devices.toml`, processors from what they report."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from kernelwright.problems.problem import Record

DATA = Path(__file__).parent / "data" / "devices.toml"


class DeviceSheet(Record):
    """A device and the facts that the author of a kernel needs."""

    name: str
    kind: Literal["cpu", "cuda"]
    facts: tuple[str, ...] = ()  # one line each, with units


class GpuFigures(Record):
    """One entry of `devices.toml`. The rates are the vendor's peaks, without sparsity."""

    name: str
    aliases: tuple[str, ...]
    """Short names and those that the driver reports; compared without case, spaces, dashes and vendor words."""
    capability: str = Field(pattern=r"^\d+\.\d$")
    multiprocessors: int
    memory_gb: int
    memory_gb_per_s: int
    l2_mb: int
    shared_kb_per_multiprocessor: int
    shared_kb_per_block: int  # the most after raising the limit of 48 by `cudaFuncSetAttribute`
    threads_per_multiprocessor: int
    tflops: dict[str, float]  # by dtype; those that the device has no units for are absent

    @property
    def sheet(self) -> DeviceSheet:
        rates = ", ".join(f"{dtype} {rate:g}" for dtype, rate in self.tflops.items())
        fp32_per_byte = self.tflops["fp32"] * 1000 / self.memory_gb_per_s
        narrow_per_byte = self.tflops.get("bf16", self.tflops.get("fp16", 0)) * 1000 / self.memory_gb_per_s
        narrow = f" (of 16 bits on tensor cores about {narrow_per_byte:.0f})" if narrow_per_byte else ""
        facts = (
            f"compute capability {self.capability}, {self.multiprocessors} multiprocessors",
            f"peak TFLOP/s (dense): {rates}; fp64 and fp32 on plain units, the others on tensor cores",
            f"below about {fp32_per_byte:.0f} fp32 operations{narrow} for each byte moved, memory is the limit",
            f"device memory {self.memory_gb} GB at {self.memory_gb_per_s} GB/s; L2 cache {self.l2_mb} MB",
            f"shared memory {self.shared_kb_per_multiprocessor} KB a multiprocessor, {self.shared_kb_per_block} KB a "
            "block at most (above 48 KB: dynamic, after cudaFuncSetAttribute)",
            f"65536 32-bit registers a multiprocessor, 255 a thread; {self.threads_per_multiprocessor} threads a "
            "multiprocessor, 1024 a block",
        )
        return DeviceSheet(name=self.name, kind="cuda", facts=facts)


def device_sheet(name: str) -> DeviceSheet | None:
    """Give the sheet of a known GPU, by short name (`H200`) or as the driver reports it; None for an unknown one."""
    return next((gpu.sheet for gpu in _gpus() if _key(name) in map(_key, (gpu.name, *gpu.aliases))), None)


def known_devices() -> tuple[str, ...]:
    return tuple(gpu.name for gpu in _gpus())


def cpu_sheet(model_name: str, cores: int, flags: Iterable[str], caches: Mapping[str, int]) -> DeviceSheet:
    """Make the sheet of a processor.

    `cores`: those that the candidate may use. `flags`: the features as Linux names them. `caches`: the bytes of one
    instance of each level, by name (`L1d`, `L2`, `L3`), smallest first.
    """
    present = set(flags)
    facts = [f"{cores} cores to use" if cores != 1 else "1 core to use"]
    facts += [words for flag, words in _table()["vectors"].items() if flag in present][:1]
    if extras := [flag for flag in _table()["extras"] if flag in present]:
        facts.append(f"also: {', '.join(extras)}")
    if caches:
        sizes = (f"{n / 2**20:g} MiB" if n >= 2**20 else f"{n / 2**10:g} KiB" for n in caches.values())
        facts.append("caches, each: " + ", ".join(map(" ".join, zip(caches, sizes, strict=True))))
    return DeviceSheet(name=model_name, kind="cpu", facts=tuple(facts))


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(DATA.read_text(encoding="utf-8"))


@cache
def _gpus() -> tuple[GpuFigures, ...]:
    return tuple(GpuFigures.model_validate(entry) for entry in _table()["gpu"])


def _key(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|[\s_-]", "", name.lower())
