"""What this machine's first CUDA device does, fact by fact: peaks, floors, lending, witness.

`python -m bench gpu_facts` prints every fact that can be had, each by itself: one that fails is told and the next is
tried. Nothing is changed on the device. About three minutes; nothing else may use the device meanwhile.
`KERNELWRIGHT_BENCH=FACT,FACT` picks some, by the names of the functions below.
"""

import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from bench.chosen import chosen
from kernelwright.problems import catalog_names, load_problem
from kernelwright.sandbox.calls.buffers import Lent, Shown
from kernelwright.sandbox.calls.device import CudaDevice
from kernelwright.sandbox.judge.doctor import gpu_findings
from kernelwright.sandbox.peaks import arithmetic, best_ms, memory, peaks_here
from kernelwright.sandbox.storage import Store
from kernelwright.sandbox.verdict.roofline import NecessaryWork, Peaks, floor_of
from kernelwright_child import driver
from kernelwright_child.models import fix_precision
from kernelwright_child.roofline import trace

SIZES = {"64 KiB": 2**14, "1 MiB": 2**18, "64 MiB": 2**24, "512 MiB": 2**27}
"""Elements of float32 inputs."""
BUSY = """
import time, torch
torch.zeros(1, device="cuda")
print(1, flush=True)
end = time.time() + 60
while time.time() < end:
    torch.cuda._sleep(20_000_000)
    torch.cuda.synchronize()
"""
LEAVE = """
import torch
x = torch.full((2**30,), 1234567, dtype=torch.int32, device="cuda")
torch.cuda.synchronize()
"""
SEARCH = """
import torch
found = total = 0
for _ in range(24):
    x = torch.empty(2**30, dtype=torch.int32, device="cuda")
    found += int((x == 1234567).sum())
    total += x.numel()
    globals().setdefault("held", []).append(x)
print(f"{found} of {total} words of fresh memory hold what a process that has ended had written")
"""
EXPORT = """
import sys, torch
from kernelwright_child.gpu_memory import describe
x = torch.arange(1000.0, device="cuda")
torch.cuda.synchronize()
print(describe(x)[0], flush=True)
sys.stdin.readline()
"""


class Report(NamedTuple):
    """What a bench of facts ends with."""

    text: str
    holds: bool = True

    def __str__(self) -> str:
        return self.text


NO_DEVICE = Report("  the driver sees no CUDA device: nothing to tell")


def run() -> Report:
    """Print all facts."""
    if driver.device_count() == 0:
        return NO_DEVICE
    failed = []
    facts = (doctor, peaks, floors, units, preparing, witness, scrubbing, dead_exporter)
    wanted = chosen(fact.__name__ for fact in facts)
    for fact in facts:
        if fact.__name__ not in wanted:
            continue
        start = time.perf_counter()
        print(f"\n== {(fact.__doc__ or '').splitlines()[0]}", flush=True)
        try:
            for line in fact():
                print(f"  {line}", flush=True)
        except Exception:
            failed.append(fact.__name__)
            print(traceback.format_exc(limit=-4))
        print(f"  ({time.perf_counter() - start:.1f} s)", flush=True)
    return Report(f"\nfacts that could not be had: {', '.join(failed) or 'none'}", not failed)


def doctor() -> Iterator[str]:
    """The doctor's lines on the GPU."""
    for finding in gpu_findings():
        yield f"{finding.state:8} {finding.name}: {finding.found} {finding.remedy and '-> ' + finding.remedy}"


def peaks() -> Iterator[str]:
    """Measured peaks: memory in TB/s, products in TFLOP/s."""
    for name, rate in memory().items():
        yield f"{name:10} {rate / 1e12:8.3f} TB/s"
    for name, rate in arithmetic().items():
        yield f"{name:10} {rate / 1e12:8.1f} TFLOP/s"
    fix_precision("strict")


def kept_peaks() -> Peaks:
    """Measured in a process of their own and kept for this run of the facts."""
    folder = Path(tempfile.gettempdir()) / "kernelwright-facts"
    return peaks_here(True, 1, Store("peaks", folder))


def floors() -> Iterator[str]:
    """Floors and eager times of the catalog at size gpu, in ms; strict precision."""
    top = kept_peaks()
    fix_precision("strict")
    yield f"{'problem':36} {'memory':>8} {'direct':>8} {'least':>8} {'eager':>8} {'fraction':>8}  below?"
    for name in catalog_names():
        problem = load_problem(name, "gpu")
        namespace: dict[str, object] = {}
        exec(compile(problem.source, name, "exec"), namespace)
        model = namespace["Model"](*namespace["get_init_inputs"]()).to("cuda")  # type: ignore[operator]
        inputs = [x.to("cuda") if isinstance(x, torch.Tensor) else x for x in namespace["get_inputs"]()]  # type: ignore[operator]
        floor = floor_of(NecessaryWork.of(trace(model, inputs)), top, problem.precision)
        with torch.no_grad():
            eager = best_ms(lambda model=model, inputs=inputs: model(*inputs))  # type: ignore[misc]
        figures = f"{floor.memory_ms:8.4f} {floor.direct_ms:8.4f} {floor.least_ms:8.4f} {eager:8.4f}"
        verdict = "BELOW THE FLOOR" if eager < floor.floor_ms else "ok"
        yield f"{name:36} {figures} {floor.fraction(eager):8.3f}  {verdict}"
        del model, inputs, namespace
        torch.cuda.empty_cache()


