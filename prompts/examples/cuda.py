import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>

constexpr int kThreads = 256;

// One block a row: out[r][c] = x[r][c] * scale[c] + sum of row r.
__global__ void scale_add_row_sum_kernel(const float* __restrict__ x, const float* __restrict__ scale,
                                         float* __restrict__ out, int64_t columns) {
    const float* row = x + blockIdx.x * columns;
    float* row_out = out + blockIdx.x * columns;
    float sum = 0.0f;
    for (int64_t c = threadIdx.x; c < columns; c += kThreads) sum += row[c];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    __shared__ float partial[kThreads / 32];
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int warp = 0; warp < kThreads / 32; ++warp) sum += partial[warp];
    for (int64_t c = threadIdx.x; c < columns; c += kThreads) row_out[c] = row[c] * scale[c] + sum;
}

extern "C" int scale_add_row_sum(const float* x, const float* scale, float* out, int64_t rows, int64_t columns,
                                 void* stream) {
    if (rows == 0) return 0;
    scale_add_row_sum_kernel<<<static_cast<unsigned>(rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        x, scale, out, columns);
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
scale_add_row_sum.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2 + [ctypes.c_void_p]
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
