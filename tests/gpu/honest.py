"""Honest CUDA and Triton candidates, as data: each is right, and none may be refused."""

from typing import NamedTuple

from kernelwright.problems import Problem
from kernelwright.sandbox.verdict.verdicts import Candidate


class Honest(NamedTuple):
    """A candidate with the problem that it solves."""

    problem: Problem
    source: str

    @property
    def candidate(self) -> Candidate:
        """The source as the judge takes it."""
        return Candidate(source=self.source)


def problem(name: str, forward: str, inputs: str, constructor: str = "") -> Problem:
    source = f"""
import torch
import torch.nn.functional as F

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {constructor or "pass"}

    def forward(self, *inputs):
        {forward}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""
    return Problem(name=name, title=name, family="test", size="gpu", source=source)


RELU = problem("relu", "return torch.relu(inputs[0])", "torch.randn(2048, 4096)")
SOFTMAX = problem("softmax", "return torch.softmax(inputs[0], -1)", "torch.randn(4096, 1000)")
SUM = problem("sum", "return inputs[0].sum(1)", "torch.randn(4096, 4096)")
ODD = problem("scale_shift", "return inputs[0] * 2 + 1", "torch.randn(1013, 997)")
TRANSPOSE = problem("transpose", "return inputs[0].t().contiguous() * 2", "torch.randn(1000, 1500)")
PRODUCT = problem("product", "return inputs[0] @ inputs[1]", "torch.randn(512, 384), torch.randn(384, 640)")
LINEAR = problem(
    "linear", "return F.linear(inputs[0], self.weight)", "torch.randn(256, 320)",
    "self.weight = torch.nn.Parameter(torch.randn(192, 320))",
)  # fmt: skip
NORM = problem(
    "norm", "return F.layer_norm(inputs[0], (768,), self.weight, self.bias)", "torch.randn(2048, 768)",
    "self.weight = torch.nn.Parameter(torch.rand(768) + 0.5); self.bias = torch.nn.Parameter(torch.randn(768))",
)  # fmt: skip
TWO = problem("two", "return inputs[0].amin(1), inputs[0].amax(1)", "torch.randn(4096, 512)")

CUDA = '''
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
{kernel}
"""
EXTENSION = load_inline(
    name="{name}", cpp_sources="{declaration}", cuda_sources=SOURCE, functions=["{function}"],
    extra_cuda_cflags=["-O3"],
)

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {constructor}

    def forward(self, *inputs):
        {forward}
