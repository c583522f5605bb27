"""Candidates for problems at 16 bits, as data: right where they add in float32, wrong where they add in 16 bits."""

from typing import NamedTuple

from kernelwright.problems import Problem
from tests.gpu.honest import EMPTY, cuda, problem, triton

DTYPES = ("bfloat16", "float16")
LOWER = {"bfloat16": "torch.float8_e4m3fn", "float16": "torch.bfloat16"}
SOFTMAX = problem("softmax", "return torch.softmax(inputs[0], -1)", "torch.randn(2048, 4096)")
MEAN = problem("mean", "return inputs[0].mean(-1)", "torch.randn(4096, 4096)")
PRODUCT = problem("product", "return inputs[0] @ inputs[1]", "torch.randn(512, 4096), torch.randn(4096, 512)")
WEIGHTED = "self.weight = torch.nn.Parameter(torch.rand(1024) + 0.5)"
NORM = problem(
    "norm", "return F.layer_norm(inputs[0], (1024,), self.weight)", "torch.randn(4096, 1024)", WEIGHTED
)  # fmt: skip
FILTERS = "self.weight = torch.nn.Parameter(torch.randn(64, 128, 3, 3) / 34)"
CONVOLUTION = problem("convolution", "return F.conv2d(inputs[0], self.weight)", "torch.randn(8, 128, 34, 34)", FILTERS)

TRITON_SOFTMAX = """
@triton.jit
def rows(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row + at, mask=at < columns, other=float("-inf")).to(tl.float32)
    value = tl.exp(value - tl.max(value, 0))
    tl.store(y + row + at, (value / tl.sum(value, 0)).to(y.dtype.element_ty), mask=at < columns)
"""
TRITON_NORM = """
@triton.jit
def norm(x, w, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    off = tl.where(inside, value - tl.sum(value, 0) / columns, 0.0)
    scale = 1 / tl.sqrt(tl.sum(off * off, 0) / columns + 1e-5)
    weight = tl.load(w + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row + at, (off * scale * weight).to(y.dtype.element_ty), mask=inside)
"""
TRITON_PRODUCT = """
@triton.jit
def product(a, b, c, N, K, SHORT: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr):
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, K, STEP):
        inner = start + tl.arange(0, STEP)
        left = tl.load(a + rows[:, None] * K + inner[None, :])
        right = tl.load(b + inner[:, None] * N + columns[None, :])
        total += tl.dot(left, right)
        if SHORT:
            total = total.to(c.dtype.element_ty).to(tl.float32)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(c.dtype.element_ty))
"""
CALL_PRODUCT = """
b = inputs[1]
c = torch.empty(x.shape[0], b.shape[1], device=x.device, dtype=x.dtype)
product[(x.shape[0] // 64, b.shape[1] // 64)](x, b, c, b.shape[1], x.shape[1], {short}, 64, 16)
return c
"""
CUDA_MEAN = """
template <typename T, typename Sum>
__global__ void means(const T* x, T* y, int rows, int columns) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    Sum sum = 0.0f;
    for (int i = 0; i < columns; ++i) sum = static_cast<Sum>(
        static_cast<float>(sum) + static_cast<float>(x[row * (long)columns + i]));
    y[row] = static_cast<T>(static_cast<float>(sum) / columns);
}
torch::Tensor mean_cuda(torch::Tensor x) {
    int rows = x.size(0), columns = x.size(1);
    auto y = torch::empty({rows}, x.options());
    auto stream = at::cuda::getCurrentCUDAStream();
    if (x.scalar_type() == at::kHalf)
        means<at::Half, SUM(at::Half)><<<(rows + 63) / 64, 64, 0, stream>>>(
            x.data_ptr<at::Half>(), y.data_ptr<at::Half>(), rows, columns);
    else
        means<at::BFloat16, SUM(at::BFloat16)><<<(rows + 63) / 64, 64, 0, stream>>>(
            x.data_ptr<at::BFloat16>(), y.data_ptr<at::BFloat16>(), rows, columns);
    return y;
}
"""


def mean_kernel(sum_type: str) -> str:
    """`T` in place of a type: the sum is of the input's."""
    definition = f"#define SUM(T) {sum_type}\n"
    return cuda(
        definition + CUDA_MEAN, "torch::Tensor mean_cuda(torch::Tensor x);", "return EXTENSION.mean_cuda(inputs[0])"
    )


def plain(posed: Problem, constructor: str = "pass", rounded: str = "value") -> str:
    """The reference's own call, and what becomes of its result."""
    forward = next(line.strip() for line in posed.source.splitlines() if "inputs[0]" in line)
    return f"""
import torch
import torch.nn.functional as F

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {constructor}

    def forward(self, *inputs):
        value = {forward.removeprefix("return ")}
        return {rounded}
"""


class Short(NamedTuple):
    """A candidate for a problem that is then posed at 16 bits."""

    problem: Problem
    source: str

    def at(self, dtype: str) -> tuple[Problem, str]:
        """Both at this dtype; what is rounded is rounded to the next lower precision."""
        return self.problem.model_copy(update={"dtype": dtype}), self.source.replace("LOWER", LOWER[dtype])


ROUNDED = "value.to(LOWER).to(value.dtype)"
IN_STEPS = """
import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        powers = torch.exp(x - x.amax(-1, keepdim=True))
        total = powers[:, :8].sum(-1)
        for start in range(8, x.shape[1], 8):
            total = total + powers[:, start:start + 8].sum(-1)
        return powers / total.unsqueeze(-1)
"""
NORM_CALL = EMPTY + "norm[(x.shape[0],)](x, self.weight, y, x.shape[1], 1024)\nreturn y"

HONEST = {
    "plain_softmax": Short(SOFTMAX, plain(SOFTMAX)),
    "plain_mean": Short(MEAN, plain(MEAN)),
    "plain_product": Short(PRODUCT, plain(PRODUCT)),
    "plain_norm": Short(NORM, plain(NORM, WEIGHTED)),
    "plain_convolution": Short(CONVOLUTION, plain(CONVOLUTION, FILTERS)),
    "triton_softmax": Short(SOFTMAX, triton(
        TRITON_SOFTMAX, EMPTY + "rows[(x.shape[0],)](x, y, x.shape[1], 4096)\nreturn y")),
    "triton_norm": Short(NORM, triton(TRITON_NORM, NORM_CALL, WEIGHTED)),
    "triton_product": Short(PRODUCT, triton(TRITON_PRODUCT, CALL_PRODUCT.format(short=False))),
    "cuda_mean": Short(MEAN, mean_kernel("float")),
}  # fmt: skip
HOSTILE = {
    "triton_product_in_16_bits": Short(PRODUCT, triton(TRITON_PRODUCT, CALL_PRODUCT.format(short=True))),
    "cuda_mean_in_16_bits": Short(MEAN, mean_kernel("T")),
    "softmax_with_a_sum_in_16_bits": Short(SOFTMAX, IN_STEPS),
    "softmax_rounded_lower": Short(SOFTMAX, plain(SOFTMAX, rounded=ROUNDED)),
    "mean_rounded_lower": Short(MEAN, plain(MEAN, rounded=ROUNDED)),
    "product_rounded_lower": Short(PRODUCT, plain(PRODUCT, rounded=ROUNDED)),
    "norm_rounded_lower": Short(NORM, plain(NORM, WEIGHTED, ROUNDED)),
    "convolution_rounded_lower": Short(CONVOLUTION, plain(CONVOLUTION, FILTERS, ROUNDED)),
}
