"""Honest and hostile candidates in the further languages, as data: by language, what each is and how it must fare."""

from typing import NamedTuple

from kernelwright.problems import Problem
from kernelwright.sandbox.authenticity.scan import candidate_of
from kernelwright.sandbox.verdict.verdicts import Candidate
from tests.gpu.honest import ODD, PRODUCT, RELU, TWO


class Told(NamedTuple):
    """A candidate with the problem that it is judged for."""

    problem: Problem
    source: str
    words: str = ""
    """What the reason of its refusal holds; several, divided by `|`. Empty where it must pass."""
    may_be_waited_for: bool = False
    """Whether the device may also be done with it within the judge's clock: then it is right, and slow as it is."""

    @property
    def candidate(self) -> Candidate:
        """The source as the judge takes it, with the language that is told from it."""
        return candidate_of(self.source)


CUTLASS = '''
import ctypes
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
{kernel}
"""
LIBRARY = ctypes.CDLL(load_inline(
    name="own", cpp_sources=[""], cuda_sources=[SOURCE], extra_cuda_cflags=["-O3"],
    no_implicit_headers=True, is_python_module=False,
))
LIBRARY.run.argtypes = {types}

class ModelNew(torch.nn.Module):
    def forward(self, *inputs):
        x = inputs[0].contiguous()
        stream = torch.cuda.current_stream().cuda_stream
{forward}
        return y
'''
POINTWISE = """
#include <cute/tensor.hpp>
using namespace cute;

__global__ void pointwise(const float* x, float* y, int n) {{
    const auto part = [&](auto pointer) {{
        const auto whole = make_tensor(make_gmem_ptr(pointer), make_layout(n));
        return local_tile(whole, Shape<_1024>{{}}, make_coord(blockIdx.x));
    }};
    const Tensor from = part(x);
    Tensor to = part(y);
    for (int i = threadIdx.x; i < 1024; i += blockDim.x)
        if (blockIdx.x * 1024 + i < n) to(i) = {value};
}}
extern "C" int run(const float* x, float* y, int n, void* stream) {{
    {before}
    pointwise<<<(n + 1023) / 1024, 256, 0, static_cast<cudaStream_t>(stream)>>>(x, y, n);
    return cudaGetLastError();
}}
"""
GEMM = """
#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm.h>

using Row = cutlass::layout::RowMajor;
using Product = cutlass::gemm::device::Gemm<
    float, Row, float, Row, float, Row, float, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80,
    cutlass::gemm::GemmShape<128, 64, 16>, cutlass::gemm::GemmShape<64, 32, 16>, cutlass::gemm::GemmShape<16, 8, 8>,
    cutlass::epilogue::thread::LinearCombination<float, 4, float, float>,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>, 3, 4, 4, false, cutlass::arch::{operator}>;

extern "C" int run(const float* a, const float* b, float* c, int m, int n, int k, void* stream) {{
    Product product;
    const Product::Arguments given({{m, n, k}}, {{a, k}}, {{b, n}}, {{c, n}}, {{c, n}}, {{1.0f, 0.0f}});
    return static_cast<int>(product(given, nullptr, static_cast<cudaStream_t>(stream)));
}}
"""
SLOW_SIDE = """
    static cudaStream_t side = nullptr;
    if (!side) cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
    stream = side;"""


