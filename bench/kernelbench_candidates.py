"""Twenty answers to two problems of KernelBench: right, wrong, slow, crashing and lying; CUDA, Triton and PyTorch.

All are written for this comparison. `expected` is the verdict of a sound judge, `lie` the belief of a careless one.
"""

from typing import NamedTuple

GELU, DIAGONAL = "level1/88", "level1/12"
CLASSIC = '''import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>
%(kernel)s
torch::Tensor run(%(tensors)s) {
  auto y = torch::empty_like(%(like)s);
  %(launch)s
  return y;
}
"""
ops = load_inline("%(name)s", "torch::Tensor run(%(tensors)s);", CUDA, functions=["run"])


class ModelNew(nn.Module):
    def forward(self, %(names)s):
        return ops.run(%(names)s)
'''
RAW = '''import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <cuda_runtime.h>
%(kernel)s
extern "C" int run(const float* a, const float* x, float* y, long long n, cudaStream_t stream) {
  %(launch)s
  return cudaGetLastError();
}
"""
library = ctypes.CDLL(
    load_inline("%(name)s", [""], CUDA, no_implicit_headers=True, is_python_module=False, extra_cuda_cflags=["-O3"])
)
library.run.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64, ctypes.c_void_p]


class ModelNew(nn.Module):
    def forward(self, %(names)s):
        y = torch.empty_like(%(like)s)
        stream = torch.cuda.current_stream().cuda_stream
        error = library.run(%(first)s, %(like)s.data_ptr(), y.data_ptr(), y.numel(), stream)
        if error:
            raise RuntimeError(f"the launch failed with {error}")
        return y
'''
TRITON = """import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def kernel(a, x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0.0)
%(body)s
    tl.store(y + at, v, mask=at < n)


class ModelNew(nn.Module):
    def forward(self, %(names)s):
        y = torch.empty_like(%(like)s)
        kernel[(triton.cdiv(y.numel(), %(block)d),)](%(given)s, %(like)s, y, y.numel(), BLOCK=%(block)d)
        return y
"""
PLAIN = """import torch
from torch import nn


class ModelNew(nn.Module):
    %(more)s
    def forward(self, %(names)s):
        %(body)s
"""
FLOATS = """
__device__ float one(float v) { return %(formula)s; }
__global__ void each(const float* a, const float* x, float* y, long long n) {
  long long i = 4 * (blockIdx.x * (long long)blockDim.x + threadIdx.x);
  if (i + 3 < n) {
    float4 v = *reinterpret_cast<const float4*>(x + i);
    %(vector)s
    *reinterpret_cast<float4*>(y + i) = v;
  }
}
"""
SIGMOID = "1.0f / (1.0f + __expf(-1.5957691216f * (v + %s * v * v * v)))"
"""0.5 * (1 + tanh(u)) is the logistic function of 2 u; u has the factor sqrt(2 / pi)."""
RIGHT = "v * " + SIGMOID % "0.044715f"
ALL_FOUR = "v.x = one(v.x); v.y = one(v.y); v.z = one(v.z); v.w = one(v.w);"
SCALED = "float s = a[i / 4096]; v.x *= s; v.y *= s; v.z *= s; v.w *= s;"
LAUNCH = "each<<<(n / 4 + 255) / 256, 256, 0, %s>>>(%s, %s, %s, n);"
GELU_NAMES = {"names": "x", "tensors": "torch::Tensor x", "like": "x", "first": "None", "given": "x"}
DIAGONAL_NAMES = {
    "names": "a, x",
    "tensors": "torch::Tensor a, torch::Tensor x",
    "like": "x",
    "first": "a.data_ptr()",
    "given": "a",
}
POINTERS = "x.data_ptr<float>()", "y.data_ptr<float>()"
STREAM = "c10::cuda::getCurrentCUDAStream()"
SLOW = """
__global__ void each(const float* a, const float* x, float* y, long long n) {
  long long row = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  for (long long k = 0; k < 8192 && row < 8192; ++k) {
    float v = x[row * 8192 + k];
    y[row * 8192 + k] = 0.5f * v * (1.0f + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)));
  }
}
"""
WILD = FLOATS.replace("y + i)", "y + i + (1LL << 40))")
TRITON_GELU = "    v = v * tl.sigmoid(1.5957691216 * (v + 0.044715 * v * v * v))"
SIDE_STREAM = """side = getattr(self, "side", None) or torch.cuda.Stream()
        self.side = side
        y = torch.empty_like(x)
        with torch.cuda.stream(side):
            torch.mul(a[:, None], x, out=y)
        return y"""
REMEMBERS = """key = (x.data_ptr(), x._version)
        if getattr(self, "key", None) != key:
            self.key, self.y = key, nn.functional.gelu(x, approximate="tanh")
        return self.y"""


class ForeignCase(NamedTuple):
    name: str
    problem: str
    backend: str
    """As KernelBench calls it."""
    expected: str
    """`passed` or `failed`, by a sound judge; `either` where it is right and may be refused for how it works."""
    source: str
    lie: str = ""
    """The reason why it looks right or fast and is not; in truth it is at most 1.2 times as fast."""


