import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda.h>
#include <cuda_runtime.h>
#include <cuda_bf16.h>

constexpr int kBatch = 128;
constexpr int kIn = 32768;
constexpr int kOut = 32768;
constexpr int kTileN = 256;
constexpr int kChunkN = 128;            // weight rows of a slot
constexpr int kTileK = 128;             // two lines of 128 bytes
constexpr int kTiles = kIn / kTileK;    // 256
constexpr int kBlocks = kOut / kTileN;  // 128
// tune: CLUSTER in (1, 2, 4)
constexpr int CLUSTER = 2;
// tune: STAGGER in (0, 4)
constexpr int STAGGER = 4;
// tune: PENDING in (0, 1)
constexpr int PENDING = 0;
// tune: WEIGHT_FIRST in (0, 1)
constexpr int WEIGHT_FIRST = 0;  // 1: weights are the first to leave L2
constexpr int kXStages = 2;
constexpr int kWSlots = 5;
constexpr int kXBytes = kBatch * kTileK * 2;   // 32 KB
constexpr int kWBytes = kChunkN * kTileK * 2;  // 32 KB
constexpr int kXRows = kBatch / CLUSTER;  // the share that each block of a cluster loads for all
constexpr int kDynamicBytes = kXStages * kXBytes + kWSlots * kWBytes + 1024;
constexpr int kConsumers = 256;
constexpr int kThreads = kConsumers + 32;

__device__ float partials[kBlocks * kBatch];
__device__ unsigned int finished = 0;

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
__device__ __forceinline__ void arrive_here(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void arrive_at(uint64_t* barrier, int rank) {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(barrier)), "r"(rank)
        : "memory");
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ uint32_t rank_in_cluster() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ void meet(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// The tensor has the dimensions (64 values of k, 8 rows, lines of 64 values, groups of 8 rows).
__device__ __forceinline__ void load_tile(uint32_t to, const CUtensorMap* map, int line, int row_group,
                                          uint64_t* barrier, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %3, %4, %5}], [%2], %6;" ::"r"(to), "l"(map), "r"(shared_address(barrier)), "r"(0),
        "r"(line), "r"(row_group), "l"(policy) : "memory");
}
__device__ __forceinline__ void load_tile_for_all(uint32_t to, const CUtensorMap* map, int line, int row_group,
                                                  uint64_t* barrier, int mask, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
        "[%0], [%1, {%4, %4, %5, %6}], [%2], %3, %7;" ::"r"(to), "l"(map), "r"(shared_address(barrier)),
        "h"(static_cast<uint16_t>(mask)), "r"(0), "r"(line), "r"(row_group), "l"(policy) : "memory");
}

// K-major, 128-byte swizzle: groups of 8 rows are 2048 bytes apart, 1024 for each of the two lines of a row.
__device__ __forceinline__ uint64_t describe(uint32_t at) {
    return static_cast<uint64_t>((at & 0x3ffff) >> 4) | (uint64_t(1) << 16) | (uint64_t(2048 >> 4) << 32) |
           (uint64_t(1) << 62);
}
__device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{@REGISTERS@}, %64, %65, p, 1, 1, 0, 0;\n}"
        : @OPERANDS@
        : "l"(a), "l"(b), "r"(1));
}
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_groups() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ float max_nan(float a, float b) {
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}

