"""First builds of unmodified answers with torch/extension.h: the stock way against ours.

The stock way is a fresh process for each, as evaluators do it: it imports torch and calls `load_inline`. Ours is a
jailed builder for each; what the light header needs is made while the first are built, and reported separately.

`python -m bench builds`: 28 varied C++ answers, one after the other; the two ways alternate. Both begin with nothing
built. `stored` is ours for the second time. `KERNELWRIGHT_BENCH=0,5,23` picks rows of `ROWS`. Compilers'
processor seconds are reported too, since wall seconds say little on a busy machine.

`python -m bench cuda_builds`, on a GPU's machine: one CUDA answer is right; the binding of the other names a function
that is not declared, and the third's kernel does not compile. `KERNELWRIGHT_BENCH=right` picks. Each begins with an
empty cache, and is built once more when the light header is there.
"""

import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench.measuring import Report, chosen, empty_cache, output_of
from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.build import BuildStore, read_record
from kernelwright.sandbox.calls.sessions import Refused, Session
from kernelwright.sandbox.storage import all_entries, limit_bytes
from kernelwright.sandbox.toolchain import MakingHeaders, missing_headers, toolchain
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import WorkFolder
from kernelwright_child import wire

LEAST_RATIO = 3
LIMIT_S = 3600.0
"""For one build, however busy the machine is."""
CUDA = '''
import torch
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
__global__ void leaky(const float* a, float* b, int64_t n) {
    int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
    if (i < n) b[i] = a[i] > 0.0f ? a[i] : 0.01f * a[i];
}
torch::Tensor leaky_forward(torch::Tensor x) {
    TORCH_CHECK(x.is_cuda(), "on the device");
    x = x.contiguous();
    auto out = torch::empty_like(x);
    const int64_t n = x.numel();
    leaky<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), n);
    return out;
}
"""
module = load_inline("answer", "torch::Tensor leaky_forward(torch::Tensor x);", cuda_sources=CUDA,
                     functions=["leaky_forward"], extra_cuda_cflags=["-O3"], verbose=False)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.leaky_forward(x)
'''
CUDA_ANSWERS = {
    "right": CUDA,
    "binding": CUDA.replace('functions=["leaky_forward"]', 'functions=["leaky_backward"]'),
    "kernel": CUDA.replace("b[i] = a[i] >", "b[i] = leek[i] >"),
}
MOST_S = {"right": 12.0, "binding": 8.0, "kernel": 8.0}


class Built(NamedTuple):
    seconds: float
    making_s: float
    """Seconds for which parts of the light header were made at the same time."""
    refused: str
    """The candidate's error, or empty."""
    ways: tuple[str, ...]

    @property
    def words(self) -> str:
        return "; ".join((*self.ways, self.refused))


def run() -> Report:
    """28 varied C++ answers built the stock way and ours; about fifteen minutes of two idle cores."""
    numbers = [int(number) for number in chosen(map(str, range(len(ROWS))))]
    lines, stocks, built = [], [], []
    with empty_cache():
        for place, number in enumerate(numbers):
            source = answer(number)
            for way in ("stock", "ours") if place % 2 else ("ours", "stock"):
                if way == "stock":
                    stocks.append(_build_stock(source))
                else:
                    built.append(_build(source, JudgeSettings()))
            start, stock, ours = time.perf_counter(), stocks[-1], built[-1]
            _restore(source)
            lines.append(
                f"  {ROWS[number][0] or '(no flags)':<42} stock {stock:6.1f} s   ours {ours.seconds:6.1f} s   "
                f"stored {time.perf_counter() - start:5.2f} s   {ours.words}"
            )
            print(f"  {number}: stock {stock:.1f} s, ours {ours.seconds:.1f} s", flush=True)
        kept_bytes = all_entries().size_bytes()
    stock_s, ours_s = sum(stocks), sum(one.seconds for one in built)
    cpu_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    lines.append(
        f"  in sum: stock {stock_s:.0f} s ({cpu_s:.0f} s of processors), ours {ours_s:.0f} s, during "
        f"{sum(one.making_s for one in built):.0f} s of which the light header was made: {stock_s / ours_s:.1f} times "
        f"as fast (promised: {LEAST_RATIO}); {kept_bytes / 2**20:.0f} MiB are kept"
    )
    holds = stock_s / ours_s >= LEAST_RATIO and not any(one.refused for one in built) and kept_bytes <= limit_bytes()
    return Report("\n".join(lines), holds)


