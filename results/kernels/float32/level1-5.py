import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>

// 1: a tile comes by one bulk copy through shared memory, 0: by 16-byte loads into registers
// tune: BULK in (0, 1)
constexpr int BULK = 1;
// tune: THREADS in (128, 256, 512)
constexpr int THREADS = 256;
// tune: UNROLL in (1, 2, 4)
constexpr int UNROLL = 2;
// 1: streaming (evict first), 0: plain
// tune: STREAM_LOADS in (0, 1)
constexpr int STREAM_LOADS = 1;
// tune: STREAM_STORES in (0, 1)
constexpr int STREAM_STORES = 0;

constexpr int kTileVectors = THREADS * UNROLL;            // float4s a block
constexpr int64_t kTileFloats = int64_t(kTileVectors) * 4;  // floats a block
constexpr uint32_t kTileBytes = kTileVectors * 16;

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void start(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void show_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive_and_expect(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
    if (STREAM_LOADS) {
        uint64_t policy;
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
            "%4;" ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
            : "memory");
    } else {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
    }
}

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
    const int64_t tile_first = static_cast<int64_t>(blockIdx.x) * kTileVectors;
    float4* to = out + tile_first + threadIdx.x;
    float4 v[UNROLL];
    if constexpr (BULK != 0) {
        __shared__ alignas(128) float4 tile[kTileVectors];
        __shared__ alignas(8) uint64_t full;
        if (threadIdx.x == 0) {
            start(&full, 1);
            show_started();
            arrive_and_expect(&full, kTileBytes);
            bulk_load(tile, a + tile_first, kTileBytes, &full);
        }
        __syncthreads();  // all see the barrier started
        wait(&full, 0);
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) v[i] = tile[threadIdx.x + i * THREADS];
    } else {
        const float4* from = a + tile_first + threadIdx.x;
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) v[i] = load_vector(from + i * THREADS);
    }
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
        name="scale_matrix_bulk",
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