TILELANG = """
import tilelang
import tilelang.language as T
import torch


@tilelang.jit(out_idx=[-1])
def pointwise(rows, columns, block=4, width=1024):
    @T.prim_func
    def main(x: T.Tensor((rows, columns), "float32"), y: T.Tensor((rows, columns), "float32")):
        with T.Kernel(T.ceildiv(columns, width), T.ceildiv(rows, block), threads=256) as (bx, by):
            values = T.alloc_fragment((block, width), "float32")
            T.copy(x[by * block, bx * width], values)
            for r, c in T.Parallel(block, width):
                values[r, c] = {value}
            T.copy(values, y[by * block, bx * width])

    return main


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.run = pointwise({rows}, {columns})

    def forward(self, *inputs):
        x = inputs[0].contiguous()
        {forward}
"""
TILELANG_PRODUCT = """
import tilelang
import tilelang.language as T
import torch


@tilelang.jit(out_idx=[-1])
def product(M, N, K, TILE=64, DEPTH=32):
    @T.prim_func
    def main(a: T.Tensor((M, K), "float32"), b: T.Tensor((K, N), "float32"), c: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, TILE), T.ceildiv(M, TILE), threads=128) as (bx, by):
            left = T.alloc_shared((TILE, DEPTH), "float32")
            right = T.alloc_shared((DEPTH, TILE), "float32")
            total = T.alloc_fragment((TILE, TILE), "float32")
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, DEPTH), num_stages=2):
                T.copy(a[by * TILE, k * DEPTH], left)
                T.copy(b[k * DEPTH, bx * TILE], right)
                {product}
            T.copy(total, c[by * TILE, bx * TILE])

    return main


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.run = product(512, 640, 384)

    def forward(self, a, b):
        return self.run(a.contiguous(), b.contiguous())
"""
ON_THE_SIDE = """with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(20_000_000)
            return self.run(x)"""
IN_FULL = """for d in T.serial(DEPTH):
                    for i, j in T.Parallel(TILE, TILE):
                        total[i, j] += left[i, d] * right[d, j]"""


HELION = """
import helion
import helion.language as hl
import torch


@helion.kernel(config=helion.Config(block_sizes={blocks}{more}), static_shapes=True{settings})
def own({parameters}):
    {body}


class ModelNew(torch.nn.Module):
    def forward(self, *inputs):
        return {forward}
"""


def helion(value: str, forward: str = "own(inputs[0].contiguous())") -> str:
    body = f"""y = torch.empty_like(x)
    for r, c in hl.tile([x.size(0), x.size(1)]):
        y[r, c] = {value}
    return y"""
    return HELION.format(blocks=[2, 512], more="", settings="", parameters="x", body=body, forward=forward)


def helion_product(settings: str) -> str:
    body = """y = torch.empty([a.size(0), b.size(1)], dtype=a.dtype, device=a.device)
    for r, c in hl.tile([a.size(0), b.size(1)]):
        total = hl.zeros([r, c], dtype=torch.float32)
        for k in hl.tile(a.size(1)):
            total = torch.addmm(total, a[r, k], b[k, c])
        y[r, c] = total
    return y"""
    forward = "own(inputs[0].contiguous(), inputs[1].contiguous())"
    return HELION.format(blocks=[64, 64, 32], more="", settings=settings, parameters="a, b", body=body, forward=forward)


HELION_EXTREMES = HELION.format(
    blocks=[4], more=", reduction_loops=[None]", settings="", parameters="x",
    body="""low = torch.empty(x.size(0), dtype=x.dtype, device=x.device)
    high = torch.empty(x.size(0), dtype=x.dtype, device=x.device)
    for r in hl.tile(x.size(0)):
        values = x[r, :]
        low[r] = torch.amin(values, dim=1)
        high[r] = torch.amax(values, dim=1)
    return low, high""",
    forward="own(inputs[0].contiguous())",
)  # fmt: skip


CUTE = """
import cutlass
import torch
from cuda.bindings.driver import CUstream
from cutlass import cute
from cutlass.cute.runtime import from_dlpack, make_fake_compact_tensor, make_fake_stream

THREADS = 256


@cute.kernel
def own_kernel(x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * THREADS + thread
    if i < x.shape[0]:
        value = x[i]
        y[i] = {value}


@cute.jit
def own(x: cute.Tensor, y: cute.Tensor, stream: CUstream):
    blocks = cute.ceil_div(x.shape[0]{part}, THREADS)
    own_kernel(x, y).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1], stream=stream)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        flat = make_fake_compact_tensor(cutlass.Float32, ({count},), assumed_align=16)
        self.run = cute.compile(own, flat, flat, make_fake_stream())

    def forward(self, *inputs):
        x = inputs[0].contiguous()
        y = torch.empty_like(x)
        flat = [from_dlpack(one.view(-1), assumed_align=16) for one in (x, y)]
        {stream}
        self.run(*flat, CUstream(stream.cuda_stream))
        return y
"""
LATE_STREAM = """stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)"""


def cute(count: int, value: str, part: str = "", stream: str = "stream = torch.cuda.current_stream()") -> str:
    return CUTE.format(count=count, value=value, part=part, stream=stream)


