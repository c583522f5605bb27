"""What this machine is and has: for the record of a verdict, for `doctor`, and for hardware sheets."""

import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

from sandbox.errors import MachineError


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


def require_tools(language: str) -> None:
    """Raise `MachineError`, with the remedy, where this machine can not build or run candidates of this language."""
    import torch

    if language in ("cuda", "triton"):
        if not torch.cuda.is_available():
            raise MachineError(
                f"this candidate is written in {language} and torch sees no CUDA device; use a GPU machine"
            )
        raise MachineError(f"this version judges on the CPU only, and the candidate is in {language}; use target cpp")
    if language == "cpp" and compiler() is None:
        wanted = os.environ.get("CXX", "g++")
        raise MachineError(f"no C++ compiler {wanted!r} is found; install one (Debian: apt-get install g++) or set CXX")


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.splitlines()[0] if done.stdout else ""
