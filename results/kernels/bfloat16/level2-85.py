import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cooperative_groups.h>

namespace cg = cooperative_groups;

constexpr int kIn = 8;           // input channels
constexpr int kOut = 64;         // output channels
constexpr int kSide = 128;       // input rows and columns
constexpr int kConv = 126;       // convolution rows and columns
constexpr int kPool = 31;        // pooled rows and columns
constexpr int kCluster = 2;      // blocks for an image
constexpr int kMaxClusters = 66;
constexpr int kConsumers = 256;  // two warpgroups
constexpr int kThreads = 384;    // and one that loads
constexpr int kStrips = 16;      // strips of 4 convolution rows for a block and image
constexpr int kSlots = 8;        // strips in the ring
constexpr int kAhead = 4;        // strips in the loading threads' registers
constexpr int kRowBytes = kSide * 16;
constexpr int kSlotBytes = 6 * kRowBytes;                     // 12288
constexpr int kRingBytes = kSlots * kSlotBytes;               // 98304
constexpr int kPitch = 498;                                   // floats, 18 mod 32
constexpr int kPoolBytes = kOut * kPitch * 4;                 // 127488
constexpr int kStatOffset = kRingBytes + kPoolBytes;          // [parity][warpgroup][128]
constexpr int kTotalOffset = kStatOffset + 2 * 2 * 128 * 4;
constexpr int kCoefOffset = kTotalOffset + 128 * 4;
constexpr int kBarrierOffset = kCoefOffset + 128 * 4;
constexpr int kSharedBytes = kBarrierOffset + 2 * kSlots * 8;  // 228992

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// No swizzle, K-major.
__device__ __forceinline__ uint64_t describe(uint32_t start, uint32_t leading, uint32_t stride) {
    return static_cast<uint64_t>((start & 0x3ffff) >> 4) | (static_cast<uint64_t>(leading >> 4) << 16) |
           (static_cast<uint64_t>(stride >> 4) << 32);
}

__device__ __forceinline__ void show_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending, int N>
__device__ __forceinline__ void wait_products(float (&d)[N]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void consumers_sync() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile(
            "{\n.reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (!done);
    __syncwarp();
}

// D (64 x 64) += A (64 x 16, registers) B (16 x 64, shared memory)
__device__ __forceinline__ void multiply(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// The products of half a convolution row; `at` is its offset in the slot in bytes.
__device__ __forceinline__ void issue(float (&d)[32], const uint32_t (&a)[5][4], uint64_t plain, uint64_t skip,
                                      int at) {
    begin_products();
    multiply(d, a[0], plain + static_cast<uint64_t>(at >> 4), 0);                            // (0,0) (0,1)
    multiply(d, a[1], skip + static_cast<uint64_t>((at + 2 * 16) >> 4), 1);                  // (0,2) (1,0)
    multiply(d, a[2], plain + static_cast<uint64_t>((at + kRowBytes + 16) >> 4), 1);         // (1,1) (1,2)
    multiply(d, a[3], plain + static_cast<uint64_t>((at + 2 * kRowBytes) >> 4), 1);          // (2,0) (2,1)
    multiply(d, a[4], plain + static_cast<uint64_t>((at + 2 * kRowBytes + 16) >> 4), 1);     // none  (2,2)
    commit_products();
}

// Sums and maxima of half a row.
template <int kHalf>
__device__ __forceinline__ void absorb(const float (&d)[32], float (&top)[32], float (&sum)[4], float (&sq)[4],
                                       bool drop) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        float v0 = d[4 * j], v1 = d[4 * j + 1], v2 = d[4 * j + 2], v3 = d[4 * j + 3];
        if (kHalf == 1 && j == 7) {
            v0 = drop ? 0.0f : v0;
            v1 = drop ? 0.0f : v1;
            v2 = drop ? 0.0f : v2;
            v3 = drop ? 0.0f : v3;
        }
        sum[0] += v0;
        sum[1] += v1;
        sum[2] += v2;
        sum[3] += v3;
        sq[0] = fmaf(v0, v0, sq[0]);
        sq[1] = fmaf(v1, v1, sq[1]);
        sq[2] = fmaf(v2, v2, sq[2]);
        sq[3] = fmaf(v3, v3, sq[3]);
        const int t = 16 * kHalf + 2 * j;
        top[t] = fmaxf(top[t], fmaxf(v0, v1));
        top[t + 1] = fmaxf(top[t + 1], fmaxf(v2, v3));
    }
}

