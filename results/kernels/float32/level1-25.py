import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>

// tune: THREADS in (128, 256, 512)
constexpr int THREADS = 256;
// tune: VECTORS in (2, 4, 8)
constexpr int VECTORS = 4;

constexpr int kTile = THREADS * VECTORS;  // float4s a block

__device__ __forceinline__ float swish(float x) {
    const float denominator = 1.0f + expf(-x);
    float sigmoid;
    asm("rcp.approx.f32 %0, %1;" : "=f"(sigmoid) : "f"(denominator));
    return x * sigmoid;
}

__device__ __forceinline__ float4 swish4(float4 a) {
    return make_float4(swish(a.x), swish(a.y), swish(a.z), swish(a.w));
}

__global__ void __launch_bounds__(THREADS) swish_kernel(const float* __restrict__ x, float* __restrict__ out,
                                                        int64_t elements) {
    const int64_t vectors = elements / 4;
    const int64_t tile_start = static_cast<int64_t>(blockIdx.x) * kTile;
    const float4* from = reinterpret_cast<const float4*>(x);
    float4* to = reinterpret_cast<float4*>(out);

    if (tile_start + kTile <= vectors) {
        const int64_t first = tile_start + threadIdx.x;
        float4 value[VECTORS];
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) value[v] = __ldcs(from + first + v * THREADS);
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) __stcs(to + first + v * THREADS, swish4(value[v]));
    } else {
        // The one block that is not full: whole float4s, then up to three scalars.
        for (int64_t i = tile_start + threadIdx.x; i < vectors; i += THREADS) to[i] = swish4(from[i]);
        const int64_t i = vectors * 4 + threadIdx.x;
        if (i < elements) out[i] = swish(x[i]);
    }
}

extern "C" int swish_forward(const float* x, float* out, int64_t elements, void* stream) {
    if (elements == 0) return 0;
    const int64_t per_block = static_cast<int64_t>(kTile) * 4;
    const int64_t blocks = (elements + per_block - 1) / per_block;
    swish_kernel<<<static_cast<unsigned>(blocks), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(x, out, elements);
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="swish_forward_stream",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3"],
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
        x = x.contiguous()
        if x.data_ptr() % 16:
            x = x.clone()
        out = torch.empty_like(x)
        stream = torch.cuda.current_stream().cuda_stream
        error = swish_forward(x.data_ptr(), out.data_ptr(), x.numel(), stream)
        if error:
            raise RuntimeError(f"swish_forward: CUDA error {error}")
        return out
