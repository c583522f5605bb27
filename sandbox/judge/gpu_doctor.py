"""What this machine offers to judging on a GPU: lines for `kernelwright doctor`, each tried rather than assumed."""

import os
import subprocess
from collections.abc import Iterator

from kernelwright.sandbox.jail import bubblewrap
from kernelwright.sandbox.judge import cuda_toolkit, memcheck, profile
from kernelwright.sandbox.judge.health_check import HealthCheck
from kernelwright.sandbox.machine.clocks import Clocks
from kernelwright.sandbox.machine.timing_locks import device_holder
from kernelwright_child.gpu import driver, sharing

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
    """Whether nvcc makes code for this device, by having it make some."""
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
        remedy = "samples at a low clock can not be told apart; make libnvidia-ml.so.1 of the driver loadable"
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
    """Whether memory can be had whose descriptor a child can map."""
    try:
        shared = sharing.Shared(context.ordinal, 1)
        os.close(shared.export())
        shared.close()
    except driver.CudaError as error:
        remedy = "the driver or a container's runtime forbids it; use driver 525 or newer"
        return HealthCheck(name="GPU: lending memory", state="missing", found=str(error), remedy=remedy)
    return HealthCheck(name="GPU: lending memory", state="ok", found="by descriptor")


def _timing_clock(context: driver.Context) -> HealthCheck:
    """Which clock confirms what candidates report of their time."""
    obstacle = sharing.chain_obstacle(context.ordinal)
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
    program = cuda_toolkit.program(profile.PROGRAM)
    if program is None:
        remedy = "only --profile needs it: install Nsight Compute"
        yield HealthCheck(name="GPU: ncu", state="absent", found="not found", remedy=remedy)
    else:
        why = profile.counter_obstacle(program)
        if why:
            yield HealthCheck(name="GPU: ncu", state="absent", found=why, remedy=profile.COUNTER_REMEDY)
        else:
            yield HealthCheck(name="GPU: ncu", state="ok", found=f"{program}; reads the hardware's counters")
    sanitizer = cuda_toolkit.program(memcheck.PROGRAM)
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
