import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int kIn = 64;         // input channels
constexpr int kOut = 128;       // output channels
constexpr int kSide = 128;      // height and width of the input
constexpr int kPooled = 63;     // height and width of the output
constexpr int kTiles = 4;       // transformed rows of a pair of output rows
constexpr int kTaps = 3 * kTiles;
constexpr int kHalf = 64;       // output channels a block
constexpr int kChunk = 16;      // input channels a stage
constexpr int kThreads = 384;   // one warpgroup of producers, two of consumers
constexpr int kDepth = 2;       // stages a consumer

constexpr int kTapBytes = kHalf * kIn * 2;                // 8192: one tap, one piece
constexpr int kWeightBytes = 2 * kTaps * kTapBytes;       // 196608
constexpr int kPieceBytes = kChunk * kSide * 2;           // 4096: one transformed row, one piece
constexpr int kInverseAt = 2 * kPieceBytes;               // 8192: the inverse scale, behind both pieces
constexpr int kSentBytes = kInverseAt + 16;               // 8208: what goes to the other block
constexpr int kStageBytes = kInverseAt + 128;             // 8320
constexpr int kStageAt = kWeightBytes;
constexpr int kBarrierAt = kStageAt + 2 * kDepth * kStageBytes;  // 229888
constexpr int kEmptyAt = kBarrierAt + 2 * kDepth * 8;
constexpr int kPartialAt = kBarrierAt + 64;
constexpr int kWeightsFullAt = kBarrierAt + 48;
constexpr int kConstantsAt = kBarrierAt + 128;            // factor and shift of every output channel
constexpr int kSharedBytes = kConstantsAt + kHalf * 8;    // 230528
constexpr unsigned kDelay = 7000;                         // cycles: about half a pair of rows

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
// The address of the same place in the block of that rank of the cluster.
__device__ __forceinline__ uint32_t address_in(uint32_t address, uint32_t rank) {
    uint32_t result;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(rank));
    return result;
}
__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ void start(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void show_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// A barrier of any block of the cluster.
__device__ __forceinline__ void arrive_in_cluster(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive_expecting(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(barrier), "r"(parity) : "memory");
}
// From global memory to this block's shared memory, whose barrier counts the bytes.
__device__ __forceinline__ void fetch(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
// From this block's shared memory to the other's, whose barrier counts the bytes.
__device__ __forceinline__ void send(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "r"(from), "r"(bytes), "r"(barrier) : "memory");
}
__device__ __forceinline__ void meet(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ void announce(int name, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
template <int kCount>
__device__ __forceinline__ void give_up_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
__device__ __forceinline__ void show_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void hold(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kPending, int N>
__device__ __forceinline__ void wait_products(float (&d)[N]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
    hold(d);
}

// Volatile, so that the loads stay where they are issued, ahead of the waits.
__device__ __forceinline__ float load_now(const float* pointer) {
    float value;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(pointer));
    return value;
}
__device__ __forceinline__ void prefetch(const float* pointer) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer));
}

__device__ __forceinline__ float max_nan(float a, float b) {
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}
__device__ __forceinline__ float min_nan(float a, float b) {
    float m;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}
__device__ __forceinline__ unsigned cycles() {
    unsigned now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now));
    return now;
}

#define D8(i)                                                                                               \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])

// D (64 x 128) = A (64 x 16) B (16 x 128), plus D where accumulate is not 0; fp16, both K-major.
__device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
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
        : D8(0), D8(8), D8(16), D8(24), D8(32), D8(40), D8(48), D8(56)
        : "l"(a), "l"(b), "r"(accumulate));
}

// The upper half of every descriptor: 128 bytes from eight lines to the next eight, no swizzle.
constexpr uint32_t kUpper = 128 >> 4;
__device__ __forceinline__ uint64_t join(uint32_t lower) {
    return static_cast<uint64_t>(kUpper) << 32 | lower;
}

// One transformed row of 16 channels: k = 3 * 16. The small products first.
__device__ __forceinline__ void stretch(float (&d)[64], uint32_t weights, uint32_t row) {
    hold(d);
    begin_products();
#pragma unroll
    for (int part = 0; part < 3; ++part) {
        const uint32_t a = weights + (part == 1 ? kTaps * kTapBytes / 16 : 0);
        const uint32_t b = row + (part == 0 ? kPieceBytes / 16 : 0);
#pragma unroll
        for (int kx = 0; kx < 3; ++kx) {
            multiply(d, join(a + kx * (kTapBytes / 16)), join(b + kx), part + kx > 0 ? 1 : 0);
        }
    }
    commit_products();
    wait_products<0>(d);
}

