"""What this machine is and has: for the record of a verdict, for `doctor`, and for hardware sheets."""

import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

from kernelwright.sandbox.machine.language_packages import PACKAGES, require_package
from kernelwright.sandbox.verdict.errors import MachineError


@cache
def versions() -> dict[str, str]:
    """Interpreter, torch, compiler and processor, for the record."""
    import torch

    found = {"python": platform.python_version(), "torch": torch.__version__, "processor": processor_name()}
    path = compiler()
    if path:
        found["compiler"] = _first_line([path, "--version"])
    return found


@cache
def processor_name() -> str:
    """The processor's model as Linux names it."""
    return cpu_facts().get("model name", platform.machine())


def device_name(device: str) -> str:
    """The model of the processor (`cpu`) or of a GPU (`cuda`, `cuda:N`); empty for a GPU that is not here."""
    from kernelwright_child.gpu import driver

    if device == "cpu":
        return processor_name()
    try:
        return driver.device_name(int(device.partition(":")[2] or 0))
    except driver.CudaError:
        return ""


@cache
def cpu_facts() -> dict[str, str]:
    """The first processor's entry of /proc/cpuinfo."""
    facts: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        facts[key.strip()] = value.strip()
    return facts


def compiler() -> str | None:
    """Path of the C++ compiler that torch will use, or None."""
    return shutil.which(os.environ.get("CXX", "g++"))


ON_DEVICE = ("cuda", "cutlass", "triton", "tilelang", "helion", "cute")
"""Languages whose candidates run on a GPU and nowhere else."""


def needs_device(language: str, size: str) -> bool:
    """Whether a candidate of this language is judged on a GPU, for a problem of this size.

    What is plain Python runs wherever torch does: on a device where there is one, unless the size is for a processor.
    """
    from kernelwright_child.gpu import driver

    return language in ON_DEVICE or (language == "python" and size != "cpu" and driver.device_count() > 0)


def require_tools(language: str) -> None:
    """Raise `MachineError`, with the remedy, where this machine can not build or run candidates of this language."""
    from kernelwright_child.gpu import driver

    require_package(language)
    if language in ON_DEVICE and driver.device_count() == 0:
        raise MachineError(
            f"a candidate in {language} needs a CUDA device and this machine has none; use one that has, or target cpp"
        )
    package = PACKAGES.get(language)
    if (language == "cuda" or (package and package.needs_nvcc)) and driver.toolkit_compiler() is None:
        raise MachineError("no CUDA compiler nvcc is found; install the CUDA toolkit, or set CUDA_HOME to it")
    if language in ("cpp", "cuda", "cutlass") and compiler() is None:
        wanted = os.environ.get("CXX", "g++")
        raise MachineError(f"no C++ compiler {wanted!r} is found; install one (Debian: apt-get install g++) or set CXX")


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.splitlines()[0] if done.stdout else ""
