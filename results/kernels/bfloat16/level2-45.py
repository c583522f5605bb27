import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>

constexpr int kRows = 16384;
constexpr int kInput = 2048;
constexpr int kHidden = 4096;
constexpr int kOutput = 1024;

constexpr int kTileM = 128;
constexpr int kTileN = 256;
constexpr int kTileK = 64;
constexpr int kStages = 4;
constexpr int kThreads = 384;

// By how many stages the second warpgroup starts later than the first.
constexpr int kLag = 3;

constexpr uint32_t kBytesA = kTileM * kTileK * 2;  // 16384
constexpr uint32_t kBytesB = kTileN * kTileK * 2;  // 32768
constexpr uint32_t kStageBytes = kBytesA + kBytesB;
constexpr uint32_t kStagingAt = kStages * kStageBytes;  // 8 warps x 2 buffers x 2048
constexpr uint32_t kBarriersAt = kStagingAt + 32768;
constexpr uint32_t kSharedBytes = kBarriersAt + 2 * kStages * 8 + 16 + 1024;
constexpr float kLog2E = 1.4426950408889634f;

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
// Barriers are named by their 32-bit shared addresses.
__device__ __forceinline__ void start(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void show_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive_and_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// The ring is written by TMA and read by wgmma only, so its barriers need no fence at cluster scope: one would cost a
// round trip to L2 at every step. Hence the plain forms in wait and arrive_there.
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(barrier), "r"(parity) : "memory");
}
// The address in another block of the cluster of what lies here at the same place.
__device__ __forceinline__ uint32_t address_in(uint32_t address, int rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
__device__ __forceinline__ void arrive_there(uint32_t remote_barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote_barrier) : "memory");
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Boxes of two dimensions: c0 along the row (elements), c1 the row.
__device__ __forceinline__ void tensor_load(uint32_t to, const CUtensorMap* map, int c0, int c1, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
            to), "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(c0), "r"(c1) : "memory");
}
__device__ __forceinline__ void tensor_load_for_all(uint32_t to, const CUtensorMap* map, int c0, int c1,
                                                    uint32_t barrier, int mask) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %4}], [%2], %5;" ::"r"(to), "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(c0), "r"(c1),
        "h"(static_cast<uint16_t>(mask)) : "memory");
}
__device__ __forceinline__ void tensor_store(const CUtensorMap* map, int c0, int c1, uint32_t from) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\ncp.async.bulk.commit_group;" ::"l"(
            reinterpret_cast<uint64_t>(map)), "r"(from), "r"(c0), "r"(c1) : "memory");
}
__device__ __forceinline__ void fetch_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}

