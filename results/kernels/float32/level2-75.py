import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cooperative_groups.h>

constexpr int kRows = 1024;       // batch
constexpr int kFeatures = 8192;   // out features
constexpr int kDepth = 8192;      // in features
constexpr int kPiece = 128 * 64 * 2;            // bytes of one piece of a tile of 128 lines x 64 k
constexpr int kPair = 2 * kPiece;               // hi and lo
constexpr int kTilesK = kDepth / 64;            // 128
constexpr int kTilesN = kFeatures / 128;        // 64
constexpr int kStages = 3;
constexpr int kStageBytes = 2 * kPair;          // 65536
constexpr int kShared = kStages * kStageBytes + 1024;
constexpr int kStretch = 8;                     // stages between two plain additions
constexpr int kSegments = 16;                   // segments of 512 k, in which W becomes ready
constexpr int kSegmentTiles = kTilesK / kSegments;          // 8 stages
constexpr int kUnitsOfSegment = 64;             // units of 2 lines x 512 k
constexpr int kUnits = kTilesN * kSegments * kUnitsOfSegment;  // 65536
constexpr float kScaleW = 16384.0f;
constexpr float kInverseW = 1.0f / 16384.0f;

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
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void load_for_all(void* to, const void* from, uint32_t bytes, uint64_t* barrier, int mask) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
        "%4;" ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)),
        "h"(static_cast<uint16_t>(mask)) : "memory");
}
__device__ __forceinline__ void arrive_at(uint64_t* barrier, int rank) {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(barrier)), "r"(rank)
        : "memory");
}
// Between ordinary accesses of global memory and those of bulk copies.
__device__ __forceinline__ void between_proxies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
__device__ __forceinline__ void count_up(uint32_t* counter) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(1u) : "memory");
}
__device__ __forceinline__ uint32_t look_at(const uint32_t* counter) {
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    return value;
}

// Descriptor of K-major lines of 128 bytes, 128-byte swizzle: eight lines are 1024 bytes.
__device__ __forceinline__ uint64_t describe(uint32_t address) {
    return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>((128 * 16) >> 4) << 16 |
           static_cast<uint64_t>(1024 >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}

#define D4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define D16(i) D4(i), D4((i) + 4), D4((i) + 8), D4((i) + 12)

// D (64 x 128) += A (64 x 16) B (16 x 128)
__device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 0;\n}"
        : D16(0), D16(16), D16(32), D16(48)
        : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_all_but_one() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
__device__ __forceinline__ void wait_products(float (&d)[64]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void give_up_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
__device__ __forceinline__ float min_nan(float a, float b) {
    float m;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}

// Two values: hi pieces and lo pieces, each two halves in 32 bits.
__device__ __forceinline__ void split_two(float a, float b, uint32_t& hi, uint32_t& lo) {
    const __half2 h = __floats2half2_rn(a, b);
    const __half2 l = __floats2half2_rn(a - __low2float(h), b - __high2float(h));
    hi = *reinterpret_cast<const uint32_t*>(&h);
    lo = *reinterpret_cast<const uint32_t*>(&l);
}
// Four values of a line, to 8 bytes of the hi piece and 8 of the lo piece.
__device__ __forceinline__ void store_four(uint8_t* place, float4 v, float scale) {
    uint2 hi, lo;
    split_two(v.x * scale, v.y * scale, hi.x, lo.x);
    split_two(v.z * scale, v.w * scale, hi.y, lo.y);
    *reinterpret_cast<uint2*>(place) = hi;
    *reinterpret_cast<uint2*>(place + kPiece) = lo;
}

// One block a row of x. It also clears the counters of W.
__global__ void __launch_bounds__(256) split_kernel(const float* __restrict__ x, uint8_t* __restrict__ x_pieces,
                                                    float* __restrict__ inverse_x, uint32_t* __restrict__ ready) {
    const int row = static_cast<int>(blockIdx.x);
    const int t = threadIdx.x;
    if (row < kTilesN * kSegments / 256) ready[row * 256 + t] = 0;
    const float4* from4 = reinterpret_cast<const float4*>(x + static_cast<size_t>(row) * kDepth) + t;

    float4 v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = __ldg(from4 + i * 256);
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        largest = fmaxf(largest, fmaxf(fmaxf(fabsf(v[i].x), fabsf(v[i].y)), fmaxf(fabsf(v[i].z), fabsf(v[i].w))));
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    }
    __shared__ float of_warp[8];
    if (t % 32 == 0) of_warp[t / 32] = largest;
    __syncthreads();
    largest = of_warp[0];
#pragma unroll
    for (int i = 1; i < 8; ++i) largest = fmaxf(largest, of_warp[i]);

    // The power of two that brings the largest magnitude to [2^13, 2^14).
    int exponent = 267 - ((__float_as_int(largest) >> 23) & 0xff);
    exponent = min(max(exponent, 1), 253);
    const float scale = __int_as_float(exponent << 23);
    if (t == 0) inverse_x[row] = __int_as_float((254 - exponent) << 23);

    // 16 threads write the 128 bytes of one line of one tile.
    const int line = row % 128;
    const int q = t % 16;
    uint8_t* place = x_pieces + (static_cast<size_t>(row / 128) * kTilesK + t / 16) * kPair + line * 128 +
                     (((q / 2) ^ (line % 8)) * 16 + (q % 2) * 8);
#pragma unroll
    for (int i = 0; i < 8; ++i) store_four(place + static_cast<size_t>(i) * 16 * kPair, v[i], scale);
}

