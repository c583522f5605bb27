import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>

// tune: THREADS in (128, 256, 512, 1024)
constexpr int THREADS = 256;
// tune: UNROLL in (1, 2, 4, 8)
constexpr int UNROLL = 4;
// 1: streaming (evict first), 0: plain
// tune: STREAM_LOADS in (0, 1)
constexpr int STREAM_LOADS = 1;
// tune: STREAM_STORES in (0, 1)
constexpr int STREAM_STORES = 1;

constexpr int kTileVectors = THREADS * UNROLL;            // float4s a block
constexpr int64_t kTileFloats = int64_t(kTileVectors) * 4;  // floats a block

__device__ __forceinline__ float4 load_vector(const float4* from) {
    if (STREAM_LOADS) return __ldcs(from);
    return __ldg(from);
}

__device__ __forceinline__ void store_vector(float4* to, float4 value) {
    if (STREAM_STORES) {
        __stcs(to, value);
    } else {
        *to = value;
    }
}

// Whole tiles only: block b has float4s b * kTileVectors to (b + 1) * kTileVectors - 1.
__global__ void __launch_bounds__(THREADS) scale_tiles_kernel(const float4* __restrict__ a,
                                                              float4* __restrict__ out, float s) {
    const int64_t first = static_cast<int64_t>(blockIdx.x) * kTileVectors + threadIdx.x;
    const float4* from = a + first;
    float4* to = out + first;
    float4 v[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) v[i] = load_vector(from + i * THREADS);
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        v[i].x *= s;
        v[i].y *= s;
        v[i].z *= s;
        v[i].w *= s;
        store_vector(to + i * THREADS, v[i]);
    }
}

// What is no whole tile, or all where a pointer is not on 16 bytes.
__global__ void scale_rest_kernel(const float* __restrict__ a, float* __restrict__ out, float s, int64_t begin,
                                  int64_t end) {
    const int64_t i = begin + static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
    if (i < end) out[i] = a[i] * s;
}

extern "C" int scale_matrix(const float* a, float* out, float s, int64_t n, void* stream_pointer) {
    if (n <= 0) return 0;
    cudaStream_t stream = static_cast<cudaStream_t>(stream_pointer);
    const bool aligned = ((reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(out)) & 15) == 0;
    const int64_t tiles = aligned ? n / kTileFloats : 0;
    if (tiles > 0) {
        scale_tiles_kernel<<<static_cast<unsigned>(tiles), THREADS, 0, stream>>>(
            reinterpret_cast<const float4*>(a), reinterpret_cast<float4*>(out), s);
    }
    const int64_t done = tiles * kTileFloats;
    if (done < n) {
        const int64_t blocks = (n - done + 255) / 256;
        scale_rest_kernel<<<static_cast<unsigned>(blocks), 256, 0, stream>>>(a, out, s, done, n);
    }
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="scale_matrix_stream",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
scale_matrix = library.scale_matrix
scale_matrix.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_int64, ctypes.c_void_p]
scale_matrix.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, A: torch.Tensor, s: float) -> torch.Tensor:
        if A.dtype != torch.float32 or isinstance(s, (torch.Tensor, complex)):
            return A * s  # not the case that is asked for
        a = A.contiguous()
        out = torch.empty_like(a)
        stream = torch.cuda.current_stream().cuda_stream
        error = scale_matrix(a.data_ptr(), out.data_ptr(), float(s), a.numel(), stream)
        if error:
            raise RuntimeError(f"scale_matrix: CUDA error {error}")
        return out