// K-major operand with the 128-byte swizzle: 8 lines are 1024 bytes.
__device__ __forceinline__ uint64_t describe_128(uint32_t at) {
    return static_cast<uint64_t>((at & 0x3ffff) >> 4) | static_cast<uint64_t>(1) << 16 |
           static_cast<uint64_t>(1024 >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}

// add: 0 to overwrite d, 1 to add to it.
__device__ __forceinline__ void multiply(float (&d)[128], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{@REGISTERS@}, %128, %129, p, 1, 1, 0, 0;\n}"
        : @CONSTRAINTS@
        : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void show_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_all_but_one() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
__device__ __forceinline__ void wait_all_products(float (&d)[128]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

template <int kCount>
__device__ __forceinline__ void give_up_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
__device__ __forceinline__ void meet(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ void meet_without_waiting(int name, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float hyperbolic_tangent(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float low_of(uint32_t word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float high_of(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }

// Sigmoid of two values, of which the halves are given: 0.5 + 0.5 tanh(x / 2).
__device__ __forceinline__ uint32_t sigmoid_pair(float half_low, float half_high) {
    const float low = fmaf(hyperbolic_tangent(half_low), 0.5f, 0.5f);
    const float high = fmaf(hyperbolic_tangent(half_high), 0.5f, 0.5f);
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
}

__device__ __forceinline__ void store_matrices(uint32_t address, const uint32_t (&a)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a[0]),
                 "r"(a[1]), "r"(a[2]), "r"(a[3]) : "memory");
}

// rows: the index of a cluster's kCluster row tiles.
template <bool kSecond, int kCluster>
__device__ __forceinline__ void locate(int tile, int& rows, int& column_tile) {
    if constexpr (kSecond) {
        constexpr int kColumnTiles = kOutput / kTileN;
        column_tile = tile % kColumnTiles;
        rows = kRows / (kCluster * kTileM) - 1 - tile / kColumnTiles;  // the rows written last come first
    } else {
        constexpr int kGroup = 16 / kCluster;  // 2048 rows together
        constexpr int kInGroup = kGroup * (kHidden / kTileN);
        const int in_group = tile % kInGroup;
        rows = tile / kInGroup * kGroup + in_group % kGroup;
        column_tile = in_group / kGroup;
    }
}

// First: hidden = sigmoid(x W1^T + b1), stored through map_c. Second: logsumexp over the columns of hidden W2^T + b2.
// Launched in clusters of kCluster blocks, which have as many row tiles and one column tile.
template <bool kSecond, int kCluster>
__global__ void __launch_bounds__(kThreads, 1)
    product_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                   const __grid_constant__ CUtensorMap map_c, const __nv_bfloat16* __restrict__ bias, float* partial,
                   unsigned int* counter, __nv_bfloat16* out) {
    constexpr int kDepth = kSecond ? kHidden : kInput;
    constexpr int kColumns = kSecond ? kOutput : kHidden;
    constexpr int kRounds = kDepth / kTileK / kStages;
    constexpr int kTiles = kRows / (kCluster * kTileM) * (kColumns / kTileN);
    constexpr uint32_t kPartB = kBytesB / kCluster;
    static_assert(kDepth % (kTileK * kStages) == 0, "whole rounds");

    extern __shared__ uint8_t raw_shared[];
    const uint32_t raw_address = shared_address(raw_shared);
    uint8_t* shared = raw_shared + ((1024u - (raw_address & 1023u)) & 1023u);
    const uint32_t base = shared_address(shared);
    const uint32_t full = base + kBarriersAt;
    const uint32_t empty = full + kStages * 8;
    volatile int* last_flag = reinterpret_cast<volatile int*>(shared + kBarriersAt + 2 * kStages * 8);

    const int rank = static_cast<int>(cluster_rank());
    const int cluster = blockIdx.x / kCluster;
    const int clusters = gridDim.x / kCluster;

    if (threadIdx.x == 0) {
        fetch_map(&map_a);
        fetch_map(&map_b);
        for (int s = 0; s < kStages; ++s) {
            start(full + s * 8, 1);
            start(empty + s * 8, 2 * kCluster);  // both consuming warpgroups of each block
        }
        show_started();
    }
    __syncthreads();
    cluster_sync();
    if constexpr (!kSecond) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");

    const int group = threadIdx.x / 128;
    if (group == 0) {
        give_up_registers<40>();
        if (threadIdx.x == 0) {
            if constexpr (kSecond) asm volatile("griddepcontrol.wait;" ::: "memory");
            uint32_t parity = 1;  // the slots are free at first
            for (int tile = cluster; tile < kTiles; tile += clusters) {
                int rows, column_tile;
                locate<kSecond, kCluster>(tile, rows, column_tile);
                const int row = (rows * kCluster + rank) * kTileM;
                const int column = column_tile * kTileN + rank * (kTileN / kCluster);
                int depth = 0;
#pragma unroll 1
                for (int round = 0; round < kRounds; ++round) {
#pragma unroll
                    for (int s = 0; s < kStages; ++s) {
                        const uint32_t at = base + s * kStageBytes;
                        wait(empty + s * 8, parity);
                        arrive_and_expect(full + s * 8, kStageBytes);
                        tensor_load(at, &map_a, depth, row, full + s * 8);
                        tensor_load_for_all(at + kBytesA + rank * kPartB, &map_b, depth, column, full + s * 8,
                                            (1 << kCluster) - 1);
                        depth += kTileK;
                    }
                    parity ^= 1;
                }
            }
        }
    } else {
        take_registers<232>();
        const int consumer = group - 1;
        const int thread = threadIdx.x % 128;
        const int warp = thread / 32;
        const int lane = thread % 32;
        const uint64_t first_a = describe_128(base + consumer * 64 * 128);
        const uint64_t first_b = describe_128(base + kBytesA);
        const uint32_t staging = base + kStagingAt + consumer * 16384 + warp * 4096;
        // A slot is released by one thread a warpgroup and destination: warp w tells block w.
        const bool releases = lane == 0 && warp < kCluster;
        const uint32_t empty_there = address_in(empty, warp < kCluster ? warp : 0);
        const __nv_bfloat16* lane_bias = bias + lane % 4 * 2;
        uint32_t parity = 0;

        for (int tile = cluster; tile < kTiles; tile += clusters) {
            int rows, column_tile;
            locate<kSecond, kCluster>(tile, rows, column_tile);
            const int row_tile = rows * kCluster + rank;
            const int column = column_tile * kTileN;
            float d[128];  // the first product overwrites it
            uint32_t bias_words[32];
#pragma unroll
            for (int j = 0; j < 32; ++j) {
                bias_words[j] = __ldg(reinterpret_cast<const unsigned int*>(lane_bias + column + 8 * j));
            }

            if (consumer == 1) meet(3, 256);  // stay behind the first warpgroup
#pragma unroll 1
            for (int round = 0; round < kRounds; ++round) {
                const int add = round > 0 ? 1 : 0;
#pragma unroll
                for (int s = 0; s < kStages; ++s) {
                    wait(full + s * 8, parity);
                    const uint64_t a = first_a + (s * kStageBytes >> 4);
                    const uint64_t b = first_b + (s * kStageBytes >> 4);
                    begin_products();
#pragma unroll
                    for (int k = 0; k < kTileK / 16; ++k) {
                        multiply(d, a + 2 * k, b + 2 * k, s > 0 || k > 0 ? 1 : add);
                    }
                    commit_products();
                    if (s == kLag - 1) {
                        if (consumer == 0 && round == 0) meet_without_waiting(3, 256);
                    }
                    if (s > 0 || round > 0) {
                        wait_all_but_one();
                        if (releases) arrive_there(empty_there + (s + kStages - 1) % kStages * 8);
                    }
                }
                parity ^= 1;
            }
            wait_all_products(d);
            if (releases) arrive_there(empty_there + (kStages - 1) * 8);
            __syncwarp();

            if constexpr (!kSecond) {
                const int row = row_tile * kTileM + consumer * 64 + warp * 16;
                const int line = (lane >> 3 & 1) * 8 + (lane & 7);
#pragma unroll
                for (int panel = 0; panel < 4; ++panel) {
                    const uint32_t buffer = staging + (panel & 1) * 2048;
                    // The store before the last one has read this buffer.
                    if (lane == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
                    __syncwarp();
#pragma unroll
                    for (int q = 0; q < 4; ++q) {
                        uint32_t words[4];
#pragma unroll
                        for (int half = 0; half < 2; ++half) {
                            const int j = panel * 8 + q * 2 + half;
                            const float low = 0.5f * low_of(bias_words[j]);
                            const float high = 0.5f * high_of(bias_words[j]);
                            words[2 * half] =
                                sigmoid_pair(fmaf(d[4 * j], 0.5f, low), fmaf(d[4 * j + 1], 0.5f, high));
                            words[2 * half + 1] =
                                sigmoid_pair(fmaf(d[4 * j + 2], 0.5f, low), fmaf(d[4 * j + 3], 0.5f, high));
                        }
                        const int chunk = (2 * q + (lane >> 4)) ^ (lane & 7);
                        store_matrices(buffer + line * 128 + chunk * 16, words);
                    }
                    show_stores();
                    __syncwarp();
                    if (lane == 0) tensor_store(&map_c, column + panel * 64, row, buffer);
                    __syncwarp();
                }
            } else {
                float max_0 = -INFINITY, max_1 = -INFINITY;
#pragma unroll
                for (int j = 0; j < 32; ++j) {
                    const float low = low_of(bias_words[j]);
                    const float high = high_of(bias_words[j]);
                    d[4 * j] += low;
                    d[4 * j + 1] += high;
                    d[4 * j + 2] += low;
                    d[4 * j + 3] += high;
                    max_0 = fmaxf(max_0, fmaxf(d[4 * j], d[4 * j + 1]));
                    max_1 = fmaxf(max_1, fmaxf(d[4 * j + 2], d[4 * j + 3]));
                }
#pragma unroll
                for (int offset = 1; offset < 4; offset *= 2) {
                    max_0 = fmaxf(max_0, __shfl_xor_sync(0xffffffffu, max_0, offset));
                    max_1 = fmaxf(max_1, __shfl_xor_sync(0xffffffffu, max_1, offset));
                }
                const float shift_0 = -max_0 * kLog2E, shift_1 = -max_1 * kLog2E;
                float sum_0 = 0.0f, sum_1 = 0.0f;
#pragma unroll
                for (int j = 0; j < 32; ++j) {
                    sum_0 += power_of_two(fmaf(d[4 * j], kLog2E, shift_0)) +
                             power_of_two(fmaf(d[4 * j + 1], kLog2E, shift_0));
                    sum_1 += power_of_two(fmaf(d[4 * j + 2], kLog2E, shift_1)) +
                             power_of_two(fmaf(d[4 * j + 3], kLog2E, shift_1));
                }
#pragma unroll
                for (int offset = 1; offset < 4; offset *= 2) {
                    sum_0 += __shfl_xor_sync(0xffffffffu, sum_0, offset);
                    sum_1 += __shfl_xor_sync(0xffffffffu, sum_1, offset);
                }
                const int first_row = row_tile * kTileM + consumer * 64;
                if (lane % 4 == 0) {
                    const int row = first_row + warp * 16 + lane / 4;
                    __stcg(reinterpret_cast<float2*>(partial) + row * 4 + column_tile, make_float2(max_0, sum_0));
                    __stcg(reinterpret_cast<float2*>(partial) + (row + 8) * 4 + column_tile,
                           make_float2(max_1, sum_1));
                }
                __threadfence();
                meet(1 + consumer, 128);
                if (thread == 0) {
                    const unsigned int before = atomicAdd(&counter[row_tile * 2 + consumer], 1u);
                    __threadfence();
                    last_flag[consumer] = (before & 3u) == 3u;
                }
                meet(1 + consumer, 128);
                if (last_flag[consumer] && thread < 64) {
                    __threadfence();
                    const int row = first_row + thread;
                    const float4 p = __ldcg(reinterpret_cast<const float4*>(partial) + row * 2);
                    const float4 q = __ldcg(reinterpret_cast<const float4*>(partial) + row * 2 + 1);
                    const float top = fmaxf(fmaxf(p.x, p.z), fmaxf(q.x, q.z));
                    float sum = p.y * power_of_two((p.x - top) * kLog2E);
                    sum += p.w * power_of_two((p.z - top) * kLog2E);
                    sum += q.y * power_of_two((q.x - top) * kLog2E);
                    sum += q.w * power_of_two((q.z - top) * kLog2E);
                    out[row] = __float2bfloat16_rn(top + logf(sum));
                }
                __syncwarp();
            }
        }
        if constexpr (!kSecond) {
            if (lane == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        }
    }
    // No block ends while another may still write to it or arrive at its barriers.
    __syncwarp();
    cluster_sync();
}

typedef CUresult (*EncodeTiled)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static EncodeTiled encode_tiled = nullptr;

// A row-major matrix of bf16, boxes of box_rows x 64.
static int encode(CUtensorMap* map, const void* pointer, int rows, int columns, int box_rows) {
    cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
    cuuint64_t strides[1] = {static_cast<cuuint64_t>(columns) * 2};
    cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)};
    cuuint32_t steps[2] = {1, 1};
    CUresult result = encode_tiled(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(pointer), sizes, strides,
                                   box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? 0 : 10000 + static_cast<int>(result);
}

struct KeptMap {
    const void* pointer = nullptr;
    CUtensorMap map;
};

// A map holds an address and extents only; the extents are fixed, so it stays valid while the address is the same.
static int refresh(KeptMap& kept, const void* pointer, int rows, int columns, int box_rows) {
    if (kept.pointer == pointer) return 0;
    int error = encode(&kept.map, pointer, rows, columns, box_rows);
    if (error == 0) kept.pointer = pointer;
    return error;
}

static int allow_shared(const void* kernel) {
    return static_cast<int>(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kSharedBytes)));
}

// How many clusters of four blocks the device holds at once; 0 if it cannot tell.
static int clusters_of_four(const void* kernel) {
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeClusterDimension;
    attribute[0].val.clusterDim.x = 4;
    attribute[0].val.clusterDim.y = 1;
    attribute[0].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(128, 1, 1);
    config.blockDim = dim3(kThreads, 1, 1);
    config.dynamicSmemBytes = kSharedBytes;
    config.attrs = attribute;
    config.numAttrs = 1;
    int count = 0;
    if (cudaOccupancyMaxActiveClusters(&count, kernel, &config) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return count;
}

extern "C" int run_model(const void* x, const void* w1, const void* b1, const void* w2, const void* b2, void* hidden,
                         void* partial, void* counter, void* out, void* stream) {
    static int blocks = 0, cluster = 0;
    static const void* first_kernel = nullptr;
    static const void* second_kernel = nullptr;
    static KeptMap map_x, map_w1, map_store, map_hidden, map_w2;
    if (blocks == 0) {
        void* found = nullptr;
        cudaDriverEntryPointQueryResult status;
#if CUDART_VERSION >= 12050
        cudaError_t error =
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status);
#else
        cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &status);
#endif
        if (error != cudaSuccess) return static_cast<int>(error);
        if (found == nullptr) return 20000;
        encode_tiled = reinterpret_cast<EncodeTiled>(found);

        const void* first_4 = reinterpret_cast<const void*>(&product_kernel<false, 4>);
        const void* second_4 = reinterpret_cast<const void*>(&product_kernel<true, 4>);
        const void* first_2 = reinterpret_cast<const void*>(&product_kernel<false, 2>);
        const void* second_2 = reinterpret_cast<const void*>(&product_kernel<true, 2>);
        int failed = allow_shared(first_4);
        if (failed) return failed;
        failed = allow_shared(second_4);
        if (failed) return failed;
        failed = allow_shared(first_2);
        if (failed) return failed;
        failed = allow_shared(second_2);
        if (failed) return failed;

        int device = 0, multiprocessors = 0;
        error = cudaGetDevice(&device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
        if (error != cudaSuccess) return static_cast<int>(error);

        // 32 clusters of four have exactly 16 tiles each of the first product and 4 of the second.
        if (clusters_of_four(first_4) >= 32 && clusters_of_four(second_4) >= 32) {
            cluster = 4;
            first_kernel = first_4;
            second_kernel = second_4;
            blocks = 128;
        } else {
            cluster = 2;
            first_kernel = first_2;
            second_kernel = second_2;
            blocks = multiprocessors / 2 * 2;
        }
    }
    int failed = refresh(map_x, x, kRows, kInput, kTileM);
    if (failed) return failed;
    failed = refresh(map_w1, w1, kHidden, kInput, kTileN / cluster);
    if (failed) return failed;
    failed = refresh(map_store, hidden, kRows, kHidden, 16);
    if (failed) return failed;
    failed = refresh(map_hidden, hidden, kRows, kHidden, kTileM);
    if (failed) return failed;
    failed = refresh(map_w2, w2, kOutput, kHidden, kTileN / cluster);
    if (failed) return failed;

    // The second kernel's blocks may start as the first one's end; its producers wait for the whole of the first.
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = static_cast<unsigned int>(cluster);
    attributes[0].val.clusterDim.y = 1;
    attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;

    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned int>(blocks), 1, 1);
    config.blockDim = dim3(kThreads, 1, 1);
    config.dynamicSmemBytes = kSharedBytes;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = attributes;
    config.numAttrs = 1;

    void* first[] = {&map_x.map, &map_w1.map, &map_store.map, &b1, &partial, &counter, &out};
    cudaError_t error = cudaLaunchKernelExC(&config, first_kernel, first);
    if (error != cudaSuccess) return static_cast<int>(error);

    config.numAttrs = 2;
    void* second[] = {&map_hidden.map, &map_w2.map, &map_store.map, &b2, &partial, &counter, &out};
    error = cudaLaunchKernelExC(&config, second_kernel, second);
    if (error != cudaSuccess) return static_cast<int>(error);
    return static_cast<int>(cudaGetLastError());
}
"""

SOURCE = SOURCE.replace("@REGISTERS@", ", ".join(f"%{i}" for i in range(128)))
SOURCE = SOURCE.replace("@CONSTRAINTS@", ", ".join(f'"+f"(d[{i}])' for i in range(128)))

library = ctypes.CDLL(
    load_inline(
        name="gemm_sigmoid_gemm_logsumexp_quads",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
run_model = library.run_model
run_model.argtypes = [ctypes.c_void_p] * 10
run_model.restype = ctypes.c_int

ROWS, INPUT, HIDDEN, OUTPUT = 16384, 2048, 4096, 1024


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.linear1 = nn.Linear(input_size, hidden_size)
        self.linear2 = nn.Linear(hidden_size, output_size)
        self._scratch = None

    def forward(self, x):
        linear1, linear2 = self.linear1, self.linear2
        w1, b1, w2, b2 = linear1.weight, linear1.bias, linear2.weight, linear2.bias
        if self._scratch is None:
            if (
                tuple(x.shape) != (ROWS, INPUT)
                or tuple(w1.shape) != (HIDDEN, INPUT)
                or tuple(w2.shape) != (OUTPUT, HIDDEN)
                or x.dtype != torch.bfloat16
                or w1.dtype != torch.bfloat16
            ):
                raise RuntimeError("ModelNew is specialised for the reference's shapes in bfloat16")
            self._scratch = (
                torch.empty((ROWS, HIDDEN), dtype=torch.bfloat16, device=x.device),
                torch.empty((ROWS, OUTPUT // 256, 2), dtype=torch.float32, device=x.device),
                torch.zeros(ROWS // 64, dtype=torch.int32, device=x.device),
            )
        hidden, partial, counter = self._scratch
        x = x.contiguous()
        w1, b1, w2, b2 = w1.contiguous(), b1.contiguous(), w2.contiguous(), b2.contiguous()
        out = torch.empty(ROWS, dtype=torch.bfloat16, device=x.device)
        error = run_model(
            x.data_ptr(),
            w1.data_ptr(),
            b1.data_ptr(),
            w2.data_ptr(),
            b2.data_ptr(),
            hidden.data_ptr(),
            partial.data_ptr(),
            counter.data_ptr(),
            out.data_ptr(),
            torch.cuda.current_stream().cuda_stream,
        )
        if error:
            raise RuntimeError(f"run_model: error {error}")
        return out