// The convolution rows of a slot: the products of a half run under the sums of the half before.
template <int kRows>
__device__ __forceinline__ void strip_rows(const uint32_t (&a)[5][4], uint64_t plain, uint64_t skip,
                                           float (&top)[32], float (&sum)[4], float (&sq)[4], bool drop,
                                           uint32_t empty, bool leader) {
    constexpr int kHalfBytes = 64 * 16;
    float d0[32], d1[32];
    issue(d0, a, plain, skip, 0);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
        issue(d1, a, plain, skip, row * kRowBytes + kHalfBytes);
        wait_products<1>(d0);
        absorb<0>(d0, top, sum, sq, drop);
        if (row + 1 < kRows) {
            issue(d0, a, plain, skip, (row + 1) * kRowBytes);
            wait_products<1>(d1);
        } else {
            wait_products<0>(d1);
            if (leader) barrier_arrive(empty);  // the slot may be filled again
            __syncwarp();
        }
        absorb<1>(d1, top, sum, sq, drop);
    }
}

__device__ __forceinline__ float clamp_keep_nan(float v, float low, float high) {
    v = v < low ? low : v;
    return v > high ? high : v;
}

// Two pixels of 8 channels; lanes 4 to 7 of each eight write their odd pixel first: no bank conflicts.
__device__ __forceinline__ void put(unsigned char* to, const uint32_t (&v)[8], int flip, uint32_t select_first,
                                    uint32_t select_second) {
    uint4 first, second;
    first.x = __byte_perm(v[0], v[1], select_first);
    first.y = __byte_perm(v[2], v[3], select_first);
    first.z = __byte_perm(v[4], v[5], select_first);
    first.w = __byte_perm(v[6], v[7], select_first);
    second.x = __byte_perm(v[0], v[1], select_second);
    second.y = __byte_perm(v[2], v[3], select_second);
    second.z = __byte_perm(v[4], v[5], select_second);
    second.w = __byte_perm(v[6], v[7], select_second);
    *reinterpret_cast<uint4*>(to + flip * 16) = first;
    *reinterpret_cast<uint4*>(to + (flip ^ 1) * 16) = second;
}

// A row (for this thread: two pixels of it) of 8 channels.
__device__ __forceinline__ void fetch_row(uint32_t (&v)[8], const uint32_t* from) {
#pragma unroll
    for (int c = 0; c < 8; ++c) v[c] = __ldg(from + c * kSide * (kSide / 2));
}

