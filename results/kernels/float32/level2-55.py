import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cfloat>
#include <cstdint>
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

constexpr int kBatch = 128;
constexpr int kIn = 32768;
constexpr int kOut = 32768;
constexpr int kStretch = 32;                   // k of a stage
constexpr int kStretches = kIn / kStretch;     // 1024
constexpr int kRows = 128;                     // rows of W in a tile
constexpr int kTiles = kOut / kRows;           // 256
constexpr int kBlocks = 128;                   // of the product kernel, 2 tiles each
constexpr int kTilesOfBlock = kTiles / kBlocks;
constexpr int kWBytes = kRows * kStretch * 4;  // 16384
constexpr int kXBytes = kBatch * kStretch * 2; // 8192, one piece
constexpr int kStageBytes = kWBytes + 2 * kXBytes;
constexpr int kWide = 4;    // blocks of a cluster, where the device holds all such clusters at once
constexpr int kNarrow = 2;  // elsewhere
// tune: kStages in (6, 7)
constexpr int kStages = 7;
// tune: kStagger in (0, 1, 16)
constexpr int kStagger = 1;
constexpr int kSharedBytes = kStages * kStageBytes + 1024 + 128;
constexpr int kPartials = kTiles * 8;          // for each batch row: one of each warp of each tile

// meta: [0] scale of W, [1] flag (int), [128 + b] inverse of the scale of row b of x.

__device__ __forceinline__ float max_nan(float a, float b) {
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}

// ---------------------------------------------------------------------------------------------------------------
// Barriers, copies

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
// Only shared memory is handed over, so the default scope will do: a wider one costs a fence in every stage.
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
__device__ __forceinline__ void load_for_all(void* to, const void* from, uint32_t bytes, uint64_t* barrier, int mask) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
        "%4;" ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)),
        "h"(static_cast<uint16_t>(mask)) : "memory");
}
__device__ __forceinline__ void load_box(void* to, const CUtensorMap* map, int k, int row, uint64_t* barrier,
                                         uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
        "[%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)), "l"(reinterpret_cast<uint64_t>(map)), "r"(k), "r"(row),
        "r"(shared_address(barrier)), "l"(policy) : "memory");
}
__device__ __forceinline__ void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// ---------------------------------------------------------------------------------------------------------------
// Products

__device__ __forceinline__ uint64_t describe_64(uint32_t begin, uint32_t leading, uint32_t stride) {
    constexpr uint64_t kMode = 2;  // 64-byte swizzle
    return (begin & 0x3ffff) >> 4 | uint64_t(leading >> 4) << 16 | uint64_t(stride >> 4) << 32 | kMode << 62;
}
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_all_but_one() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
__device__ __forceinline__ void wait_products(float (&d)[64]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define EIGHT(n) "+f"(d[n]), "+f"(d[n + 1]), "+f"(d[n + 2]), "+f"(d[n + 3]), "+f"(d[n + 4]), "+f"(d[n + 5]), \
                 "+f"(d[n + 6]), "+f"(d[n + 7])

// D (64 x 128) += A (64 x 16, registers) B (16 x 128, shared memory)
__device__ __forceinline__ void multiply(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}"
        : EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24), EIGHT(32), EIGHT(40), EIGHT(48), EIGHT(56)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

template <int kCount>
__device__ __forceinline__ void give_up_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

__device__ __forceinline__ uint32_t bits(__half2 h) { return *reinterpret_cast<const uint32_t*>(&h); }

// Two values, already scaled, into a pair of high pieces and a pair of low pieces; the first is the lower half.
__device__ __forceinline__ void split_pair(float a, float b, uint32_t& high, uint32_t& low) {
    const __half2 h = __floats2half2_rn(a, b);
    const float2 back = __half22float2(h);
    high = bits(h);
    low = bits(__floats2half2_rn(a - back.x, b - back.y));
}

struct Fragments {
    uint32_t high[2][4];
    uint32_t low[2][4];
};