def run_cuda() -> Report:
    """CUDA answers, right and wrong, built the stock way and ours; two to four minutes."""
    lines, holds = [], True
    for name in chosen(CUDA_ANSWERS):
        source = CUDA_ANSWERS[name]
        with empty_cache():
            stock_s = _build_stock(source)
            ours = _build(source, JudgeSettings(device="cuda"))
            again = _build(source + "# once more", JudgeSettings(device="cuda"))
        holds = holds and ours.seconds <= MOST_S[name] and bool(ours.refused) is (name != "right")
        lines.append(
            f"  {name:<8} stock {stock_s:5.1f} s   ours, first {ours.seconds:5.1f} s (promised: {MOST_S[name]:.0f}), "
            f"then {again.seconds:5.1f} s   light header meanwhile: {ours.making_s:.1f} s   {ours.words}"
        )
    return Report("\n".join(lines), holds)


def _build_stock(source: str) -> float:
    """Return the wall seconds of a fresh process that imports the candidate, until it ends, well or not."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "candidate.py")
        path.write_text(source)
        return output_of([sys.executable, str(path)], TORCH_EXTENSIONS_DIR=folder)[1]


def _build(source: str, settings: JudgeSettings) -> Built:
    """Build it as the judge does: a jailed builder, and at the same time what of the light header is missing."""
    found = toolchain()
    if found is None or not found.is_gcc:
        raise SystemExit("this bench needs torch and g++")
    folder, start, refused = WorkFolder(), time.perf_counter(), ""
    try:
        missing = missing_headers(found, source)
        with MakingHeaders(found, missing) as making, Session("builder", folder, settings) as session:
            path = folder.write("candidate.py", source)
            plan = found.plan(settings.memory_bytes, cuda_architectures=backend_of(settings).architecture)
            message = {"op": "build", "source": str(path), "entry": "ModelNew", "built": str(folder.path / "build")}
            session.greet()
            try:
                session.ask(message | {"arguments": wire.pack([], []), "shortcuts": plan}, LIMIT_S)
            except Refused as error:
                refused = error.reason
            seconds = time.perf_counter() - start
        BuildStore().keep(BuildStore.key(source, found), folder.path / "build")
        return Built(seconds, making.seconds, refused, read_record(folder.path).ways)
    finally:
        folder.close()


def _restore(source: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if not BuildStore().restore(BuildStore.key(source, toolchain()), Path(folder)):
            raise SystemExit("a finished build was not found again")


ANSWER = '''
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
{includes}
{code}
"""
module = load_inline(name="answer_{number}", cpp_sources=SOURCE, {functions}extra_cflags={flags}, extra_ldflags={link})

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.run(x)
'''
LOOP = """torch::Tensor run(torch::Tensor x) {{
    TORCH_CHECK(x.dtype() == torch::kFloat32, "float32 only");
    x = x.contiguous();
    auto out = torch::empty_like(x);
    const float* a = x.data_ptr<float>();
    float* b = out.data_ptr<float>();
    const int64_t n = x.numel();
    {before}for (int64_t i = 0; i < n; ++i) {{ {body} }}
    return out;
}}
"""
OPENMP = "#pragma omp parallel for\n    "
BINDS_ITSELF = 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run, "as asked", py::arg("x")); }\n'


def loop(body: str, before: str = "") -> str:
    return LOOP.format(body=body, before=before)


DISPATCHED = """torch::Tensor run(torch::Tensor x) {
    auto out = torch::zeros_like(x);
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "run", [&] {
        for (int64_t i = 0; i < x.numel(); ++i) out.data_ptr<scalar_t>()[i] = x.data_ptr<scalar_t>()[i] * scalar_t(2);
    });
    return out;
}
"""
PARALLEL = """torch::Tensor run(torch::Tensor x) {
    auto out = at::empty(x.sizes(), x.options());
    const float* a = x.data_ptr<float>();
    float* b = out.data_ptr<float>();
    at::parallel_for(0, x.numel(), 4096, [&](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; ++i) b[i] = a[i] > 0 ? a[i] : 0.0f;
    });
    return out;
}
"""
ACCESSED = """torch::Tensor run(torch::Tensor x) {
    torch::NoGradGuard no_grad;
    auto flat = x.reshape({-1});
    auto out = torch::full({flat.size(0)}, 1.0, x.options());
    auto a = flat.accessor<float, 1>(), b = out.accessor<float, 1>();
    for (int64_t i = 0; i < flat.size(0); ++i) b[i] += a[i];
    return out.view(x.sizes());
}
"""
OPERATORS = "torch::Tensor run(torch::Tensor x) { return torch::softmax(x, -1).mul(2).sum(-1, true) + at::relu(x); }\n"
SEVERAL = "std::vector<torch::Tensor> run(torch::Tensor x) { return {x.clone(), torch::cat({x, x}, 0)}; }\n"
MODULE = "torch::Tensor run(torch::Tensor x) { return torch::nn::functional::gelu(x); }\n"
USING = "using namespace torch;\nTensor run(Tensor x) { return relu(x); }\n"
VECTORS = """torch::Tensor run(torch::Tensor x) {
    auto out = x.clone();
    float* b = out.data_ptr<float>();
    for (int64_t i = 0; i + 8 <= out.numel(); i += 8)
        _mm256_storeu_ps(b + i, _mm256_max_ps(_mm256_loadu_ps(b + i), _mm256_setzero_ps()));
    return out;
}
"""
TANH, LEAKY = "b[i] = std::tanh(a[i]);", "b[i] = a[i] > 0 ? a[i] : 0.01f * a[i];"
SWISH, CLIP = "b[i] = a[i] / (1.0f + std::exp(-a[i]));", "b[i] = std::min(std::max(a[i], -1.0f), 1.0f);"
ERF, MISH = "b[i] = 0.5f * a[i] * (1.0f + std::erf(a[i]));", "b[i] = a[i] * std::tanh(std::log1p(std::exp(a[i])));"
ROWS: list[tuple[str, str, str]] = [
    ("", "", loop(LEAKY)),
    ("-O1", "cmath", loop(TANH)),
    ("-O2", "cmath vector", loop(SWISH)),
    ("-O3", "algorithm cmath", loop(CLIP)),
    ("-Ofast", "cmath", loop(ERF)),
    ("-O3 -march=native", "cmath immintrin.h", VECTORS),
    ("-O3 -fopenmp", "cmath omp.h", loop(SWISH, OPENMP)),
    ("-O3 -march=native -fopenmp", "cmath omp.h", loop(MISH, OPENMP)),
    ("-O3 -ffast-math", "cmath", loop(MISH)),
    ("-O3 -ffast-math -march=native -fopenmp", "cmath limits", loop(ERF, OPENMP)),
    ("-O2 -funroll-loops", "algorithm", loop(CLIP)),
    ("-O3 -std=c++17", "cmath", loop(TANH)),
    ("-O2 -mavx2 -mfma", "immintrin.h", VECTORS),
    ("-O3 -mavx2", "immintrin.h algorithm", VECTORS.replace("clone", "contiguous().clone")),
    ("-O3 -DNDEBUG", "ATen/Parallel.h", PARALLEL),
    ("-O2 -Wall", "ATen/ATen.h", PARALLEL.replace("4096", "1024")),
    ("-O2 -fno-math-errno", "cmath", loop(ERF)),
    ("-O3 -fno-trapping-math", "cmath", loop(SWISH)),
    ("-g -O1", "vector", ACCESSED),
    ("-O3 -funroll-loops -ffast-math", "vector numeric", ACCESSED.replace("+= a", "-= a")),
    ("-O2 -march=native", "ATen/Dispatch.h", DISPATCHED),
    ("-O3 -march=native -ffast-math", "", OPERATORS),
    ("-O1 -fopenmp", "vector tuple", SEVERAL),
    ("-O2 -std=c++20", "", loop(LEAKY) + BINDS_ITSELF),
    ("-O3 -fPIC", "pybind11/pybind11.h", OPERATORS + BINDS_ITSELF),
    ("-O3 -fvisibility=hidden", "torch/torch.h", MODULE),
    ("-O2 -fopenmp -march=native", "iostream", USING),
    ("-Os", "torch/torch.h", loop(LEAKY)),
]


def answer(number: int) -> str:
    flags, includes, code = ROWS[number]
    return ANSWER.format(
        number=number,
        flags=flags.split(),
        link=["-fopenmp"] if "-fopenmp" in flags else [],
        includes="\n".join(f"#include <{name}>" for name in includes.split()),
        code=code,
        functions="" if BINDS_ITSELF in code else 'functions=["run"], ',
    )
