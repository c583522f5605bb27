import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

constexpr int kRows = 16384;
constexpr int kInput = 2048;
constexpr int kHidden = 4096;
constexpr int kOutput = 1024;

constexpr int kTileM = 128;
constexpr int kTileN = 256;
constexpr int kTileK = 64;
constexpr int kStages = 4;
constexpr int kThreads = 384;
constexpr int kPairs = kRows / (2 * kTileM);  // pairs of row tiles, one pair a cluster

// By how many stages the second warpgroup starts later than the first.
// tune: kLag in (1, 2, 3)
constexpr int kLag = 3;
// Pairs of row tiles that the first product takes together.
// tune: kGroup in (4, 8, 16)
constexpr int kGroup = 8;

constexpr uint32_t kBytesA = kTileM * kTileK * 2;  // 16384
constexpr uint32_t kBytesB = kTileN * kTileK * 2;  // 32768
constexpr uint32_t kStageBytes = kBytesA + kBytesB;
constexpr uint32_t kStagingAt = kStages * kStageBytes;  // 2 warpgroups x 2 buffers x 8192
constexpr uint32_t kBarriersAt = kStagingAt + 32768;
constexpr uint32_t kSharedBytes = kBarriersAt + 2 * kStages * 8 + 16 + 1024;
constexpr float kLog2E = 1.4426950408889634f;

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
// The ring is written by TMA and read by wgmma only, so its barriers need no fence at cluster scope: one would cost a
// round trip to L2 at every step. Hence the plain forms in wait and arrive_at.
__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}
__device__ __forceinline__ void arrive_at(uint64_t* barrier, int rank) {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(barrier)), "r"(rank)
        : "memory");
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
__device__ __forceinline__ void tensor_load(uint32_t to, const CUtensorMap* map, int c0, int c1, uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
            to), "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(c0), "r"(c1) : "memory");
}
__device__ __forceinline__ void tensor_load_for_all(uint32_t to, const CUtensorMap* map, int c0, int c1,
                                                    uint64_t* barrier, int mask) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %4}], [%2], %5;" ::"r"(to), "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)),
        "r"(c0), "r"(c1), "h"(static_cast<uint16_t>(mask)) : "memory");
}
__device__ __forceinline__ void tensor_store(const CUtensorMap* map, int c0, int c1, uint32_t from) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\ncp.async.bulk.commit_group;" ::"l"(
            reinterpret_cast<uint64_t>(map)), "r"(from), "r"(c0), "r"(c1) : "memory");
}

// K-major operand with the 128-byte swizzle: 8 lines are 1024 bytes.
__device__ __forceinline__ uint64_t describe_128(uint32_t at) {
    return static_cast<uint64_t>((at & 0x3ffff) >> 4) | static_cast<uint64_t>(1) << 16 |
           static_cast<uint64_t>(1024 >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}

__device__ __forceinline__ void multiply(float (&d)[128], uint64_t a, uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{@REGISTERS@}, %128, %129, p, 1, 1, 0, 0;\n}"
        : @CONSTRAINTS@
        : "l"(a), "l"(b), "r"(1));
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
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float low_of(uint32_t word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float high_of(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }

// Sigmoid of two values, one reciprocal for both: 1 / a = b / (a * b). Exponents end at 60, so a * b stays finite.
__device__ __forceinline__ uint32_t sigmoid_pair(float low, float high) {
    const float a = 1.0f + power_of_two(fminf(low * -kLog2E, 60.0f));
    const float b = 1.0f + power_of_two(fminf(high * -kLog2E, 60.0f));
    const float r = reciprocal(a * b);
    const __nv_bfloat162 both = __floats2bfloat162_rn(r * b, r * a);
    return *reinterpret_cast<const uint32_t*>(&both);
}

__device__ __forceinline__ void store_matrices(uint32_t address, const uint32_t (&a)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a[0]),
                 "r"(a[1]), "r"(a[2]), "r"(a[3]) : "memory");
}