__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(kThreads, 1)
    linear_pool_sum_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                           const __nv_bfloat16* __restrict__ bias, __nv_bfloat16* __restrict__ out, float scale) {
    extern __shared__ uint8_t raw[];
    __shared__ __align__(8) uint64_t full_x[kXStages];
    __shared__ __align__(8) uint64_t empty_x[kXStages];
    __shared__ __align__(8) uint64_t full_w[kWSlots];
    __shared__ __align__(8) uint64_t empty_w[kWSlots];
    __shared__ float bias_here[kTileN];
    __shared__ float upper_half[kBatch];
    __shared__ int is_last;

    const uint32_t base = (shared_address(raw) + 1023u) & ~1023u;
    const uint32_t w_base = base + kXStages * kXBytes;
    const int thread = threadIdx.x;
    const int warp = thread / 32;
    const int lane = thread % 32;
    const int block = blockIdx.x;
    const int first_column = block * kTileN;

    if (thread == 0) {
        for (int s = 0; s < kXStages; ++s) {
            start(&full_x[s], 1);
            start(&empty_x[s], kConsumers / 32 * CLUSTER);
        }
        for (int s = 0; s < kWSlots; ++s) {
            start(&full_w[s], 1);
            start(&empty_w[s], kConsumers / 32);
        }
        show_started();
    }
    __syncthreads();
    cluster_sync();

    if (warp == kConsumers / 32) {  // the producer
        if (lane == 0) {
            asm volatile("prefetch.tensormap [%0];" ::"l"(&x_map) : "memory");
            asm volatile("prefetch.tensormap [%0];" ::"l"(&w_map) : "memory");
            uint64_t keep, pass;
            asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
            if (WEIGHT_FIRST) {
                asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(pass));
            } else {
                pass = 0x1000000000000000ull;  // the normal priority
            }
            const int rank = static_cast<int>(rank_in_cluster());
            const int offset = (block / CLUSTER) * STAGGER;
            int slot = 0;
            uint32_t w_parity = 0;
#pragma unroll 1
            for (int i = 0; i < kTiles; ++i) {
                const int xs = i % kXStages;
                const uint32_t x_parity = (i / kXStages) & 1;
                const int line = ((i + offset) % kTiles) * (kTileK / 64);
                // The slots of the weights become free before the stage of x does.
#pragma unroll
                for (int h = 0; h < kTileN / kChunkN; ++h) {
                    wait(&empty_w[slot], w_parity ^ 1);  // the first time round it is over
                    arrive_and_expect(&full_w[slot], kWBytes);
                    load_tile(w_base + slot * kWBytes, &w_map, line, (first_column + h * kChunkN) / 8, &full_w[slot],
                              pass);
                    if (++slot == kWSlots) {
                        slot = 0;
                        w_parity ^= 1;
                    }
                }
                const uint32_t stage = base + xs * kXBytes;
                wait(&empty_x[xs], x_parity ^ 1);
                arrive_and_expect(&full_x[xs], kXBytes);
                if (CLUSTER == 1) {
                    load_tile(stage, &x_map, line, 0, &full_x[xs], keep);
                } else {
                    load_tile_for_all(stage + rank * kXRows * kTileK * 2, &x_map, line, rank * kXRows / 8,
                                      &full_x[xs], (1 << CLUSTER) - 1, keep);
                }
            }
        }
        __syncwarp();
    } else {
        const int group = warp / 4;
        bias_here[thread] = __bfloat162float(bias[first_column + thread]);  // 256 threads, 256 columns

        float d[2][64];
#pragma unroll
        for (int i = 0; i < 64; ++i) {
            d[0][i] = 0.0f;
            d[1][i] = 0.0f;
        }

        int slot = 0;
        uint32_t w_parity = 0;
#pragma unroll 1
        for (int i = 0; i < kTiles; ++i) {
            const int xs = i % kXStages;
            const uint32_t x_parity = (i / kXStages) & 1;
            const uint32_t x_at = base + xs * kXBytes + group * (64 * kTileK * 2);
            wait(&full_x[xs], x_parity);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const uint32_t w_at = w_base + slot * kWBytes;
                wait(&full_w[slot], w_parity);
                begin_products();
#pragma unroll
                for (int step = 0; step < kTileK / 16; ++step) {
                    const uint32_t shift = (step / 4) * 1024 + (step % 4) * 32;
                    multiply(d[h], describe(x_at + shift), describe(w_at + shift));
                }
                commit_products();
                wait_groups<PENDING>();
                if (PENDING == 0) {
                    if (lane == 0) arrive_here(&empty_w[slot]);
                    if (h == 1 && lane < CLUSTER) arrive_at(&empty_x[xs], lane);
                } else if (h == 1 || i > 0) {  // the slot before is read
                    if (lane == 0) arrive_here(&empty_w[slot == 0 ? kWSlots - 1 : slot - 1]);
                    if (h == 0 && lane < CLUSTER) arrive_at(&empty_x[(i - 1) % kXStages], lane);
                }
                __syncwarp();
                if (++slot == kWSlots) {
                    slot = 0;
                    w_parity ^= 1;
                }
            }
        }
        wait_groups<0>();
#pragma unroll
        for (int i = 0; i < 64; ++i) {
            asm volatile("" : "+f"(d[0][i])::"memory");
            asm volatile("" : "+f"(d[1][i])::"memory");
        }

        meet(1, kConsumers);  // bias_here is there
        const int quad = lane % 4;
        float low = 0.0f, high = 0.0f;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int j = 0; j < kChunkN / 8; ++j) {
                const float b0 = bias_here[h * kChunkN + 8 * j + 2 * quad];
                const float b1 = bias_here[h * kChunkN + 8 * j + 2 * quad + 1];
                low += max_nan(d[h][4 * j] + b0, d[h][4 * j + 1] + b1);
                high += max_nan(d[h][4 * j + 2] + b0, d[h][4 * j + 3] + b1);
            }
        }
        low += __shfl_xor_sync(0xffffffffu, low, 1);
        high += __shfl_xor_sync(0xffffffffu, high, 1);
        low += __shfl_xor_sync(0xffffffffu, low, 2);
        high += __shfl_xor_sync(0xffffffffu, high, 2);
        if (quad == 0) {
            const int row = group * 64 + (warp % 4) * 16 + lane / 4;
            partials[block * kBatch + row] = low;
            partials[block * kBatch + row + 8] = high;
        }
        __threadfence();
        __syncwarp();
    }

    __syncthreads();
    cluster_sync();  // no block ends while another still arrives at its barriers

    if (thread == 0) {
        __threadfence();
        const unsigned int ticket = atomicAdd(&finished, 1u);
        is_last = ticket == kBlocks - 1;
        if (is_last) finished = 0;  // for the next call
        __threadfence();
    }
    __syncthreads();
    if (is_last) {
        const int row = thread % kBatch;
        const int half = thread / kBatch;
        float sum = 0.0f;
        if (thread < kConsumers) {
            const float* from = partials + half * (kBlocks / 2) * kBatch + row;
#pragma unroll 32
            for (int b = 0; b < kBlocks / 2; ++b) sum += __ldcg(from + b * kBatch);
            if (half == 1) upper_half[row] = sum;
        }
        __syncthreads();
        if (thread < kBatch) out[row] = __float2bfloat16_rn((sum + upper_half[row]) * scale);
    }
}

