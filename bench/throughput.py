"""Candidates a minute: builds not cached, against a fresh process for each; and with builds cached, on 1 to 8 devices.

`python -m bench throughput` and `gpu_throughput`: the same unmodified candidates, with torch/extension.h and
`load_inline`, before both. The usual way gets only some of them, since it takes long: one half of these before our
batch, the other half after it. One in six is wrong. Ours is one batch from the start of its processes to the last
verdict. Parts that a machine needs once are there: the light header and the peaks of the processor. What making them
takes is printed. What depends on the problem or the candidates (references, builds, works) is made in the batch.

`python -m bench scaling`: where there are CUDA devices, the local executor judges the same candidates on 1, 2, 4 and 8
of them in one sitting; without any, on declared parts of the processor, which proves nothing about GPUs.
`KERNELWRIGHT_PER_DEVICE` is the number of candidates for each device of a round (12). See docs/judge.md.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal, NamedTuple

from bench.measuring import Report, empty_cache, output_of
from kernelwright.problems import Problem, load_problem
from kernelwright.sandbox.peaks import peaks_here
from kernelwright.sandbox.pool.dispatcher import Dispatcher
from kernelwright.sandbox.pool.executor import LocalExecutor, Work, own_cores
from kernelwright.sandbox.toolchain import prepare_headers, toolchain
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Candidate, Passed

EVALUATOR = Path(__file__).with_name("usual_evaluator.py")
USUAL, OURS = "fresh process each", "ours"
REFERENCE = """import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)

def get_inputs():
    return [torch.randn({rows}, 4096)]

def get_init_inputs():
    return []
"""
BODIES = (
    "v / (1.0f + expf(-v))",
    "v / (1.0f + v * v)",
    "v * (1.0f / (1.0f + expf(-v)))",
    "0.5f * v * (1.0f + tanhf(0.5f * v))",
    "v - v / (1.0f + expf(v))",
    "v > 0.0f ? v / (1.0f + expf(-v)) : v * expf(v) / (1.0f + expf(v))",
)
"""The second one is wrong."""
CPP = '''import torch
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <torch/extension.h>
#include <cmath>

torch::Tensor run(torch::Tensor x) {{
    TORCH_CHECK(x.dtype() == torch::kFloat32, "float32 only");
    auto in = x.contiguous();
    auto out = torch::empty_like(in);
    const float* a = in.data_ptr<float>();
    float* b = out.data_ptr<float>();
    at::parallel_for(0, in.numel(), {grain}, [&](int64_t begin, int64_t end) {{
        for (int64_t i = begin; i < end; ++i) {{ const float v = a[i]; b[i] = {body}; }}
    }});
    return out;
}}
"""
module = load_inline(name="throughput_{number}", cpp_sources=SOURCE, functions=["run"])

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.run(x)
'''
CUDA = '''import torch
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>