// The A operands of one stage (two steps of 16 k). `offset` is the byte of this lane's first 16 bytes of step 0; step 1
// is at offset ^ 64, the row that lies 8 further down at + 1024.
__device__ __forceinline__ void make_fragments(const unsigned char* w, uint32_t offset, float scale, Fragments& f) {
    float4 v[2][2];
#pragma unroll
    for (int step = 0; step < 2; ++step) {
        const unsigned char* at = w + (offset ^ (step * 64));
        v[step][0] = *reinterpret_cast<const float4*>(at);
        v[step][1] = *reinterpret_cast<const float4*>(at + 1024);
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            split_pair(v[step][r].x * scale, v[step][r].y * scale, f.high[step][r], f.low[step][r]);
            split_pair(v[step][r].z * scale, v[step][r].w * scale, f.high[step][2 + r], f.low[step][2 + r]);
        }
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            asm volatile("" : "+r"(f.high[step][i])::"memory");
            asm volatile("" : "+r"(f.low[step][i])::"memory");
        }
    }
}

// The six products of one stage: the small ones first.
__device__ __forceinline__ void multiply_stage(float (&d)[64], const Fragments& f, uint32_t x_high, int add) {
    const uint64_t high_0 = describe_64(x_high, kBatch * 16, 512);
    const uint64_t high_1 = describe_64(x_high + 32, kBatch * 16, 512);
    const uint64_t low_0 = describe_64(x_high + kXBytes, kBatch * 16, 512);
    const uint64_t low_1 = describe_64(x_high + kXBytes + 32, kBatch * 16, 512);
    begin_products();
    multiply(d, f.low[0], high_0, add);
    multiply(d, f.low[1], high_1, 1);
    multiply(d, f.high[0], low_0, 1);
    multiply(d, f.high[1], low_1, 1);
    multiply(d, f.high[0], high_0, 1);
    multiply(d, f.high[1], high_1, 1);
    commit_products();
}

// ---------------------------------------------------------------------------------------------------------------
// x into scaled pieces

__device__ __forceinline__ float power_for(float largest, int target) {
    if (!(largest > 0.0f && largest <= FLT_MAX)) return 1.0f;
    int shift = target - ilogbf(largest);
    shift = shift > 100 ? 100 : shift < -100 ? -100 : shift;
    return ldexpf(1.0f, shift);
}