// A unit: lines `line` and `line + 8` of a tile of W, 512 k.
struct Unit {
    const float4* from;
    uint8_t* to;
    uint32_t* counter;
};
__device__ __forceinline__ Unit find_unit(int unit, int group_tiles, int lane, const float* w, uint8_t* w_pieces,
                                          uint32_t* ready) {
    const int segment = unit / kUnitsOfSegment;
    const int part = unit % kUnitsOfSegment;
    const int group = segment / (group_tiles * kSegments);
    const int first = group * group_tiles;
    const int size = min(group_tiles, kTilesN - first);
    const int rest = segment - group * group_tiles * kSegments;
    const int k = rest / size;
    const int tile = first + rest % size;
    const int line = part / 8 * 16 + part % 8;
    const int q = lane % 16;
    Unit found;
    found.from = reinterpret_cast<const float4*>(w + static_cast<size_t>(tile * 128 + line) * kDepth + k * 512) + lane;
    found.to = w_pieces + static_cast<size_t>(tile * kTilesK + k * kSegmentTiles + lane / 16) * kPair + line * 128 +
               (((q / 2) ^ (line % 8)) * 16 + (q % 2) * 8);
    found.counter = ready + tile * kSegments + k;
    return found;
}
__device__ __forceinline__ void load_unit(float4 (&v)[8], const float4* from) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        v[i] = __ldcs(from + i * 32);
        v[4 + i] = __ldcs(from + 8 * (kDepth / 4) + i * 32);
    }
}
// W to pieces, in the order in which the products need it. One warp's share.
__device__ __forceinline__ void convert_weight(const float* w, uint8_t* w_pieces, uint32_t* ready, int group_tiles,
                                               int warp, int warps) {
    const int lane = threadIdx.x % 32;
    int unit = warp;
    if (unit >= kUnits) return;
    float4 v[8];
    Unit now = find_unit(unit, group_tiles, lane, w, w_pieces, ready);
    load_unit(v, now.from);
#pragma unroll 1
    while (true) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            store_four(now.to + static_cast<size_t>(i) * 2 * kPair, v[i], kScaleW);
            store_four(now.to + static_cast<size_t>(i) * 2 * kPair + 8 * 128, v[4 + i], kScaleW);
        }
        uint32_t* counter = now.counter;
        unit += warps;
        const bool more = unit < kUnits;
        if (more) {
            now = find_unit(unit, group_tiles, lane, w, w_pieces, ready);
            load_unit(v, now.from);  // on its way during the fence
        }
        between_proxies();
        __syncwarp();
        if (lane == 0) {
            __threadfence();
            count_up(counter);
        }
        __syncwarp();
        if (!more) break;
    }
}