// A power of two that brings the largest magnitude to 2^13 .. 2^14, and its inverse.
__device__ __forceinline__ void find_scale(uint32_t largest, float& scale, float& inverse) {
    int exponent = static_cast<int>(largest >> 23) - 127;
    if (exponent < -100) exponent = -100;
    scale = __uint_as_float(static_cast<uint32_t>(13 - exponent + 127) << 23);
    inverse = __uint_as_float(static_cast<uint32_t>(exponent - 13 + 127) << 23);
}

// One block an output channel, one thread an input channel and kx.
// packed: [half][piece][tile][kx][group of 8 input channels][64 output channels][8].
__global__ void __launch_bounds__(192) prepare_weights(const float* __restrict__ weight, __half* __restrict__ packed,
                                                       float* __restrict__ inverses) {
    const int channel = blockIdx.x, thread = threadIdx.x;
    const int c = thread / 3, kx = thread % 3;
    const float* from = weight + channel * (kIn * 9) + c * 9 + kx;
    const float g0 = from[0], g1 = from[3], g2 = from[6];
    const float outer = g0 + g2;
    float v[kTiles];
    v[0] = g0;
    v[1] = 0.5f * (outer + g1);
    v[2] = 0.5f * (outer - g1);
    v[3] = g2;
    float m = 0.0f;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) m = fmaxf(m, fabsf(v[i]));
    __shared__ uint32_t partial[6];
    uint32_t largest = __reduce_max_sync(0xffffffffu, __float_as_uint(m));
    if (thread % 32 == 0) partial[thread / 32] = largest;
    __syncthreads();
    largest = 0;
#pragma unroll
    for (int i = 0; i < 6; ++i) largest = max(largest, partial[i]);
    float scale, inverse;
    find_scale(largest, scale, inverse);
    if (thread == 0) inverses[channel] = inverse;
    __half* to = packed + (channel / kHalf) * (kWeightBytes / 2) + (channel % kHalf) * 8;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
        const float value = v[i] * scale;
        const __half high = __float2half_rn(value);
        const __half low = __float2half_rn(value - __half2float(high));
        const int at = ((i * 3 + kx) * 8 + c / 8) * (kHalf * 8) + c % 8;
        to[at] = high;
        to[at + kTaps * kTapBytes / 2] = low;
    }
}

__device__ __forceinline__ uint32_t bits(__half2 h) { return *reinterpret_cast<const uint32_t*>(&h); }

// Eight channels of one pixel as two pieces.
__device__ __forceinline__ void split(const float* v, float scale, uint4& upper, uint4& lower) {
    uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float a = v[2 * i] * scale, b = v[2 * i + 1] * scale;
        const __half2 h = __floats2half2_rn(a, b);
        const float2 f = __half22float2(h);
        high[i] = bits(h);
        low[i] = bits(__floats2half2_rn(a - f.x, b - f.y));
    }
    upper = make_uint4(high[0], high[1], high[2], high[3]);
    lower = make_uint4(low[0], low[1], low[2], low[3]);
}

// Six times HardSwish.
__device__ __forceinline__ float hardswish6(float x) { return x * fminf(fmaxf(x + 3.0f, 0.0f), 6.0f); }
__device__ __forceinline__ float mish(float x) {
    const float e = expf(fminf(x, 20.0f));
    const float n = e * (e + 2.0f);
    return x > 20.0f ? x : __fdividef(x * n, n + 2.0f);
}

__device__ __forceinline__ const float* place(const float* x, int pair, int chunk) {
    const int image = pair / kPooled, p = pair % kPooled;
    return x + static_cast<int64_t>(image) * (kIn * kSide * kSide) + chunk * (kChunk * kSide * kSide) +
           p * (2 * kSide);
}
__device__ __forceinline__ void load_row(float (&v)[kChunk], const float* from) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) v[i] = load_now(from + i * (kSide * kSide));
}

