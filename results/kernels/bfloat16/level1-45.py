import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_bf16.h>

constexpr int kSide = 2048;                       // input height and width
constexpr int kPool = 11;                         // kernel and stride
constexpr int kOut = (kSide - kPool) / kPool + 1;  // 186
constexpr int kConsumers = 256;                   // 8 columns each
constexpr int kConsumerWarps = kConsumers / 32;
constexpr int kThreads = kConsumers + 32;         // and a warp for the producer
constexpr int kTileBytes = kPool * kSide * 2;     // 45056: 11 whole rows, contiguous
// tune: kStages in (2, 3, 4)
constexpr int kStages = 4;
constexpr int kSharedBytes = kStages * kTileBytes + 2 * kSide * 4;

static_assert(kOut == 186, "output side");
static_assert(kConsumers * 8 == kSide, "columns");
static_assert(kOut <= kConsumers, "one output a thread");

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void start(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void show_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void arrive_and_expect(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}
// What is read once: its lines leave the L2 before all others.
__device__ __forceinline__ uint64_t evict_first_policy() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier,
                                          uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy) : "memory");
}

__device__ __forceinline__ float low_half(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_half(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// counters[0]: tiles claimed beyond the first gridDim.x; counters[1]: blocks that have finished. Both are 0 before
// the launch and again after it.
__global__ void __launch_bounds__(kThreads, 1)
avg_pool_11_kernel(const unsigned char* __restrict__ x, __nv_bfloat16* __restrict__ out, int total, int* counters) {
    extern __shared__ __align__(128) unsigned char dynamic_shared[];
    __shared__ __align__(8) uint64_t full[kStages];
    __shared__ __align__(8) uint64_t empty[kStages];
    __shared__ int stage_tile[kStages];

    unsigned char* stages = dynamic_shared;
    float* column_sums = reinterpret_cast<float*>(dynamic_shared + kStages * kTileBytes);

    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) {
            start(&full[s], 1);
            start(&empty[s], kConsumerWarps);
        }
        show_started();
    }
    __syncthreads();

    if (threadIdx.x >= kConsumers) {
        if (threadIdx.x != kConsumers) return;
        // The producer.
        const uint64_t policy = evict_first_policy();
        int s = 0;
        uint32_t parity = 0;
        int tile = static_cast<int>(blockIdx.x);
        while (true) {
            int claimed = 0;
            if (tile < total) claimed = atomicAdd(&counters[0], 1);
            wait(&empty[s], parity ^ 1u);
            if (tile >= total) {
                stage_tile[s] = -1;
                arrive(&full[s]);
                break;
            }
            stage_tile[s] = tile;
            const int plane = tile / kOut;
            const int row = tile - plane * kOut;
            const int64_t first_row = static_cast<int64_t>(plane) * kSide + row * kPool;
            arrive_and_expect(&full[s], kTileBytes);
            bulk_load(stages + s * kTileBytes, x + first_row * (kSide * 2), kTileBytes, &full[s], policy);
            tile = static_cast<int>(gridDim.x) + claimed;
            if (++s == kStages) {
                s = 0;
                parity ^= 1u;
            }
        }
        // All claims of this block are made; the last block of all puts the counters back.
        __threadfence();
        const int finished = atomicAdd(&counters[1], 1);
        if (finished == static_cast<int>(gridDim.x) - 1) {
            __threadfence();
            counters[0] = 0;
            counters[1] = 0;
        }
        return;
    }

    // The consumers.
    const int t = threadIdx.x;
    int s = 0;
    uint32_t parity = 0;
    int buffer = 0;
    while (true) {
        wait(&full[s], parity);
        const int tile = stage_tile[s];
        if (tile < 0) break;

        const uint4* rows = reinterpret_cast<const uint4*>(stages + s * kTileBytes) + t;
        uint4 v[kPool];
#pragma unroll
        for (int r = 0; r < kPool; ++r) v[r] = rows[r * (kSide / 8)];
        __syncwarp();
        if (t % 32 == 0) arrive(&empty[s]);

        float sum[8];
#pragma unroll
        for (int c = 0; c < 8; ++c) sum[c] = 0.0f;
#pragma unroll
        for (int r = 0; r < kPool; ++r) {
            sum[0] += low_half(v[r].x);
            sum[1] += high_half(v[r].x);
            sum[2] += low_half(v[r].y);
            sum[3] += high_half(v[r].y);
            sum[4] += low_half(v[r].z);
            sum[5] += high_half(v[r].z);
            sum[6] += low_half(v[r].w);
            sum[7] += high_half(v[r].w);
        }

        float* sums = column_sums + buffer * kSide;
        float4* mine = reinterpret_cast<float4*>(sums + t * 8);
        mine[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        mine[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);

        // The consumers alone.
        asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");

        if (t < kOut) {
            const float* window = sums + t * kPool;
            float value = 0.0f;
#pragma unroll
            for (int c = 0; c < kPool; ++c) value += window[c];
            out[static_cast<int64_t>(tile) * kOut + t] = __float2bfloat16_rn(value / static_cast<float>(kPool * kPool));
        }

        buffer ^= 1;
        if (++s == kStages) {
            s = 0;
            parity ^= 1u;
        }
    }
}

extern "C" int avg_pool_11(const void* x, void* out, int64_t planes, void* counters, void* stream) {
    if (planes == 0) return 0;
    static int prepared_device = -1;
    static int multiprocessors = 0;
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) return static_cast<int>(error);
    if (device != prepared_device) {
        error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaFuncSetAttribute(avg_pool_11_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        prepared_device = device;
    }
    const int total = static_cast<int>(planes * kOut);
    const int blocks = total < multiprocessors ? total : multiprocessors;
    avg_pool_11_kernel<<<blocks, kThreads, kSharedBytes, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const unsigned char*>(x), static_cast<__nv_bfloat16*>(out), total, static_cast<int*>(counters));
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="avg_pool_11_ring_evict_first",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
avg_pool_11 = library.avg_pool_11
avg_pool_11.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
avg_pool_11.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self, kernel_size: int, stride: int = None, padding: int = 0):
        super().__init__()
        self.avg_pool = nn.AvgPool2d(kernel_size=kernel_size, stride=stride, padding=padding)
        self.special = (
            self.avg_pool.kernel_size == 11 and self.avg_pool.stride == 11 and self.avg_pool.padding == 0
        )
        self.counters = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not (
            self.special
            and x.dtype == torch.bfloat16
            and x.is_cuda
            and x.dim() == 4
            and x.shape[2] == 2048
            and x.shape[3] == 2048
            and x.shape[0] * x.shape[1] < 1000000
        ):
            return self.avg_pool(x)
        x = x.contiguous()
        if x.data_ptr() % 16 != 0:
            return self.avg_pool(x)
        counters = self.counters
        if counters is None or counters.device != x.device:
            counters = torch.zeros(2, dtype=torch.int32, device=x.device)
            self.counters = counters
        batch, channels = x.shape[0], x.shape[1]
        out = torch.empty((batch, channels, 186, 186), dtype=x.dtype, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = avg_pool_11(x.data_ptr(), out.data_ptr(), batch * channels, counters.data_ptr(), stream)
        if error:
            raise RuntimeError(f"avg_pool_11: CUDA error {error}")
        return out