// Clusters of 4: 2 x 2 tiles of 128 x 128; of 2: 2 x 1 tiles.
template <int kCluster>
__global__ void __launch_bounds__(384, 1)
product_kernel(const float* __restrict__ weight, const uint8_t* x_pieces, uint8_t* w_pieces, uint32_t* ready,
               const float* __restrict__ inverse_x, const float* __restrict__ linear_bias,
               const float* __restrict__ gamma, const float* __restrict__ beta, float* __restrict__ partial,
               int group_tiles) {
    constexpr int kAcross = kCluster / 2;                      // tiles of a cluster along N
    constexpr int kClusterTiles = 4 * (kTilesN / kAcross);     // 128 or 256
    constexpr int kReleases = kCluster == 4 ? 3 : 2;           // blocks that hear of a stage that is free again
    extern __shared__ uint8_t raw[];
    __shared__ alignas(8) uint64_t full[kStages];
    __shared__ alignas(8) uint64_t empty[kStages];
    uint8_t* stages = raw + ((1024u - (shared_address(raw) & 1023u)) & 1023u);

    auto cluster = cooperative_groups::this_cluster();
    const int rank = static_cast<int>(blockIdx.x % kCluster);
    const int rank_m = rank & 1;
    const int rank_n = rank >> 1;
    const int first = static_cast<int>(blockIdx.x / kCluster);
    const int step = static_cast<int>(gridDim.x / kCluster);

    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) {
            start(&full[s], 1);
            start(&empty[s], 8 * kReleases);
        }
        show_started();
    }
    cluster.sync();

    const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);
    if (group == 0) {
        give_up_registers<88>();
        const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
        if (warp != 0) {
            convert_weight(weight, w_pieces, ready, group_tiles, static_cast<int>(blockIdx.x) * 3 + warp - 1,
                           static_cast<int>(gridDim.x) * 3);
        } else if (threadIdx.x == 0) {
            int s = 0;
            uint32_t parity = 0;
#pragma unroll 1
            for (int tile = first; tile < kClusterTiles; tile += step) {
                const int tile_m = tile % 4 * 2 + rank_m;
                const int tile_n = tile / 4 * kAcross + rank_n;
                const uint8_t* a = x_pieces + static_cast<size_t>(tile_m) * kTilesK * kPair;
                const uint8_t* b = w_pieces + static_cast<size_t>(tile_n) * kTilesK * kPair + rank_m * kPiece;
                if (kCluster == 4) a += rank_n * kPiece;
                const uint32_t* counter = ready + tile_n * kSegments;
#pragma unroll 1
                for (int segment = 0; segment < kSegments; ++segment) {
                    while (look_at(counter + segment) < static_cast<uint32_t>(kUnitsOfSegment)) __nanosleep(32);
                    between_proxies();
#pragma unroll 1
                    for (int k = 0; k < kSegmentTiles; ++k) {
                        wait(&empty[s], parity ^ 1);
                        arrive_and_expect(&full[s], kStageBytes);
                        uint8_t* stage = stages + s * kStageBytes;
                        if (kCluster == 4) {
                            // Blocks of the same rows share A, blocks of the same columns B: each fetches a half.
                            load_for_all(stage + rank_n * kPiece, a, kPiece, &full[s], 5 << rank_m);
                            load_for_all(stage + kPair + rank_m * kPiece, b, kPiece, &full[s], 3 << (2 * rank_n));
                        } else {
                            bulk_load(stage, a, kPair, &full[s]);
                            load_for_all(stage + kPair + rank_m * kPiece, b, kPiece, &full[s], 3);
                        }
                        a += kPair;
                        b += kPair;
                        if (++s == kStages) s = 0, parity ^= 1;
                    }
                }
            }
        }
        __syncwarp();
    } else {
        take_registers<208>();
        const int w = group - 1;
        const int lane = threadIdx.x % 32;
        const int warp = threadIdx.x % 128 / 32;
        const int release = rank ^ lane;  // lane 0 itself, lane 1 the other rows, lane 2 the other columns
        const uint32_t base = shared_address(stages);
        const uint64_t a_first = describe(base + w * (64 * 128));
        const uint64_t b_first = describe(base + kPair);
        constexpr int kLow = kPiece >> 4;
        float d[64], sum[64];
#pragma unroll
        for (int i = 0; i < 64; ++i) d[i] = 0.0f;
        int s = 0;
        uint32_t parity = 0;

#pragma unroll 1
        for (int tile = first; tile < kClusterTiles; tile += step) {
#pragma unroll
            for (int i = 0; i < 64; ++i) sum[i] = 0.0f;
            int done = 0;
            int count = w == 0 ? kStretch : kStretch / 2;  // the two groups take their sums out at different times
#pragma unroll 1
            while (done < kTilesK) {
                const int n = min(count, kTilesK - done);
                count = kStretch;
                int before = 0;
#pragma unroll 1
                for (int j = 0; j < n; ++j) {
                    wait(&full[s], parity);
                    const uint64_t a = a_first + static_cast<uint64_t>(s * (kStageBytes >> 4));
                    const uint64_t b = b_first + static_cast<uint64_t>(s * (kStageBytes >> 4));
                    begin_products();
                    multiply(d, a, b + kLow, j != 0);
                    multiply(d, a + kLow, b, 1);
#pragma unroll
                    for (int k = 1; k < 4; ++k) {
                        multiply(d, a + 2 * k, b + kLow + 2 * k, 1);
                        multiply(d, a + kLow + 2 * k, b + 2 * k, 1);
                    }
#pragma unroll
                    for (int k = 0; k < 4; ++k) multiply(d, a + 2 * k, b + 2 * k, 1);
                    commit_products();
                    wait_all_but_one();  // the stage before has been used
                    if (j > 0 && lane < kReleases) arrive_at(&empty[before], release);
                    before = s;
                    if (++s == kStages) s = 0, parity ^= 1;
                }
                wait_products(d);
                if (lane < kReleases) arrive_at(&empty[before], release);
                __syncwarp();
#pragma unroll
                for (int i = 0; i < 64; ++i) sum[i] += d[i];
                done += n;
            }

            // Group norm of groups of 16 columns, and the minimum of each row over this tile.
            const int tile_m = tile % 4 * 2 + rank_m;
            const int tile_n = tile / 4 * kAcross + rank_n;
            const int row = tile_m * 128 + w * 64 + warp * 16 + lane / 4;
            const float scale0 = __ldg(inverse_x + row), scale1 = __ldg(inverse_x + row + 8);
            float least0 = __int_as_float(0x7f800000), least1 = least0;
#pragma unroll
            for (int q = 0; q < 8; ++q) {
                const int column = tile_n * 128 + q * 16 + lane % 4 * 2;
                float v0[4], v1[4];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float2 plus = __ldg(reinterpret_cast<const float2*>(linear_bias + column + 8 * h));
                    const int at = 8 * q + 4 * h;
                    v0[2 * h] = sum[at] * kInverseW * scale0 + plus.x;
                    v0[2 * h + 1] = sum[at + 1] * kInverseW * scale0 + plus.y;
                    v1[2 * h] = sum[at + 2] * kInverseW * scale1 + plus.x;
                    v1[2 * h + 1] = sum[at + 3] * kInverseW * scale1 + plus.y;
                }
                float mean0 = (v0[0] + v0[1]) + (v0[2] + v0[3]);
                float mean1 = (v1[0] + v1[1]) + (v1[2] + v1[3]);
                mean0 += __shfl_xor_sync(0xffffffffu, mean0, 1);
                mean1 += __shfl_xor_sync(0xffffffffu, mean1, 1);
                mean0 += __shfl_xor_sync(0xffffffffu, mean0, 2);
                mean1 += __shfl_xor_sync(0xffffffffu, mean1, 2);
                mean0 *= 0.0625f;
                mean1 *= 0.0625f;
                float square0 = 0.0f, square1 = 0.0f;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    v0[i] -= mean0;
                    v1[i] -= mean1;
                    square0 += v0[i] * v0[i];
                    square1 += v1[i] * v1[i];
                }
                square0 += __shfl_xor_sync(0xffffffffu, square0, 1);
                square1 += __shfl_xor_sync(0xffffffffu, square1, 1);
                square0 += __shfl_xor_sync(0xffffffffu, square0, 2);
                square1 += __shfl_xor_sync(0xffffffffu, square1, 2);
                const float r0 = rsqrtf(square0 * 0.0625f + 1e-5f);
                const float r1 = rsqrtf(square1 * 0.0625f + 1e-5f);
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float2 g = __ldg(reinterpret_cast<const float2*>(gamma + column + 8 * h));
                    const float2 e = __ldg(reinterpret_cast<const float2*>(beta + column + 8 * h));
                    least0 = min_nan(least0, v0[2 * h] * r0 * g.x + e.x);
                    least0 = min_nan(least0, v0[2 * h + 1] * r0 * g.y + e.y);
                    least1 = min_nan(least1, v1[2 * h] * r1 * g.x + e.x);
                    least1 = min_nan(least1, v1[2 * h + 1] * r1 * g.y + e.y);
                }
            }
            least0 = min_nan(least0, __shfl_xor_sync(0xffffffffu, least0, 1));
            least1 = min_nan(least1, __shfl_xor_sync(0xffffffffu, least1, 1));
            least0 = min_nan(least0, __shfl_xor_sync(0xffffffffu, least0, 2));
            least1 = min_nan(least1, __shfl_xor_sync(0xffffffffu, least1, 2));
            if (lane % 4 == 0) {
                partial[tile_n * kRows + row] = least0;
                partial[tile_n * kRows + row + 8] = least1;
            }
            __syncwarp();
        }
    }
    cluster.sync();
}

