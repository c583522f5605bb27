import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cute/tensor.hpp>

using namespace cute;

constexpr int kThreads = 256;

// One block a row: out[r][c] = x[r][c] * scale[c] + sum of row r.
__global__ void scale_add_row_sum_kernel(const float* __restrict__ x, const float* __restrict__ scale,
                                         float* __restrict__ out, int rows, int columns) {
    const auto matrix = make_layout(make_shape(rows, columns), make_stride(int64_t(columns), _1{}));
    const Tensor row = make_tensor(make_gmem_ptr(x), matrix)(blockIdx.x, _);
    Tensor row_out = make_tensor(make_gmem_ptr(out), matrix)(blockIdx.x, _);
    float sum = 0.0f;
    for (int c = threadIdx.x; c < size(row); c += kThreads) sum += row(c);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    __shared__ float storage[kThreads / 32];
    Tensor partial = make_tensor(make_smem_ptr(storage), Layout<Int<kThreads / 32>>{});
    if (threadIdx.x % 32 == 0) partial(threadIdx.x / 32) = sum;
    __syncthreads();
    sum = 0.0f;
    for (int warp = 0; warp < size(partial); ++warp) sum += partial(warp);
    for (int c = threadIdx.x; c < size(row); c += kThreads) row_out(c) = row(c) * scale[c] + sum;
}

extern "C" int scale_add_row_sum(const float* x, const float* scale, float* out, int rows, int columns, void* stream) {
    if (rows == 0) return 0;
    scale_add_row_sum_kernel<<<rows, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(x, scale, out, rows, columns);
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="scale_add_row_sum",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
scale_add_row_sum = library.scale_add_row_sum
scale_add_row_sum.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int] * 2 + [ctypes.c_void_p]
scale_add_row_sum.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(columns))

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        rows, columns = x.shape
        stream = torch.cuda.current_stream().cuda_stream
        error = scale_add_row_sum(x.data_ptr(), self.scale.data_ptr(), out.data_ptr(), rows, columns, stream)
        if error:
            raise RuntimeError(f"scale_add_row_sum: CUDA error {error}")
        return out
