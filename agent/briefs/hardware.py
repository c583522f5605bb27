"""The hardware sheet that a prompt shows: of this machine, or of a device that is named."""

import os
from pathlib import Path

from kernelwright.prompts import DeviceSheet, PromptError, Target, cpu_sheet, device_sheet, known_devices
from kernelwright.prompts.targets import TARGETS
from kernelwright.sandbox.machine.identity import cpu_facts, processor_name

CACHE_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")
FALLBACK_GPU = "H100"
"""Shown for a GPU target on a machine without a known GPU, so that a prompt can still be read there."""


def sheet_for(target: str, name: str | None = None, ordinal: int = 0) -> DeviceSheet:
    """The sheet for a target (`cpp`, `cuda` and so on), of the named device, or of this machine's own."""
    if name is not None:
        found = device_sheet(name)
        if found is None:
            raise PromptError(f"no device {name!r}; there are: {', '.join(known_devices())}")
        return found
    if TARGETS[target].device == "cpu":  # type: ignore[index]  # a KeyError here is a caller's bug
        cores = len(os.sched_getaffinity(0))
        return cpu_sheet(processor_name(), cores, cpu_facts().get("flags", "").split(), _caches())
    return _gpu_sheet(ordinal)


def sheet_in(section: str, target: Target) -> DeviceSheet:
    """The sheet again, from the section of a prompt that shows it: for replaying what another machine asked."""
    _, _, body = section.partition("\n\n")
    name, *facts = body.splitlines()
    return DeviceSheet(
        name=name, kind=TARGETS[target].device, facts=tuple(fact.removeprefix("- ") for fact in facts if fact)
    )


def _gpu_sheet(ordinal: int) -> DeviceSheet:
    import torch

    if torch.cuda.is_available():
        name = torch.cuda.get_device_name(ordinal)
        facts = torch.cuda.get_device_properties(ordinal)
        own = (f"{facts.multi_processor_count} multiprocessors", f"device memory {facts.total_memory / 1e9:.0f} GB")
        return device_sheet(name) or DeviceSheet(name=name, kind="cuda", facts=own)
    fallback = device_sheet(FALLBACK_GPU)
    assert fallback is not None
    return fallback


def _caches() -> dict[str, int]:
    """Bytes of each data or unified cache that the first core sees, smallest first."""
    found: dict[str, int] = {}
    for index in sorted(CACHE_FOLDER.glob("index*")):
        kind = (index / "type").read_text().strip()
        level = (index / "level").read_text().strip()
        size = (index / "size").read_text().strip()
        if kind != "Instruction":
            found[f"L{level}{'d' if kind == 'Data' else ''}"] = int(size.rstrip("KMG")) * _UNITS[size[-1]]
    return found


_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