// The four rows that a strip adds: 4 * strip + 2 to 4 * strip + 5; `from` is at row `half` of the block's part.
__device__ __forceinline__ void fetch_strip(uint32_t (&v)[2][8], const uint32_t* from, int strip, bool last_block) {
    fetch_row(v[0], from + (strip * 4 + 2) * (kSide / 2));
    if (last_block && strip == kStrips - 1) {
#pragma unroll
        for (int c = 0; c < 8; ++c) v[1][c] = 0;
    } else {
        fetch_row(v[1], from + (strip * 4 + 4) * (kSide / 2));
    }
}

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
conv_norm_pool_kernel(const uint32_t* __restrict__ x, const uint4* __restrict__ weight,
                      const __nv_bfloat16* __restrict__ bias, const __nv_bfloat16* __restrict__ gamma,
                      const __nv_bfloat16* __restrict__ beta, const __nv_bfloat16* __restrict__ scale,
                      __nv_bfloat16* __restrict__ out, int images, float clamp_min, float clamp_max, double eps) {
    extern __shared__ __align__(1024) unsigned char shared[];
    unsigned char* ring = shared;
    float* pool = reinterpret_cast<float*>(shared + kRingBytes);
    float* stat = reinterpret_cast<float*>(shared + kStatOffset);
    float* total = reinterpret_cast<float*>(shared + kTotalOffset);
    float* coef = reinterpret_cast<float*>(shared + kCoefOffset);
    const uint32_t full = shared_address(shared + kBarrierOffset);
    const uint32_t empty = full + kSlots * 8;

    const int tid = threadIdx.x;
    const int lane = tid & 31;
    const int group = __shfl_sync(0xffffffffu, tid >> 7, 0);  // 0 and 1 multiply, 2 loads
    const int rank = blockIdx.x & (kCluster - 1);
    const int first_image = blockIdx.x / kCluster;
    const int clusters = gridDim.x / kCluster;
    const int count = (images - first_image + clusters - 1) / clusters;  // images of this cluster, at least 1
    const bool last = rank == kCluster - 1;

    if (tid == 0) {
        for (int i = 0; i < kSlots; ++i) {
            barrier_init(full + i * 8, 128);  // the loading threads
            barrier_init(empty + i * 8, 4);   // the warps of one warpgroup
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    if (group == 2) {
        // ---- loading: input rows into slots of 6 rows, [row][column][8 channels]
        cluster_arrive();  // for the statistics of the first image
        const int half = (tid >> 6) & 1;  // which of two rows
        const int pair = tid & 63;        // which pair of columns
        const int flip = (lane >> 2) & 1;
        const uint32_t select_first = flip ? 0x7632u : 0x5410u;
        const uint32_t select_second = flip ? 0x5410u : 0x7632u;
        const int strips = count * kStrips;
        const uint32_t* origin = x + (rank * 64 + half) * (kSide / 2) + pair;
        constexpr int64_t kImageWords = static_cast<int64_t>(kIn) * kSide * (kSide / 2);
        unsigned char* own = ring + half * kRowBytes + pair * 32;

        uint32_t v[kAhead][2][8];
        uint32_t carry[8];  // the last row of the strip before
        uint32_t head[8];   // the first row of an image
        {
            const uint32_t* from = origin + first_image * kImageWords;
            fetch_row(head, from);
#pragma unroll
            for (int u = 0; u < kAhead; ++u) fetch_strip(v[u], from, u, last);
        }
#pragma unroll
        for (int c = 0; c < 8; ++c) carry[c] = 0;

#pragma unroll 1
        for (int start = 0; start < strips; start += kAhead) {
            if ((start & (kStrips - 1)) == 0) {
#pragma unroll
                for (int c = 0; c < 8; ++c) carry[c] = head[c];
            }
            const int next = start + kAhead;  // what is fetched in this round, all of one image
            const uint32_t* from =
                origin + (first_image + static_cast<int64_t>(next / kStrips) * clusters) * kImageWords;
#pragma unroll
            for (int u = 0; u < kAhead; ++u) {
                const int t = start + u;
                const int slot = t & (kSlots - 1);
                barrier_wait(empty + slot * 8, ((t / kSlots) & 1) ^ 1);
                unsigned char* to = own + slot * kSlotBytes;
                put(to, carry, flip, select_first, select_second);
                put(to + 2 * kRowBytes, v[u][0], flip, select_first, select_second);
                put(to + 4 * kRowBytes, v[u][1], flip, select_first, select_second);
                show_stores();
                barrier_arrive(full + slot * 8);
#pragma unroll
                for (int c = 0; c < 8; ++c) carry[c] = v[u][1][c];
                if (next < strips) {
                    if (u == 0 && (next & (kStrips - 1)) == 0) fetch_row(head, from);
                    fetch_strip(v[u], from, (next + u) & (kStrips - 1), last);
                }
            }
            // All of image i >= 1 is loaded: the barrier of image i - 1 is past or soon will be; arrive for image i.
            if (start >= kStrips && (next & (kStrips - 1)) == 0) {
                __syncwarp();
                cluster_wait();
                cluster_arrive();
            }
        }
        __syncwarp();
        cluster_wait();    // of the last image
        cluster_arrive();  // and the end
        cluster_wait();
        return;
    }

    // ---- multiplying: weights as they are, where the pool comes later
    const int warp = (tid >> 5) & 3;
    const int q = lane & 3;
    const int r = lane >> 2;
    {
        constexpr int kWeightVectors = kOut * kIn * 9 / 8;  // 576
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            const int at = tid + i * kConsumers;
            if (at < kWeightVectors) reinterpret_cast<uint4*>(pool)[at] = __ldg(weight + at);
        }
    }
    const float own_gamma = __bfloat162float(gamma[tid & 63]);
    const float own_scale = __bfloat162float(scale[tid & 63]);
    const float own_beta = __bfloat162float(beta[tid & 63]);
    const float own_bias = __bfloat162float(bias[tid & 63]);
    consumers_sync();

    // ---- weights as A in registers, negated where gamma * scale is negative
    const int channel = warp * 16 + r;  // and channel + 8
    uint32_t a[5][4];
    {
        const uint16_t* w = reinterpret_cast<const uint16_t*>(pool);
        const float g0 = __bfloat162float(gamma[channel]) * __bfloat162float(scale[channel]);
        const float g1 = __bfloat162float(gamma[channel + 8]) * __bfloat162float(scale[channel + 8]);
        const uint32_t sign0 = g0 < 0.0f ? 0x80008000u : 0u;
        const uint32_t sign1 = g1 < 0.0f ? 0x80008000u : 0u;
        const uint16_t* w0 = w + channel * (kIn * 9) + 2 * q * 9;
        const uint16_t* w1 = w0 + 8 * (kIn * 9);
#pragma unroll
        for (int s = 0; s < 5; ++s) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                // step 4: the first half has no weights, the second is tap 8
                if (s == 4 && h == 0) {
                    a[s][0] = 0;
                    a[s][1] = 0;
                } else {
                    const int tap = s == 4 ? 8 : 2 * s + h;
                    const uint32_t p0 = static_cast<uint32_t>(w0[tap]) | (static_cast<uint32_t>(w0[9 + tap]) << 16);
                    const uint32_t p1 = static_cast<uint32_t>(w1[tap]) | (static_cast<uint32_t>(w1[9 + tap]) << 16);
                    a[s][2 * h] = p0 ^ sign0;
                    a[s][2 * h + 1] = p1 ^ sign1;
                }
            }
        }
    }
    consumers_sync();  // the pool is written from here on

    const bool drop = q == 3;  // columns 126 and 127, at j = 15
    const bool leader = lane == 0;
    const uint32_t ring_address = shared_address(ring);
    const bool odd_lane = (q & 1) != 0;
    float* pool_at = pool + (channel + (odd_lane ? 8 : 0)) * kPitch + (q >> 1);
    auto cluster = cg::this_cluster();