// out[c][b] = minimum over the tiles of partial[tile][b], plus bias[c]. A block: 128 b, 128 c.
__global__ void __launch_bounds__(256) finish_kernel(const float* __restrict__ partial,
                                                     const float* __restrict__ bias, float* __restrict__ out) {
    __shared__ float4 shared[8][32];
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32;
    const int at = blockIdx.x * 32 + lane;  // float4 within a row of 1024
    const float4* partial4 = reinterpret_cast<const float4*>(partial);
    float4 m = __ldg(partial4 + part * 8 * (kRows / 4) + at);
#pragma unroll
    for (int i = 1; i < 8; ++i) {
        const float4 v = __ldg(partial4 + (part * 8 + i) * (kRows / 4) + at);
        m.x = min_nan(m.x, v.x), m.y = min_nan(m.y, v.y), m.z = min_nan(m.z, v.z), m.w = min_nan(m.w, v.w);
    }
    shared[part][lane] = m;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float4 v = shared[i][lane];
        m.x = min_nan(m.x, v.x), m.y = min_nan(m.y, v.y), m.z = min_nan(m.z, v.z), m.w = min_nan(m.w, v.w);
    }
    float4* out4 = reinterpret_cast<float4*>(out);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const int c = blockIdx.y * 128 + i * 8 + part;
        const float add = __ldg(bias + c);
        out4[static_cast<size_t>(c) * (kRows / 4) + at] = make_float4(m.x + add, m.y + add, m.z + add, m.w + add);
    }
}

