"""What this machine is and has: for the record of a verdict, for `doctor`, and for hardware sheets.

With the packages that further languages come in: which are here, in which version, and what they need of a child.
Nothing is imported of them: they are large, some ask for a device at once, and the judge's process needs none.
"""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import kernelwright_child
from kernelwright.sandbox.verdict.errors import MachineError

CHILD_FOLDER = Path(kernelwright_child.__file__).parent
CHILD_ROOT = CHILD_FOLDER.parent
"""To be put on a child's `sys.path`."""


class LanguagePackage(NamedTuple):
    distribution: str
    module: str
    """What stands for it on disk."""
    used: re.Pattern[str]
    """What in a source says that the package's version can change what comes of it."""
    needs_nvcc: bool
    torch_since: tuple[str, str] | None = None
    """From which of its versions on it needs which torch, where it does not tell pip so."""


PACKAGES = {
    "cutlass": LanguagePackage("nvidia-cutlass", "cutlass_library", re.compile(r"[<\"](?:cute|cutlass)/"), True),
    "tilelang": LanguagePackage("tilelang", "tilelang", re.compile(r"\btilelang\b"), True),
    "cute": LanguagePackage(
        "nvidia-cutlass-dsl", "cutlass", re.compile(r"^\s*(?:from|import) cutlass\b", re.MULTILINE), False
    ),
    "helion": LanguagePackage("helion", "helion", re.compile(r"\bhelion\b"), False, ("1.5", "2.12")),
}
"""By language; those that are not here need no package of their own."""


@cache
def package_version(language: str) -> str | None:
    """The version of the language's package; None where it is not installed."""
    package = PACKAGES[language]
    if importlib.util.find_spec(package.module) is None:
        return None
    try:
        return importlib.metadata.version(package.distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def package_remedy(language: str) -> str:
    return f"pip install 'kernelwright[{language}]'"


def too_new(package: LanguagePackage, version: str, torch: str) -> str:
    """Why this version of the package does not run with this torch, and the remedy; empty where it does."""
    if package.torch_since is None:
        return ""
    since, needed = package.torch_since
    if major_minor(version) < major_minor(since) or major_minor(torch) >= major_minor(needed):
        return ""
    name = package.distribution
    return f"{name} {version} needs torch {needed} and this is {torch}; pip install '{name}<{since}', or a newer torch"


def major_minor(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:2]))


def refused_by_torch(language: str) -> str:
    """Why the language's package that is installed does not run with this torch; empty where it does, or is not."""
    version = package_version(language)
    return too_new(PACKAGES[language], version, importlib.metadata.version("torch")) if version else ""


def require_package(language: str) -> None:
    """Raise `MachineError`, with the remedy, where the language's package is not installed, or not for this torch."""
    if language not in PACKAGES:
        return
    if package_version(language) is None:
        name = PACKAGES[language].distribution
        raise MachineError(f"candidates in {language} need the package {name}, which is not installed; "
                           f"{package_remedy(language)}")  # fmt: skip
    if why := refused_by_torch(language):
        raise MachineError(why)


def versions_used(source: str) -> dict[str, str]:
    """By distribution, the versions of the packages that a source uses: another one can make another program of it."""
    return {
        package.distribution: package_version(language) or ""
        for language, package in PACKAGES.items()
        if package.used.search(source)
    }


def cutlass_headers() -> Path | None:
    """The folder that `#include <cute/tensor.hpp>` is meant from; None without the package."""
    if package_version("cutlass") is None:
        return None
    spec = importlib.util.find_spec(PACKAGES["cutlass"].module)
    folder = Path(str(spec and spec.origin)).parent / "source" / "include"
    return folder if (folder / "cute" / "tensor.hpp").is_file() else None


def language_environment(kept: Path) -> Iterator[tuple[str, str]]:
    """What the languages are told in a child's environment; `kept` is where they may keep what they have compiled."""
    headers = cutlass_headers()
    if headers is not None:
        yield "CPLUS_INCLUDE_PATH", str(headers)  # both g++ and nvcc look there, behind what a command line names
    yield "TILELANG_CACHE_DIR", str(kept / "tilelang")
    yield "TILELANG_PRINT_ON_COMPILATION", "0"
    yield "CUTE_DSL_CACHE_DIR", str(kept / "cute")
    yield "HELION_CACHE_DIR", str(kept / "helion")
    yield "HELION_AUTOTUNE_EFFORT", "none"  # a search for a configuration takes minutes, and would be timed


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
    return cpu_facts().get("model name", platform.machine())


def device_name(device: str) -> str:
    """The model of the processor (`cpu`) or of a GPU (`cuda`, `cuda:N`); empty for a GPU that is not here."""
    from kernelwright_child import driver

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
    from kernelwright_child import driver

    return language in ON_DEVICE or (language == "python" and size != "cpu" and driver.device_count() > 0)


def require_tools(language: str) -> None:
    """Raise `MachineError`, with the remedy, where this machine can not build or run candidates of this language."""
    from kernelwright_child import driver

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