#pragma unroll 1
    for (int n = 0; n < count; ++n) {
        const int image = first_image + n * clusters;

        // ---- convolution, sums, maxima; the warpgroups take strips in turn
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        float sq[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
        for (int strip = group; strip < kStrips; strip += 2) {
            const int t = n * kStrips + strip;
            const int slot = t & (kSlots - 1);
            const uint32_t base = ring_address + slot * kSlotBytes;
            const uint64_t plain = describe(base, 16, 128);
            const uint64_t skip = describe(base, (kSide - 2) * 16, 128);
            const uint32_t release = empty + slot * 8;
            float top[32];
#pragma unroll
            for (int i = 0; i < 32; ++i) top[i] = -INFINITY;
            barrier_wait(full + slot * 8, (t / kSlots) & 1);
            if (last && strip == kStrips - 1) {
                // two rows that no window has
                strip_rows<2>(a, plain, skip, top, sum, sq, drop, release, leader);
            } else {
                strip_rows<4>(a, plain, skip, top, sum, sq, drop, release, leader);
                // The even lane of a pair keeps `channel`, the odd one channel + 8; both have half of each window.
#pragma unroll
                for (int j = 0; j < 16; ++j) {
                    const float send = odd_lane ? top[2 * j] : top[2 * j + 1];
                    const float keep = odd_lane ? top[2 * j + 1] : top[2 * j];
                    const float other = __shfl_xor_sync(0xffffffffu, send, 1);
                    const float m = fmaxf(keep, other);
                    if (j < 15 || q < 2) pool_at[strip * kPool + 2 * j] = m;
                }
            }
        }

        // ---- statistics of this warpgroup's rows, then of the image
        float* stat_now = stat + (n & 1) * 256;
        {
            float s0 = sum[0] + sum[1], s1 = sum[2] + sum[3];
            float t0 = sq[0] + sq[1], t1 = sq[2] + sq[3];
#pragma unroll
            for (int offset = 1; offset <= 2; offset *= 2) {
                s0 += __shfl_xor_sync(0xffffffffu, s0, offset);
                s1 += __shfl_xor_sync(0xffffffffu, s1, offset);
                t0 += __shfl_xor_sync(0xffffffffu, t0, offset);
                t1 += __shfl_xor_sync(0xffffffffu, t1, offset);
            }
            float* mine = stat_now + group * 128;
            if (q == 0) {
                mine[channel] = s0;
                mine[channel + 8] = s1;
                mine[64 + channel] = t0;
                mine[64 + channel + 8] = t1;
            }
        }
        __syncwarp();
        cluster_arrive();
        cluster_wait();
        if (tid < 128) {
            float part[2 * kCluster];
#pragma unroll
            for (int i = 0; i < kCluster; ++i) {
                const float* theirs = cluster.map_shared_rank(stat_now, i);
                part[2 * i] = theirs[tid];
                part[2 * i + 1] = theirs[128 + tid];
            }
            float all = 0.0f;
#pragma unroll
            for (int i = 0; i < 2 * kCluster; ++i) all += part[i];
            total[tid] = all;
        }
        consumers_sync();
        if (tid < kOut) {
            constexpr double kInverse = 1.0 / (static_cast<double>(kConv) * kConv);
            const double b = own_bias;
            const float product = own_gamma * own_scale;
            const double own = static_cast<double>(total[tid]) * kInverse;  // mean of what was summed, sign included
            double spread = static_cast<double>(total[64 + tid]) * kInverse - own * own;
            spread = spread < 0.0 ? 0.0 : spread;
            const double mean = (product < 0.0f ? -own : own) + b;
            double group_mean = mean;
            group_mean += __shfl_xor_sync(0xffffffffu, group_mean, 1);
            group_mean += __shfl_xor_sync(0xffffffffu, group_mean, 2);
            group_mean *= 0.25;
            const double away = mean - group_mean;
            double variance = spread + away * away;
            variance += __shfl_xor_sync(0xffffffffu, variance, 1);
            variance += __shfl_xor_sync(0xffffffffu, variance, 2);
            variance *= 0.25;
            const float rstd = 1.0f / sqrtf(static_cast<float>(variance + eps));
            coef[tid] = fabsf(product) * rstd;
            coef[64 + tid] = (static_cast<float>(b - group_mean) * rstd * own_gamma + own_beta) * own_scale;
        }
        consumers_sync();

        // ---- normalise, clamp, write: a contiguous part of each channel
        const int length = last ? 15 * kPool : 16 * kPool;
#pragma unroll 1
        for (int i = 0; i < 8; ++i) {
            const int c = (tid >> 5) * 8 + i;
            const int odd = c & 1;
            const float factor = coef[c];
            const float shift = coef[64 + c];
            const float* from = pool + c * kPitch;
            __nv_bfloat16* to =
                out + (static_cast<int64_t>(image) * kOut + c) * (kPool * kPool) + rank * (16 * kPool);
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                const int e = 2 * (lane + 32 * k) - odd;
                const bool has0 = e >= 0 && e < length;
                const bool has1 = e + 1 < length;
                float v0 = has0 ? from[e] : 0.0f;
                float v1 = has1 ? from[e + 1] : 0.0f;
                v0 = clamp_keep_nan(fmaf(v0, factor, shift), clamp_min, clamp_max);
                v1 = clamp_keep_nan(fmaf(v1, factor, shift), clamp_min, clamp_max);
                const __nv_bfloat162 both = __floats2bfloat162_rn(v0, v1);
                if (has0 && has1) {
                    *reinterpret_cast<__nv_bfloat162*>(to + e) = both;
                } else if (has0) {
                    to[e] = __low2bfloat16(both);
                } else if (has1) {
                    to[e + 1] = __high2bfloat16(both);
                }
            }
        }
        consumers_sync();  // the pool is free for the next image
    }
    __syncwarp();
    cluster_arrive();  // the other block may still read the statistics
    cluster_wait();
}