__device__ __forceinline__ float largest_of(float4 v) {
    return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

// Of a block of 1024 threads, for all of them.
__device__ __forceinline__ float largest_of_block(float value) {
    __shared__ float of_warp[32];
    for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = of_warp[threadIdx.x % 32];
    for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

// Blocks 0 to 127: a row of x each. Block 128: the scale of W, and the flag.
__global__ void __launch_bounds__(1024) prepare(const float* __restrict__ x, const float* __restrict__ w,
                                                unsigned char* __restrict__ pieces, float* __restrict__ meta) {
    const int t = threadIdx.x;
    if (blockIdx.x == kBatch) {
        float largest = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int64_t row = t * 32 + j * 8 + (t & 7);
            const int64_t column = ((t * 1021 + j * 331) * 4) & (kIn - 1);
            largest = fmaxf(largest, largest_of(*reinterpret_cast<const float4*>(w + row * kIn + column)));
        }
        largest = largest_of_block(largest);
        if (t == 0) {
            meta[0] = power_for(largest, 6);
            reinterpret_cast<int*>(meta)[1] = 0;
        }
        return;
    }
    const int b = blockIdx.x;
    const float4* row = reinterpret_cast<const float4*>(x + static_cast<int64_t>(b) * kIn);
    float4 v[2][4];  // groups of 16 k: t and t + 1024
    float largest = 0.0f;
#pragma unroll
    for (int g = 0; g < 2; ++g) {
#pragma unroll
        for (int q = 0; q < 4; ++q) v[g][q] = row[(t + g * 1024) * 4 + q];
    }
#pragma unroll
    for (int g = 0; g < 2; ++g) {
#pragma unroll
        for (int q = 0; q < 4; ++q) largest = fmaxf(largest, largest_of(v[g][q]));
    }
    largest = largest_of_block(largest);
    const float scale = power_for(largest, 13);
    if (t == 0) meta[128 + b] = 1.0f / scale;
#pragma unroll
    for (int g = 0; g < 2; ++g) {
        const int group = t + g * 1024;
        // Slots 0 to 7: the first two of each four; slots 8 to 15: the other two.
        uint32_t high[2][4], low[2][4];
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            split_pair(v[g][q].x * scale, v[g][q].y * scale, high[0][q], low[0][q]);
            split_pair(v[g][q].z * scale, v[g][q].w * scale, high[1][q], low[1][q]);
        }
        unsigned char* to = pieces + static_cast<int64_t>(group / 2) * (2 * kXBytes);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint32_t at = b * 64 + (group % 2) * 32 + half * 16;
            at ^= (at >> 3) & 48;
            *reinterpret_cast<uint4*>(to + at) = make_uint4(high[half][0], high[half][1], high[half][2], high[half][3]);
            *reinterpret_cast<uint4*>(to + kXBytes + at) =
                make_uint4(low[half][0], low[half][1], low[half][2], low[half][3]);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// The product, the maxima of pairs of rows, and their sums for each warp. The blocks of a cluster share the pieces of
// x: each loads its part of them for all.

template <int kCluster>
__device__ __forceinline__ void release(uint64_t* barrier, int lane) {
    __syncwarp();
    if (lane < kCluster) arrive_at(barrier, lane);
}

// Launched in clusters of kCluster blocks.
template <int kCluster>
__global__ void __launch_bounds__(384, 1)
product(const __grid_constant__ CUtensorMap map, const unsigned char* __restrict__ pieces,
        const float* __restrict__ bias, float* meta, float* __restrict__ partial) {
    constexpr int kShare = 2 * kXBytes / kCluster;  // bytes of a stage's pieces that a block loads for all
    extern __shared__ unsigned char raw[];
    unsigned char* stages = raw + ((1024 - (shared_address(raw) & 1023)) & 1023);
    uint64_t* full = reinterpret_cast<uint64_t*>(stages + kStages * kStageBytes);
    uint64_t* empty = full + kStages;

    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) {
            start(&full[s], 1);
            start(&empty[s], 8 * kCluster);  // 8 warps of each block
        }
        show_started();
    }
    __syncthreads();
    sync_cluster();

    const int group = threadIdx.x / 128;
    if (group == 2) {
        give_up_registers<24>();
        if (threadIdx.x == 256) {
            uint64_t policy;
            asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
            const int first = (blockIdx.x / kCluster) * kStagger;
            int s = 0;
            uint32_t parity = 1;
            for (int i = 0; i < kTilesOfBlock; ++i) {
                const int row = (blockIdx.x + i * kBlocks) * kRows;
                for (int n = 0; n < kStretches; ++n) {
                    const int stretch = (n + first) & (kStretches - 1);
                    unsigned char* stage = stages + s * kStageBytes;
                    wait(&empty[s], parity);
                    arrive_and_expect(&full[s], kStageBytes);
                    load_box(stage, &map, stretch * kStretch, row, &full[s], policy);
                    load_for_all(stage + kWBytes + rank * kShare,
                                 pieces + static_cast<int64_t>(stretch) * (2 * kXBytes) + rank * kShare, kShare,
                                 &full[s], (1 << kCluster) - 1);
                    if (++s == kStages) s = 0, parity ^= 1;
                }
            }
        }
        __syncwarp();
    } else {
        take_registers<240>();
        const int warp = threadIdx.x / 32;  // 0 to 7
        const int lane = threadIdx.x % 32;
        const int q = lane % 4, g = lane / 4;
        const int order = (g >> 1) + (g & 1) * 4;  // fragment row g is this row of 8
        const int row_in_tile = warp * 16 + order;
        const uint32_t offset = row_in_tile * 128 + ((q ^ order) << 4);
        const uint32_t stages_address = shared_address(stages);
        const float scale = meta[0];
        const float inverse_w = 1.0f / scale;

        float d[64], sum[64];
        Fragments f0, f1;
        int s = 0;
        uint32_t parity = 0;
        for (int tile_index = 0; tile_index < kTilesOfBlock; ++tile_index) {
            const int tile = blockIdx.x + tile_index * kBlocks;
#pragma unroll
            for (int i = 0; i < 64; ++i) d[i] = 0.0f, sum[i] = 0.0f;
            int held = 0;
#pragma unroll 1
            for (int n = 0; n < kStretches / 2; ++n) {
                const int s0 = s;
                wait(&full[s0], parity);
                make_fragments(stages + s0 * kStageBytes, offset, scale, f0);
                if (++s == kStages) s = 0, parity ^= 1;

                wait_products(d);  // of the stretch before
#pragma unroll
                for (int i = 0; i < 64; ++i) sum[i] += d[i];
                multiply_stage(d, f0, stages_address + s0 * kStageBytes + kWBytes, 0);
                if (n > 0) release<kCluster>(&empty[held], lane);  // under the products just issued

                const int s1 = s;
                wait(&full[s1], parity);
                make_fragments(stages + s1 * kStageBytes, offset, scale, f1);
                if (++s == kStages) s = 0, parity ^= 1;
                multiply_stage(d, f1, stages_address + s1 * kStageBytes + kWBytes, 1);

                wait_all_but_one();  // the products of f0 are done
                release<kCluster>(&empty[s0], lane);
                held = s1;
            }
            wait_products(d);
            release<kCluster>(&empty[held], lane);
#pragma unroll
            for (int i = 0; i < 64; ++i) sum[i] += d[i];

            const float bias_0 = bias[tile * kRows + row_in_tile];
            const float bias_1 = bias[tile * kRows + row_in_tile + 8];
            bool bad = false;
#pragma unroll
            for (int j = 0; j < 16; ++j) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    const int column = 8 * j + 2 * q + c;
                    const float inverse_x = meta[128 + column];
                    float y0 = sum[4 * j + c] * inverse_x * inverse_w + bias_0;
                    float y1 = sum[4 * j + 2 + c] * inverse_x * inverse_w + bias_1;
                    bad = bad || !(fabsf(y0) <= FLT_MAX) || !(fabsf(y1) <= FLT_MAX);
                    y0 = fmaxf(y0, __shfl_xor_sync(0xffffffffu, y0, 8));  // the other row of the pair
                    y1 = fmaxf(y1, __shfl_xor_sync(0xffffffffu, y1, 8));
                    float p = y0 + y1;
                    p += __shfl_xor_sync(0xffffffffu, p, 4);
                    p += __shfl_xor_sync(0xffffffffu, p, 16);
                    if (lane < 4) partial[column * kPartials + tile * 8 + warp] = p;
                }
            }
            if (bad) reinterpret_cast<volatile int*>(meta)[1] = 1;
        }
    }
    sync_cluster();
}

