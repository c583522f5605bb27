"""Small kernels with one fault each, and one without: the rules name the fault by the counters of the real device."""

import pytest

from kernelwright.sandbox.gpu_tools import counter_obstacle
from kernelwright.sandbox.machine import tool_path
from kernelwright.sandbox.verdict.diagnoses import diagnose
from kernelwright.sandbox.verdict.verdicts import Candidate
from kernelwright_child import driver
from tests.gpu.harness import SETTINGS, Judges
from tests.gpu.honest import problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(driver.device_count() == 0, reason="the driver sees no CUDA device"),
    pytest.mark.skipif(tool_path("ncu") is None, reason="Nsight Compute is not installed"),
]
SCALE = problem("scale", "return inputs[0] * 2", "torch.randn(8192, 4096)")
LONG_SCALE = problem("long_scale", "return inputs[0] * 2", "torch.randn(24576, 4096)")
FLIP = problem("flip", "return inputs[0].t().contiguous()", "torch.randn(4096, 4096)")
PRODUCT = problem("product", "return inputs[0] @ inputs[1]", "torch.randn(1024, 1024), torch.randn(1024, 1024)")
EXPONENTIALS = problem(
    "exponentials", "return sum(torch.exp(inputs[0] / n) for n in range(1, 65))", "torch.rand(1024, 4096)"
)
TEMPLATE = '''
import ctypes

import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>
{kernel}
struct Shape {{
    int64_t rows, columns;
    int64_t numel() const {{ return rows * columns; }}
    int64_t size(int axis) const {{ return axis == 0 ? rows : columns; }}
}};
extern "C" int run(const float* in, const float* other, float* to, int64_t rows, int64_t columns, void* on) {{
    const Shape x{{rows, columns}};
    cudaStream_t stream = static_cast<cudaStream_t>(on);
    {launch}
    return cudaGetLastError();
}}
"""
library = ctypes.CDLL(
    load_inline("faulty", [""], cuda_sources=[SOURCE], no_implicit_headers=True, is_python_module=False)
)
library.run.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2 + [ctypes.c_void_p]


class ModelNew(torch.nn.Module):
    def forward(self, x, y=None):
        {before}
        out, other = torch.empty_like(x), x if y is None else y
        stream = torch.cuda.current_stream().cuda_stream
        if library.run(x.data_ptr(), other.data_ptr(), out.data_ptr(), *x.shape, stream):
            raise RuntimeError("the launch failed")
        return out
'''


def source(kernel, launch, before="pass"):
    return TEMPLATE.format(kernel=kernel, launch=launch, before=before)