extern "C" int conv_norm_pool(const void* x, const void* weight, const void* bias, const void* gamma,
                              const void* beta, const void* scale, void* out, int64_t images, double clamp_min,
                              double clamp_max, double eps, void* stream) {
    if (images == 0) return 0;
    static bool ready = false;
    if (!ready) {
        cudaError_t error = cudaFuncSetAttribute(conv_norm_pool_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaFuncSetAttribute(conv_norm_pool_kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
        if (error != cudaSuccess) return static_cast<int>(error);
        ready = true;
    }
    const int64_t clusters = images < kMaxClusters ? images : kMaxClusters;
    conv_norm_pool_kernel<<<static_cast<unsigned>(clusters * kCluster), kThreads, kSharedBytes,
                            static_cast<cudaStream_t>(stream)>>>(
        static_cast<const uint32_t*>(x), static_cast<const uint4*>(weight),
        static_cast<const __nv_bfloat16*>(bias), static_cast<const __nv_bfloat16*>(gamma),
        static_cast<const __nv_bfloat16*>(beta), static_cast<const __nv_bfloat16*>(scale),
        static_cast<__nv_bfloat16*>(out), static_cast<int>(images), static_cast<float>(clamp_min),
        static_cast<float>(clamp_max), eps);
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="conv_norm_pool",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
conv_norm_pool = library.conv_norm_pool
conv_norm_pool.argtypes = (
    [ctypes.c_void_p] * 7 + [ctypes.c_int64] + [ctypes.c_double] * 3 + [ctypes.c_void_p]
)
conv_norm_pool.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, num_groups, scale_shape, maxpool_kernel_size, clamp_min, clamp_max):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.group_norm = nn.GroupNorm(num_groups, out_channels)
        self.scale = nn.Parameter(torch.ones(scale_shape))
        self.maxpool = nn.MaxPool2d(kernel_size=maxpool_kernel_size)
        self.clamp_min = clamp_min
        self.clamp_max = clamp_max

    def forward(self, x):
        x = x.contiguous()
        weight = self.conv.weight.contiguous()
        bias = self.conv.bias
        gamma = self.group_norm.weight
        beta = self.group_norm.bias
        scale = self.scale
        images = x.shape[0]
        out = torch.empty((images, 64, 31, 31), dtype=x.dtype, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = conv_norm_pool(
            x.data_ptr(),
            weight.data_ptr(),
            bias.data_ptr(),
            gamma.data_ptr(),
            beta.data_ptr(),
            scale.data_ptr(),
            out.data_ptr(),
            images,
            float(self.clamp_min),
            float(self.clamp_max),
            float(self.group_norm.eps),
            stream,
        )
        if error:
            raise RuntimeError(f"conv_norm_pool: CUDA error {error}")
        return out
