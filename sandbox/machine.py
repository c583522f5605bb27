"""Facts of this machine for verdicts, `doctor` and hardware sheets, and the packages of further languages.

The packages are not imported: they are large, some open a device at once, and the judge's process needs none.
"""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Literal

import kernelwright_child
from kernelwright.problems.languages import LANGUAGES, ON_DEVICE
from kernelwright.problems.languages.language import Package
from kernelwright.sandbox.verdict.errors import MachineError

CHILD_FOLDER = Path(kernelwright_child.__file__).parent
CHILD_ROOT = CHILD_FOLDER.parent
"""The entry of a child's `sys.path`."""
PACKAGES = {name: one.package for name, one in LANGUAGES.items() if one.package is not None}


@cache
def package_version(language: str) -> str | None:
    """Return the version of a language's package; None where children cannot import it, which get no PYTHONPATH."""
    package = PACKAGES[language]
    spec = importlib.util.find_spec(package.module)
    added = {Path(entry).resolve() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    places = [*(spec.submodule_search_locations or [spec.origin or ""])] if spec else []
    if not places or Path(places[0]).resolve().parent in added:
        return None
    try:
        return importlib.metadata.version(package.distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def package_remedy(language: str) -> str:
    return f"pip install '{PACKAGES[language].requirement}'"


def too_new(package: Package, version: str, torch: str) -> str:
    """Return the conflict of this version with this torch and the remedy; empty for none."""
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
    version = package_version(language)
    return too_new(PACKAGES[language], version, importlib.metadata.version("torch")) if version else ""


def require_package(language: str) -> None:
    """Raise `MachineError`, with the remedy, where the language's package is missing or conflicts with torch."""
    if language not in PACKAGES:
        return
    if package_version(language) is None:
        name = f"{PACKAGES[language].distribution}, which is not installed; {package_remedy(language)}"
        raise MachineError(f"candidates in {language} need the package {name}")
    if why := refused_by_torch(language):
        raise MachineError(why)


def versions_used(source: str) -> dict[str, str]:
    """Return the versions of the packages that a source uses, by distribution: they can change its build."""
    return {
        package.distribution: package_version(language) or ""
        for language, package in PACKAGES.items()
        if package.used.search(source)
    }


def package_headers(language: str) -> Path | None:
    """Return the include folder of the language's package; None without the package or its headers."""
    package = PACKAGES[language]
    if package.headers is None or package_version(language) is None:
        return None
    spec = importlib.util.find_spec(package.module)
    folder = Path(str(spec and spec.origin)).parent / package.headers[0]
    return folder if (folder / package.headers[1]).is_file() else None


def language_environment(kept: Path) -> dict[str, str]:
    """Return a child's variables for the languages; `kept` is the folder for compiled files."""
    found = {name: text.format(kept=kept) for one in LANGUAGES.values() for name, text in one.environment}
    headers = [str(folder) for language in PACKAGES if (folder := package_headers(language)) is not None]
    if headers:
        found["CPLUS_INCLUDE_PATH"] = os.pathsep.join(headers)  # searched by g++ and nvcc after the command line's
    return found


@cache
def versions() -> dict[str, str]:
    import torch

    found = {"python": platform.python_version(), "torch": torch.__version__, "processor": processor_name()}
    if path := compiler():
        try:
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
            found["compiler"] = done.stdout.partition("\n")[0]
        except (OSError, subprocess.TimeoutExpired):
            found["compiler"] = ""
    return found


@cache
def processor_name() -> str:
    return cpu_facts().get("model name", platform.machine())


def device_name(device: str) -> str:
    """Return the model of the processor (`cpu`) or of a GPU (`cuda`, `cuda:N`); empty for a missing GPU."""
    from kernelwright_child import driver

    kind, _, ordinal = device.partition(":")
    try:
        return {"cpu": lambda _: processor_name(), "cuda": driver.device_name}[kind](int(ordinal or 0))
    except driver.CudaError:
        return ""


@cache
def cpu_facts() -> dict[str, str]:
    facts: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        facts[key.strip()] = value.strip()
    return facts


def compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "g++"))


def usual_device(language: str, size: str) -> Literal["cpu", "cuda"]:
    """Choose the device for candidates of this language on a problem of this size.

    Plain Python runs wherever torch does: on a GPU where there is one, unless the size is for a processor.
    """
    from kernelwright_child import driver

    known = LANGUAGES[language]
    return "cuda" if known.runs_anywhere and size != "cpu" and driver.device_count() > 0 else known.device