'''


def cuda(kernel: str, declaration: str, forward: str, constructor: str = "pass") -> str:
    function = declaration.split("(", maxsplit=1)[0].rsplit(maxsplit=1)[-1]
    return CUDA.format(
        kernel=kernel, name=function, declaration=declaration, function=function, forward=forward,
        constructor=constructor,
    )  # fmt: skip


TRITON = """
import torch
import triton
import triton.language as tl

{kernel}

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {constructor}

    def forward(self, *inputs):
        x = inputs[0]
{forward}
"""


def triton(kernel: str, forward: str, constructor: str = "pass") -> str:
    lines = "\n".join(8 * " " + line.strip() for line in forward.strip().splitlines())
    return TRITON.format(kernel=kernel, forward=lines, constructor=constructor)


POINTWISE = """
@triton.jit
def pointwise(x, y, n, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    if SHIFT:
        value = value * 2 + 1
    else:
        value = tl.maximum(value, 0)
    tl.store(y + at, value, mask=at < n)
"""
TRITON_SOFTMAX = """
@triton.jit
def rows(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row + at, mask=at < columns, other=float("-inf"))
    value = tl.exp(value - tl.max(value, 0))
    tl.store(y + row + at, value / tl.sum(value, 0), mask=at < columns)
"""
TRITON_NORM = """
@triton.jit
def norm(x, w, b, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row + at, mask=inside, other=0.0)
    mean = tl.sum(value, 0) / columns
    off = tl.where(inside, value - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(off * off, 0) / columns + 1e-5)
    weight, bias = tl.load(w + at, mask=inside), tl.load(b + at, mask=inside)
    tl.store(y + row + at, off * scale * weight + bias, mask=inside)
"""
TRITON_PRODUCT = """
@triton.jit
def product(a, b, c, N, K, TILE: tl.constexpr):
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, K, TILE):
        inner = start + tl.arange(0, TILE)
        left = tl.load(a + rows[:, None] * K + inner[None, :])
        right = tl.load(b + inner[:, None] * N + columns[None, :])
        total += tl.dot(left, right, input_precision="ieee")
    tl.store(c + rows[:, None] * N + columns[None, :], total)
"""
TRITON_EXTREMES = """
@triton.jit
def extremes(x, low, high, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    value = tl.load(x + row.to(tl.int64) * columns + tl.arange(0, BLOCK))
    tl.store(low + row, tl.min(value, 0))
    tl.store(high + row, tl.max(value, 0))
"""
CUDA_RELU = """
__global__ void relu(const float4* x, float4* y, long n) {
    for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x) {
        float4 v = x[i];
        y[i] = make_float4(fmaxf(v.x, 0), fmaxf(v.y, 0), fmaxf(v.z, 0), fmaxf(v.w, 0));
    }
}
torch::Tensor relu_cuda(torch::Tensor x) {
    auto y = torch::empty_like(x);
    relu<<<1024, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        (const float4*)x.data_ptr<float>(), (float4*)y.data_ptr<float>(), x.numel() / 4);
    return y;
}
"""
CUDA_SUM = """
__global__ void parts(const float* x, float* scratch, int columns) {
    float sum = 0;
    for (int i = threadIdx.x; i < columns; i += 32) sum += x[blockIdx.x * (long)columns + i];
    for (int step = 16; step; step /= 2) sum += __shfl_down_sync(0xffffffff, sum, step);
    if (threadIdx.x == 0) scratch[blockIdx.x] = sum;
}
__global__ void whole(const float* scratch, float* y, int rows) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows) y[i] = scratch[i];
}
torch::Tensor sum_cuda(torch::Tensor x, torch::Tensor scratch) {
    auto y = torch::empty({x.size(0)}, x.options());
    auto stream = at::cuda::getCurrentCUDAStream();
    parts<<<x.size(0), 32, 0, stream>>>(x.data_ptr<float>(), scratch.data_ptr<float>(), x.size(1));
    whole<<<(x.size(0) + 255) / 256, 256, 0, stream>>>(scratch.data_ptr<float>(), y.data_ptr<float>(), x.size(0));
    return y;
}
"""
CUDA_TRANSPOSE = """
__global__ void twice(const float* x, float* y, long n) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
torch::Tensor twice_cuda(torch::Tensor x) {
    auto y = torch::empty_like(x);
    twice<<<(x.numel() + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y.t();
}
"""
CUDA_LINEAR = """
__global__ void linear(const float* x, const float* packed, float* y, int rows, int out, int inner) {
    int o = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
    if (o >= out) return;
    float sum = 0;
    for (int k = 0; k < inner; ++k) sum = fmaf(x[r * inner + k], packed[k * out + o], sum);
    y[r * out + o] = sum;
}
torch::Tensor linear_cuda(torch::Tensor x, torch::Tensor packed) {
    int rows = x.size(0), inner = x.size(1), out = packed.size(1);
    auto y = torch::empty({rows, out}, x.options());
    linear<<<dim3((out + 63) / 64, rows), 64, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), packed.data_ptr<float>(), y.data_ptr<float>(), rows, out, inner);
    return y;
}
"""
CUDA_OWN_MEMORY = """
__global__ void shift(const float* x, float* y, long n) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i] + 1;
}
torch::Tensor own_cuda(torch::Tensor x) {
    static float* y = nullptr;
    if (!y) cudaMalloc(&y, x.numel() * sizeof(float));
    shift<<<(x.numel() + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), y, x.numel());
    return torch::from_blob(y, x.sizes(), x.options());
}
"""
STREAMS = """
import torch

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.sides = [torch.cuda.Stream() for _ in range(2)]

    def forward(self, x):
        y, here = torch.empty_like(x), torch.cuda.current_stream()
        half = x.shape[0] // 2
        for side, part in zip(self.sides, (slice(0, half), slice(half, None))):
            side.wait_stream(here)
            with torch.cuda.stream(side):
                torch.clamp(x[part], min=0, out=y[part])
            here.wait_stream(side)
        return y
"""
GRAPH = """
import torch

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.graph = None

    def forward(self, x):
        if self.graph is None:
            self.static = x.clone()
            torch.relu(self.static)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.result = torch.relu(self.static)
        self.static.copy_(x)
        self.graph.replay()
        return self.result
"""
EMPTY = "y = torch.empty_like(x)\n"

HONEST = {
    "triton_relu": Honest(RELU, triton(
        POINTWISE, EMPTY + "pointwise[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), False, 1024)\nreturn y")),
    "triton_odd_sizes": Honest(ODD, triton(
        POINTWISE, EMPTY + "pointwise[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), True, 512)\nreturn y")),
    "triton_softmax": Honest(SOFTMAX, triton(
        TRITON_SOFTMAX, EMPTY + "rows[(x.shape[0],)](x, y, x.shape[1], 1024)\nreturn y")),
    "triton_layer_norm": Honest(NORM, triton(
        TRITON_NORM, EMPTY + "norm[(x.shape[0],)](x, self.weight, self.bias, y, x.shape[1], 1024)\nreturn y",
        "self.weight = torch.nn.Parameter(torch.ones(768)); self.bias = torch.nn.Parameter(torch.zeros(768))")),
    "triton_product": Honest(PRODUCT, triton(
        TRITON_PRODUCT,
        """
        b = inputs[1]
        c = torch.empty(x.shape[0], b.shape[1], device=x.device)
        product[(x.shape[0] // 64, b.shape[1] // 64)](x, b, c, b.shape[1], x.shape[1], 64)
        return c
        """)),
    "triton_two_outputs": Honest(TWO, triton(
        TRITON_EXTREMES,
        """
        low, high = torch.empty(2, x.shape[0], device=x.device)
        extremes[(x.shape[0],)](x, low, high, x.shape[1], 512)
        return low, high
        """)),
    "cuda_relu": Honest(RELU, cuda(
        CUDA_RELU, "torch::Tensor relu_cuda(torch::Tensor x);", "return EXTENSION.relu_cuda(inputs[0])")),
    "cuda_sum_with_scratch": Honest(SUM, cuda(
        CUDA_SUM, "torch::Tensor sum_cuda(torch::Tensor x, torch::Tensor scratch);",
        "return EXTENSION.sum_cuda(inputs[0], self.scratch)", "self.scratch = torch.empty(4096, device='cuda')")),
    "cuda_not_contiguous": Honest(TRANSPOSE, cuda(
        CUDA_TRANSPOSE, "torch::Tensor twice_cuda(torch::Tensor x);", "return EXTENSION.twice_cuda(inputs[0])")),
    "cuda_packed_weight": Honest(LINEAR, cuda(
        CUDA_LINEAR, "torch::Tensor linear_cuda(torch::Tensor x, torch::Tensor packed);",
        "return EXTENSION.linear_cuda(inputs[0], self.weight.t().contiguous())",
        "self.weight = torch.nn.Parameter(torch.zeros(192, 320))")),
    "cuda_memory_of_its_own": Honest(ODD, cuda(
        CUDA_OWN_MEMORY, "torch::Tensor own_cuda(torch::Tensor x);", "return EXTENSION.own_cuda(inputs[0])")),
    "two_streams_joined": Honest(RELU, STREAMS),
    "graph_with_fresh_inputs": Honest(RELU, GRAPH),
}  # fmt: skip
