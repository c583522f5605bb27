"""Candidates a minute, builds not cached: a fresh process for each, one after the other, against our batch.

The same unmodified candidates, with torch/extension.h and `load_inline`, before both. The usual way gets only some of
them, since it takes long: one half of these before our batch, the other half after it. One in six is wrong.

Ours is one batch from the start of its processes to the last verdict. What a machine needs once is there, as after the
first few candidates or `doctor --prepare`: the light header and the peaks of the processor. What making them
takes is printed. What depends on the problem or the candidates (references, builds, works) is made in the batch.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal, NamedTuple

from kernelwright.problems import Problem, load_problem
from kernelwright.sandbox.build import HeaderShelf, toolchain
from kernelwright.sandbox.floor.processor import processor_peaks
from kernelwright.sandbox.machine.cache import VARIABLE
from kernelwright.sandbox.pool.dispatcher import Dispatcher
from kernelwright.sandbox.pool.executor import LocalExecutor, Work
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import Candidate

SERIAL = Path(__file__).with_name("serial_evaluator.py")
CANDIDATES, USUAL = 18, 6
LEAST_RATIO = 5
USUALLY, OURS = "fresh process each", "ours"
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
    """What is built and where it runs."""

    language: Literal["cpp", "cuda"]
    template: str
    rows: int
    candidates: int
    usual: int
    """So many of them are evaluated the usual way too."""
    least_ratio: float

    @property
    def device(self) -> str:
        """As torch names it."""
        return "cuda" if self.language == "cuda" else "cpu"

    def source(self, number: int) -> str:
        """The candidate with this number."""
        grain = 2048 * (1 + number // len(BODIES))
        return self.template.format(body=BODIES[number % len(BODIES)], grain=grain, number=number)


class Throughput(NamedTuple):
    """Seconds by both ways, and what each said of which candidate: whether it is right."""

    seconds: dict[str, float]
    said: dict[str, dict[int, bool]]
    least_ratio: float

    @property
    def ratio(self) -> float:
        """Our rate over the usual one."""
        return self._rate(OURS) / self._rate(USUALLY)

    def _rate(self, way: str) -> float:
        return 60 * len(self.said[way]) / self.seconds[way]

    @property
    def different(self) -> list[int]:
        """Candidates of which both said different things."""
        return [number for number, right in self.said[USUALLY].items() if self.said[OURS][number] != right]

    @property
    def holds(self) -> bool:
        """Whether the promised ratio is kept with the same verdicts."""
        return self.ratio >= self.least_ratio and not self.different

    def __str__(self) -> str:
        rows = [
            f"  {way:<20} {len(self.said[way]):3} in {s:6.1f} s   {self._rate(way):6.1f} a minute"
            for way, s in self.seconds.items()
        ]
        same = f"DIFFERENT for {self.different}" if self.different else "the same"
        promise = f"(promised: at least {self.least_ratio:.0f})"
        return "\n".join([*rows, f"  {self.ratio:.1f} times the rate {promise}; verdicts {same}"])


def run() -> Throughput:
    """On this machine's processor; about five minutes on two idle cores."""
    return compare(Target("cpp", CPP, 512, CANDIDATES, USUAL, LEAST_RATIO))


def compare(target: Target) -> Throughput:
    """The usual way before and after our batch, with a cache of builds of our own that begins empty."""
    before = os.environ.get(VARIABLE)
    with tempfile.TemporaryDirectory(prefix="kernelwright-bench-") as folder:
        os.environ[VARIABLE] = f"{folder}/cache"
        toolchain.cache_clear()
        try:
            _prepare(target)
            return _in_turn(target, Path(folder))
        finally:
            os.environ.pop(VARIABLE)
            if before is not None:
                os.environ[VARIABLE] = before
            toolchain.cache_clear()


def _prepare(target: Target) -> None:
    found, start = toolchain(), time.perf_counter()
    made = found is not None and HeaderShelf(found).prepare()
    print(f"  light header: {time.perf_counter() - start:.1f} s" if made else "  no light header", flush=True)
    if target.language == "cpp":
        start = time.perf_counter()
        processor_peaks(Settings().threads)
        print(f"  peaks of the processor, where they are not known: {time.perf_counter() - start:.1f} s", flush=True)


def _in_turn(target: Target, folder: Path) -> Throughput:
    path = folder / "problem.py"
    path.write_text(REFERENCE.format(rows=target.rows))
    problem = load_problem(str(path))
    seconds, said = {USUALLY: 0.0, OURS: 0.0}, {USUALLY: dict[int, bool](), OURS: dict[int, bool]()}
    half = target.usual // 2
    for way, numbers in (
        (USUALLY, range(half)),
        (OURS, range(target.candidates)),
        (USUALLY, range(half, target.usual)),
    ):
        asked = [target.source(number) for number in numbers]
        began = time.perf_counter()
        right = _ours(problem, asked, target) if way == OURS else _usual(path, asked, target, folder)
        taken = time.perf_counter() - began
        print(f"  {way}: {len(asked)} candidates in {taken:.1f} s", flush=True)
        seconds[way] += taken
        said[way] |= dict(zip(numbers, right, strict=True))
    return Throughput(seconds, said, target.least_ratio)


def _usual(problem: Path, sources: list[str], target: Target, folder: Path) -> list[bool]:
    right = []
    for source in sources:
        candidate = folder / "candidate.py"
        candidate.write_text(source)
        with tempfile.TemporaryDirectory(dir=folder) as builds:
            done = subprocess.run(
                [sys.executable, SERIAL, problem, candidate, target.device],
                capture_output=True,
                text=True,
                check=True,
                env=os.environ | {"TORCH_EXTENSIONS_DIR": builds},
            )
        right.append(bool(json.loads(done.stdout.splitlines()[-1])["correct"]))
    return right


def _ours(problem: Problem, sources: list[str], target: Target) -> list[bool]:
    return asyncio.run(_judged(problem, sources, target))


async def _judged(problem: Problem, sources: list[str], target: Target) -> list[bool]:
    settings = Settings(device="cuda" if target.language == "cuda" else "cpu")
    executor = LocalExecutor(settings, builders=len(os.sched_getaffinity(0)))
    async with Dispatcher(executor) as dispatcher:
        asked = [Work(problem=problem, candidate=Candidate(source=one, language=target.language)) for one in sources]
        verdicts = await asyncio.gather(*map(dispatcher.judge, asked))
    return [one.verdict.outcome == "passed" for one in verdicts]