def require_tools(language: str) -> None:
    """Raise `MachineError`, with the remedy, where this machine cannot build or run candidates of this language."""
    from kernelwright_child import driver

    require_package(language)
    if language in ON_DEVICE and driver.device_count() == 0:
        raise MachineError(
            f"a candidate in {language} needs a CUDA device and this machine has none; use one that has, or target cpp"
        )
    if LANGUAGES[language].needs_nvcc and driver.toolkit_compiler() is None:
        raise MachineError("no CUDA compiler nvcc is found; install the CUDA toolkit, or set CUDA_HOME to it")
    if LANGUAGES[language].compiled_by == "load_inline" and compiler() is None:
        wanted = os.environ.get("CXX", "g++")
        raise MachineError(f"no C++ compiler {wanted!r} is found; install one (Debian: apt-get install g++) or set CXX")


SANITIZE, PROFILE = "--sanitize", "--profile"
CUDA_TOOLS = {SANITIZE: "compute-sanitizer", PROFILE: "ncu"}
DISASSEMBLER = "objdump"
TOOL_PLACES = ("/opt/nvidia/nsight-compute/*", "/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")
HOW_TO_GET = {
    "compute-sanitizer": "it comes with the CUDA toolkit; install that, or put it on the PATH",
    "ncu": "install Nsight Compute, or put it on the PATH",
    DISASSEMBLER: "install binutils, or put it on the PATH",
}


def tool_path(name: str) -> str | None:
    found = shutil.which(name)
    if found:
        return found
    below = (path for pattern in TOOL_PLACES for path in Path("/").glob(f"{pattern.lstrip('/')}/{name}"))
    return next((str(path) for path in sorted(below, reverse=True) if path.is_file()), None)


def tool_of(option: str, gpu: bool = True) -> str:
    """Find the tool of a command line option. Raises `MachineError` where it is missing."""
    name = CUDA_TOOLS[option] if gpu else DISASSEMBLER
    path = tool_path(name)
    if path is None:
        raise MachineError(f"{option} needs {name}, which is not found; {HOW_TO_GET[name]}")
    return path


def require_closer_look(sanitize: bool, profile: bool, gpu: bool = True) -> None:
    """Raise `MachineError`, with the remedy, where a requested tool is not installed."""
    for option, asked in ((SANITIZE, sanitize), (PROFILE, profile)):
        if asked:
            tool_of(option, gpu)


CHILD_SHARE = 0.75
"""Share of memory that one child may take, against runaway processes; several children are planned separately."""
CONTROL_GROUPS = (
    ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Of versions 2 and 1: the folder, the files with limit and use, and the reclaimable part of the use in memory.stat."""
ROOT = Path("/")
"""The folder of the kernel's `proc` and `sys`."""


def machine_bytes(root: Path = ROOT) -> int:
    """Return the memory of this machine, or the lowest limit of this process's control groups."""
    return min([_meminfo("MemTotal", root), *(limit for limit, _ in _groups(root))])


def free_bytes(root: Path = ROOT) -> int:
    return max(0, min([_meminfo("MemAvailable", root), *(limit - used for limit, used in _groups(root))]))


def child_limit_bytes() -> int:
    return int(CHILD_SHARE * machine_bytes())


def gib(count: float) -> str:
    """`12.3 GiB`."""
    return f"{count / 2**30:.3g} GiB" if count >= 2**30 else f"{count / 2**20:.3g} MiB"


def _meminfo(name: str, root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _groups(root: Path) -> list[tuple[int, int]]:
    """Return limit and use of each control group of this process that has a limit."""
    found = []
    for place, limit, used, spare in CONTROL_GROUPS:
        for folder in _groups_around(root, root / place):
            bounds = _number(folder / limit), _number(folder / used)
            if bounds[0] is not None and bounds[1] is not None:
                found.append((bounds[0], max(0, bounds[1] - _memory_stat(folder, spare))))
    return found


def _groups_around(root: Path, top: Path) -> list[Path]:
    """Return the folders of this process's control group and its parents in the hierarchy at `top`."""
    try:
        own = own_paths((root / "proc/self/cgroup").read_text())
    except OSError:
        return []
    inner = top / own.get("memory" if top.name == "memory" else "", "").lstrip("/")
    # In a container the path may be the host's, which does not exist: then the root is the container's own group.
    return [inner, *(folder for folder in inner.parents if folder.is_relative_to(top))]


def own_paths(table: str) -> dict[str, str]:
    """Parse /proc/self/cgroup into paths by controller; under version 2 the controller is empty."""
    found: dict[str, str] = {}
    for line in table.splitlines():
        _, controllers, path = line.split(":", 2)
        found |= dict.fromkeys(controllers.split(","), path)
    return found


def _memory_stat(folder: Path, name: str) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # `max` says that there is no limit
        return None
