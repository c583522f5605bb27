import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>

// out[r][c] = x[r][c] * scale[c] + sum of row r. A row stays in cache between its two passes.
extern "C" void scale_add_row_sum(const float* __restrict x, const float* __restrict scale, float* __restrict out,
                                  int64_t rows, int64_t columns) {
    #pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; ++r) {
        const float* row = x + r * columns;
        float* row_out = out + r * columns;
        float sum = 0.0f;
        #pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < columns; ++c) sum += row[c];
        #pragma omp simd
        for (int64_t c = 0; c < columns; ++c) row_out[c] = row[c] * scale[c] + sum;
    }
}
"""

library = ctypes.CDLL(
    load_inline(
        name="scale_add_row_sum",
        cpp_sources=[SOURCE],
        extra_cflags=["-O3", "-march=native", "-fopenmp"],
        extra_ldflags=["-fopenmp"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
scale_add_row_sum = library.scale_add_row_sum
scale_add_row_sum.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2
scale_add_row_sum.restype = None


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(columns))

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        scale_add_row_sum(x.data_ptr(), self.scale.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1])
        return out
