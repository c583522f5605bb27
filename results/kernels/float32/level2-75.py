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
constexpr int kClusterTilesM = kRows / 256;     // 4
constexpr int kClusterTiles = kClusterTilesM * kTilesN;  // 256
constexpr int kStages = 3;
constexpr int kStageBytes = 2 * kPair;          // 65536
constexpr int kRowBytes = kDepth * 4;           // 32768, one row of W
constexpr int kShared = kStages * kStageBytes + kRowBytes + 1024;
constexpr int kSplitters = 96;                  // threads that split W beside the products
// tune: kStretch in (4, 8)
constexpr int kStretch = 4;                     // stages between two plain additions
// tune: kFirst in (17, 20, 24)
constexpr int kFirst = 17;                      // column tiles of W split before the products begin
// tune: kPause in (0, 2000)
constexpr int kPause = 0;                       // nanoseconds between two rows split beside the products
constexpr int kNext = kTilesN;                  // place of the queue's counter behind those of the tiles

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

// Plain writes become visible to bulk copies, and the other way round.
__device__ __forceinline__ void fence_proxies() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ __forceinline__ int read_acquire(const int* from) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}
__device__ __forceinline__ void add_release(int* to, int value) {
    asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ void sync_splitters() {
    asm volatile("bar.sync 1, %0;" ::"n"(kSplitters) : "memory");
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
__device__ __forceinline__ float largest_of(float4 v) {
    return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}
// Exponent field of the power of two that brings the largest magnitude to [2^13, 2^14).
__device__ __forceinline__ int scale_exponent(float largest) {
    const int exponent = 267 - ((__float_as_int(largest) >> 23) & 0xff);
    return min(max(exponent, 1), 253);
}
// Eight values, scaled and split, to their places in the tile's pieces.
__device__ __forceinline__ void write_chunk(uint8_t* tile_line, int chunk, int line, float4 a, float4 b, float scale) {
    uint4 hi, lo;
    split_two(a.x * scale, a.y * scale, hi.x, lo.x);
    split_two(a.z * scale, a.w * scale, hi.y, lo.y);
    split_two(b.x * scale, b.y * scale, hi.z, lo.z);
    split_two(b.z * scale, b.w * scale, hi.w, lo.w);
    uint8_t* place = tile_line + static_cast<size_t>(chunk / 8) * kPair + (((chunk % 8) ^ (line % 8)) * 16);
    *reinterpret_cast<uint4*>(place) = hi;
    *reinterpret_cast<uint4*>(place + kPiece) = lo;
}

// One block a row of x or of the first kFirst tiles of W, from the last to the first: W, then x.
// The first block also sets the counters of the product kernel.
__global__ void __launch_bounds__(256) split_kernel(const float* __restrict__ x, const float* __restrict__ w,
                                                    uint8_t* __restrict__ x_pieces, uint8_t* __restrict__ w_pieces,
                                                    float* __restrict__ inverse_x, float* __restrict__ inverse_w,
                                                    int* __restrict__ counters) {
    int row = kRows + kFirst * 128 - 1 - static_cast<int>(blockIdx.x);
    const float* from = x;
    uint8_t* to = x_pieces;
    float* inverse = inverse_x;
    if (row >= kRows) {
        row -= kRows;
        from = w, to = w_pieces, inverse = inverse_w;
    }
    const float4* from4 = reinterpret_cast<const float4*>(from + static_cast<size_t>(row) * kDepth);
    const int t = threadIdx.x;
    if (blockIdx.x == 0 && t <= kNext) counters[t] = t == kNext ? kFirst * 128 : 0;

    float4 v[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int chunk = i * 256 + t;  // of 8 values
        v[2 * i] = __ldg(from4 + chunk * 2);
        v[2 * i + 1] = __ldg(from4 + chunk * 2 + 1);
    }
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = fmaxf(largest, largest_of(v[i]));
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

    const int exponent = scale_exponent(largest);
    const float scale = __int_as_float(exponent << 23);
    if (t == 0) inverse[row] = __int_as_float((254 - exponent) << 23);

    const int line = row % 128;
    uint8_t* tile = to + static_cast<size_t>(row / 128) * kTilesK * kPair + line * 128;
#pragma unroll
    for (int i = 0; i < 4; ++i) write_chunk(tile, i * 256 + t, line, v[2 * i], v[2 * i + 1], scale);
}

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
product_kernel(const uint8_t* __restrict__ x_pieces, const float* __restrict__ weight, uint8_t* w_pieces,
               const float* __restrict__ inverse_x, float* inverse_w,
               const float* __restrict__ linear_bias, const float* __restrict__ gamma,
               const float* __restrict__ beta, float* __restrict__ partial, int* counters) {
    extern __shared__ uint8_t raw[];
    __shared__ alignas(8) uint64_t full[kStages];
    __shared__ alignas(8) uint64_t empty[kStages];
    __shared__ alignas(8) uint64_t row_full;
    __shared__ float of_warp[3];
    __shared__ int claimed;
    uint8_t* stages = raw + ((1024u - (shared_address(raw) & 1023u)) & 1023u);

    auto cluster = cooperative_groups::this_cluster();
    const int rank = static_cast<int>(blockIdx.x & 1);
    const int first = static_cast<int>(blockIdx.x >> 1);
    const int step = static_cast<int>(gridDim.x >> 1);

    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) {
            start(&full[s], 1);
            start(&empty[s], 16);
        }
        start(&row_full, 1);
        show_started();
    }
    cluster.sync();

    const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);
    if (group == 0) {
        give_up_registers<72>();
        if (threadIdx.x == 0) {
            int s = 0;
            uint32_t parity = 0;
            for (int tile = first; tile < kClusterTiles; tile += step) {
                const int tile_m = tile % kClusterTilesM * 2 + rank;
                const int tile_n = tile / kClusterTilesM;
                if (tile_n >= kFirst) {  // split beside the products: wait for its 128 rows
                    while (read_acquire(counters + tile_n) < 128) __nanosleep(100);
                    fence_proxies();
                }
                const uint8_t* a = x_pieces + static_cast<size_t>(tile_m) * kTilesK * kPair;
                const uint8_t* b = w_pieces + static_cast<size_t>(tile_n) * kTilesK * kPair + rank * kPiece;
                for (int k = 0; k < kTilesK; ++k) {
                    wait(&empty[s], parity ^ 1);
                    arrive_and_expect(&full[s], kStageBytes);
                    uint8_t* stage = stages + s * kStageBytes;
                    bulk_load(stage, a, kPair, &full[s]);
                    load_for_all(stage + kPair + rank * kPiece, b, kPiece, &full[s], 3);
                    a += kPair;
                    b += kPair;
                    if (++s == kStages) s = 0, parity ^= 1;
                }
            }
        } else if (threadIdx.x >= 32) {
            // Three warps split the rows of W that later tiles need, in their order, one row at a time.
            const int t = static_cast<int>(threadIdx.x) - 32;
            float4* row4 = reinterpret_cast<float4*>(stages + kStages * kStageBytes);
            uint32_t parity = 0;
            while (true) {
                if (t == 0) {
                    const int next = atomicAdd(counters + kNext, 1);
                    claimed = next;
                    if (next < kFeatures) {
                        arrive_and_expect(&row_full, kRowBytes);
                        bulk_load(row4, weight + static_cast<size_t>(next) * kDepth, kRowBytes, &row_full);
                    }
                }
                sync_splitters();
                const int row = claimed;
                if (row >= kFeatures) break;
                wait(&row_full, parity);
                parity ^= 1;

                float largest = 0.0f;
#pragma unroll 4
                for (int i = t; i < kDepth / 4; i += kSplitters) largest = fmaxf(largest, largest_of(row4[i]));
#pragma unroll
                for (int offset = 16; offset > 0; offset /= 2) {
                    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
                }
                if (t % 32 == 0) of_warp[t / 32] = largest;
                sync_splitters();
                largest = fmaxf(fmaxf(of_warp[0], of_warp[1]), of_warp[2]);

                const int exponent = scale_exponent(largest);
                const float scale = __int_as_float(exponent << 23);
                if (t == 0) inverse_w[row] = __int_as_float((254 - exponent) << 23);
                const int line = row % 128;
                uint8_t* tile_line = w_pieces + static_cast<size_t>(row / 128) * kTilesK * kPair + line * 128;
#pragma unroll 2
                for (int chunk = t; chunk < kDepth / 8; chunk += kSplitters) {
                    write_chunk(tile_line, chunk, line, row4[2 * chunk], row4[2 * chunk + 1], scale);
                }
                __threadfence();
                fence_proxies();
                sync_splitters();  // all has been written, and the row's buffer is free
                if (t == 0) {
                    add_release(counters + row / 128, 1);
                    if (kPause > 0) __nanosleep(kPause);
                }
            }
        }
        __syncwarp();
    } else {
        take_registers<216>();
        const int w = group - 1;
        const int lane = threadIdx.x % 32;
        const int warp = threadIdx.x % 128 / 32;
        const uint32_t base = shared_address(stages);
        float d[64], sum[64];
#pragma unroll
        for (int i = 0; i < 64; ++i) d[i] = 0.0f;
        int s = 0;
        uint32_t parity = 0;

        for (int tile = first; tile < kClusterTiles; tile += step) {
#pragma unroll
            for (int i = 0; i < 64; ++i) sum[i] = 0.0f;
            int done = 0;
            int count = w == 0 ? kStretch : kStretch / 2;  // the two groups take their sums out at different times
            while (done < kTilesK) {
                const int n = min(count, kTilesK - done);
                count = kStretch;
                int before = 0;
#pragma unroll 1
                for (int j = 0; j < n; ++j) {
                    wait(&full[s], parity);
                    const uint64_t a = describe(base + s * kStageBytes + w * (64 * 128));
                    const uint64_t b = describe(base + s * kStageBytes + kPair);
                    constexpr int kLow = kPiece >> 4;
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
                    if (j > 0 && lane < 2) arrive_at(&empty[before], lane);
                    before = s;
                    if (++s == kStages) s = 0, parity ^= 1;
                }
                wait_products(d);
                if (lane < 2) arrive_at(&empty[before], lane);
                __syncwarp();
#pragma unroll
                for (int i = 0; i < 64; ++i) sum[i] += d[i];
                done += n;
            }

            // Group norm of groups of 16 columns, and the minimum of each row over this tile.
            const int tile_m = tile % kClusterTilesM * 2 + rank;
            const int tile_n = tile / kClusterTilesM;
            const int row = tile_m * 128 + w * 64 + warp * 16 + lane / 4;
            const float scale0 = __ldg(inverse_x + row), scale1 = __ldg(inverse_x + row + 8);
            float least0 = __int_as_float(0x7f800000), least1 = least0;
#pragma unroll
            for (int q = 0; q < 8; ++q) {
                const int column = tile_n * 128 + q * 16 + lane % 4 * 2;
                float v0[4], v1[4];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    // Written while this kernel runs, so read through L2.
                    const float2 by = __ldcg(reinterpret_cast<const float2*>(inverse_w + column + 8 * h));
                    const float2 plus = __ldg(reinterpret_cast<const float2*>(linear_bias + column + 8 * h));
                    const int at = 8 * q + 4 * h;
                    v0[2 * h] = sum[at] * by.x * scale0 + plus.x;
                    v0[2 * h + 1] = sum[at + 1] * by.y * scale0 + plus.y;
                    v1[2 * h] = sum[at + 2] * by.x * scale1 + plus.x;
                    v1[2 * h + 1] = sum[at + 3] * by.y * scale1 + plus.y;
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

extern "C" int64_t scratch_bytes() {
    return static_cast<int64_t>(kRows / 128 + kTilesN) * kTilesK * kPair +
           static_cast<int64_t>(kRows + kFeatures + kTilesN * kRows) * 4 + 1024;
}

extern "C" int gemm_norm_min(const float* x, const float* weight, const float* linear_bias, const float* gamma,
                             const float* beta, const float* bias, float* out, uint8_t* scratch, void* stream_pointer) {
    cudaStream_t stream = static_cast<cudaStream_t>(stream_pointer);
    static int blocks = 0;
    if (blocks == 0) {
        int device = 0, count = 0;
        cudaError_t error = cudaGetDevice(&device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaFuncSetAttribute(product_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
        if (error != cudaSuccess) return static_cast<int>(error);
        blocks = count / 2 * 2;
        if (blocks > 2 * kClusterTiles) blocks = 2 * kClusterTiles;
    }
    uint8_t* x_pieces = scratch;
    uint8_t* w_pieces = x_pieces + static_cast<size_t>(kRows / 128) * kTilesK * kPair;
    float* inverse_x = reinterpret_cast<float*>(w_pieces + static_cast<size_t>(kTilesN) * kTilesK * kPair);
    float* inverse_w = inverse_x + kRows;
    float* partial = inverse_w + kFeatures;
    int* counters = reinterpret_cast<int*>(partial + kTilesN * kRows);

    split_kernel<<<kRows + kFirst * 128, 256, 0, stream>>>(x, weight, x_pieces, w_pieces, inverse_x, inverse_w,
                                                           counters);
    product_kernel<<<blocks, 384, kShared, stream>>>(x_pieces, weight, w_pieces, inverse_x, inverse_w, linear_bias,
                                                     gamma, beta, partial, counters);
    finish_kernel<<<dim3(kRows / 128, kFeatures / 128), 256, 0, stream>>>(partial, bias, out);
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="gemm_group_norm_min_bias",
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