__global__ void kernel(const float* a, float* b, long n) {{
    const long step = long(gridDim.x) * blockDim.x;
    for (long i = long(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {{
        const float v = a[i];
        b[i] = {body};
    }}
}}

torch::Tensor run(torch::Tensor x) {{
    TORCH_CHECK(x.is_cuda() && x.dtype() == torch::kFloat32, "float32 on a device only");
    auto in = x.contiguous();
    auto out = torch::empty_like(in);
    kernel<<<{grain}, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
        in.data_ptr<float>(), out.data_ptr<float>(), in.numel());
    return out;
}}
"""
module = load_inline(name="throughput_{number}", cpp_sources="torch::Tensor run(torch::Tensor x);",
                     cuda_sources=SOURCE, functions=["run"])

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.run(x)
'''


class Target(NamedTuple):
    """A language, and how many candidates in it are judged by either way."""

    language: Literal["cpp", "cuda"]
    template: str
    rows: int
    candidates: int
    usual: int
    least_ratio: float

    @property
    def device(self) -> str:
        return "cuda" if self.language == "cuda" else "cpu"

    def source(self, number: int) -> str:
        grain = 2048 * (1 + number // len(BODIES))
        return self.template.format(body=BODIES[number % len(BODIES)], grain=grain, number=number)


def run() -> Report:
    """C++ candidates a minute beside a fresh process for each; about five minutes on two idle cores."""
    return _compare(Target("cpp", CPP, rows=512, candidates=18, usual=6, least_ratio=5))


def run_on_card() -> Report:
    """CUDA candidates a minute beside a fresh process for each; about six minutes."""
    return _compare(Target("cuda", CUDA, rows=8192, candidates=16, usual=4, least_ratio=8))


def _compare(target: Target) -> Report:
    """Judge the usual way before and after our batch, with a cache of builds of our own that begins empty."""
    with empty_cache() as folder:
        found, start = toolchain(), time.perf_counter()
        made = found is not None and prepare_headers(found)
        print(f"  light header: {time.perf_counter() - start:.1f} s" if made else "  no light header", flush=True)
        if target.language == "cpp":
            start = time.perf_counter()
            peaks_here(False, JudgeSettings().threads)
            print(
                f"  peaks of the processor, where they are not known: {time.perf_counter() - start:.1f} s", flush=True
            )
        path = folder / "problem.py"
        path.write_text(REFERENCE.format(rows=target.rows))
        problem = load_problem(str(path))
        seconds, right = {USUAL: 0.0, OURS: 0.0}, {USUAL: dict[int, bool](), OURS: dict[int, bool]()}
        half = target.usual // 2
        for way, numbers in (
            (USUAL, range(half)),
            (OURS, range(target.candidates)),
            (USUAL, range(half, target.usual)),
        ):
            sources = [target.source(number) for number in numbers]
            start = time.perf_counter()
            if way == OURS:
                verdicts = asyncio.run(_judged(problem, sources, target))
            else:
                verdicts = [_evaluated(path, source, target.device, folder) for source in sources]
            taken = time.perf_counter() - start
            print(f"  {way}: {len(sources)} candidates in {taken:.1f} s", flush=True)
            seconds[way] += taken
            right[way] |= dict(zip(numbers, verdicts, strict=True))
    rates = {way: 60 * len(right[way]) / seconds[way] for way in seconds}
    ratio = rates[OURS] / rates[USUAL]
    different = [number for number, one in right[USUAL].items() if right[OURS][number] != one]
    lines = [
        f"  {way:<20} {len(right[way]):3} in {taken:6.1f} s   {rates[way]:6.1f} a minute"
        for way, taken in seconds.items()
    ]
    same = f"DIFFERENT for {different}" if different else "the same"
    lines.append(f"  {ratio:.1f} times the rate (promised: at least {target.least_ratio:.0f}); verdicts {same}")
    return Report("\n".join(lines), ratio >= target.least_ratio and not different)


def _evaluated(problem: Path, source: str, device: str, folder: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        candidate = Path(own) / "candidate.py"
        candidate.write_text(source)
        command = [sys.executable, str(EVALUATOR), str(problem), str(candidate), device]
        said, _ = output_of(command, TORCH_EXTENSIONS_DIR=own, TMPDIR=own)
    return bool(json.loads(said.splitlines()[-1])["correct"])


async def _judged(problem: Problem, sources: list[str], target: Target) -> list[bool]:
    settings = JudgeSettings(device="cuda" if target.language == "cuda" else "cpu")
    executor = LocalExecutor(settings, builders=len(os.sched_getaffinity(0)))
    async with Dispatcher(executor) as dispatcher:
        asked = [Work(problem=problem, candidate=Candidate(source=one, language=target.language)) for one in sources]
        verdicts = await asyncio.gather(*map(dispatcher.judge, asked))
    return [one.verdict.outcome == "passed" for one in verdicts]


LEAST_LINEAR = 0.9
PER_DEVICE, LEAST_PER_DEVICE = "12", 4
EXAMPLE = Path(__file__).parent.parent / "prompts" / "examples" / "cuda"
QUICK = JudgeSettings(min_pairs=4, max_pairs=4, worker_pairs=1, time_budget_s=0.1, without=("placebo",))


class Round(NamedTuple):
    """Candidates a minute of all devices in one round."""

    devices: int
    steady: float
    """Of each device from its first verdict to its last: an end at which some have nothing left is left out."""
    with_end: float


def run_scaling() -> Report:
    """Candidates a minute on 1, 2, 4 and 8 devices, builds cached."""
    import torch

    cuda = torch.cuda.device_count() > 0
    most = torch.cuda.device_count() or min(2, len(own_cores()))
    rounds = asyncio.run(_rounds([size for size in (1, 2, 4, 8) if size <= most], cuda))
    what = "CUDA devices" if cuda else "parts of the processor"
    lines, steady = [], {}
    for devices in sorted({one.devices for one in rounds}):
        same = [one for one in rounds if one.devices == devices]
        steady[devices] = statistics.fmean(one.steady for one in same)
        with_end = statistics.fmean(one.with_end for one in same)
        rates = f"{steady[devices]:.1f} candidates a minute, {with_end:.1f} with a round's start and end"
        lines.append(f"  {devices} {what}, builds cached: {rates}")
    linear = steady[max(steady)] / (max(steady) * steady[1])
    promised = f" (promised: {LEAST_LINEAR})" if cuda else ""
    lines.append(f"  the most of these against one: {linear:.2f} of linear, start and end left out{promised}")
    return Report("\n".join(lines), not cuda or linear >= LEAST_LINEAR)


async def _rounds(sizes: list[int], cuda: bool) -> list[Round]:
    """Each size twice, there and back again, after a round that fills the store of builds."""
    per_device = int(os.environ.get("KERNELWRIGHT_PER_DEVICE", PER_DEVICE))
    if per_device < LEAST_PER_DEVICE:
        sys.exit(f"KERNELWRIGHT_PER_DEVICE={per_device} gives no rate; use at least {LEAST_PER_DEVICE}")
    settings = JudgeSettings(device="cuda") if cuda else QUICK
    works = _works(cuda, per_device * max(sizes))
    await _round(settings, works, max(sizes))
    rounds = []
    for devices in (*sizes, *reversed(sizes)):
        rounds.append(await _round(settings, works[: per_device * devices], devices))
        last = rounds[-1]
        print(f"  {devices} devices: {last.steady:.1f} a minute, {last.with_end:.1f} with its end", flush=True)
    return rounds


async def _round(settings: JudgeSettings, works: list[Work], devices: int) -> Round:
    """Judge all of the work on a number of devices; processes start before the clock does."""
    finished: dict[str, list[float]] = {}

    async def judge(dispatcher: Dispatcher, work: Work) -> None:
        found = await dispatcher.judge(work)
        if not isinstance(found.verdict, Passed) or found.device is None:
            raise AssertionError(f"an example that ships does not pass: {found.verdict}")
        finished.setdefault(found.device.name, []).append(time.perf_counter())

    async with Dispatcher(LocalExecutor(settings, len(own_cores()), devices)) as dispatcher:
        await asyncio.gather(*(judge(dispatcher, work) for work in works[:devices]))
        finished.clear()
        start = time.perf_counter()
        await asyncio.gather(*(judge(dispatcher, work) for work in works))
        seconds = time.perf_counter() - start
    several = [times for times in finished.values() if len(times) > 1]
    steady = 60 * sum((len(times) - 1) / (max(times) - min(times)) for times in several)
    return Round(devices, steady, 60 * len(works) / seconds)


def _works(cuda: bool, count: int) -> list[Work]:
    """Candidates that differ in a comment alone, so that each is built and judged for itself.

    For CUDA the example of the prompts; for the processor the reference again, which has nothing to build.
    """
    target, size = ("cuda", "gpu") if cuda else ("python", "cpu")
    reference = (EXAMPLE / "reference.py").read_text()
    source = (EXAMPLE / "answer.py").read_text() if cuda else reference.replace("class Model(", "class ModelNew(")
    problem = Problem(name=f"example_{target}", title="", family="example", size=size, source=reference)
    candidates = [Candidate(source=f"{source}\n# {number}\n", language=target) for number in range(count)]
    return [Work(problem=problem, candidate=candidate) for candidate in candidates]
