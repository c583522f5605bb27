import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda.h>
#include <cuda_runtime.h>
#include <cuda_bf16.h>

constexpr int kM = 1024, kN = 8192, kK = 8192;
constexpr int kTileM = 128, kTileN = 256, kTileK = 64;
constexpr int kStages = 4;
constexpr int kAhead = 12;
constexpr int kLag = 3;                                    // steps that the second warpgroup ends a tile later
constexpr int kTiles = 2;                                  // tiles of a block, side by side along n
constexpr int kColumns = kTiles * kTileN;                  // 512 columns of a block
constexpr int kColumnBlocks = kN / kColumns;               // 16
constexpr int kRowBlocks = kM / kTileM;                    // 8
constexpr int kBlocks = kColumnBlocks * kRowBlocks;        // 128
constexpr int kSteps = kK / kTileK;                        // 128
constexpr uint32_t kBytesA = kTileM * kTileK * 2;          // 16384
constexpr uint32_t kBytesB = kTileN * kTileK * 2;          // 32768
constexpr uint32_t kHalfB = kBytesB / 2;
constexpr uint32_t kStageBytes = kBytesA + kBytesB;        // 49152
constexpr int kThreads = 384;
constexpr uint32_t kAtParams = kStages * kStageBytes;      // four arrays of kColumns floats
constexpr uint32_t kAtRowMin = kAtParams + 4 * kColumns * 4;
constexpr uint32_t kAtBarriers = kAtRowMin + 2 * kTileM * 4;
constexpr uint32_t kSharedBytes = kAtBarriers + 2 * kStages * 8 + 1024;
static_assert(kLag < kStages, "the first warpgroup must reach the end of a tile while the second pauses");
static_assert(kColumns == 64 * 8, "64 threads load 8 channels each");

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
// Default semantics in both: a wider scope would put memory fences into every step.
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
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
__device__ __forceinline__ void tensor_load(uint32_t to, const CUtensorMap* map, int x, int y, uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(reinterpret_cast<uint64_t>(map)), "r"(x), "r"(y), "r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void tensor_load_for_all(uint32_t to, const CUtensorMap* map, int x, int y,
                                                    uint64_t* barrier, int mask) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(reinterpret_cast<uint64_t>(map)), "r"(x), "r"(y), "r"(shared_address(barrier)),
        "h"(static_cast<uint16_t>(mask)) : "memory");
}
// Brings a box into L2 only.
__device__ __forceinline__ void tensor_prefetch(const CUtensorMap* map, int x, int y) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(reinterpret_cast<uint64_t>(map)),
                 "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}

