import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

// tune: THREADS in (128, 256, 512)
constexpr int THREADS = 256;
// tune: UNROLL in (1, 2, 4)
constexpr int UNROLL = 1;
// Bit 0: loads are evict-first; bit 1: stores are. 0: both have the default caching.
// tune: POLICY in (0, 1, 2)
constexpr int POLICY = 0;

constexpr int64_t kVectorsPerBlock = static_cast<int64_t>(THREADS) * UNROLL;
constexpr int64_t kElementsPerBlock = kVectorsPerBlock * 8;

__device__ __forceinline__ uint4 load_vector(const uint4* from) {
    if constexpr ((POLICY & 1) != 0) {
        return __ldcs(from);
    } else {
        return *from;
    }
}

__device__ __forceinline__ void store_vector(uint4* to, uint4 v) {
    if constexpr ((POLICY & 2) != 0) {
        __stcs(to, v);
    } else {
        *to = v;
    }
}

// Two bf16 values in a word, widened, multiplied in fp32, rounded to nearest even.
__device__ __forceinline__ uint32_t scale_pair(uint32_t word, float s) {
    const float low = __uint_as_float(word << 16);
    const float high = __uint_as_float(word & 0xffff0000u);
    const __nv_bfloat162 both = __floats2bfloat162_rn(low * s, high * s);
    return *reinterpret_cast<const uint32_t*>(&both);
}

__device__ __forceinline__ uint4 scale_vector(uint4 v, float s) {
    v.x = scale_pair(v.x, s);
    v.y = scale_pair(v.y, s);
    v.z = scale_pair(v.z, s);
    v.w = scale_pair(v.w, s);
    return v;
}

// A block does kVectorsPerBlock vectors of 8 values, one stretch of memory.
__global__ void __launch_bounds__(THREADS) scale_kernel(const __nv_bfloat16* __restrict__ a,
                                                        __nv_bfloat16* __restrict__ out, float s, int64_t count) {
    const int64_t vectors = count / 8;
    const int64_t first = static_cast<int64_t>(blockIdx.x) * kVectorsPerBlock;
    const uint4* from = reinterpret_cast<const uint4*>(a) + first + threadIdx.x;
    uint4* to = reinterpret_cast<uint4*>(out) + first + threadIdx.x;

    if (first + kVectorsPerBlock <= vectors) {
        uint4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) v[u] = load_vector(from + u * THREADS);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) store_vector(to + u * THREADS, scale_vector(v[u], s));
    } else {
        for (int u = 0; u < UNROLL; ++u) {
            if (first + threadIdx.x + u * THREADS < vectors) {
                store_vector(to + u * THREADS, scale_vector(load_vector(from + u * THREADS), s));
            }
        }
    }

    // Up to 7 values that fill no vector, by the last block.
    if (blockIdx.x + 1 == gridDim.x) {
        const int64_t i = vectors * 8 + threadIdx.x;
        if (i < count) out[i] = __float2bfloat16_rn(__bfloat162float(a[i]) * s);
    }
}

extern "C" int scale_matrix(const void* a, void* out, float s, int64_t count, void* stream) {
    if (count == 0) return 0;
    const int64_t blocks = (count + kElementsPerBlock - 1) / kElementsPerBlock;
    scale_kernel<<<static_cast<unsigned>(blocks), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const __nv_bfloat16*>(a), static_cast<__nv_bfloat16*>(out), s, count);
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="scale_matrix_bf16",
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
        super(ModelNew, self).__init__()

    def forward(self, A: torch.Tensor, s: float) -> torch.Tensor:
        if not isinstance(s, (float, int)) or A.dtype != torch.bfloat16 or not A.is_contiguous():
            return A * s
        source = A.data_ptr()
        if source % 16:
            return A * s
        out = torch.empty_like(A)
        stream = torch.cuda.current_stream().cuda_stream
        error = scale_matrix(source, out.data_ptr(), float(s), A.numel(), stream)
        if error:
            raise RuntimeError(f"scale_matrix: CUDA error {error}")
        return out