template <bool kSecond>
__device__ __forceinline__ void locate(int tile, int& pair, int& column_tile) {
    if constexpr (kSecond) {
        constexpr int kColumnTiles = kOutput / kTileN;
        column_tile = tile % kColumnTiles;
        pair = kPairs - 1 - tile / kColumnTiles;  // the rows written last come first
    } else {
        constexpr int kInGroup = kGroup * (kHidden / kTileN);
        const int in_group = tile % kInGroup;
        pair = tile / kInGroup * kGroup + in_group % kGroup;
        column_tile = in_group / kGroup;
    }
}

// First: hidden = sigmoid(x W1^T + b1), stored through map_c. Second: logsumexp over the columns of hidden W2^T + b2.
template <bool kSecond>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    product_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                   const __grid_constant__ CUtensorMap map_c, const __nv_bfloat16* __restrict__ bias, float* partial,
                   unsigned int* counter, __nv_bfloat16* out) {
    constexpr int kDepth = kSecond ? kHidden : kInput;
    constexpr int kColumns = kSecond ? kOutput : kHidden;
    constexpr int kSteps = kDepth / kTileK;
    constexpr int kTiles = kPairs * (kColumns / kTileN);

    extern __shared__ uint8_t raw_shared[];
    const uint32_t raw_address = shared_address(raw_shared);
    uint8_t* shared = raw_shared + ((1024u - (raw_address & 1023u)) & 1023u);
    const uint32_t base = shared_address(shared);
    uint64_t* full = reinterpret_cast<uint64_t*>(shared + kBarriersAt);
    uint64_t* empty = full + kStages;
    volatile int* last_flag = reinterpret_cast<volatile int*>(shared + kBarriersAt + 2 * kStages * 8);

    const int rank = static_cast<int>(cluster_rank());
    const int cluster = blockIdx.x / 2;
    const int clusters = gridDim.x / 2;

    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) {
            start(&full[s], 1);
            start(&empty[s], 16);  // 8 warps of each of the two blocks
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
            uint32_t it = 0;
            for (int tile = cluster; tile < kTiles; tile += clusters) {
                int pair, column_tile;
                locate<kSecond>(tile, pair, column_tile);
                const int row = (pair * 2 + rank) * kTileM;
                const int column = column_tile * kTileN + rank * (kTileN / 2);
#pragma unroll 1
                for (int step = 0; step < kSteps; ++step, ++it) {
                    const uint32_t s = it % kStages;
                    wait(&empty[s], (it / kStages & 1) ^ 1);
                    arrive_and_expect(&full[s], kStageBytes);
                    const uint32_t at = base + s * kStageBytes;
                    tensor_load(at, &map_a, step * kTileK, row, &full[s]);
                    tensor_load_for_all(at + kBytesA + rank * (kBytesB / 2), &map_b, step * kTileK, column, &full[s],
                                        3);
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
        const uint32_t staging = base + kStagingAt + consumer * 16384;
        float d[128];
        uint32_t bias_words[32];
        uint32_t it = 0;

        for (int tile = cluster; tile < kTiles; tile += clusters) {
            int pair, column_tile;
            locate<kSecond>(tile, pair, column_tile);
            const int row_tile = pair * 2 + rank;
            const int column = column_tile * kTileN;
#pragma unroll
            for (int j = 0; j < 32; ++j) {
                bias_words[j] = __ldg(reinterpret_cast<const unsigned int*>(bias + column + 8 * j + lane % 4 * 2));
            }
#pragma unroll
            for (int i = 0; i < 128; ++i) d[i] = 0.0f;

            if (consumer == 1) meet(3, 256);  // stay behind the first warpgroup
#pragma unroll 1
            for (int step = 0; step < kSteps; ++step, ++it) {
                const uint32_t s = it % kStages;
                wait(&full[s], it / kStages & 1);
                const uint64_t a = first_a + (s * kStageBytes >> 4);
                const uint64_t b = first_b + (s * kStageBytes >> 4);
                begin_products();
#pragma unroll
                for (int k = 0; k < kTileK / 16; ++k) multiply(d, a + 2 * k, b + 2 * k);
                commit_products();
                if (consumer == 0 && step == kLag - 1) meet_without_waiting(3, 256);
                if (step > 0) {
                    wait_all_but_one();
                    if (lane < 2) arrive_at(&empty[(it - 1) % kStages], lane);
                }
            }
            wait_all_products(d);
            if (lane < 2) arrive_at(&empty[(it - 1) % kStages], lane);
            __syncwarp();

            if constexpr (!kSecond) {
                const int row = row_tile * kTileM + consumer * 64;
                const int line = warp * 16 + (lane >> 3 & 1) * 8 + (lane & 7);
#pragma unroll
                for (int panel = 0; panel < 4; ++panel) {
                    const uint32_t buffer = staging + (panel & 1) * 8192;
                    // The store before the last one has read this buffer.
                    if (thread == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
                    meet(1 + consumer, 128);
#pragma unroll
                    for (int q = 0; q < 4; ++q) {
                        uint32_t words[4];
#pragma unroll
                        for (int half = 0; half < 2; ++half) {
                            const int j = panel * 8 + q * 2 + half;
                            const float low = low_of(bias_words[j]);
                            const float high = high_of(bias_words[j]);
                            words[2 * half] = sigmoid_pair(d[4 * j] + low, d[4 * j + 1] + high);
                            words[2 * half + 1] = sigmoid_pair(d[4 * j + 2] + low, d[4 * j + 3] + high);
                        }
                        const int chunk = (2 * q + (lane >> 4)) ^ (lane & 7);
                        store_matrices(buffer + line * 128 + chunk * 16, words);
                    }
                    show_stores();
                    meet(1 + consumer, 128);
                    if (thread == 0) tensor_store(&map_c, column + panel * 64, row, buffer);
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
            if (thread == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        }
    }
    // No block ends while the other may still write to it or arrive at its barriers.
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
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
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

extern "C" int run_model(const void* x, const void* w1, const void* b1, const void* w2, const void* b2, void* hidden,
                         void* partial, void* counter, void* out, void* stream) {
    static int blocks = 0;
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
        error = cudaFuncSetAttribute(reinterpret_cast<const void*>(&product_kernel<false>),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaFuncSetAttribute(reinterpret_cast<const void*>(&product_kernel<true>),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        int device = 0, multiprocessors = 0;
        error = cudaGetDevice(&device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
        if (error != cudaSuccess) return static_cast<int>(error);
        blocks = multiprocessors / 2 * 2;
    }
    int failed = refresh(map_x, x, kRows, kInput, kTileM);
    if (failed) return failed;
    failed = refresh(map_w1, w1, kHidden, kInput, kTileN / 2);
    if (failed) return failed;
    failed = refresh(map_store, hidden, kRows, kHidden, 64);
    if (failed) return failed;
    failed = refresh(map_hidden, hidden, kRows, kHidden, kTileM);
    if (failed) return failed;
    failed = refresh(map_w2, w2, kOutput, kHidden, kTileN / 2);
    if (failed) return failed;

    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks, 1, 1);
    config.blockDim = dim3(kThreads, 1, 1);
    config.dynamicSmemBytes = kSharedBytes;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = nullptr;
    config.numAttrs = 0;

    void* first[] = {&map_x.map, &map_w1.map, &map_store.map, &b1, &partial, &counter, &out};
    cudaError_t error = cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(&product_kernel<false>), first);
    if (error != cudaSuccess) return static_cast<int>(error);

    // The second kernel's blocks may start as the first one's end; its producers wait for the whole of the first.
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[0].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = attribute;
    config.numAttrs = 1;
    void* second[] = {&map_hidden.map, &map_w2.map, &map_store.map, &b2, &partial, &counter, &out};
    error = cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(&product_kernel<true>), second);
    if (error != cudaSuccess) return static_cast<int>(error);
    return static_cast<int>(cudaGetLastError());
}
"""

SOURCE = SOURCE.replace("@REGISTERS@", ", ".join(f"%{i}" for i in range(128)))
SOURCE = SOURCE.replace("@CONSTRAINTS@", ", ".join(f'"+f"(d[{i}])' for i in range(128)))

library = ctypes.CDLL(
    load_inline(
        name="gemm_sigmoid_gemm_logsumexp",
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
