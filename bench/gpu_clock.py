"""`gpu_time_ms` of programs of all kinds against a plain process that times them by events, and the clock's error.

`python -m bench gpu_clock` judges small problems on the device: eager, compiled, Triton, CUDA by ctypes and inline, and
captured graphs. A process without a judge times the same programs: the host ahead by a kernel that spins, the L2 cache
read over before each call, the median of the events. Both must agree within 3 %. Then it tells what the judge's own
clock says more than the events, by length of the call; verdicts that `gpu_placebo` has kept count there too.

A line of JSON a case goes to `gpu-clock.jsonl` in the folder that `KERNELWRIGHT_OUT` names, or in `runs`; what is there
is not measured again, unless it failed. `KERNELWRIGHT_BENCH=NAME,NAME` picks cases, `KERNELWRIGHT_SECONDS` ends the run
in time.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from bench.chosen import Kept, chosen, is_in_time
from bench.gpu_facts import NO_DEVICE, Report
from bench.gpu_placebo import KEPT as PLACEBOS
from bench.gpu_placebo import Line, clock_facts, error_lines, shown_clock
from bench.placebo import itself
from kernelwright.problems import Problem
from kernelwright.problems.problem import Dtype
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.settings import CompileMode, Settings
from kernelwright.sandbox.verdict.verdicts import COMPILED, EAGER, Candidate, Passed
from kernelwright_child import driver
from tests.gpu.honest import HONEST, problem

WITHIN, FEWEST = 0.03, 20
COMPILED_MS = (0.215, 0.235)
"""What the two products of 8192 take under torch.compile, in two digits 0.22 or 0.23."""
WARMING, UNCOUNTED, SAMPLES, LIMIT_S = 12, 40, 80, 400
CYCLES_A_MS = 2_000_000
BOTH: tuple[CompileMode, ...] = ("default", "reduce-overhead")
BY_CTYPES = '''
import ctypes
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
__global__ void relu(const float4* x, float4* y, long n) {
    for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x) {
        float4 v = x[i];
        y[i] = make_float4(fmaxf(v.x, 0), fmaxf(v.y, 0), fmaxf(v.z, 0), fmaxf(v.w, 0));
    }
}
extern "C" void run(const float4* x, float4* y, long n, cudaStream_t stream) {
    relu<<<1056, 512, 0, stream>>>(x, y, n);
}
"""
LIBRARY = ctypes.CDLL(load_inline(
    name="by_ctypes", cpp_sources=[""], cuda_sources=[SOURCE], extra_cuda_cflags=["-O3"],
    no_implicit_headers=True, is_python_module=False,
))
LIBRARY.run.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_long, ctypes.c_void_p]

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        LIBRARY.run(x.data_ptr(), y.data_ptr(), x.numel() // 4, torch.cuda.current_stream().cuda_stream)
        return y
'''


class Case(NamedTuple):
    """A reference with the programs that are timed on it."""

    forward: str
    inputs: str
    constructor: str = ""
    answer: str | None = None
    """The candidate's source; None: the reference itself."""
    modes: tuple[CompileMode, ...] = ()
    dtype: Dtype | None = None

    @property
    def problem(self) -> Problem:
        """What the judge is given."""
        made = problem("clock", self.forward, self.inputs, self.constructor)
        return made.model_copy(update={"dtype": self.dtype})

    @property
    def source(self) -> str:
        """The candidate's."""
        return self.answer or itself(self.problem.source)

    @property
    def sides(self) -> list[str]:
        """The different programs, by the names that a measurement gives them."""
        return ["candidate"] + [EAGER] * bool(self.answer) + [f"{COMPILED} {mode}" for mode in self.modes]


RELU, SOFTMAX = "return torch.relu(inputs[0])", "return torch.softmax(inputs[0], -1)"
NORM = "self.weight = torch.nn.Parameter(torch.randn(768)); self.bias = torch.nn.Parameter(torch.randn(768))"
MLP = (
    "nn = torch.nn; self.run = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), "
    "nn.Linear(1024, 256))"
)
CASES = {
    "relu_8mib": Case(RELU, "torch.randn(1024, 1024)", answer=HONEST["triton_relu"].source),
    "softmax_8mib": Case(SOFTMAX, "torch.randn(1024, 1024)", answer=HONEST["triton_softmax"].source),
    "layer_norm_12mib": Case(
        "return F.layer_norm(inputs[0], (768,), self.weight, self.bias)", "torch.randn(2048, 768)", NORM,
        HONEST["triton_layer_norm"].source),
    "relu_64mib": Case(RELU, "torch.randn(4096, 2048)", answer=HONEST["graph_with_fresh_inputs"].source),
    "relu_512mib": Case(RELU, "torch.randn(8192, 8192)", answer=BY_CTYPES),
    "relu_4gib": Case(RELU, "torch.randn(32768, 16384)", answer=HONEST["cuda_relu"].source),
    "cumsum_16mib": Case("return torch.cumsum(inputs[0], 1)", "torch.rand(256, 8192)"),
    "product_2048": Case(
        "return inputs[0] @ inputs[1]", "torch.randn(2048, 2048), torch.randn(2048, 2048)", modes=("default",)),
    "pointwise_softmax": Case(
        "return torch.softmax(F.gelu(2 * inputs[0]) + inputs[0], -1)", "torch.randn(4096, 2048)", modes=BOTH),
    "small_mlp": Case("return self.run(inputs[0])", "torch.randn(256, 512)", MLP, modes=BOTH, dtype="bfloat16"),
    "linear_norm_min": Case(
        "return self.norm(self.linear(inputs[0])).min(1, keepdim=True)[0] + self.bias", "torch.randn(1024, 8192)",
        "self.linear, self.norm = torch.nn.Linear(8192, 8192), torch.nn.GroupNorm(512, 8192); "
        "self.bias = torch.nn.Parameter(torch.randn(1, 8192, 1, 1))", modes=BOTH, dtype="bfloat16"),
    "linear_activations": Case(
        "x = self.linear(inputs[0]) + self.added; "
        "return F.hardtanh(F.gelu(torch.tanh(torch.sigmoid(x) * x)), -1, 1)", "torch.randn(1024, 8192)",
        "self.linear, self.added = torch.nn.Linear(8192, 8192), torch.nn.Parameter(torch.randn(8192))",
        modes=BOTH, dtype="bfloat16"),
}  # fmt: skip
LARGE_PRODUCTS = ("linear_norm_min", "linear_activations")


def run() -> Report:
    """The programs of each case, then what did not hold."""
    kept = Kept("gpu-clock.jsonl")
    if driver.device_count() == 0:
        return NO_DEVICE
    known = {row["case"] for row in kept.rows() if row["judged"]}
    for name in chosen(CASES):
        if name not in known and is_in_time():
            kept.add(row := measured(name))
            print(f"  {name:20} {row['seconds']:5.1f} s {row['outcome']}", flush=True)
    latest = {row["case"]: row for row in kept.rows()}
    return report([*latest.values()], Kept(PLACEBOS).rows())


def measured(name: str) -> dict[str, Any]:
    """The times of a case's programs in ms, by the plain process and by the judge."""
    case, start = CASES[name], time.perf_counter()
    row: dict[str, Any] = {"case": name, "plain": {}, "judged": {}}
    try:
        command = [sys.executable, "-m", "bench.gpu_clock", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True)
        row["plain"] = json.loads(done.stdout.splitlines()[-1])
        with Judge(case.problem, Settings(device="cuda", effort="search", compiled=case.modes)) as judge:
            verdict = judge.judge(Candidate(source=case.source))
        if isinstance(verdict, Passed):
            row |= {"judged": verdict.measurement.times, "outcome": verdict.measurement.comparison}
            row |= clock_facts(verdict.measurement)
        else:
            row["outcome"] = f"failed at {verdict.stage}: {verdict.reason[:300]}"
    except Exception as error:  # the others are to be seen too
        row["outcome"] = f"broken: {type(error).__name__}: {error}"
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def report(rows: list[dict[str, Any]], others: list[dict[str, Any]]) -> Report:
    """All programs, and the clock's error in these rows and others."""
    lines = [line for row in rows for line in _program_lines(row)]
    lines.append(Line(f"{len(lines)} programs (wanted: {FEWEST} or more)", len(lines) >= FEWEST))
    side, (least, most) = f"{COMPILED} default", COMPILED_MS
    for row in rows:
        if row["case"] in LARGE_PRODUCTS:
            ms = row["judged"].get(side, {}).get("gpu_time_ms")
            holds = ms is not None and least <= ms < most
            lines.append(Line(f"{row['case']}, compiled: {ms} ms (wanted: 0.22 to 0.23)", holds))
    checked = [row for row in [*rows, *others] if row.get("check")]
    return Report("\n".join(map(str, [*lines, *error_lines(checked)])), all(line.holds for line in lines))


def _program_lines(row: dict[str, Any]) -> Iterator[Line]:
    for side in CASES[row["case"]].sides:
        plain, judged = row["plain"].get(side), row["judged"].get(side)
        if not plain or not judged:
            yield Line(f"{row['case']:20} {side:30} not measured: {row['outcome']}", False)
            continue
        ratio = judged["gpu_time_ms"] / plain["ms"]
        latency, host = (judged[key] or 0.0 for key in ("call_latency_ms", "host_time_ms"))
        yield Line(
            f"{row['case']:20} {side:30} gpu_time {judged['gpu_time_ms']:.4f}, plain {plain['ms']:.4f} ms, ratio "
            f"{ratio:.3f}; latency {latency:.3f}, host {host:.3f}, plain {plain['host_ms']:.3f} ms"
            + (f"; {shown_clock(row)}" if side == "candidate" else ""),
            1 / (1 + WITHIN) <= ratio <= 1 + WITHIN,
        )


def plain(case: Case) -> dict[str, dict[str, float]]:
    """In a process of its own: the median of each program by events, and what the host takes for a call, in ms."""
    import torch

    from kernelwright_child.models import cast_inputs, cast_model, fix_precision

    fix_precision("strict")
    dtype, folder = case.problem.dtype, tempfile.mkdtemp()
    texts = {"reference": case.problem.source, "answer": case.source}
    reference, answer = (_loaded(Path(folder) / f"{name}.py", text) for name, text in texts.items())
    with torch.device("cuda"):
        inputs = cast_inputs(reference.get_inputs(), dtype)
    models = {EAGER: reference.Model(), "candidate": answer.ModelNew()}
    for model in models.values():
        model.load_state_dict(models[EAGER].state_dict(), strict=False)
        cast_model(model.to("cuda"), dtype)
    flushed = torch.zeros(2 * torch.cuda.get_device_properties(0).L2_cache_size // 4, device="cuda")
    most = torch.empty((), device="cuda")
    found = {}
    with torch.no_grad():
        for side in case.sides:
            run = models.get(side) or torch.compile(
                models[EAGER], mode=side.removeprefix(COMPILED).strip(), dynamic=False
            )
            found[side] = timed(
                lambda run=run: run(*inputs),  # type: ignore[misc]
                lambda: torch.amax(flushed, 0, out=most),
            )
    return found


def timed(call: Callable[[], object], flush: Callable[[], object]) -> dict[str, float]:
    """The median by events, the host ahead, and what the host takes."""
    import torch

    hosts, samples = [], []
    for _ in range(WARMING):
        start = time.perf_counter()
        call()
        hosts.append(1e3 * (time.perf_counter() - start))
        torch.cuda.synchronize()
    host_ms = statistics.median(hosts)
    for _ in range(UNCOUNTED + SAMPLES):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(CYCLES_A_MS * (0.3 + 2 * host_ms)))
        flush()
        before.record()
        call()
        after.record()
        torch.cuda.synchronize()
        samples.append(before.elapsed_time(after))
    return {"ms": statistics.median(samples[UNCOUNTED:]), "host_ms": host_ms}


def _loaded(path: Path, text: str) -> Any:
    """What the text defines; from a file, since Triton reads the source of its functions."""
    path.write_text(text)
    namespace = {"__name__": path.stem}
    exec(compile(text, str(path), "exec"), namespace)
    return SimpleNamespace(**namespace)


if __name__ == "__main__":
    print(json.dumps(plain(CASES[sys.argv[1]])))