WIDE = """
__global__ void scale(const float4* in, float4* to, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        float4 v = in[i];
        to[i] = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
    }
}
"""
WIDE_LAUNCH = "scale<<<{blocks}, 256, 0, stream>>>((const float4*)in, (float4*)to, x.numel() / 4);"
NARROW = """
__global__ void scale(const float* in, float* to, int n, int first, int count) {
    int i = first + blockIdx.x * blockDim.x + threadIdx.x;
    if (i < first + count && i < n) to[i] = 2 * in[i] + 0 * in[(i + 1) % n];
}
"""
FLIPPED = """
constexpr int T = 32;
__global__ void flip(const float* in, float* to, int n) {
    __shared__ float tile[T][T];
    for (int r = threadIdx.y; r < T; r += 8)
        tile[r][threadIdx.x] = in[(blockIdx.y * T + r) * n + blockIdx.x * T + threadIdx.x];
    __syncthreads();
    for (int r = threadIdx.y; r < T; r += 8)
        to[(blockIdx.x * T + r) * n + blockIdx.y * T + threadIdx.x] = tile[threadIdx.x][r];
}
"""
SCATTERED = """
__global__ void flip(const float* in, float* to, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    to[i] = in[(i % n) * n + i / n];
}
"""
NAIVE = """
__global__ void product(const float* a, const float* b, float* c, int n) {
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + column];
    c[row * n + column] = sum;
}
"""
SPILLING = """
__global__ __launch_bounds__(1024, 2) void scale(const float* in, float* to, int n) {
    float kept[64];
    int first = blockIdx.x * 1024 * 64 + threadIdx.x;
#pragma unroll
    for (int k = 0; k < 64; ++k) kept[k] = in[first + k * 1024];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 64; ++k) to[first + k * 1024] = 2 * kept[k];
}
"""
SPECIAL = """
__global__ void exponentials(const float* in, float* to, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
#pragma unroll
    for (int k = 1; k <= 64; ++k) sum += expf(in[i] * (1.0f / k));
    to[i] = sum;
}
"""
ALL_PARTS = "scale<<<x.numel() / 256, 256, 0, stream>>>(in, to, x.numel(), 0, x.numel());"
MANY_PARTS = """
    int count = x.numel() / 64;
    for (int part = 0; part < 64; ++part)
        scale<<<count / 256, 256, 0, stream>>>(in, to, x.numel(), part * count, count);
"""
TILES = "flip<<<dim3(x.size(0) / 32, x.size(0) / 32), dim3(32, 8), 0, stream>>>(in, to, x.size(0));"
FAULTS = {
    "few blocks": (SCALE, source(WIDE, WIDE_LAUNCH.format(blocks=8))),
    "narrow loads": (SCALE, source(NARROW, ALL_PARTS)),
    "many launches": (
        problem("small", "return inputs[0] * 2", "torch.randn(64, 4096)"),
        source(NARROW, MANY_PARTS),
    ),
    "library kernels": (SCALE, source(WIDE, WIDE_LAUNCH.format(blocks=1056), before="x = x * 2 * 0.5")),
    "bank conflicts": (
        FLIP, source(FLIPPED, TILES)
    ),
    "scattered loads": (FLIP, source(SCATTERED, "flip<<<x.numel() / 256, 256, 0, stream>>>(in, to, x.size(0));")),
    "no tensor cores": (
        PRODUCT, source(NAIVE, "product<<<dim3(64, 64), dim3(16, 16), 0, stream>>>(in, other, to, x.size(0));")
    ),
    "spills": (SCALE, source(SPILLING, "scale<<<x.numel() / 65536, 1024, 0, stream>>>(in, to, x.numel());")),
    "special functions full": (
        EXPONENTIALS, source(SPECIAL, "exponentials<<<x.numel() / 256, 256, 0, stream>>>(in, to, x.numel());")
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def judges():
    if obstacle := counter_obstacle(tool_path("ncu")):
        pytest.skip(f"ncu reads no counters here: {obstacle}")
    with Judges(SETTINGS.model_copy(update={"profile": True})) as judges:
        yield judges


def diagnosed(judges, of, text):
    verdict = judges.of(of).judge(Candidate(source=text, language="cuda"))
    assert verdict.outcome == "passed", verdict
    look = verdict.evidence.look
    assert look.counters and look.compiled and look.code, look
    return {one.rule: str(one) for one in diagnose(verdict.measurement, look)}


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_of_a_kernel_is_named(judges, name):
    found = diagnosed(judges, *FAULTS[name])
    assert name in found, found


def test_of_a_kernel_at_the_speed_of_memory_nothing_but_that_is_said(judges):
    found = diagnosed(judges, LONG_SCALE, source(WIDE, WIDE_LAUNCH.format(blocks=2112)))
    assert set(found) <= {"at the wall", "device memory full", "waits"}, found
    assert "device memory full" in found, found


def test_a_costly_kernel_behind_many_launches_is_profiled(judges):
    touch = "__global__ void touch(float* to) { to[0] = 0; }\n"
    launches = "for (int i = 0; i < 40; ++i) touch<<<1, 32, 0, stream>>>(to);\n    "
    found = diagnosed(judges, SCALE, source(touch + WIDE, launches + WIDE_LAUNCH.format(blocks=8)))
    assert "scale" in found.get("few blocks", ""), found