def units() -> Iterator[str]:
    """The floor of a plain copy and of a large product against their best times: at most 1.3 apart, never below."""
    top = kept_peaks()
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    copied = floor_of(NecessaryWork(read_bytes=2**30, written_bytes=2**30), top, "strict").floor_ms
    best = best_ms(lambda source=source, target=target: target.copy_(source))  # type: ignore[misc]
    yield f"copy of 1 GiB: floor {copied:.4f} ms, best {best:.4f} ms, ratio {best / copied:.3f}"
    del source, target
    side = 8192
    left, right = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    work = NecessaryWork(read_bytes=4 * side**2, written_bytes=2 * side**2, flops={"bfloat16": 2 * side**3})
    floor, best = floor_of(work, top, "strict").floor_ms, best_ms(lambda: left @ right)
    yield f"bf16 product of side {side}: floor {floor:.4f} ms, best {best:.4f} ms, ratio {best / floor:.3f}"


def preparing() -> Iterator[str]:
    """What goes before each call (reveal and flush), on the device's clock; and how often an idle device seems busy."""
    with CudaDevice(wait_s=5) as device:
        for name, count in SIZES.items():
            lent = Lent([("float32", (count,))])
            device.calibrate(lent)
            done = [device.prepare(lent) for _ in range(200)]
            busy = sum(not one.was_idle for one in done)
            taken = [one.taken_ms for one in done]
            answers = [one.answer_ms for one in done]
            yield f"{name:8} idle {done[0].idle_ms:.4f} ms, {spread(taken)}; seems busy {busy} of 200"
            yield f"{'':8} slowest answer of three {spread(answers)}, at most {max(answers):.4f}"
            start = time.perf_counter()
            device.prepare(lent)
            wall = 1e3 * (time.perf_counter() - start)
            yield f"{'':8} on the judge's clock {wall:.3f} ms, clocks sampled in {clocks_ms(device):.3f} ms"
            lent.close()
        tensor = torch.ones(2**24, device="cuda")
        torch.cuda.synchronize()
        place = Shown("float32", (2**24,), (1,), tensor.data_ptr(), 2**26)
        yield f"a glance at 1024 words of 64 MiB: {spread(clocked(lambda: device.glancer.look([place])))}"
        yield f"clocks now: {device.clocks.sample()}"


def witness() -> Iterator[str]:
    """The device beside another process that keeps it busy: how often the witness sees that, out of 50."""
    with CudaDevice(wait_s=5) as device:
        lent = Lent([("float32", (2**24,))])
        device.calibrate(lent)
        with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()
            time.sleep(0.5)
            done = [device.prepare(lent) for _ in range(50)]
            other.kill()
        yield f"seen {sum(not one.was_idle for one in done)} of 50"
        yield f"on the device {spread([one.taken_ms for one in done])}"
        yield f"slowest answer of three {spread([one.answer_ms for one in done])}"
        lent.close()


def scrubbing() -> Iterator[str]:
    """Whether fresh device memory holds what another process left."""
    for code in (LEAVE, SEARCH):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    yield done.stdout.strip()


def dead_exporter() -> Iterator[str]:
    """Reading memory that another process showed before it died; in a process apart, in case it ends the context."""
    code = f"""
import ast, subprocess, sys
from kernelwright_child import driver
from kernelwright.sandbox.calls.buffers import Allocations, fetch
context = driver.Context(0)
child = subprocess.Popen([sys.executable, "-c", {EXPORT!r}], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
shown = Allocations().find(ast.literal_eval(child.stdout.readline()))
print("alive:", fetch(shown)[0].tensor()[:4].tolist(), flush=True)
child.kill(); child.wait()
print("dead:", fetch(shown)[0].tensor()[:4].tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    yield from done.stdout.splitlines()
    yield f"exit code {done.returncode} {done.stderr.strip().splitlines()[-1:]}"


def clocks_ms(device: CudaDevice) -> float:
    """What a sample of NVML costs."""
    return statistics.median(clocked(device.clocks.sample))


def clocked(action: Callable[[], object], times: int = 100) -> list[float]:
    """Milliseconds of each of some calls."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        taken.append(1e3 * (time.perf_counter() - start))
    return taken


def spread(samples: list[float]) -> str:
    """Median, and the range without the outermost twentieths."""
    ordered = sorted(samples)
    twentieth = len(ordered) // 20
    return f"{statistics.median(ordered):.4f} [{ordered[twentieth]:.4f}, {ordered[-1 - twentieth]:.4f}]"