def tilelang(rows: int, columns: int, value: str, forward: str = "return self.run(x)") -> str:
    return TILELANG.format(rows=rows, columns=columns, value=value, forward=forward)


def pointwise(value: str, before: str = "") -> str:
    forward = "        y = torch.empty_like(x)\n        LIBRARY.run(x.data_ptr(), y.data_ptr(), x.numel(), stream)"
    types = "[ctypes.c_void_p] * 2 + [ctypes.c_int, ctypes.c_void_p]"
    return CUTLASS.format(kernel=POINTWISE.format(value=value, before=before), types=types, forward=forward)


def product(operator: str) -> str:
    forward = """
        b = inputs[1].contiguous()
        y = torch.empty(x.shape[0], b.shape[1], device=x.device)
        LIBRARY.run(x.data_ptr(), b.data_ptr(), y.data_ptr(), x.shape[0], b.shape[1], x.shape[1], stream)"""
    types = "[ctypes.c_void_p] * 3 + [ctypes.c_int] * 3 + [ctypes.c_void_p]"
    return CUTLASS.format(kernel=GEMM.format(operator=operator), types=types, forward=forward)


HONEST: dict[str, dict[str, Told]] = {
    "cutlass": {
        "relu": Told(RELU, pointwise("from(i) > 0 ? from(i) : 0.0f")),
        "odd_sizes": Told(ODD, pointwise("from(i) * 2 + 1")),
        "split_product": Told(PRODUCT, product("OpMultiplyAddFastF32")),
    },
    "tilelang": {
        "relu": Told(RELU, tilelang(2048, 4096, "T.max(values[r, c], 0.0)")),
        "odd_sizes": Told(ODD, tilelang(1013, 997, "values[r, c] * 2.0 + 1.0")),
        "product_in_full": Told(PRODUCT, TILELANG_PRODUCT.format(product=IN_FULL)),
    },
    "helion": {
        "relu": Told(RELU, helion("torch.relu(x[r, c])")),
        "odd_sizes": Told(ODD, helion("x[r, c] * 2 + 1")),
        "product_in_full": Told(PRODUCT, helion_product(', dot_precision="ieee"')),
        "two_outputs": Told(TWO, HELION_EXTREMES),
    },
    "cute": {
        "relu": Told(RELU, cute(2048 * 4096, "cutlass.max(value, 0.0)")),
        "odd_sizes": Told(ODD, cute(1013 * 997, "value * 2.0 + 1.0")),
    },
}
HOSTILE: dict[str, dict[str, Told]] = {
    "cutlass": {
        "one_tf32_product": Told(PRODUCT, product("OpMultiplyAdd"), "wrong"),
        "a_stream_that_nobody_waits_for": Told(
            RELU,
            pointwise("(__nanosleep(1000000), from(i) > 0 ? from(i) : 0.0f)", SLOW_SIDE),
            "changed|wrong|NaN",
            may_be_waited_for=True,
        ),
    },
    "tilelang": {
        "one_tf32_product": Told(PRODUCT, TILELANG_PRODUCT.format(product="T.gemm(left, right, total)"), "wrong"),
        "a_stream_that_nobody_waits_for": Told(
            RELU,
            tilelang(2048, 4096, "T.max(values[r, c], 0.0)", ON_THE_SIDE),
            "changed|wrong|NaN|no answer",
            may_be_waited_for=True,
        ),
    },
    "helion": {
        "one_tf32_product": Told(PRODUCT, helion_product(', dot_precision="tf32"'), "wrong"),
        "the_first_result_for_ever": Told(
            RELU,
            helion("torch.relu(x[r, c])", "self.__dict__.setdefault('kept', own(inputs[0].contiguous()))"),
            "wrong",
        ),
    },
    "cute": {
        "half_of_the_rows": Told(RELU, cute(2048 * 4096, "cutlass.max(value, 0.0)", " // 2"), "wrong|NaN"),
        "a_stream_that_nobody_waits_for": Told(
            RELU,
            cute(2048 * 4096, "cutlass.max(value, 0.0)", stream=LATE_STREAM),
            "changed|wrong|NaN|no answer",
            may_be_waited_for=True,
        ),
    },
}