// ---------------------------------------------------------------------------------------------------------------
// The sum of a batch row; all of it anew where the pieces could not hold the values

__global__ void __launch_bounds__(256) finish(const float* __restrict__ partial, const float* __restrict__ meta,
                                              const float* __restrict__ x, const float* __restrict__ w,
                                              const float* __restrict__ bias, float* __restrict__ out,
                                              float scale_factor) {
    __shared__ double of_warp[8];
    const int b = blockIdx.x, t = threadIdx.x;
    const int warp = t / 32, lane = t % 32;
    double sum = 0.0;
    if (reinterpret_cast<const int*>(meta)[1] == 0) {
        const float4* from = reinterpret_cast<const float4*>(partial + b * kPartials);
        const float4 u = from[t], v = from[t + 256];
        sum = (double(u.x) + double(u.y)) + (double(u.z) + double(u.w)) + (double(v.x) + double(v.y)) +
              (double(v.z) + double(v.w));
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    } else {
        const float4* row = reinterpret_cast<const float4*>(x + static_cast<int64_t>(b) * kIn);
        for (int pair = warp; pair < kOut / 2; pair += 8) {
            const float4* w0 = reinterpret_cast<const float4*>(w + static_cast<int64_t>(2 * pair) * kIn);
            const float4* w1 = w0 + kIn / 4;
            double y0 = 0.0, y1 = 0.0;
            for (int c = lane; c < kIn / 4; c += 32) {
                const float4 a = row[c], e = w0[c], f = w1[c];
                y0 += double(a.x * e.x + a.y * e.y + a.z * e.z + a.w * e.w);
                y1 += double(a.x * f.x + a.y * f.y + a.z * f.z + a.w * f.w);
            }
            for (int offset = 16; offset > 0; offset /= 2) {
                y0 += __shfl_xor_sync(0xffffffffu, y0, offset);
                y1 += __shfl_xor_sync(0xffffffffu, y1, offset);
            }
            sum += double(max_nan(float(y0) + bias[2 * pair], float(y1) + bias[2 * pair + 1]));
        }
    }
    if (lane == 0) of_warp[warp] = sum;
    __syncthreads();
    if (t == 0) {
        double total = 0.0;
        for (int i = 0; i < 8; ++i) total += of_warp[i];
        out[b] = static_cast<float>(total) * scale_factor;
    }
}

// ---------------------------------------------------------------------------------------------------------------

typedef CUresult (*Encode)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                           const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

typedef void (*Product)(CUtensorMap, const unsigned char*, const float*, float*, float*);

static void set_launch(cudaLaunchConfig_t& config, cudaLaunchAttribute& attribute, unsigned cluster,
                       cudaStream_t stream) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    config.gridDim = dim3(kBlocks, 1, 1);
    config.blockDim = dim3(384, 1, 1);
    config.dynamicSmemBytes = kSharedBytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
}