// One transformed row, 16 channels of one pixel a thread: find the scale, split, wait for the stage in both blocks,
// fill it here and send it to the other block. full, empty and stages are those of this producer's consumer.
template <int kTile>
__device__ __forceinline__ void emit(const float (&v)[kChunk], uint32_t full, uint32_t empty, uint32_t* partial,
                                     unsigned char* stages, uint32_t other, int pixel) {
    constexpr int kStage = kTile % kDepth;
    float m[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kChunk; ++i) m[i % 4] = fmaxf(m[i % 4], fabsf(v[i]));
    uint32_t largest =
        __reduce_max_sync(0xffffffffu, __float_as_uint(fmaxf(fmaxf(m[0], m[1]), fmaxf(m[2], m[3]))));
    uint32_t* slot = partial + (kTile & 1) * 4;
    if (pixel % 32 == 0) slot[pixel / 32] = largest;
    meet(1, 128);
    const uint4 all = *reinterpret_cast<const uint4*>(slot);
    largest = max(max(all.x, all.y), max(all.z, all.w));
    float scale, inverse;
    find_scale(largest, scale, inverse);
    uint4 high0, low0, high1, low1;
    split(v, scale, high0, low0);
    split(v + 8, scale, high1, low1);

    // Tiles 0 and 1 are an even use of their stages, tiles 2 and 3 an odd one.
    wait(empty + kStage * 8, (kTile / kDepth) ^ 1);
    unsigned char* stage = stages + kStage * kStageBytes;
    unsigned char* to = stage + pixel * 16;
    *reinterpret_cast<uint4*>(to) = high0;
    *reinterpret_cast<uint4*>(to + kSide * 16) = high1;
    *reinterpret_cast<uint4*>(to + kPieceBytes) = low0;
    *reinterpret_cast<uint4*>(to + kPieceBytes + kSide * 16) = low1;
    if (pixel == 0) *reinterpret_cast<float*>(stage + kInverseAt) = inverse;
    show_stores();
    if (pixel < 32) {
        meet(2, 128);
        if (pixel == 0) {
            const uint32_t from = shared_address(stage);
            send(address_in(from, other), from, kSentBytes, address_in(full + kStage * 8, other));
            arrive(full + kStage * 8);
        }
    } else {
        announce(2, 128);
    }
    __syncwarp();
}

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    convolve(const float* __restrict__ x, const uint4* __restrict__ packed, const float* __restrict__ inverses,
             const float* __restrict__ bias, float* __restrict__ out, int pairs, float subtract) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t full = shared_address(shared + kBarrierAt);   // 2 consumers x 2 stages
    const uint32_t empty = shared_address(shared + kEmptyAt);    // 2 stages of the consumer that is filled from here
    const uint32_t weights_full = shared_address(shared + kWeightsFullAt);
    float2* constants = reinterpret_cast<float2*>(shared + kConstantsAt);

    // The blocks of a cluster work on the same rows, each on its half of the output channels.
    const int half = static_cast<int>(cluster_rank());
    const int range = blockIdx.x / 2, ranges = gridDim.x / 2;
    const int first = static_cast<int>(static_cast<int64_t>(pairs) * range / ranges);
    const int last = static_cast<int>(static_cast<int64_t>(pairs) * (range + 1) / ranges);

    if (threadIdx.x == 0) {
        for (int s = 0; s < 2 * kDepth; ++s) start(full + s * 8, 1);
        for (int s = 0; s < kDepth; ++s) start(empty + s * 8, 8);
        start(weights_full, 1);
        show_started();
        // The stages that the other block fills.
        for (int s = 0; s < kDepth; ++s) arrive_expecting(full + ((half ^ 1) * kDepth + s) * 8, kSentBytes);
    }
    if (threadIdx.x < kHalf) {
        const int channel = half * kHalf + static_cast<int>(threadIdx.x);
        constants[threadIdx.x] = make_float2(__ldg(inverses + channel), __ldg(bias + channel) - subtract);
    }
    __syncthreads();
    meet_cluster();

    // The weights of this block, for the consumers: the producers begin without them.
    if (threadIdx.x == 128) {
        const uint4* from = packed + half * (kWeightBytes / 16);
        const uint32_t to = shared_address(shared);
        arrive_expecting(weights_full, kWeightBytes);
#pragma unroll 1
        for (int i = 0; i < 2 * kTaps; ++i) {
            fetch(to + i * kTapBytes, from + i * (kTapBytes / 16), kTapBytes, weights_full);
        }
    }
    __syncwarp();

    const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
    if (group == 0) {
        give_up_registers<88>();
        // The pairs of rows of consumer `half` of both blocks, in turns of 16 channels.
        const int pixel = threadIdx.x;
        uint32_t* partial = reinterpret_cast<uint32_t*>(shared + kPartialAt);  // 2 x 4
        unsigned char* stages = shared + kStageAt + half * (kDepth * kStageBytes);
        const uint32_t filled = full + half * (kDepth * 8);
        const uint32_t other = static_cast<uint32_t>(half ^ 1);
        const int begin = first + half;
        const int total = 4 * ((last - begin + 1) / 2);
        float p[kChunk], q[kChunk], r[kChunk];
        const float* from = x;
        if (total > 0) {
            from = place(x, begin, 0) + pixel;
            load_row(p, from);
            load_row(q, from + 2 * kSide);
        }
        // Consumer 1 starts half a pair of rows behind consumer 0, so that one multiplies while the other finishes.
        if (half == 1 && total > 0) {
            wait(weights_full, 0);
            const unsigned began = cycles();
            while (cycles() - began < kDelay) __nanosleep(100);
            __syncwarp();
        }
#pragma unroll 1
        for (int g = 0; g < total; ++g) {
            // row 0 - row 2
#pragma unroll
            for (int i = 0; i < kChunk; ++i) p[i] -= q[i];
            load_row(r, from + kSide);
            const int ahead = begin + (g >> 2) * 2 + 2;
            if (ahead < last) {
                const float* line = place(x, ahead, g & 3) + (pixel >> 3) * (kSide * kSide) + (pixel & 7) * 32;
                prefetch(line + 2 * kSide);
                if (ahead % kPooled == 0) prefetch(line);
            }
            emit<0>(p, filled, empty, partial, stages, other, pixel);

            // row 1 + row 2
#pragma unroll
            for (int i = 0; i < kChunk; ++i) p[i] = r[i] + q[i];
            emit<1>(p, filled, empty, partial, stages, other, pixel);

            // row 2 - row 1
            load_row(p, from + 3 * kSide);
#pragma unroll
            for (int i = 0; i < kChunk; ++i) q[i] -= r[i];
            emit<2>(q, filled, empty, partial, stages, other, pixel);

            // row 3 - row 1
#pragma unroll
            for (int i = 0; i < kChunk; ++i) r[i] = p[i] - r[i];
            if (g + 1 < total) {
                from = place(x, begin + ((g + 1) >> 2) * 2, (g + 1) & 3) + pixel;
                load_row(p, from);
                load_row(q, from + 2 * kSide);
            }
            emit<3>(r, filled, empty, partial, stages, other, pixel);
        }
        // Neither block leaves while the other may still reach into it.
        meet_cluster();
    } else {
        take_registers<208>();
        const int consumer = group - 1;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        float sum0[64], sum1[64], d[64];
#pragma unroll
        for (int i = 0; i < 64; ++i) d[i] = 0.0f;
        // Waited for even without rows: no block leaves before its weights have arrived.
        wait(weights_full, 0);
        __syncwarp();

        const uint32_t weights = (shared_address(shared) & 0x3ffff) >> 4 | static_cast<uint32_t>(kHalf) << 16;
        const unsigned char* stages = shared + kStageAt + consumer * (kDepth * kStageBytes);
        const uint32_t row0 = (shared_address(stages) & 0x3ffff) >> 4 | static_cast<uint32_t>(kSide) << 16;
        const uint32_t filled = full + consumer * (kDepth * 8);
        // The block of rank `consumer` fills these stages, here and there.
        const uint32_t release = address_in(empty, static_cast<uint32_t>(consumer));
        const bool expects = consumer != half && warp == 0;
#pragma unroll 1
        for (int at = first + consumer; at < last; at += 2) {
#pragma unroll
            for (int i = 0; i < 64; ++i) sum0[i] = 0.0f, sum1[i] = 0.0f;
#pragma unroll 1
            for (int chunk = 0; chunk < kIn / kChunk; ++chunk) {
#pragma unroll
                for (int tile = 0; tile < kTiles; ++tile) {
                    // Two uses of each stage a chunk: the parity starts at 0 with every chunk.
                    const int stage = tile % kDepth;
                    wait(filled + stage * 8, tile / kDepth);
                    const float inverse =
                        *reinterpret_cast<const float*>(stages + stage * kStageBytes + kInverseAt);
                    stretch(d, weights + tile * (3 * kTapBytes / 16) + chunk * (2 * kHalf),
                            row0 + stage * (kStageBytes / 16));
                    __syncwarp();
                    if (lane == 0) {
                        if (expects) arrive_expecting(filled + stage * 8, kSentBytes);
                        arrive_in_cluster(release + stage * 8);
                    }
                    __syncwarp();
                    if (tile == 0) {
#pragma unroll
                        for (int i = 0; i < 64; ++i) sum0[i] = fmaf(d[i], inverse, sum0[i]);
                    } else if (tile == 1) {
#pragma unroll
                        for (int i = 0; i < 64; ++i) {
                            sum0[i] = fmaf(d[i], inverse, sum0[i]);
                            sum1[i] = fmaf(d[i], inverse, sum1[i]);
                        }
                    } else if (tile == 2) {
#pragma unroll
                        for (int i = 0; i < 64; ++i) {
                            sum0[i] = fmaf(d[i], inverse, sum0[i]);
                            sum1[i] = fmaf(-d[i], inverse, sum1[i]);
                        }
                    } else {
#pragma unroll
                        for (int i = 0; i < 64; ++i) sum1[i] = fmaf(d[i], inverse, sum1[i]);
                    }
                }
            }
            const int image = at / kPooled, pair = at % kPooled;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = warp * 16 + lane / 4 + 8 * h;
                const float2 constant = constants[row];  // a power of two; bias - subtract
                float* to = out + ((static_cast<int64_t>(image) * kOut + half * kHalf + row) * kPooled + pair) * kPooled +
                            lane % 4;
#pragma unroll
                for (int c = 0; c < 16; ++c) {
                    const int i = 4 * c + 2 * h;
                    // HardSwish falls, then rises: its maximum is at the largest or at the smallest value.
                    const float most = max_nan(max_nan(sum0[i], sum0[i + 1]), max_nan(sum1[i], sum1[i + 1]));
                    const float least = min_nan(min_nan(sum0[i], sum0[i + 1]), min_nan(sum1[i], sum1[i + 1]));
                    const float value = mish(max_nan(hardswish6(fmaf(most, constant.x, constant.y)),
                                                     hardswish6(fmaf(least, constant.x, constant.y))) *
                                             (1.0f / 6.0f));
                    if (c < 15 || lane % 4 < kPooled - 60) to[4 * c] = value;
                }
            }
        }
        meet_cluster();
    }
}

