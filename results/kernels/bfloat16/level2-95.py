import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

constexpr int kM = 1024;
constexpr int kN = 8192;
constexpr int kK = 8192;
constexpr int kTileM = 128;
constexpr int kTileN = 256;
constexpr int kTileK = 64;   // 128 bytes: one swizzled panel
constexpr int kStages = 4;
constexpr int kSteps = kK / kTileK;                   // 128
constexpr int kBlocks = 128;
constexpr int kTilesM = kM / kTileM;                  // 8
constexpr int kTilesN = kN / kTileN;                  // 32
constexpr int kWaves = kTilesM * kTilesN / kBlocks;   // 2
constexpr int kTotal = kWaves * kSteps;               // 256 steps of a block
constexpr int kAhead = 2 * kStages;                   // steps from the prefetch into L2 to the load
constexpr int kThreads = 384;

constexpr uint32_t kBytesA = kTileM * kTileK * 2;     // 16384
constexpr uint32_t kBytesB = kTileN * kTileK * 2;     // 32768
constexpr uint32_t kBytesStage = kBytesA + kBytesB;   // 49152
constexpr uint32_t kBytesOut = 2048;                  // 16 x 64 outputs of a warp
constexpr uint32_t kOffsetOut = kStages * kBytesStage;
constexpr uint32_t kOffsetAddend = kOffsetOut + 8 * 2 * kBytesOut;
constexpr uint32_t kOffsetBarriers = kOffsetAddend + kWaves * kTileN * 4;
constexpr uint32_t kSharedBytes = kOffsetBarriers + 2 * kStages * 8;
static_assert(kSharedBytes <= 232448, "shared memory");
static_assert(kWaves * kBlocks == kTilesM * kTilesN, "tiles");

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void start(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void show_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive_and_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ uint32_t address_at(uint32_t address, uint32_t rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
__device__ __forceinline__ void arrive_there(uint32_t barrier) {  // an address in the cluster
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

__device__ __forceinline__ void tensor_load(uint32_t to, const CUtensorMap* map, int x, int y, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
            to), "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(x), "r"(y) : "memory");
}
// To the same place in each block of the mask; the bytes count at the same barrier there.
__device__ __forceinline__ void tensor_load_for(uint32_t mask, uint32_t to, const CUtensorMap* map, int x, int y,
                                                uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%4, %5}], [%2], %3;" ::"r"(to), "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier),
        "h"(static_cast<uint16_t>(mask)), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void tensor_prefetch(const CUtensorMap* map, int x, int y) {  // into L2
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(reinterpret_cast<uint64_t>(map)),
                 "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void tensor_store(const CUtensorMap* map, int x, int y, uint32_t from) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\n"
        "cp.async.bulk.commit_group;" ::"l"(reinterpret_cast<uint64_t>(map)), "r"(from), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}