extern "C" int linear_pool_sum(const float* x, const float* w, const float* bias, unsigned char* pieces, float* meta,
                               float* partial, float* out, float scale_factor, void* stream_pointer) {
    static Encode encode = nullptr;
    static const void* kernel = nullptr;
    static unsigned cluster = 0;
    cudaStream_t stream = static_cast<cudaStream_t>(stream_pointer);
    if (kernel == nullptr) {
        void* driver = dlopen("libcuda.so.1", RTLD_NOW);
        if (driver == nullptr) return 100001;
        encode = reinterpret_cast<Encode>(dlsym(driver, "cuTensorMapEncodeTiled"));
        if (encode == nullptr) return 100002;
        Product wide_product = product<kWide>;
        Product narrow_product = product<kNarrow>;
        const void* wide = reinterpret_cast<const void*>(wide_product);
        const void* narrow = reinterpret_cast<const void*>(narrow_product);
        cudaError_t error = cudaFuncSetAttribute(wide, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaFuncSetAttribute(narrow, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);

        // All blocks must run at once: the wide clusters only where that many fit.
        cudaLaunchConfig_t config = {};
        cudaLaunchAttribute attribute;
        set_launch(config, attribute, kWide, stream);
        int clusters = 0;
        error = cudaOccupancyMaxActiveClusters(&clusters, wide, &config);
        if (error != cudaSuccess) {
            cudaGetLastError();
            clusters = 0;
        }
        const bool fits = clusters >= kBlocks / kWide;
        cluster = fits ? kWide : kNarrow;
        kernel = fits ? wide : narrow;
    }

    prepare<<<kBatch + 1, 1024, 0, stream>>>(x, w, pieces, meta);

    CUtensorMap map;
    const cuuint64_t extents[2] = {kIn, kOut};
    const cuuint64_t strides[1] = {static_cast<cuuint64_t>(kIn) * 4};
    const cuuint32_t box[2] = {kStretch, kRows};
    const cuuint32_t steps[2] = {1, 1};
    const CUresult result =
        encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, const_cast<float*>(w), extents, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) return 200000 + static_cast<int>(result);

    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute;
    set_launch(config, attribute, cluster, stream);
    const unsigned char* const_pieces = pieces;
    void* arguments[5] = {&map, &const_pieces, &bias, &meta, &partial};
    const cudaError_t launched = cudaLaunchKernelExC(&config, kernel, arguments);
    if (launched != cudaSuccess) return static_cast<int>(launched);

    finish<<<kBatch, 256, 0, stream>>>(partial, meta, x, w, bias, out, scale_factor);
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="linear_pool_sum_fp16x3_clusters",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
linear_pool_sum = library.linear_pool_sum
linear_pool_sum.argtypes = [ctypes.c_void_p] * 7 + [ctypes.c_float, ctypes.c_void_p]
linear_pool_sum.restype = ctypes.c_int

BATCH = 128
FEATURES = 32768


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, kernel_size, scale_factor):
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.scale_factor = scale_factor
        if in_features != FEATURES or out_features != FEATURES or kernel_size != 2:
            raise ValueError("specialised for 32768 features and pairs")
        self._scratch = None

    def forward(self, x):
        x = x.contiguous()
        if x.shape != (BATCH, FEATURES) or x.dtype != torch.float32:
            raise ValueError("specialised for float32 inputs of (128, 32768)")
        weight = self.matmul.weight
        bias = self.matmul.bias
        scratch = self._scratch
        if scratch is None or scratch[0].device != x.device:
            pieces = torch.empty(BATCH * FEATURES * 4, dtype=torch.uint8, device=x.device)
            meta = torch.empty(256, dtype=torch.float32, device=x.device)
            partial = torch.empty(BATCH * (FEATURES // 128) * 8, dtype=torch.float32, device=x.device)
            scratch = (pieces, meta, partial)
            self._scratch = scratch
        pieces, meta, partial = scratch
        out = torch.empty(BATCH, dtype=torch.float32, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = linear_pool_sum(
            x.data_ptr(),
            weight.data_ptr(),
            bias.data_ptr(),
            pieces.data_ptr(),
            meta.data_ptr(),
            partial.data_ptr(),
            out.data_ptr(),
            float(self.scale_factor),
            stream,
        )
        if error:
            raise RuntimeError(f"linear_pool_sum: error {error}")
        return out