template <int kCluster>
static void configure(cudaLaunchConfig_t& config, cudaLaunchAttribute& attribute, int clusters, cudaStream_t stream) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = kCluster;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    config.gridDim = dim3(clusters * kCluster, 1, 1);
    config.blockDim = dim3(384, 1, 1);
    config.dynamicSmemBytes = kShared;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
}
// How many clusters the device holds at once.
template <int kCluster>
static cudaError_t count_clusters(int* count) {
    *count = 0;
    cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(&product_kernel<kCluster>),
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    if (error != cudaSuccess) return error;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    configure<kCluster>(config, attribute, 128 / kCluster, nullptr);
    return cudaOccupancyMaxActiveClusters(count, reinterpret_cast<const void*>(&product_kernel<kCluster>), &config);
}
template <int kCluster>
static cudaError_t launch_product(int clusters, cudaStream_t stream, const float* weight, const uint8_t* x_pieces,
                                  uint8_t* w_pieces, uint32_t* ready, const float* inverse_x,
                                  const float* linear_bias, const float* gamma, const float* beta, float* partial,
                                  int group_tiles) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    configure<kCluster>(config, attribute, clusters, stream);
    void* arguments[] = {&weight, &x_pieces, &w_pieces, &ready, &inverse_x, &linear_bias,
                         &gamma, &beta, &partial, &group_tiles};
    return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(&product_kernel<kCluster>), arguments);
}

extern "C" int64_t scratch_bytes() {
    return static_cast<int64_t>(kRows / 128 + kTilesN) * kTilesK * kPair +
           static_cast<int64_t>(kRows + kTilesN * kRows + kTilesN * kSegments) * 4;
}

