import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_bf16.h>

// tune: THREADS in (128, 256, 512)
constexpr int THREADS = 256;
// tune: UNROLL in (2, 4, 8)
constexpr int UNROLL = 4;
// 0: streaming loads; 1: read-only loads that skip L1 and fetch 256 bytes into L2
// tune: LOAD in (0, 1)
constexpr int LOAD = 1;
// 0: plain stores; 1: streaming stores
// tune: STORE in (0, 1)
constexpr int STORE = 1;

constexpr int kTile = THREADS * UNROLL;  // vectors of 16 bytes for each block

__device__ __forceinline__ uint4 load_vector(const uint4* from) {
    if constexpr (LOAD == 0) {
        return __ldcs(from);
    } else {
        uint4 v;
        asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(from));
        return v;
    }
}

__device__ __forceinline__ void store_vector(uint4* to, uint4 v) {
    if constexpr (STORE == 0) {
        *to = v;
    } else {
        __stcs(to, v);
    }
}

// x * sigmoid(x) = h + h * tanh(h) with h = x / 2: one special-function operation for each element.
// For large |x| the tangent is exactly 1 or -1, so that the result is x or 0.
__device__ __forceinline__ float swish(float x) {
    const float h = 0.5f * x;
    float t;
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(h));
    return fmaf(h, t, h);
}

// Two bf16 values in one word, the first in the low half.
__device__ __forceinline__ uint32_t swish_pair(uint32_t w) {
    const float low = swish(__uint_as_float(w << 16));
    const float high = swish(__uint_as_float(w & 0xffff0000u));
    const __nv_bfloat162 packed = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&packed);
}

__device__ __forceinline__ uint4 swish_vector(uint4 v) {
    v.x = swish_pair(v.x);
    v.y = swish_pair(v.y);
    v.z = swish_pair(v.z);
    v.w = swish_pair(v.w);
    return v;
}

__global__ void __launch_bounds__(THREADS) swish_kernel(const __nv_bfloat16* __restrict__ x,
                                                        __nv_bfloat16* __restrict__ out, int64_t n) {
    const int64_t vectors = n / 8;
    const int64_t tile = static_cast<int64_t>(blockIdx.x) * kTile;
    const uint4* from = reinterpret_cast<const uint4*>(x) + tile + threadIdx.x;
    uint4* to = reinterpret_cast<uint4*>(out) + tile + threadIdx.x;

    if (tile + kTile <= vectors) {
        uint4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) v[u] = load_vector(from + u * THREADS);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) store_vector(to + u * THREADS, swish_vector(v[u]));
    } else {
        for (int u = 0; u < UNROLL; ++u) {
            if (tile + u * THREADS + static_cast<int>(threadIdx.x) < vectors) {
                store_vector(to + u * THREADS, swish_vector(load_vector(from + u * THREADS)));
            }
        }
    }

    // Up to 7 elements after the last whole vector.
    if (blockIdx.x == 0) {
        const int64_t i = vectors * 8 + threadIdx.x;
        if (i < n) out[i] = __float2bfloat16_rn(swish(__bfloat162float(x[i])));
    }
}

extern "C" int swish_forward(const void* x, void* out, int64_t n, void* stream) {
    if (n == 0) return 0;
    const int64_t vectors = n / 8;
    int64_t blocks = (vectors + kTile - 1) / kTile;
    if (blocks < 1) blocks = 1;
    swish_kernel<<<static_cast<unsigned>(blocks), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const __nv_bfloat16*>(x), static_cast<__nv_bfloat16*>(out), n);
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="swish_bf16_stream_tanh",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-std=c++17"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
swish_forward = library.swish_forward
swish_forward.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
swish_forward.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self):
        super(ModelNew, self).__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.bfloat16:
            return x * torch.sigmoid(x)
        x = x.contiguous()
        if x.data_ptr() % 16:
            x = x.clone()
        out = torch.empty_like(x)
        stream = torch.cuda.current_stream().cuda_stream
        error = swish_forward(x.data_ptr(), out.data_ptr(), x.numel(), stream)
        if error:
            raise RuntimeError(f"swish_forward: CUDA error {error}")
        return out