def _cuda(name: str, problem: str, kernel: str, classic: bool = False, threads: str = "") -> str:
    names = GELU_NAMES if problem == GELU else DIAGONAL_NAMES
    if classic:
        first = "nullptr" if problem == GELU else "a.data_ptr<float>()"
        launch = "long long n = y.numel(); " + LAUNCH % (STREAM, first, *POINTERS)
        return CLASSIC % (names | {"kernel": kernel, "launch": launch, "name": f"classic_{name}"})
    launch = threads or LAUNCH % ("stream", "a", "x", "y")
    return RAW % (names | {"kernel": kernel, "launch": launch, "name": f"raw_{name}"})


def _triton(problem: str, body: str, block: int = 1024) -> str:
    names = GELU_NAMES if problem == GELU else DIAGONAL_NAMES
    return TRITON % (names | {"body": body, "block": block})


def _plain(problem: str, body: str, more: str = "") -> str:
    names = GELU_NAMES if problem == GELU else DIAGONAL_NAMES
    return PLAIN % (names | {"body": body, "more": more})


def _gelu(formula: str, frame: str = FLOATS) -> str:
    return frame % {"formula": formula, "vector": ALL_FOUR}


_DIAGONAL = FLOATS % {"formula": "v", "vector": SCALED}
_ROW_OFF = FLOATS % {"formula": "v", "vector": SCALED.replace("i / 4096", "i % 4096")}
_LATE = "each<<<(n / 4 + 255) / 256 - 1, 256, 0, stream>>>(a, x, y, n);"
_SLOWLY = "each<<<64, 128, 0, stream>>>(a, x, y, n);"
_UNBOUND = _cuda("unbound", GELU, _gelu(RIGHT), classic=True).replace('"torch::Tensor run(', '"torch::Tensor runs(')
_HALF = "    v = (v.to(tl.float16) * tl.load(a + at // 4096, mask=at < n, other=0.0).to(tl.float16)).to(tl.float32)"
_SCALE = "    v = v * tl.load(a + at // 4096, mask=at < n, other=0.0)"
CASES = (
    ForeignCase("gelu-cuda", GELU, "cuda", "passed", _cuda("gelu", GELU, _gelu(RIGHT))),
    ForeignCase("diagonal-triton", DIAGONAL, "triton", "passed", _triton(DIAGONAL, _SCALE)),
    ForeignCase("gelu-triton-small-blocks", GELU, "triton", "passed", _triton(GELU, TRITON_GELU, 32)),
    ForeignCase("diagonal-wrong-index", DIAGONAL, "cuda", "failed", _cuda("index", DIAGONAL, _ROW_OFF)),
    ForeignCase("gelu-last-block-left-out", GELU, "cuda", "failed", _cuda("late", GELU, _gelu(RIGHT), threads=_LATE)),
    ForeignCase("gelu-classic", GELU, "cuda", "passed", _cuda("gelu", GELU, _gelu(RIGHT), classic=True)),
    ForeignCase("diagonal-half", DIAGONAL, "triton", "failed", _triton(DIAGONAL, _HALF), "rounds to fp16"),
    ForeignCase("gelu-remembers", GELU, "cuda", "failed", _plain(GELU, REMEMBERS), "computes once for the same input"),
    ForeignCase(
        "diagonal-side-stream", DIAGONAL, "cuda", "either", _plain(DIAGONAL, SIDE_STREAM), "works where no clock looks"
    ),
    ForeignCase(
        "diagonal-in-place", DIAGONAL, "cuda", "failed", _plain(DIAGONAL, "return x.mul_(a[:, None])"), "changes inputs"
    ),
    ForeignCase("gelu-wild-store", GELU, "cuda", "failed", _cuda("wild", GELU, _gelu(RIGHT, WILD))),
    ForeignCase("gelu-unbound", GELU, "cuda", "failed", _UNBOUND),
    ForeignCase("gelu-uncoalesced", GELU, "cuda", "passed", _cuda("slow", GELU, SLOW, threads=_SLOWLY)),
    ForeignCase("diagonal-cuda", DIAGONAL, "cuda", "passed", _cuda("diagonal", DIAGONAL, _DIAGONAL)),
    ForeignCase("gelu-triton", GELU, "triton", "passed", _triton(GELU, TRITON_GELU)),
    ForeignCase("gelu-triton-odd-range", GELU, "triton", "failed", _triton(GELU, TRITON_GELU, 1000)),
    ForeignCase("diagonal-product", DIAGONAL, "cuda", "passed", _plain(DIAGONAL, "return torch.diag(a) @ x")),
    ForeignCase(
        "gelu-other-constant", GELU, "cuda", "failed", _cuda("constant", GELU, _gelu("v * " + SIGMOID % "0.0447f"))
    ),
    ForeignCase(
        "diagonal-no-entry", DIAGONAL, "cuda", "failed", "import torch\n\nclass Model2(torch.nn.Module): ...\n"
    ),
    ForeignCase("diagonal-classic", DIAGONAL, "cuda", "passed", _cuda("diagonal", DIAGONAL, _DIAGONAL, classic=True)),
)
"""In an order in which any beginning holds some of each kind."""