extern "C" int gemm_norm_min(const float* x, const float* weight, const float* linear_bias, const float* gamma,
                             const float* beta, const float* bias, float* out, uint8_t* scratch, void* stream_pointer) {
    cudaStream_t stream = static_cast<cudaStream_t>(stream_pointer);
    static int clusters = 0, cluster_size = 0;
    if (clusters == 0) {
        int count = 0;
        cudaError_t error = count_clusters<4>(&count);
        if (error == cudaSuccess && count >= 32) {
            cluster_size = 4;
            clusters = 32;
        } else {
            cudaGetLastError();
            error = count_clusters<2>(&count);
            if (error != cudaSuccess) return static_cast<int>(error);
            if (count < 1) return static_cast<int>(cudaErrorInvalidConfiguration);
            cluster_size = 2;
            clusters = count < 256 ? count : 256;
        }
    }
    // Tiles of W, along N, that one wave of clusters uses.
    int group_tiles = (clusters * (cluster_size / 2) + 3) / 4;
    if (group_tiles > kTilesN) group_tiles = kTilesN;

    uint8_t* x_pieces = scratch;
    uint8_t* w_pieces = x_pieces + static_cast<size_t>(kRows / 128) * kTilesK * kPair;
    float* inverse_x = reinterpret_cast<float*>(w_pieces + static_cast<size_t>(kTilesN) * kTilesK * kPair);
    float* partial = inverse_x + kRows;
    uint32_t* ready = reinterpret_cast<uint32_t*>(partial + kTilesN * kRows);

    split_kernel<<<kRows, 256, 0, stream>>>(x, x_pieces, inverse_x, ready);
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return static_cast<int>(error);
    if (cluster_size == 4) {
        error = launch_product<4>(clusters, stream, weight, x_pieces, w_pieces, ready, inverse_x, linear_bias, gamma,
                                  beta, partial, group_tiles);
    } else {
        error = launch_product<2>(clusters, stream, weight, x_pieces, w_pieces, ready, inverse_x, linear_bias, gamma,
                                  beta, partial, group_tiles);
    }
    if (error != cudaSuccess) return static_cast<int>(error);
    finish_kernel<<<dim3(kRows / 128, kFeatures / 128), 256, 0, stream>>>(partial, bias, out);
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="gemm_group_norm_min_bias_overlapped",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
gemm_norm_min = library.gemm_norm_min
gemm_norm_min.argtypes = [ctypes.c_void_p] * 9
gemm_norm_min.restype = ctypes.c_int
library.scratch_bytes.argtypes = []
library.scratch_bytes.restype = ctypes.c_int64
SCRATCH_BYTES = library.scratch_bytes()


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, num_groups, bias_shape):
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.group_norm = nn.GroupNorm(num_groups, out_features)
        self.bias = nn.Parameter(torch.randn(bias_shape))
        if (in_features, out_features, num_groups) != (8192, 8192, 512):
            raise ValueError("ModelNew is made for 8192 features in, 8192 out and 512 groups")
        self._scratch = None

    def forward(self, x):
        if x.shape != (1024, 8192) or x.dtype != torch.float32:
            raise ValueError("ModelNew is made for float32 inputs of shape (1024, 8192)")
        x = x.contiguous()
        scratch = self._scratch
        if scratch is None or scratch.device != x.device:
            scratch = torch.empty(SCRATCH_BYTES, dtype=torch.uint8, device=x.device)
            self._scratch = scratch
        weight = self.gemm.weight.contiguous()
        linear_bias = self.gemm.bias
        gamma = self.group_norm.weight
        beta = self.group_norm.bias
        bias = self.bias
        out = torch.empty((1, 8192, 1024, 1), dtype=torch.float32, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = gemm_norm_min(
            x.data_ptr(),
            weight.data_ptr(),
            linear_bias.data_ptr(),
            gamma.data_ptr(),
            beta.data_ptr(),
            bias.data_ptr(),
            out.data_ptr(),
            scratch.data_ptr(),
            stream,
        )
        if error:
            raise RuntimeError(f"gemm_norm_min: CUDA error {error}")
        return out