// K-major lines of 128 bytes with the 128-byte swizzle: groups of 8 lines are 1024 bytes apart.
__device__ __forceinline__ uint64_t describe(uint32_t address) {
    return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(1) << 16 |
           static_cast<uint64_t>(1024 >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void hold(float (&d)[128]) {
#pragma unroll
    for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
__device__ __forceinline__ void multiply(float (&d)[128], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {@NAMES@}, %128, %129, p, 1, 1, 0, 0;\n}"
        : @OPERANDS@
        : "l"(a), "l"(b), "r"(add));
}

__device__ __forceinline__ float fast_tanh(float v) {
    float r;
    asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

// h is half of the argument. The result lies within [-0.17, 0.842], so that the clamp to [-1, 1] changes nothing.
__device__ __forceinline__ float activate(float h) {
    const float s = fmaf(h, fast_tanh(h), h);  // y * sigmoid(y)
    const float t = fast_tanh(s);
    const float u = t * t;
    float q = fmaf(u, 1.1543469e-4f, -1.1873282e-3f);  // (Phi(t) - 1 / 2) / t on |t| <= 1
    q = fmaf(u, q, 9.9735570e-3f);
    q = fmaf(u, q, -6.6490380e-2f);
    q = fmaf(u, q, 3.9894228e-1f);
    return fmaf(0.5f, t, u * q);
}
__device__ __forceinline__ uint32_t pair(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
}

// Clusters of kCm blocks along M by kCn along N: rank = (place along M) + kCm * (place along N).
template <int kCm, int kCn>
__global__ void __launch_bounds__(kThreads, 1)
linear_activation_kernel(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_w,
                         const __grid_constant__ CUtensorMap map_out, const __nv_bfloat16* __restrict__ bias,
                         const __nv_bfloat16* __restrict__ add_value) {
    constexpr int kSize = kCm * kCn;
    constexpr int kRows = kTilesM / kCm;                   // clusters along M
    constexpr int kColumns = kBlocks / kSize / kRows;      // clusters along N, in a wave
    constexpr int kPeers = kCm + kCn - 1;                  // blocks that write into one's stages
    constexpr int kPartA = kTileM / kCn;                   // lines that one block loads
    constexpr int kPartB = kTileN / kCm;
    static_assert(kRows * kCm == kTilesM && kWaves * kColumns * kCn == kTilesN, "tiles");
    static_assert(kPartA % 8 == 0 && kPartB % 8 == 0, "swizzled groups");

    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t base = shared_address(shared);
    const uint32_t full = base + kOffsetBarriers;
    const uint32_t empty = full + kStages * 8;
    float* addend = reinterpret_cast<float*>(shared + kOffsetAddend);

    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = threadIdx.x % 32;
    const int rank = static_cast<int>(cluster_rank());
    const int rank_m = rank % kCm;
    const int rank_n = rank / kCm;
    const int cluster = static_cast<int>(blockIdx.x) / kSize;
    const int cluster_m = cluster % kRows;
    const int cluster_n = cluster / kRows;  // and + kColumns in the next wave
    const int m0 = (cluster_m * kCm + rank_m) * kTileM;

    if (threadIdx.x == 0) {
        prefetch_map(&map_x);
        prefetch_map(&map_w);
        prefetch_map(&map_out);
        for (int s = 0; s < kStages; ++s) {
            start(full + 8 * s, 1);
            start(empty + 8 * s, 8 * kPeers);  // 8 warps of each block that this one writes to
        }
        show_started();
    }
    __syncthreads();
    cluster_sync();

    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == 0 && lane == 0) {
            uint32_t mask_a = 0;  // the blocks of the same rows
#pragma unroll
            for (int j = 0; j < kCn; ++j) mask_a |= 1u << (rank_m + kCm * j);
            const uint32_t mask_b = ((1u << kCm) - 1u) << (kCm * rank_n);  // the blocks of the same columns
            const int line_a = m0 + rank_n * kPartA;
            const int line_b = (cluster_n * kCn + rank_n) * kTileN + rank_m * kPartB;
            constexpr int kNextWave = kColumns * kCn * kTileN;
            const uint32_t to_a = base + static_cast<uint32_t>(rank_n * kPartA) * (kTileK * 2);
            const uint32_t to_b = base + kBytesA + static_cast<uint32_t>(rank_m * kPartB) * (kTileK * 2);

            int s = 0;
            uint32_t parity = 0;
#pragma unroll 1
            for (int t = 0; t < kTotal; ++t) {
                {
                    const int wave = t / kSteps;
                    const int step = t % kSteps;
                    // The second wave goes backwards: it begins with the columns of x that L2 still holds.
                    const int k0 = ((wave & 1) ? kSteps - 1 - step : step) * kTileK;
                    const uint32_t offset = static_cast<uint32_t>(s) * kBytesStage;
                    const uint32_t barrier = full + 8 * s;
                    wait(empty + 8 * s, parity ^ 1);
                    arrive_and_expect(barrier, kBytesStage);
                    if (kCn == 1) {
                        tensor_load(to_a + offset, &map_x, k0, line_a, barrier);
                    } else {
                        tensor_load_for(mask_a, to_a + offset, &map_x, k0, line_a, barrier);
                    }
                    tensor_load_for(mask_b, to_b + offset, &map_w, k0, line_b + wave * kNextWave, barrier);
                    if (++s == kStages) {
                        s = 0;
                        parity ^= 1;
                    }
                }
                // Into L2, kAhead steps before the load (at first also kStages before): each piece by one cluster.
#pragma unroll 1
                for (int later = (t < kStages ? 1 : 2) * kStages; later <= kAhead; later += kStages) {
                    const int then = t + later;
                    if (then < kTotal) {
                        const int wave = then / kSteps;
                        const int step = then % kSteps;
                        const int k0 = ((wave & 1) ? kSteps - 1 - step : step) * kTileK;
                        if (step % kRows == cluster_m) tensor_prefetch(&map_w, k0, line_b + wave * kNextWave);
                        if (step % kColumns == cluster_n) tensor_prefetch(&map_x, k0, line_a);
                    }
                }
            }
        }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int consumer = threadIdx.x - 128;  // 0 to 255
        const int group = (warp - 4) / 4;        // 64 rows each
        const int row0 = m0 + (warp - 4) * 16;   // of this warp's outputs

        // Half of bias + add_value, for the tiles of both waves.
        for (int wave = 0; wave < kWaves; ++wave) {
            const int n = ((cluster_n + wave * kColumns) * kCn + rank_n) * kTileN + consumer;
            addend[wave * kTileN + consumer] = 0.5f * (__bfloat162float(bias[n]) + __bfloat162float(add_value[n]));
        }
        asm volatile("bar.sync 1, 256;" ::: "memory");

        const uint64_t a_first = describe(base + group * (64 * kTileK * 2));
        const uint64_t b_first = describe(base + kBytesA);

        // Lanes below kPeers give a stage back, each to one of the blocks that write into it.
        int writer = rank;
        if (lane < kCm) {
            writer = lane + kCm * rank_n;
        } else if (lane < kPeers) {
            const int j = lane - kCm;
            writer = rank_m + kCm * (j < rank_n ? j : j + 1);
        }
        const uint32_t empty_there = address_at(empty, static_cast<uint32_t>(writer));

        const uint32_t out_buffer = base + kOffsetOut + (warp - 4) * 2 * kBytesOut;
        const int store_row = (lane & 7) + ((lane >> 3) & 1) * 8;
        const int store_chunk = lane >> 4;

        float d[128];
        int s = 0;
        uint32_t parity = 0;
        for (int wave = 0; wave < kWaves; ++wave) {
#pragma unroll
            for (int i = 0; i < 128; ++i) d[i] = 0.0f;
            int before = 0;
#pragma unroll 1
            for (int step = 0; step < kSteps; ++step) {
                wait(full + 8 * s, parity);
                const uint64_t a = a_first + static_cast<uint64_t>(s) * (kBytesStage >> 4);
                const uint64_t b = b_first + static_cast<uint64_t>(s) * (kBytesStage >> 4);
                begin_products();
#pragma unroll
                for (int k = 0; k < 4; ++k) multiply(d, a + 2 * k, b + 2 * k, 1);  // 32 bytes of k each
                commit_products();
                wait_products<1>();  // those of the step before are done: give their stage back
                if (step > 0 && lane < kPeers) arrive_there(empty_there + 8 * before);
                before = s;
                if (++s == kStages) {
                    s = 0;
                    parity ^= 1;
                }
            }
            wait_products<0>();
            hold(d);
            if (lane < kPeers) arrive_there(empty_there + 8 * before);

            const int n0 = ((cluster_n + wave * kColumns) * kCn + rank_n) * kTileN;
            const float* half = addend + wave * kTileN + (lane & 3) * 2;
#pragma unroll
            for (int c = 0; c < 4; ++c) {  // 64 columns each
                const uint32_t buffer = out_buffer + (c & 1) * kBytesOut;
                if (lane == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
                __syncwarp();
#pragma unroll
                for (int jj = 0; jj < 8; jj += 2) {
                    const int j = c * 8 + jj;
                    const float2 h0 = *reinterpret_cast<const float2*>(half + 8 * j);
                    const float2 h1 = *reinterpret_cast<const float2*>(half + 8 * j + 8);
                    const uint32_t r0 = pair(activate(fmaf(0.5f, d[4 * j + 0], h0.x)),
                                             activate(fmaf(0.5f, d[4 * j + 1], h0.y)));
                    const uint32_t r1 = pair(activate(fmaf(0.5f, d[4 * j + 2], h0.x)),
                                             activate(fmaf(0.5f, d[4 * j + 3], h0.y)));
                    const uint32_t r2 = pair(activate(fmaf(0.5f, d[4 * j + 4], h1.x)),
                                             activate(fmaf(0.5f, d[4 * j + 5], h1.y)));
                    const uint32_t r3 = pair(activate(fmaf(0.5f, d[4 * j + 6], h1.x)),
                                             activate(fmaf(0.5f, d[4 * j + 7], h1.y)));
                    const uint32_t to =
                        buffer + store_row * 128 + (((jj + store_chunk) ^ (store_row & 7)) << 4);
                    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                                 "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
                }
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                __syncwarp();
                if (lane == 0) tensor_store(&map_out, n0 + c * 64, row0, buffer);
            }
        }
        if (lane == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        __syncwarp();
    }
    cluster_sync();  // no block ends while another still arrives at its barriers
}

typedef CUresult (*EncodeTiled)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static EncodeTiled g_encode = nullptr;
static const void* g_kernel = nullptr;
static int g_cm = 0;
static int g_cn = 0;
static CUtensorMap g_maps[3];
static const void* g_at[3] = {nullptr, nullptr, nullptr};

static int describe_matrix(int which, const void* pointer, uint64_t rows, uint64_t columns, uint32_t box_rows) {
    if (g_at[which] == pointer) return 0;  // the map holds only the address and the shape
    const cuuint64_t sizes[2] = {columns, rows};
    const cuuint64_t pitches[1] = {columns * 2};
    const cuuint32_t box[2] = {64, box_rows};
    const cuuint32_t steps[2] = {1, 1};
    const CUresult result =
        g_encode(&g_maps[which], CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(pointer), sizes, pitches, box,
                 steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
        g_at[which] = nullptr;
        return 100000 + static_cast<int>(result);
    }
    g_at[which] = pointer;
    return 0;
}

static void configure(cudaLaunchConfig_t* config, cudaLaunchAttribute* attribute, int cluster_size,
                      cudaStream_t stream) {
    attribute->id = cudaLaunchAttributeClusterDimension;
    attribute->val.clusterDim.x = static_cast<unsigned>(cluster_size);
    attribute->val.clusterDim.y = 1;
    attribute->val.clusterDim.z = 1;
    config->gridDim = dim3(kBlocks, 1, 1);
    config->blockDim = dim3(kThreads, 1, 1);
    config->dynamicSmemBytes = kSharedBytes;
    config->stream = stream;
    config->attrs = attribute;
    config->numAttrs = 1;
}

// Takes this shape of clusters if all blocks are resident at once; pairs are taken in any case.
template <int kCm, int kCn>
static cudaError_t consider() {
    if (g_kernel != nullptr) return cudaSuccess;
    const void* kernel = (const void*)linear_activation_kernel<kCm, kCn>;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(kSharedBytes));
    if (error != cudaSuccess) return error;
    if (kCm * kCn > 2) {
        cudaLaunchAttribute attribute = {};
        cudaLaunchConfig_t config = {};
        configure(&config, &attribute, kCm * kCn, nullptr);
        int active = 0;
        if (cudaOccupancyMaxActiveClusters(&active, kernel, &config) != cudaSuccess) {
            cudaGetLastError();  // forget it: the next shape is asked for
            return cudaSuccess;
        }
        if (active * kCm * kCn < kBlocks) return cudaSuccess;
    }
    g_kernel = kernel;
    g_cm = kCm;
    g_cn = kCn;
    return cudaSuccess;
}

extern "C" int linear_activation(const void* x, const void* weight, const void* bias, const void* add_value, void* out,
                                 void* stream) {
    if (g_encode == nullptr) {
        void* entry = nullptr;
        cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
        cudaError_t error =
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
#else
        cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found);
#endif
        if (error != cudaSuccess) return static_cast<int>(error);
        if (found != cudaDriverEntryPointSuccess || entry == nullptr) return 99999;
        error = consider<4, 2>();
        if (error == cudaSuccess) error = consider<2, 2>();
        if (error == cudaSuccess) error = consider<2, 1>();
        if (error != cudaSuccess) return static_cast<int>(error);
        g_encode = reinterpret_cast<EncodeTiled>(entry);
    }
    int bad = describe_matrix(0, x, kM, kK, static_cast<uint32_t>(kTileM / g_cn));
    if (bad == 0) bad = describe_matrix(1, weight, kN, kK, static_cast<uint32_t>(kTileN / g_cm));
    if (bad == 0) bad = describe_matrix(2, out, kM, kN, 16);
    if (bad != 0) return bad;

    const __nv_bfloat16* bias_at = static_cast<const __nv_bfloat16*>(bias);
    const __nv_bfloat16* add_value_at = static_cast<const __nv_bfloat16*>(add_value);
    void* arguments[5] = {&g_maps[0], &g_maps[1], &g_maps[2], &bias_at, &add_value_at};
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    configure(&config, &attribute, g_cm * g_cn, static_cast<cudaStream_t>(stream));
    const cudaError_t launched = cudaLaunchKernelExC(&config, g_kernel, arguments);
    if (launched != cudaSuccess) return static_cast<int>(launched);
    return static_cast<int>(cudaGetLastError());
}
"""

SOURCE = SOURCE.replace("@NAMES@", ", ".join(f"%{i}" for i in range(128)))
SOURCE = SOURCE.replace("@OPERANDS@", ", ".join(f'"+f"(d[{i}])' for i in range(128)))

library = ctypes.CDLL(
    load_inline(
        name="linear_swish_tanh_gelu_hardtanh_clusters",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
linear_activation = library.linear_activation
linear_activation.argtypes = [ctypes.c_void_p] * 6
linear_activation.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, add_value_shape):
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.add_value = nn.Parameter(torch.randn(add_value_shape))

    def forward(self, x):
        linear = self.matmul
        weight = linear.weight
        bias = linear.bias
        add_value = self.add_value
        if not x.is_contiguous():
            x = x.contiguous()
        if not weight.is_contiguous():
            weight = weight.contiguous()
        if x.shape != (1024, 8192) or weight.shape != (8192, 8192) or x.dtype != torch.bfloat16:
            raise RuntimeError("linear_activation: made for bfloat16, (1024, 8192) by (8192, 8192)")
        out = torch.empty((1024, 8192), dtype=torch.bfloat16, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = linear_activation(
            x.data_ptr(), weight.data_ptr(), bias.data_ptr(), add_value.data_ptr(), out.data_ptr(), stream
        )
        if error:
            raise RuntimeError(f"linear_activation: CUDA error {error}")
        return out
