"""What a time, or a compiler's product, belongs to: one device, and the versions of all that takes part."""

import hashlib
import os
from functools import cache
from typing import NamedTuple

from kernelwright.sandbox.machine.identity import cpu_facts, processor_name, versions
from kernelwright.sandbox.verdict.settings import Settings

KIND_OF_PROCESSOR = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU part", "CPU variant")
"""Lines of /proc/cpuinfo that say what code a processor can run."""


class DeviceVersions(NamedTuple):
    """Equal where times can stand side by side."""

    device: str
    """A GPU by its name; a processor by its name and the number of threads."""
    versions: dict[str, str]


def place_of(settings: Settings) -> DeviceVersions:
    """Where these settings judge on this machine. Raises `MachineError` where a GPU is wanted and there is none."""
    if settings.gpu:
        device, more = _device(settings.ordinal)
        return DeviceVersions(device, versions() | dict(more))
    return DeviceVersions(f"{processor_name()}, {settings.threads} threads", versions())


def processor_kind() -> str:
    """A digest that differs between processors that may need other code."""
    facts = [f"{name}={cpu_facts().get(name, '')}" for name in KIND_OF_PROCESSOR]
    return hashlib.sha256("\n".join([*facts, os.uname().machine]).encode()).hexdigest()


@cache
def _device(ordinal: int) -> tuple[str, tuple[tuple[str, str], ...]]:
    import torch

    from kernelwright.sandbox.calls.device import device_of
    from kernelwright.sandbox.machine.clocks import Clocks

    device = device_of(Settings(device=f"cuda:{ordinal}"))
    clocks = Clocks(device.uuid)
    facts = clocks.facts()
    clocks.close()
    found = {
        "architecture": device.architecture,
        "cuda": str(torch.version.cuda),
        "driver": facts.driver if facts else "",
    }
    return device.name, tuple(found.items())