typedef CUresult (*EncodeTiled)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static EncodeTiled find_encode() {
    void* pointer = nullptr;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &pointer, 12000, cudaEnableDefault, &found);
#else
    cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &pointer, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
    return reinterpret_cast<EncodeTiled>(pointer);
}

// (64 values of k, 8 rows, lines of 64 values, groups of 8 rows): a box holds, for each group of 8 rows, one
// swizzled square of 8 lines of 128 bytes after the other.
static bool encode(EncodeTiled function, CUtensorMap* map, const void* data, uint64_t rows, uint32_t box_rows) {
    const cuuint64_t pitch = static_cast<cuuint64_t>(kIn) * 2;
    const cuuint64_t dims[4] = {64, 8, static_cast<cuuint64_t>(kIn / 64), static_cast<cuuint64_t>(rows / 8)};
    const cuuint64_t strides[3] = {pitch, 128, pitch * 8};
    const cuuint32_t box[4] = {64, 8, static_cast<cuuint32_t>(kTileK / 64), static_cast<cuuint32_t>(box_rows / 8)};
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    return function(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(data), dims, strides, box, steps,
                    CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

extern "C" int linear_pool_sum(const void* x, const void* weight, const void* bias, void* out, float scale,
                               void* stream) {
    static EncodeTiled function = nullptr;
    static CUtensorMap x_map, w_map;  // addresses and extents only
    static const void* x_known = nullptr;
    static const void* w_known = nullptr;
    if (function == nullptr) {
        function = find_encode();
        if (function == nullptr) return 10001;
        cudaError_t error = cudaFuncSetAttribute(linear_pool_sum_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 kDynamicBytes);
        if (error != cudaSuccess) {
            function = nullptr;
            return static_cast<int>(error);
        }
    }
    if (x != x_known) {
        x_known = nullptr;
        if (!encode(function, &x_map, x, kBatch, kXRows)) return 10002;
        x_known = x;
    }
    if (weight != w_known) {
        w_known = nullptr;
        if (!encode(function, &w_map, weight, kOut, kChunkN)) return 10003;
        w_known = weight;
    }
    linear_pool_sum_kernel<<<kBlocks, kThreads, kDynamicBytes, static_cast<cudaStream_t>(stream)>>>(
        x_map, w_map, static_cast<const __nv_bfloat16*>(bias), static_cast<__nv_bfloat16*>(out), scale);
    return static_cast<int>(cudaGetLastError());
}
"""

SOURCE = SOURCE.replace("@REGISTERS@", ", ".join(f"%{i}" for i in range(64)))
SOURCE = SOURCE.replace("@OPERANDS@", ", ".join(f'"+f"(d[{i}])' for i in range(64)))

library = ctypes.CDLL(
    load_inline(
        name="linear_pool_sum",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
linear_pool_sum = library.linear_pool_sum
linear_pool_sum.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_float, ctypes.c_void_p]
linear_pool_sum.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, kernel_size, scale_factor):
        super(ModelNew, self).__init__()
        if in_features != 32768 or out_features != 32768 or kernel_size != 2:
            raise ValueError("specialised for 32768 features in and out and pairs")
        self.matmul = nn.Linear(in_features, out_features)
        self.scale_factor = scale_factor

    def forward(self, x):
        weight = self.matmul.weight
        bias = self.matmul.bias
        if x.dtype != torch.bfloat16 or weight.dtype != torch.bfloat16 or tuple(x.shape) != (128, 32768):
            raise ValueError("specialised for bfloat16 and a batch of 128")
        x = x.contiguous()
        weight = weight.contiguous()
        out = torch.empty((128,), dtype=torch.bfloat16, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = linear_pool_sum(
            x.data_ptr(), weight.data_ptr(), bias.data_ptr(), out.data_ptr(), float(self.scale_factor), stream
        )
        if error:
            raise RuntimeError(f"linear_pool_sum: CUDA error {error}")
        return out