// K-major operand, panels of 128 bytes, 128-byte swizzle: 1024 bytes from eight lines to the next eight.
__device__ __forceinline__ uint64_t describe(uint32_t address) {
    return uint64_t((address & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_pending() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
template <int N>
__device__ __forceinline__ void hold(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
__device__ __forceinline__ void multiply(float (&d)[128], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {@REGISTERS@}, %128, %129, p, 1, 1, 0, 0;\n}"
        : @OPERANDS@
        : "l"(a), "l"(b), "r"(add));
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
__device__ __forceinline__ void announce(int name, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ float min_nan(float a, float b) {
    float m;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}
__device__ __forceinline__ float quad_sum(float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    v += __shfl_xor_sync(0xffffffffu, v, 2);
    return v;
}
// For normal arguments.
__device__ __forceinline__ float inverse_root(float v) {
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
__device__ __forceinline__ uint64_t load_slot(const uint64_t* p) {
    uint64_t v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_slot(uint64_t* p, uint64_t v) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ uint32_t pair(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
}
// Two bf16 values in a word, the first in the low half.
__device__ __forceinline__ float2 widen(uint32_t word) {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}
// Eight channels, half a group, in the order of the accumulators: lane q of four has {2q, 2q + 1, 2q + 8, 2q + 9}.
__device__ __forceinline__ void spread(const __nv_bfloat16* from, float* to) {
    const uint4 v = __ldg(reinterpret_cast<const uint4*>(from));
    *reinterpret_cast<float2*>(to) = widen(v.x);
    *reinterpret_cast<float2*>(to + 4) = widen(v.y);
    *reinterpret_cast<float2*>(to + 8) = widen(v.z);
    *reinterpret_cast<float2*>(to + 12) = widen(v.w);
}

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
gemm_norm_min_kernel(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_w,
                     const __nv_bfloat16* __restrict__ linear_bias, const __nv_bfloat16* __restrict__ gamma,
                     const __nv_bfloat16* __restrict__ beta, const __nv_bfloat16* __restrict__ out_bias,
                     uint64_t* slots, unsigned* launches, __nv_bfloat16* __restrict__ out) {
    extern __shared__ __align__(1024) uint8_t raw[];
    const uint32_t skip = (1024u - (shared_address(raw) & 1023u)) & 1023u;
    uint8_t* const base = raw + skip;
    const uint32_t tiles = shared_address(base);
    float* const s_linear = reinterpret_cast<float*>(base + kAtParams);
    float* const s_gamma = s_linear + kColumns;
    float* const s_beta = s_gamma + kColumns;
    float* const s_bias = s_beta + kColumns;
    float* const s_min = reinterpret_cast<float*>(base + kAtRowMin);
    uint64_t* const full = reinterpret_cast<uint64_t*>(base + kAtBarriers);
    uint64_t* const empty = full + kStages;

    const int rank = blockIdx.x & 1;
    const int cluster = blockIdx.x >> 1;
    const int row_block = (cluster & (kRowBlocks / 2 - 1)) * 2 + rank;
    const int column_block = cluster / (kRowBlocks / 2);
    const int first_row = row_block * kTileM;
    const int first_column = column_block * kColumns;

    // The four clusters of a column block take turns with its weights, the sixteen column blocks with x:
    // each box is brought into L2 once, some steps before the first load of it.
    const int turn_w = cluster & (kRowBlocks / 2 - 1);
    const int half_row = first_column + rank * (kTileN / 2);
    auto prefetch_step = [&](int j) {
        const int column = (j % kSteps) * kTileK;
        if ((j & (kRowBlocks / 2 - 1)) == turn_w)
            tensor_prefetch(&map_w, column, half_row + (j / kSteps) * kTileN);
        if ((j & (kColumnBlocks - 1)) == column_block) tensor_prefetch(&map_x, column, first_row);
    };

    if (threadIdx.x == 0) {
        prefetch_map(&map_x);
        prefetch_map(&map_w);
        for (int s = 0; s < kStages; ++s) {
            start(&full[s], 1);
            start(&empty[s], 16);  // 8 warps of each of two blocks
        }
        show_started();
    }
    __syncwarp();
    cluster_arrive();
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (int j = 0; j < kStages; ++j) prefetch_step(j);
    }
    __syncwarp();
    cluster_wait();

    if (threadIdx.x < 128) {
        give_up_registers<40>();
        if (threadIdx.x == 0) {
            int it = 0;
#pragma unroll 1
            for (int t = 0; t < kTiles; ++t) {
                const int row_w = half_row + t * kTileN;
#pragma unroll 1
                for (int k = 0; k < kSteps; ++k, ++it) {
                    const int s = it % kStages;
                    wait(&empty[s], ((it / kStages) & 1) ^ 1);
                    arrive_and_expect(&full[s], kStageBytes);
                    const uint32_t at = tiles + s * kStageBytes;
                    tensor_load(at, &map_x, k * kTileK, first_row, &full[s]);
                    tensor_load_for_all(at + kBytesA + rank * kHalfB, &map_w, k * kTileK, row_w, &full[s], 3);
                    if (it == kStages - 1) {  // the first stages are under way: now what lies behind them
#pragma unroll 1
                        for (int j = kStages; j < kStages - 1 + kAhead; ++j) prefetch_step(j);
                    }
                    if (it >= kStages - 1 && it + kAhead < kTiles * kSteps) prefetch_step(it + kAhead);
                }
            }
        } else if (threadIdx.x >= 64) {
            // Two idle warps bring the parameters, eight channels a thread.
            const int u = threadIdx.x - 64;
            const int channel = first_column + 8 * u;
            const int place = (u >> 1) * 16 + (u & 1) * 2;
            spread(linear_bias + channel, s_linear + place);
            spread(gamma + channel, s_gamma + place);
            spread(beta + channel, s_beta + place);
            const uint4 v = __ldg(reinterpret_cast<const uint4*>(out_bias + channel));
            float2* const to = reinterpret_cast<float2*>(s_bias + 8 * u);
            to[0] = widen(v.x);
            to[1] = widen(v.y);
            to[2] = widen(v.z);
            to[3] = widen(v.w);
            announce(3, 192);  // to each warpgroup a barrier of its own: neither waits for the other
            announce(4, 192);
        }
        __syncwarp();
        cluster_arrive();
    } else {
        take_registers<232>();
        const int thread = threadIdx.x - 128;
        const int warp = thread / 32;
        const int lane = thread % 32;
        const int quad = lane % 4;
        const int group = __shfl_sync(0xffffffffu, thread / 128, 0);  // warpgroup: rows 64 group to 64 group + 63
        const uint64_t describe_a = describe(tiles + group * (64 * kTileK * 2));
        const uint64_t describe_b = describe(tiles + kBytesA);
        // Every block counts the launches in a word of its own: all words are equal when a launch begins.
        const unsigned launch = __ldcg(launches + blockIdx.x) + 1u;
        // A tile is taken in two parts. The second warpgroup pauses between them, the first drains elsewhere.
        const int middle = group ? kSteps - kLag : kSteps / 2;

        float d[128];
#pragma unroll
        for (int i = 0; i < 128; ++i) d[i] = 0.0f;
        float lowest[2];
        lowest[0] = lowest[1] = __int_as_float(0x7f800000);

        int it = 0;
#pragma unroll 1
        for (int part = 0; part < 2 * kTiles; ++part) {
            const bool last_part = (part & 1) != 0;
            const int begin = last_part ? middle : 0;
            const int end = last_part ? kSteps : middle;
            if (last_part && group) meet(2, 256);  // the first warpgroup has finished its tile
            hold(d);
#pragma unroll 1
            for (int k = begin; k < end; ++k, ++it) {
                const int s = it % kStages;
                wait(&full[s], (it / kStages) & 1);
                const uint64_t a = describe_a + uint64_t(s * (kStageBytes >> 4));
                const uint64_t b = describe_b + uint64_t(s * (kStageBytes >> 4));
                begin_products();
#pragma unroll
                for (int kk = 0; kk < kTileK / 16; ++kk) multiply(d, a + 2 * kk, b + 2 * kk, (k | kk) != 0);
                commit_products();
                wait_pending<1>();  // the step before is done: its stage is free
                if (k > begin && lane < 2) arrive_at(&empty[(it - 1) % kStages], lane);
            }
            wait_pending<0>();
            hold(d);
            if (lane < 2) arrive_at(&empty[(it - 1) % kStages], lane);
            __syncwarp();

            if (last_part) {
                if (!group) announce(2, 256);
                if (part == 1) meet(3 + group, 192);  // the parameters are in place

                // Norm group g: columns 16 g to 16 g + 15 of the tile; this thread's are 16 g + 2 quad + {0, 1, 8, 9}.
                const int place = (part >> 1) * kTileN + 4 * quad;
#pragma unroll
                for (int g = 0; g < kTileN / 16; ++g) {
                    const float4 l = *reinterpret_cast<const float4*>(s_linear + place + 16 * g);
                    const float4 w = *reinterpret_cast<const float4*>(s_gamma + place + 16 * g);
                    const float4 b = *reinterpret_cast<const float4*>(s_beta + place + 16 * g);
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        float v0 = d[8 * g + 2 * h] + l.x;
                        float v1 = d[8 * g + 2 * h + 1] + l.y;
                        float v2 = d[8 * g + 4 + 2 * h] + l.z;
                        float v3 = d[8 * g + 4 + 2 * h + 1] + l.w;
                        const float sum = quad_sum((v0 + v1) + (v2 + v3));
                        v0 = fmaf(sum, -1.0f / 16.0f, v0);
                        v1 = fmaf(sum, -1.0f / 16.0f, v1);
                        v2 = fmaf(sum, -1.0f / 16.0f, v2);
                        v3 = fmaf(sum, -1.0f / 16.0f, v3);
                        const float squares = quad_sum(fmaf(v0, v0, v1 * v1) + fmaf(v2, v2, v3 * v3));
                        const float scale = inverse_root(fmaf(squares, 1.0f / 16.0f, 1e-5f));
                        const float y0 = fmaf(v0 * scale, w.x, b.x);
                        const float y1 = fmaf(v1 * scale, w.y, b.y);
                        const float y2 = fmaf(v2 * scale, w.z, b.z);
                        const float y3 = fmaf(v3 * scale, w.w, b.w);
                        lowest[h] = min_nan(lowest[h], min_nan(min_nan(y0, y1), min_nan(y2, y3)));
                    }
                }
            }
        }
        cluster_arrive();  // nothing more goes to the other block

        // The minima of this block's 512 columns, for each of its 128 rows, each in one word with the launch.
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float v = lowest[h];
            v = min_nan(v, __shfl_xor_sync(0xffffffffu, v, 1));
            v = min_nan(v, __shfl_xor_sync(0xffffffffu, v, 2));
            if (quad == 0)
                store_slot(slots + column_block * kM + first_row + warp * 16 + lane / 4 + h * 8,
                           (static_cast<uint64_t>(launch) << 32) | __float_as_uint(v));
        }
        __syncwarp();

        // Two threads a row gather the sixteen column blocks, eight each.
        {
            constexpr int kEach = kColumnBlocks / 2;
            const int mine = thread % kTileM;
            const uint64_t* const from = slots + (thread / kTileM) * kEach * kM + first_row + mine;
            uint64_t word[kEach];
#pragma unroll
            for (int j = 0; j < kEach; ++j) word[j] = load_slot(from + j * kM);
            while (true) {
                bool missing = false;
#pragma unroll
                for (int j = 0; j < kEach; ++j) missing |= static_cast<unsigned>(word[j] >> 32) != launch;
                if (!missing) break;
                __nanosleep(20);
#pragma unroll
                for (int j = 0; j < kEach; ++j) {
                    if (static_cast<unsigned>(word[j] >> 32) != launch) word[j] = load_slot(from + j * kM);
                }
            }
            __syncwarp();
            float v = __uint_as_float(static_cast<unsigned>(word[0]));
#pragma unroll
            for (int j = 1; j < kEach; ++j) v = min_nan(v, __uint_as_float(static_cast<unsigned>(word[j])));
            s_min[thread] = v;
        }
        meet(1, 256);
        if (thread == 0) launches[blockIdx.x] = launch;

        // out[channel][row]: 16 lanes write the 128 rows of a channel, 8 each.
        const int row = (lane % 16) * 8;
        float m[8];
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            const float4 low = *reinterpret_cast<const float4*>(s_min + row + i);
            const float4 high = *reinterpret_cast<const float4*>(s_min + kTileM + row + i);
            m[i] = min_nan(low.x, high.x);
            m[i + 1] = min_nan(low.y, high.y);
            m[i + 2] = min_nan(low.z, high.z);
            m[i + 3] = min_nan(low.w, high.w);
        }
        const int first = warp * 2 + lane / 16;
        __nv_bfloat16* to = out + static_cast<int64_t>(first_column + first) * kM + first_row + row;
#pragma unroll 8
        for (int c = 0; c < kColumns / 16; ++c) {
            const float b = s_bias[first + 16 * c];
            uint4 packed;
            packed.x = pair(m[0] + b, m[1] + b);
            packed.y = pair(m[2] + b, m[3] + b);
            packed.z = pair(m[4] + b, m[5] + b);
            packed.w = pair(m[6] + b, m[7] + b);
            *reinterpret_cast<uint4*>(to) = packed;
            to += 16 * kM;
        }
        __syncwarp();
    }
    cluster_wait();  // no block ends while the other still arrives at its barriers
}

typedef CUresult (*Encode)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                           const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// A row-major bf16 matrix (rows, kK), fetched in boxes of 128 rows and 64 columns.
static int make_map(Encode encode, CUtensorMap* map, const void* pointer, int rows) {
    const cuuint64_t extents[2] = {static_cast<cuuint64_t>(kK), static_cast<cuuint64_t>(rows)};
    const cuuint64_t pitches[1] = {static_cast<cuuint64_t>(kK) * 2};
    const cuuint32_t box[2] = {static_cast<cuuint32_t>(kTileK), 128u};
    const cuuint32_t steps[2] = {1u, 1u};
    return static_cast<int>(encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(pointer), extents,
                                   pitches, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

extern "C" int gemm_norm_min(const void* x, const void* weight, const void* linear_bias, const void* gamma,
                             const void* beta, const void* out_bias, void* scratch, void* out, void* encode,
                             void* stream) {
    static bool ready = false;
    static CUtensorMap map_x, map_w;
    static const void* of_x = nullptr;
    static const void* of_w = nullptr;
    if (!ready) {
        const cudaError_t error = cudaFuncSetAttribute(
            gemm_norm_min_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kSharedBytes));
        if (error != cudaSuccess) return static_cast<int>(error);
        ready = true;
    }
    if (of_x != x) {
        const int error = make_map(reinterpret_cast<Encode>(encode), &map_x, x, kM);
        if (error) return 10000 + error;
        of_x = x;
    }
    if (of_w != weight) {
        const int error = make_map(reinterpret_cast<Encode>(encode), &map_w, weight, kN);
        if (error) return 20000 + error;
        of_w = weight;
    }
    uint64_t* slots = static_cast<uint64_t*>(scratch);
    unsigned* launches = reinterpret_cast<unsigned*>(slots + kColumnBlocks * kM);
    gemm_norm_min_kernel<<<kBlocks, kThreads, kSharedBytes, static_cast<cudaStream_t>(stream)>>>(
        map_x, map_w, static_cast<const __nv_bfloat16*>(linear_bias), static_cast<const __nv_bfloat16*>(gamma),
        static_cast<const __nv_bfloat16*>(beta), static_cast<const __nv_bfloat16*>(out_bias), slots, launches,
        static_cast<__nv_bfloat16*>(out));
    return static_cast<int>(cudaGetLastError());
}
"""

SOURCE = SOURCE.replace("@REGISTERS@", ", ".join(f"%{i}" for i in range(128)))
SOURCE = SOURCE.replace("@OPERANDS@", ", ".join(f'"+f"(d[{i}])' for i in range(128)))

library = ctypes.CDLL(
    load_inline(
        name="gemm_group_norm_min_bias_staggered",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
gemm_norm_min = library.gemm_norm_min
gemm_norm_min.argtypes = [ctypes.c_void_p] * 10
gemm_norm_min.restype = ctypes.c_int

driver = ctypes.CDLL("libcuda.so.1")
encode_tiled = ctypes.cast(driver.cuTensorMapEncodeTiled, ctypes.c_void_p).value

# 16 x 1024 words of a minimum and a launch number, then the launch counts of 128 blocks, 32 bits each.
SCRATCH_WORDS = 16 * 1024 + 64


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, num_groups, bias_shape):
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.group_norm = nn.GroupNorm(num_groups, out_features)
        self.bias = nn.Parameter(torch.randn(bias_shape))
        self._held = None

    def forward(self, x):
        held = self._held
        if held is None:
            scratch = torch.zeros(SCRATCH_WORDS, dtype=torch.int64, device=x.device)
            held = (
                self.gemm.weight,
                self.gemm.bias,
                self.group_norm.weight,
                self.group_norm.bias,
                self.bias,
                scratch,
            )
            self._held = held
        weight, linear_bias, gamma, beta, bias, scratch = held
        if not x.is_contiguous():
            x = x.contiguous()
        out = torch.empty((1, 8192, 1024, 1), dtype=torch.bfloat16, device=x.device)
        error = gemm_norm_min(
            x.data_ptr(),
            weight.data_ptr(),
            linear_bias.data_ptr(),
            gamma.data_ptr(),
            beta.data_ptr(),
            bias.data_ptr(),
            scratch.data_ptr(),
            out.data_ptr(),
            encode_tiled,
            torch.cuda.current_stream().cuda_stream,
        )
        if error:
            raise RuntimeError(f"gemm_norm_min: CUDA error {error}")
        return out