extern "C" int conv_pool(const float* x, const float* weight, const float* bias, void* packed, float* inverses,
                         float* out, int64_t batch, int64_t multiprocessors, float subtract, void* stream) {
    if (batch == 0) return 0;
    static bool ready = false;
    if (!ready) {
        const cudaError_t error =
            cudaFuncSetAttribute(convolve, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        ready = true;
    }
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    prepare_weights<<<kOut, 192, 0, on>>>(weight, static_cast<__half*>(packed), inverses);
    const int64_t ranges = multiprocessors / 2 > 0 ? multiprocessors / 2 : 1;
    convolve<<<static_cast<unsigned>(2 * ranges), kThreads, kSharedBytes, on>>>(
        x, static_cast<const uint4*>(packed), inverses, bias, out, static_cast<int>(batch * kPooled), subtract);
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="conv_hardswish_pool_mish_winograd_staggered",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
conv_pool = library.conv_pool
conv_pool.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int64] * 2 + [ctypes.c_float, ctypes.c_void_p]
conv_pool.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, subtract_value, pool_kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.subtract_value = subtract_value
        self.pool = nn.MaxPool2d(pool_kernel_size)
        if (in_channels, out_channels, kernel_size, pool_kernel_size) != (64, 128, 3, 2):
            raise ValueError("written for 64 to 128 channels, a kernel of 3 and pooling by 2")
        self._packed = None
        self._inverses = None
        self._multiprocessors = 0

    def forward(self, x):
        x = x.contiguous()
        if tuple(x.shape[1:]) != (64, 128, 128) or x.dtype != torch.float32:
            raise ValueError("written for fp32 inputs of (batch, 64, 128, 128)")
        if self._packed is None or self._packed.device != x.device:
            self._packed = torch.empty(2 * 196608, dtype=torch.uint8, device=x.device)
            self._inverses = torch.empty(128, dtype=torch.float32, device=x.device)
            self._multiprocessors = torch.cuda.get_device_properties(x.device).multi_processor_count
        weight = self.conv.weight.contiguous()
        bias = self.conv.bias.contiguous()
        batch = x.shape[0]
        out = torch.empty((batch, 128, 63, 63), dtype=torch.float32, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = conv_pool(
            x.data_ptr(),
            weight.data_ptr(),
            bias.data_ptr(),
            self._packed.data_ptr(),
            self._inverses.data_ptr(),
            out.data_ptr(),
            batch,
            self._multiprocessors,
            float(self.subtract_value),
            stream,
        )
        if error:
            raise RuntimeError(f"conv_pool: CUDA error {error}")
        return out
