import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline


def wgmma_source(n, kind):
    """A wrapper of wgmma m64 x n x k16, fp16 with fp32 accumulators, B in shared memory, K-major.

    A: "rs" in registers, "ss" in shared memory (K-major), "ts" in shared memory (M-major).
    """
    count = n // 2
    d = ", ".join(f"%{i}" for i in range(count))
    outs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    if kind == "rs":
        a_type = "const uint32_t (&a)[4]"
        a_text = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}"
        a_ops = ", ".join(f'"r"(a[{i}])' for i in range(4))
        at, tail = count + 4, "1, 1, 0"
    else:
        a_type = "uint64_t a"
        a_text, a_ops = f"%{count}", '"l"(a)'
        at, tail = count + 1, "1, 1, 0, 0" if kind == "ss" else "1, 1, 1, 0"
    return (
        f"__device__ __forceinline__ void wgmma_{kind}(float (&d)[{count}], {a_type}, uint64_t b, int keep) {{\n"
        f'    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{at + 1}, 0; "\n'
        f'        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16 "\n'
        f'        "{{{d}}}, {a_text}, %{at}, p, {tail}; }}"\n'
        f"        : {outs}\n"
        f'        : {a_ops}, "l"(b), "r"(keep));\n'
        "}\n"
    )


WGMMA = "".join(wgmma_source(n, "ss") for n in (96, 88, 64, 56)) + wgmma_source(40, "ts") + wgmma_source(160, "rs")

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_fp16.h>

constexpr int HW = 50176;        // 224 * 224
constexpr int NB = 10;
constexpr int CI = 240;
constexpr int CM = 120;
constexpr int CO = 480;
constexpr double COUNT = 501760.0;
constexpr double EPS = 1e-5;
constexpr float SY = 8.0f;       // scale of the depthwise output before it is split
constexpr int P1_BLOCKS = 132;
constexpr int COVP = CI * 248;   // floats of a block's covariance
constexpr int DW_WALKERS = 88;   // three blocks each, one for each group

// ---------------------------------------------------------------- helpers
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void ldsm4(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void ldsm4t(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The tensor core truncates what it adds. So a group of 16 starts from zero and its sum is added to the
// running accumulator by an ordinary addition, rounded to nearest.
__device__ __forceinline__ void mma_zero(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}
__device__ __forceinline__ void add4(float (&c)[4], const float (&d)[4]) {
    c[0] += d[0]; c[1] += d[1]; c[2] += d[2]; c[3] += d[3];
}
// two neighbouring 16 x 8 tiles of (high + low) * (high + low), without low * low
__device__ __forceinline__ void mma_pair(float (&c0)[4], float (&c1)[4], const uint32_t (&ah)[4],
                                         const uint32_t (&al)[4], const uint32_t (&bh)[4], const uint32_t (&bl)[4]) {
    float t0[4], t1[4];
    mma_zero(t0, ah, bl[0], bl[1]);
    mma_zero(t1, ah, bl[2], bl[3]);
    mma(t0, al, bh[0], bh[1]);
    mma(t1, al, bh[2], bh[3]);
    mma(t0, ah, bh[0], bh[1]);
    mma(t1, ah, bh[2], bh[3]);
    add4(c0, t0);
    add4(c1, t1);
}
__device__ __forceinline__ void cp_async16(uint32_t to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void cp_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }

__device__ __forceinline__ uint32_t pack2(__half a, __half b) {
    return static_cast<uint32_t>(__half_as_ushort(a)) | (static_cast<uint32_t>(__half_as_ushort(b)) << 16);
}
__device__ __forceinline__ void split4(float4 v, float m, float s, uint2& high, uint2& low) {
    const float f0 = (v.x - m) * s, f1 = (v.y - m) * s, f2 = (v.z - m) * s, f3 = (v.w - m) * s;
    const __half h0 = __float2half_rn(f0), h1 = __float2half_rn(f1);
    const __half h2 = __float2half_rn(f2), h3 = __float2half_rn(f3);
    high.x = pack2(h0, h1);
    high.y = pack2(h2, h3);
    low.x = pack2(__float2half_rn(f0 - __half2float(h0)), __float2half_rn(f1 - __half2float(h1)));
    low.y = pack2(__float2half_rn(f2 - __half2float(h2)), __float2half_rn(f3 - __half2float(h3)));
}
// power of two p with m * p in [2^(target-1), 2^target)
__device__ __forceinline__ float pow2_for(float m, int target) {
    if (!(m > 0.0f)) return 1.0f;
    int e = 0;
    frexpf(m, &e);
    e = e < -60 ? -60 : (e > 60 ? 60 : e);
    return ldexpf(1.0f, target - e);
}
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    return v;
}
// sum and maximum over a block of 256 threads, known to all threads
__device__ __forceinline__ double block_sum(double v, double* red) {
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) red[threadIdx.x >> 5] = v;
    __syncthreads();
    double s = 0.0;
    for (int i = 0; i < 8; ++i) s += red[i];
    return s;
}
__device__ __forceinline__ float block_max(float v, float* red) {
    v = warp_max(v);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) red[threadIdx.x >> 5] = v;
    __syncthreads();
    float s = red[0];
    for (int i = 1; i < 8; ++i) s = fmaxf(s, red[i]);
    return s;
}

// ---------------------------------------------------------------- wgmma
__device__ __forceinline__ void wg_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wg_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wg_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void hold(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i]) :: "memory");
}
__device__ __forceinline__ void hold4(uint32_t (&d)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(d[i]) :: "memory");
}
// (f0, f1) as a pair of high and a pair of low fp16
__device__ __forceinline__ void split_pair(float f0, float f1, uint32_t& high, uint32_t& low) {
    const __half2 h = __floats2half2_rn(f0, f1);
    const float2 b = __half22float2(h);
    const __half2 l = __floats2half2_rn(f0 - b.x, f1 - b.y);
    high = *reinterpret_cast<const uint32_t*>(&h);
    low = *reinterpret_cast<const uint32_t*>(&l);
}
@WGMMA@
// ---------------------------------------------------------------- 1: a sample of x: shift and magnitude of each channel
__global__ void __launch_bounds__(256) sample_kernel(const float* __restrict__ x, float* __restrict__ shift,
                                                     float* __restrict__ smax) {
    __shared__ double red[8];
    __shared__ float redf[8];
    const int c = blockIdx.x, tid = threadIdx.x;
    float v[20];
    double s = 0.0;
#pragma unroll
    for (int j = 0; j < 20; ++j) {                        // 10 images x 16 pieces x 32 pixels
        const int i = j * 256 + tid;
        const int n = i >> 9, piece = (i >> 5) & 15, p = i & 31;
        v[j] = __ldg(x + static_cast<int64_t>(n * CI + c) * HW + piece * 3136 + p);
        s += static_cast<double>(v[j]);
    }
    s = block_sum(s, red);
    const float mean = static_cast<float>(s / 5120.0);
    float m = 0.0f;
#pragma unroll
    for (int j = 0; j < 20; ++j) m = fmaxf(m, fabsf(v[j] - mean));
    m = block_max(m, redf);
    if (tid == 0) {
        shift[c] = mean;
        smax[c] = m;
    }
}

// ---------------------------------------------------------------- 2: conv1 and covariance of x, one pass over x
// Chunks of 64 pixels x 240 channels. Tiles (high, low) of 248 rows of 128 bytes with the 128-byte swizzle, two
// buffers; row 240 is one, so column 240 of the covariance is the sum of the channel. Warpgroup 0: rows 0..63 and
// 176..239, warpgroup 1: rows 64..191 of the upper triangle. conv1: M = 64 pixels (the tile read M-major), N = 40, K = 80.
constexpr int P1_TILE = 248 * 128;                       // 31744
constexpr int P1_BUFFER = 2 * P1_TILE;                   // 63488
constexpr int P1_RAW = CI * 64 * 4;                      // 61440
constexpr int P1_WG = 40 * 80 * 2;                       // 6400: one group, high or low
constexpr int P1_SMEM = 2 * P1_BUFFER + P1_RAW + 6 * P1_WG + 1024;
constexpr int P1_CHUNKS = NB * (HW / 64);                // 7840

__device__ __forceinline__ uint64_t swizzled_desc(uint32_t address) {
    return static_cast<uint64_t>((address >> 4) & 0x3FFFu) | (static_cast<uint64_t>(1) << 16) |
           (static_cast<uint64_t>(1024 >> 4) << 32) | (static_cast<uint64_t>(1) << 62);
}
// partial covariance of a chunk: 64 rows x 2 N columns, 64 pixels
template <int N>
__device__ __forceinline__ void cov_issue(float (&t)[N], uint64_t a, uint64_t b) {
    constexpr int LOW = P1_TILE >> 4;
    wg_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {                         // the small products first
        wgmma_ss(t, a + 2 * k, b + (2 * k + LOW), k > 0 ? 1 : 0);
        wgmma_ss(t, a + (2 * k + LOW), b + 2 * k, 1);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_ss(t, a + 2 * k, b + 2 * k, 1);
    wg_commit();
}
template <int N>
__device__ __forceinline__ void cov_collect(float (&s)[N], float (&t)[N]) {
    wg_wait();
    hold(t);
#pragma unroll
    for (int i = 0; i < N; ++i) s[i] += t[i];
}
template <int N>
__device__ __forceinline__ void cov_clear(float (&s)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) s[i] = 0.0f;
}
// real units: the values carry the scale twice, those of column 240 once
template <int N>
__device__ __forceinline__ void cov_store(const float (&s)[N], float* __restrict__ to, int row, int col, int first,
                                          float inv) {
#pragma unroll
    for (int j = 0; j < N / 4; ++j) {
        const int c = col + 8 * j;
        const float f = c == CI ? 1.0f : inv;
        if (row >= first)
            *reinterpret_cast<float2*>(to + row * 248 + c) = make_float2(s[4 * j] * inv * f, s[4 * j + 1] * inv * f);
        if (row + 8 >= first)
            *reinterpret_cast<float2*>(to + (row + 8) * 248 + c) =
                make_float2(s[4 * j + 2] * inv * f, s[4 * j + 3] * inv * f);
    }
}

// rows row0 + 16 i: split what this thread itself has copied, then copy the same place of a later chunk
template <int FROM, int END>
__device__ __forceinline__ void pass_piece(const unsigned char* raw, uint32_t raw_s, const float* neg,
                                           unsigned char* to, const float* __restrict__ ahead, float scale,
                                           float& amax) {
#pragma unroll
    for (int i = FROM; i < END; ++i) {
        const float4 v = *reinterpret_cast<const float4*>(raw + i * 4096);
        const float m = neg[16 * i];
        const float f0 = fmaf(v.x, scale, m), f1 = fmaf(v.y, scale, m);
        const float f2 = fmaf(v.z, scale, m), f3 = fmaf(v.w, scale, m);
        amax = fmaxf(amax, fmaxf(fmaxf(fabsf(f0), fabsf(f1)), fmaxf(fabsf(f2), fabsf(f3))));
        uint2 h, l;
        split_pair(f0, f1, h.x, l.x);
        split_pair(f2, f3, h.y, l.y);
        *reinterpret_cast<uint2*>(to + i * 2048) = h;
        *reinterpret_cast<uint2*>(to + P1_TILE + i * 2048) = l;
    }
    if (ahead != nullptr) {
#pragma unroll
        for (int i = FROM; i < END; ++i)
            cp_async16(raw_s + i * 4096, ahead + static_cast<int64_t>(16 * i) * HW);
    }
}
// conv1: 64 pixels x 40 outputs of group g. a: tile, b: weights of the group
__device__ __forceinline__ void pass_conv(uint64_t a, uint64_t b, int g, int t, float* __restrict__ y1,
                                          float y_factor) {
    const int tid = threadIdx.x, lane = tid & 31;
    float c[20];
    wg_fence();
#pragma unroll
    for (int k = 0; k < 5; ++k) {
        wgmma_ts(c, a + 128 * k, b + (80 * k + (P1_WG >> 4)), k > 0 ? 1 : 0);
        wgmma_ts(c, a + (128 * k + (P1_TILE >> 4)), b + 80 * k, 1);
    }
#pragma unroll
    for (int k = 0; k < 5; ++k) wgmma_ts(c, a + 128 * k, b + 80 * k, 1);
    wg_commit();
    const int n = t / (HW / 64), p = (t - n * (HW / 64)) * 64 + ((tid >> 5) & 3) * 16 + (lane >> 2);
    float* to = y1 + static_cast<int64_t>(n * CM + g * 40 + (lane & 3) * 2) * HW + p;
    wg_wait();
    hold(c);
#pragma unroll
    for (int j = 0; j < 5; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            to[(8 * j + e) * HW] = c[4 * j + e] * y_factor;
            to[(8 * j + e) * HW + 8] = c[4 * j + 2 + e] * y_factor;
        }
}

// Four products of 64 rows from A on x N columns from B on; OWN: the group of conv1 that this warpgroup always does.
template <int OWN, int A0, int B0, int N0, int A1, int B1, int N1, int A2, int B2, int N2, int A3, int B3, int N3,
          int FIRST3>
__device__ __forceinline__ void pass_role(const float* __restrict__ x, float* __restrict__ y1,
                                          float* __restrict__ covp, const float* neg, unsigned char* tiles,
                                          float scale, float y_factor, float& amax) {
    const int tid = threadIdx.x, lane = tid & 31;
    const int row0 = tid >> 4, col = (tid & 15) * 4;
    const int to_off = row0 * 128 + ((((col >> 3) ^ (row0 & 7)) << 4) | ((col & 4) << 1));
    unsigned char* raw = tiles + 2 * P1_BUFFER + tid * 16;
    const uint32_t raw_s = shared_address(raw);
    const uint32_t base = shared_address(tiles);
    const uint32_t weights = base + 2 * P1_BUFFER + P1_RAW;

    float s0[N0 / 2], s1[N1 / 2], s2[N2 / 2], s3[N3 / 2];
    cov_clear(s0);
    cov_clear(s1);
    cov_clear(s2);
    cov_clear(s3);

    auto source = [&](int t) -> const float* {
        const int n = t / (HW / 64), p = (t - n * (HW / 64)) * 64;
        return x + static_cast<int64_t>(n * CI + row0) * HW + p + col;
    };
    const float* my_neg = neg + row0;
    // conv1's weights: no swizzle, 640 bytes between core matrices along K, 128 along N
    const uint64_t wdesc = static_cast<uint64_t>((weights >> 4) & 0x3FFFu) |
                           (static_cast<uint64_t>(640 >> 4) << 16) | (static_cast<uint64_t>(128 >> 4) << 32);
    const uint64_t xdesc = swizzled_desc(base);
    constexpr int XG = (80 * 128) >> 4, WG = (2 * P1_WG) >> 4;   // from group to group

    const uint64_t da0 = swizzled_desc(base + A0 * 128), db0 = swizzled_desc(base + B0 * 128);
    const uint64_t da1 = swizzled_desc(base + A1 * 128), db1 = swizzled_desc(base + B1 * 128);
    const uint64_t da2 = swizzled_desc(base + A2 * 128), db2 = swizzled_desc(base + B2 * 128);
    const uint64_t da3 = swizzled_desc(base + A3 * 128), db3 = swizzled_desc(base + B3 * 128);

    {
        const float* now = source(static_cast<int>(blockIdx.x));
#pragma unroll
        for (int i = 0; i < 15; ++i) cp_async16(raw_s + i * 4096, now + static_cast<int64_t>(16 * i) * HW);
        cp_commit();
        cp_wait<0>();
        pass_piece<0, 15>(raw, raw_s, my_neg, tiles + to_off, source(static_cast<int>(blockIdx.x) + P1_BLOCKS), scale, amax);
        cp_commit();
    }
    fence_async();
    asm volatile("bar.sync 1, 256;" ::: "memory");
    int buffer = 0;
#pragma unroll 1
    for (int t = static_cast<int>(blockIdx.x); t < P1_CHUNKS; t += P1_BLOCKS) {
        const int at = buffer * (P1_BUFFER >> 4);
        const bool more = t + P1_BLOCKS < P1_CHUNKS;
        const float* ahead = t + 2 * P1_BLOCKS < P1_CHUNKS ? source(t + 2 * P1_BLOCKS) : nullptr;
        unsigned char* to = tiles + (buffer ^ 1) * P1_BUFFER + to_off;
        {
            float u[N0 / 2];
            cov_issue(u, da0 + at, db0 + at);
            if (more) {
                cp_wait<0>();
                pass_piece<0, 4>(raw, raw_s, my_neg, to, ahead, scale, amax);
            }
            cov_collect(s0, u);
        }
        {
            float u[N1 / 2];
            cov_issue(u, da1 + at, db1 + at);
            if (more) pass_piece<4, 8>(raw, raw_s, my_neg, to, ahead, scale, amax);
            cov_collect(s1, u);
        }
        {
            float u[N2 / 2];
            cov_issue(u, da2 + at, db2 + at);
            if (more) pass_piece<8, 12>(raw, raw_s, my_neg, to, ahead, scale, amax);
            cov_collect(s2, u);
        }
        {
            float u[N3 / 2];
            cov_issue(u, da3 + at, db3 + at);
            if (more) {
                pass_piece<12, 15>(raw, raw_s, my_neg, to, ahead, scale, amax);
                cp_commit();
            }
            cov_collect(s3, u);
        }
        pass_conv(xdesc + (at + OWN * XG), wdesc + OWN * WG, OWN, t, y1, y_factor);
        if (buffer == (OWN >> 1)) pass_conv(xdesc + (at + XG), wdesc + WG, 1, t, y1, y_factor);         // the middle group in turn
        fence_async();
        asm volatile("bar.sync 1, 256;" ::: "memory");
        buffer ^= 1;
    }
    float* to = covp + static_cast<int64_t>(blockIdx.x) * COVP;
    const int row = ((tid >> 5) & 3) * 16 + (lane >> 2), column = (lane & 3) * 2;
    const float inv = 1.0f / scale;
    cov_store(s0, to, A0 + row, B0 + column, 0, inv);
    cov_store(s1, to, A1 + row, B1 + column, 0, inv);
    cov_store(s2, to, A2 + row, B2 + column, 0, inv);
    cov_store(s3, to, A3 + row, B3 + column, FIRST3, inv);
}

__global__ void __launch_bounds__(256, 1) pass_kernel(const float* __restrict__ x, const float* __restrict__ w1,
                                                      const float* __restrict__ shift, const float* __restrict__ smax,
                                                      float* __restrict__ bmax, float* __restrict__ y1,
                                                      float* __restrict__ covp, int again) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ float neg[CI];
    __shared__ float redf[8];
    const int tid = threadIdx.x;
    float scale = pow2_for(block_max(tid < CI ? smax[tid] : 0.0f, redf), 7);
    if (again) {                                          // only if the sample was too small a guide
        const float m = block_max(tid < P1_BLOCKS ? bmax[tid] : 0.0f, redf);
        if (m * scale <= 60000.0f) return;
        scale = pow2_for(m, 14);
    }
    unsigned char* tiles = smem + ((1024u - (shared_address(smem) & 1023u)) & 1023u);
    unsigned char* weights = tiles + 2 * P1_BUFFER + P1_RAW;
    if (tid < CI) neg[tid] = -(shift[tid] * scale);
    float wm = 0.0f;
    for (int i = tid; i < CM * 80; i += 256) wm = fmaxf(wm, fabsf(w1[i]));
    const float sw = pow2_for(block_max(wm, redf), 10);
    for (int i = tid; i < CM * 80; i += 256) {
        const int g = i / 3200, j = i - g * 3200, o = j / 80, c = j - o * 80;
        const float v = w1[i] * sw;
        const __half h = __float2half_rn(v);
        unsigned char* to = weights + g * 2 * P1_WG + ((c >> 3) * 5 + (o >> 3)) * 128 + (o & 7) * 16 + (c & 7) * 2;
        *reinterpret_cast<__half*>(to) = h;
        *reinterpret_cast<__half*>(to + P1_WG) = __float2half_rn(v - __half2float(h));
    }
    for (int i = tid; i < 1024; i += 256) {               // rows 240..247: one row of ones in the high tile, else zero
        const int tile = i >> 8, word = i & 255;
        *reinterpret_cast<uint32_t*>(tiles + tile * P1_TILE + CI * 128 + word * 4) =
            ((tile & 1) == 0 && word < 32) ? 0x3C003C00u : 0u;
    }
    fence_async();
    __syncthreads();
    const float y_factor = (1.0f / sw) * (1.0f / scale);
    float amax = 0.0f;
    if (tid < 128)
        pass_role<0, 0, 0, 96, 0, 96, 96, 0, 192, 56, 176, 192, 56, 192>(x, y1, covp, neg, tiles, scale, y_factor, amax);
    else
        pass_role<2, 64, 64, 96, 64, 160, 88, 128, 128, 64, 128, 192, 56, 0>(x, y1, covp, neg, tiles, scale, y_factor,
                                                                             amax);
    amax = block_max(amax, redf);
    if (!again && tid == 0) bmax[blockIdx.x] = amax / scale;
}

// ---------------------------------------------------------------- 3: sum the covariances (about the shift) of the blocks
// 930 blocks: 64 entries x 4 slices of 33 blocks.
__global__ void __launch_bounds__(256) reduce_x_kernel(const float* __restrict__ covp, const float* __restrict__ shift,
                                                       double* __restrict__ covx, double* __restrict__ dx,
                                                       float* __restrict__ mx) {
    __shared__ double part[256];
    const int tid = threadIdx.x;
    const int i = blockIdx.x * 64 + (tid & 63), slice = tid >> 6;
    const int row = i / 248, column = i - row * 248;
    const bool used = column <= CI && (column >> 6) >= (row >> 6);   // upper triangle of blocks of 64
    double s = 0.0;
    if (used) {
        const float* from = covp + static_cast<int64_t>(slice * 33) * COVP + i;
#pragma unroll 11
        for (int b = 0; b < 33; ++b) s += static_cast<double>(from[static_cast<int64_t>(b) * COVP]);
    }
    part[tid] = s;
    __syncthreads();
    if (slice == 0 && used) {
        const double v = (part[tid] + part[tid + 64] + part[tid + 128] + part[tid + 192]) / COUNT;
        if (column == CI) {
            dx[row] = v;
            mx[row] = static_cast<float>(static_cast<double>(shift[row]) + v);
        } else {
            covx[row * CI + column] = v;
            if ((column >> 6) > (row >> 6)) covx[column * CI + row] = v;
        }
    }
}

// ---------------------------------------------------------------- 4: bn1 from the covariance of x, scale of x
// y1 = w (x - shift): mean w.d, variance w'Cw - mean^2
__global__ void __launch_bounds__(256) bn1_kernel(const double* __restrict__ covx, const double* __restrict__ dx,
                                                  const float* __restrict__ w1, const float* __restrict__ g1,
                                                  const float* __restrict__ b1, const float* __restrict__ w2,
                                                  const float* __restrict__ bmax, float* __restrict__ bn1,
                                                  float* __restrict__ sh2, float* __restrict__ sxp) {
    __shared__ double red[8];
    __shared__ float redf[8];
    __shared__ float w[80];
    const int tid = threadIdx.x, o = blockIdx.x;
    if (o == CM) {
        const float m = block_max(tid < P1_BLOCKS ? bmax[tid] : 0.0f, redf);
        if (tid == 0) sxp[0] = pow2_for(m, 14);           // |x - mean| <= 2 max |x - shift|, so scaled below 2^15
        return;
    }
    const int first = (o / 40) * 80;
    if (tid < 80) w[tid] = w1[o * 80 + tid];
    __syncthreads();
    double a = 0.0, d = 0.0;
    if (tid < 80) {
#pragma unroll 8
        for (int i = 0; i < 80; ++i) a += static_cast<double>(w[i]) * covx[(first + i) * CI + first + tid];
        a *= static_cast<double>(w[tid]);
        d = static_cast<double>(w[tid]) * dx[first + tid];
    }
    const double mean = block_sum(d, red);
    double var = block_sum(a, red) - mean * mean;
    if (var < 0.0) var = 0.0;
    if (tid == 0) {
        const double g = static_cast<double>(g1[o]), b = static_cast<double>(b1[o]);
        const double inv = g / sqrt(var + EPS);
        bn1[o] = static_cast<float>(mean);
        bn1[CM + o] = static_cast<float>(inv);
        bn1[2 * CM + o] = b1[o];
        // about the mean of the depthwise output: that of normal data after bn1 and ReLU, times the sum of the weights
        const double sd = fabs(inv) * sqrt(var);
        double r = b > 0.0 ? b : 0.0;
        if (sd > 0.0) {
            const double z = b / sd;
            r = b * 0.5 * erfc(-z * 0.7071067811865476) + sd * 0.3989422804014327 * exp(-0.5 * z * z);
        }
        double s = 0.0;
        for (int i = 0; i < 9; ++i) s += static_cast<double>(w2[o * 9 + i]);
        sh2[o] = static_cast<float>(r * s);
    }
}

// ---------------------------------------------------------------- 5: bn1 + ReLU + depthwise 3x3 and covariances of its output
// 264 blocks: group q = block % 3 of 40 shuffled channels, tiles of 8 rows x 32 columns. 320 of the 384 threads compute 4
// columns x 8 rows of one channel; then warp = (strip of 16 rows, slice of 64 pixels) of the 48 x 48 covariance.
__device__ __forceinline__ float bn_relu(float v, float m, float s, float b) {
    const float r = fmaf(v - m, s, b);
    return r < 0.0f ? 0.0f : r;
}
__device__ __forceinline__ void load_row(float (&r)[6], const float* __restrict__ src, int y, int tx, float m, float s,
                                         float b) {
    if (y >= 0 && y < 224) {
        const float* p = src + y * 224 + tx * 4;
        const float4 v = __ldg(reinterpret_cast<const float4*>(p));
        r[1] = bn_relu(v.x, m, s, b);
        r[2] = bn_relu(v.y, m, s, b);
        r[3] = bn_relu(v.z, m, s, b);
        r[4] = bn_relu(v.w, m, s, b);
        r[0] = tx > 0 ? bn_relu(__ldg(p - 1), m, s, b) : 0.0f;
        r[5] = tx < 55 ? bn_relu(__ldg(p + 4), m, s, b) : 0.0f;
    } else {
#pragma unroll
        for (int i = 0; i < 6; ++i) r[i] = 0.0f;
    }
}
constexpr int DWP = 264;                                 // pitch in halves
constexpr int DW_TILE = 48 * DWP * 2;                    // 25344
constexpr int DW_SMEM = 2 * DW_TILE;
constexpr int DW_TILES = NB * 28 * 7;                    // 1960

__global__ void __launch_bounds__(384, 2) depthwise_kernel(const float* __restrict__ y1, const float* __restrict__ w2,
                                                           const float* __restrict__ bn1, const float* __restrict__ sh2,
                                                           float* __restrict__ y2, float* __restrict__ part2,
                                                           float* __restrict__ covyp) {
    extern __shared__ __align__(128) unsigned char smem[];
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const int q = static_cast<int>(blockIdx.x % 3), walker = static_cast<int>(blockIdx.x / 3);
    const bool active = tid < 320;
    const int i = active ? tid >> 3 : 0, l = tid & 7;
    const int shuffled = q * 40 + i, c = (shuffled % 3) * 40 + shuffled / 3;
    const int strip = warp % 3, slice = warp / 3;
    for (int k = tid; k < 2 * DW_TILE / 4; k += 384) reinterpret_cast<uint32_t*>(smem)[k] = 0u;
    const float m = bn1[c], s = bn1[CM + c], b = bn1[2 * CM + c], sh = sh2[c];
    float w[9];
#pragma unroll
    for (int k = 0; k < 9; ++k) w[k] = w2[c * 9 + k];
    float acc[6][4];
#pragma unroll
    for (int k = 0; k < 6; ++k) { acc[k][0] = 0.0f; acc[k][1] = 0.0f; acc[k][2] = 0.0f; acc[k][3] = 0.0f; }
    float total = 0.0f;
    const uint32_t high_s = shared_address(smem), low_s = high_s + DW_TILE;
    const uint32_t a_off = static_cast<uint32_t>(((strip * 16 + (lane & 15)) * DWP + slice * 64 + (lane >> 4) * 8) * 2);
    const uint32_t b_off = static_cast<uint32_t>(
        (((lane & 7) + ((lane >> 4) << 3)) * DWP + slice * 64 + ((lane >> 3) & 1) * 8) * 2);
    __syncthreads();

#pragma unroll 1
    for (int t = walker; t < DW_TILES; t += DW_WALKERS) {
        const int n = t / 196, rest = t - n * 196, band = rest / 7, tx = (rest - band * 7) * 8 + l;
        if (active) {
            const int64_t plane = static_cast<int64_t>(n * CM + c) * HW;
            const float* src = y1 + plane;
            const int y0 = band * 8;
            float* dst = y2 + plane + y0 * 224 + tx * 4;
            unsigned char* to = smem + (i * DWP + l * 4) * 2;
            float r0[6], r1[6], r2[6];
            load_row(r0, src, y0 - 1, tx, m, s, b);
            load_row(r1, src, y0, tx, m, s, b);
#pragma unroll
            for (int y = 0; y < 8; ++y) {
                load_row(r2, src, y0 + y + 1, tx, m, s, b);
                float o[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    float v = w[0] * r0[j];
                    v = fmaf(w[1], r0[j + 1], v);
                    v = fmaf(w[2], r0[j + 2], v);
                    v = fmaf(w[3], r1[j], v);
                    v = fmaf(w[4], r1[j + 1], v);
                    v = fmaf(w[5], r1[j + 2], v);
                    v = fmaf(w[6], r2[j], v);
                    v = fmaf(w[7], r2[j + 1], v);
                    v = fmaf(w[8], r2[j + 2], v);
                    o[j] = v;
                }
                *reinterpret_cast<float4*>(dst + y * 224) = make_float4(o[0], o[1], o[2], o[3]);
                const float d0 = o[0] - sh, d1 = o[1] - sh, d2 = o[2] - sh, d3 = o[3] - sh;
                total += (d0 + d1) + (d2 + d3);
                uint2 h, e;
                split_pair(d0 * SY, d1 * SY, h.x, e.x);
                split_pair(d2 * SY, d3 * SY, h.y, e.y);
                *reinterpret_cast<uint2*>(to + y * 64) = h;
                *reinterpret_cast<uint2*>(to + DW_TILE + y * 64) = e;
#pragma unroll
                for (int j = 0; j < 6; ++j) { r0[j] = r1[j]; r1[j] = r2[j]; }
            }
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            uint32_t ah[4], al[4];
            ldsm4(ah, high_s + a_off + k * 32);
            ldsm4(al, low_s + a_off + k * 32);
#pragma unroll
            for (int p = 0; p < 3; ++p) {
                uint32_t bh[4], bl[4];
                ldsm4(bh, high_s + b_off + k * 32 + p * 16 * DWP * 2);
                ldsm4(bl, low_s + b_off + k * 32 + p * 16 * DWP * 2);
                mma_pair(acc[2 * p], acc[2 * p + 1], ah, al, bh, bl);
            }
        }
        __syncthreads();
    }
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    total += __shfl_xor_sync(0xffffffffu, total, 4);
    if (active && l == 0) part2[walker * CM + c] = total;
    float* sum = reinterpret_cast<float*>(smem);          // 48 x 48
    for (int turn = 0; turn < 4; ++turn) {
        if (slice == turn) {
#pragma unroll
            for (int k = 0; k < 6; ++k) {
                float* u = sum + (strip * 16 + (lane >> 2)) * 48 + k * 8 + (lane & 3) * 2;
                float* d = u + 8 * 48;
                if (turn == 0) {
                    u[0] = acc[k][0]; u[1] = acc[k][1];
                    d[0] = acc[k][2]; d[1] = acc[k][3];
                } else {
                    u[0] += acc[k][0]; u[1] += acc[k][1];
                    d[0] += acc[k][2]; d[1] += acc[k][3];
                }
            }
        }
        __syncthreads();
    }
    for (int k = tid; k < 2304; k += 384) covyp[static_cast<int64_t>(blockIdx.x) * 2304 + k] = sum[k];
}

// ---------------------------------------------------------------- 6: means and covariances of the depthwise output
__global__ void __launch_bounds__(128) finish2_kernel(const float* __restrict__ part2, const float* __restrict__ sh2,
                                                      double* __restrict__ dy, float* __restrict__ my) {
    const int c = threadIdx.x;
    if (c < CM) {
        double s = 0.0;
#pragma unroll 22
        for (int i = 0; i < DW_WALKERS; ++i) s += static_cast<double>(part2[i * CM + c]);
        s /= COUNT;
        dy[c] = s;
        my[c] = static_cast<float>(static_cast<double>(sh2[c]) + s);
    }
}
// 108 blocks: 64 entries x 4 slices of 22 walkers
__global__ void __launch_bounds__(256) reduce_y_kernel(const float* __restrict__ covyp, const double* __restrict__ dy,
                                                       double* __restrict__ covy) {
    __shared__ double part[256];
    const int tid = threadIdx.x;
    const int j = blockIdx.x * 64 + (tid & 63), slice = tid >> 6;
    const int q = j / 2304, e = j - q * 2304, r = e / 48, c = e - r * 48;
    double s = 0.0;
#pragma unroll 11
    for (int b = 0; b < 22; ++b)
        s += static_cast<double>(covyp[static_cast<int64_t>((slice * 22 + b) * 3 + q) * 2304 + e]);
    part[tid] = s;
    __syncthreads();
    if (slice == 0 && r < 40 && c < 40) {
        const int rs = q * 40 + r, cs = q * 40 + c;
        const double v = (part[tid] + part[tid + 64] + part[tid + 128] + part[tid + 192]) /
                         (static_cast<double>(SY) * static_cast<double>(SY) * COUNT);
        double k = v - dy[(rs % 3) * 40 + rs / 3] * dy[(cs % 3) * 40 + cs / 3];
        if (r == c && k < 0.0) k = 0.0;
        covy[q * 1600 + r * 40 + c] = k;
    }
}

// ---------------------------------------------------------------- 7: normalised weights as pairs of fp16
// 120 blocks, four outputs each. Row of 288: 0..39 conv3 with bn2 and bn3, 40..47 zero, 48..287 shortcut with its bn.
__device__ __forceinline__ void put_pair(__half* __restrict__ wh, __half* __restrict__ wl, int at, float v) {
    const __half h = __float2half_rn(v);
    wh[at] = h;
    wl[at] = __float2half_rn(v - __half2float(h));
}
__global__ void __launch_bounds__(256) prepare_kernel(
    const double* __restrict__ covx, const double* __restrict__ dx, const double* __restrict__ covy, const float* __restrict__ sxp,
    const float* __restrict__ g2, const float* __restrict__ w3, const float* __restrict__ g3,
    const float* __restrict__ b3, const float* __restrict__ wz, const float* __restrict__ gz,
    const float* __restrict__ bz, __half* __restrict__ wh, __half* __restrict__ wl, float* __restrict__ prm) {
    __shared__ double red[8];
    __shared__ float redf[8];
    __shared__ float ws[4 * CI];
    __shared__ double u[4 * 40];
    __shared__ double v3[4 * 40];
    __shared__ double inv3[4];
    __shared__ float scale3[4];
    const int tid = threadIdx.x, o0 = blockIdx.x * 4;
    const float sx = sxp[0];
    for (int i = tid; i < 4 * CI; i += 256) ws[i] = wz[o0 * CI + i];
    __syncthreads();
    double a[4] = {0.0, 0.0, 0.0, 0.0};
    if (tid < CI) {
#pragma unroll 8
        for (int i = 0; i < CI; ++i) {
            const double c = covx[i * CI + tid];
#pragma unroll
            for (int r = 0; r < 4; ++r) a[r] += static_cast<double>(ws[r * CI + i]) * c;
        }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        const int o = o0 + r;
        const float w = tid < CI ? ws[r * CI + tid] : 0.0f;
        const double dm = block_sum(tid < CI ? static_cast<double>(w) * dx[tid] : 0.0, red);
        double var = block_sum(a[r] * static_cast<double>(w), red) - dm * dm;
        if (var < 0.0) var = 0.0;
        const float wmax = block_max(fabsf(w), redf);
        const double inv = static_cast<double>(gz[o]) / sqrt(var + EPS);
        const float sr = pow2_for(static_cast<float>(fabs(inv) * static_cast<double>(wmax)), 10);
        if (tid < CI) put_pair(wh, wl, o * 288 + 48 + tid, static_cast<float>(static_cast<double>(w) * inv) * sr);
        if (tid == 0) {
            prm[o * 5 + 1] = b3[o];
            prm[o * 5 + 2] = bz[o];
            prm[o * 5 + 3] = sr * sx;
            prm[o * 5 + 4] = 1.0f / (sr * sx);
        }
    }
    const int q = o0 / 160;
    const int r = tid / 40, i = tid - r * 40;
    if (tid < 160) {
        const int s = q * 40 + i, c = (s % 3) * 40 + s / 3;
        const double s2 = static_cast<double>(g2[c]) / sqrt(covy[q * 1600 + i * 41] + EPS);
        u[tid] = static_cast<double>(w3[(o0 + r) * 40 + i]) * s2;
    }
    __syncthreads();
    if (tid < 160) {
        double t = 0.0;
#pragma unroll 8
        for (int j = 0; j < 40; ++j) t += u[r * 40 + j] * covy[q * 1600 + j * 40 + i];
        v3[tid] = t * u[tid];
    }
    __syncthreads();
    if (tid < 4) {
        double var = 0.0, umax = 0.0;
        for (int j = 0; j < 40; ++j) {
            var += v3[tid * 40 + j];
            umax = fmax(umax, fabs(u[tid * 40 + j]));
        }
        if (var < 0.0) var = 0.0;
        const double inv = static_cast<double>(g3[o0 + tid]) / sqrt(var + EPS);
        const float sr = pow2_for(static_cast<float>(fabs(inv) * umax), 10);
        inv3[tid] = inv;
        scale3[tid] = sr;
        prm[(o0 + tid) * 5] = 1.0f / (sr * SY);
    }
    __syncthreads();
    if (tid < 160) put_pair(wh, wl, (o0 + r) * 288 + i, static_cast<float>(u[tid] * inv3[r]) * scale3[r]);
    if (tid < 32) put_pair(wh, wl, (o0 + (tid >> 3)) * 288 + 40 + (tid & 7), 0.0f);
}

// ---------------------------------------------------------------- 8: conv3 + bn3 + ReLU + shortcut
// 132 blocks: group q = block % 3 (160 outputs), 2 x 44 warpgroups that walk over the 3920 tiles of 128 pixels.
// M: pixels, in registers (two tiles of 64 a warpgroup); N: 160 outputs; K: 18 steps of 16, 3 of the depthwise output
// (40 + 8 zeros), 15 of x. Weights: core matrices of 8 outputs x 8 channels (128 bytes), number channels / 8 * 20 +
// outputs / 8.
constexpr int FW = 160 * 288 * 2;                        // 92160
constexpr int FINAL_SMEM = 2 * FW + 288 * 4 + 160 * 16 + 160 * 4;
constexpr int TILES = NB * (HW / 128);                   // 3920
constexpr int WALKERS = 44;

struct Stream {
    const float* x;
    const float* y2;
    int tile, step, q, k0, pixel;
    // channels k0, k0 + 1, k0 + 8, k0 + 9 of the next step of 16, four pixels each
    __device__ __forceinline__ void next(float4 (&v)[4]) {
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (tile < TILES) {
            const int n = tile / (HW / 128), p = (tile - n * (HW / 128)) * 128 + pixel;
            if (step >= 3) {
                const float* from = x + static_cast<int64_t>(n * CI + (step - 3) * 16 + k0) * HW + p;
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    v[j] = __ldg(reinterpret_cast<const float4*>(from + ((j & 1) + 8 * (j >> 1)) * HW));
            } else {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int row = step * 16 + k0 + (j & 1) + 8 * (j >> 1);
                    if (row < 40) {
                        const int s = q * 40 + row, c = (s % 3) * 40 + s / 3;
                        v[j] = __ldg(reinterpret_cast<const float4*>(y2 + static_cast<int64_t>(n * CM + c) * HW + p));
                    }
                }
            }
        }
        if (++step == 18) { step = 0; tile += 2 * WALKERS; }
    }
};

__global__ void __launch_bounds__(256, 1) final_kernel(const float* __restrict__ x, const float* __restrict__ y2,
                                                       const __half* __restrict__ wh, const __half* __restrict__ wl,
                                                       const float* __restrict__ prm, const float* __restrict__ mx,
                                                       const float* __restrict__ my, const float* __restrict__ sxp,
                                                       float* __restrict__ out) {
    extern __shared__ __align__(128) unsigned char smem[];
    float4* par = reinterpret_cast<float4*>(smem + 2 * FW);
    float* neg = reinterpret_cast<float*>(par + 160);
    float* back = neg + 288;
    const int tid = threadIdx.x, lane = tid & 31;
    const int q = static_cast<int>(blockIdx.x % 3);
    const int walker = static_cast<int>(blockIdx.x / 3) * 2 + (tid >> 7);
    const float sx = sxp[0];
    for (int i = tid; i < 160 * 36; i += 256) {
        const int r = i / 36, c = i - r * 36;
        const int64_t from = static_cast<int64_t>(q * 160 + r) * 288 + c * 8;
        const int to = (c * 20 + (r >> 3)) * 128 + (r & 7) * 16;
        *reinterpret_cast<uint4*>(smem + to) = *reinterpret_cast<const uint4*>(wh + from);
        *reinterpret_cast<uint4*>(smem + FW + to) = *reinterpret_cast<const uint4*>(wl + from);
    }
    for (int i = tid; i < 288; i += 256) {
        float m = 0.0f;
        if (i >= 48) m = mx[i - 48] * sx;
        else if (i < 40) m = my[((q * 40 + i) % 3) * 40 + (q * 40 + i) / 3] * SY;
        neg[i] = -m;
    }
    if (tid < 160) {
        const float* from = prm + (q * 160 + tid) * 5;
        par[tid] = make_float4(from[0], from[1], from[2], from[3]);
        back[tid] = from[4];
    }
    fence_async();
    __syncthreads();

    const int k0 = (lane & 3) * 2;
    // no swizzle: 2560 bytes between core matrices along K, 128 along N
    const uint64_t weights = static_cast<uint64_t>((shared_address(smem) >> 4) & 0x3FFFu) |
                             (static_cast<uint64_t>(2560 >> 4) << 16) | (static_cast<uint64_t>(128 >> 4) << 32);

    float acc0[80], acc1[80];
    uint32_t ah0[4], al0[4], ah1[4], al1[4];
#pragma unroll
    for (int i = 0; i < 80; ++i) { acc0[i] = 0.0f; acc1[i] = 0.0f; }
#pragma unroll
    for (int i = 0; i < 4; ++i) { ah0[i] = 0u; al0[i] = 0u; ah1[i] = 0u; al1[i] = 0u; }

    Stream stream;
    stream.x = x; stream.y2 = y2;
    stream.tile = walker; stream.step = 0; stream.q = q; stream.k0 = k0;
    stream.pixel = ((tid >> 5) & 3) * 32 + (lane >> 2) * 4;

    auto step = [&](float4 (&v)[4], int s, int keep) {
        wg_wait();                                        // the step before no longer reads its registers
        hold4(ah0); hold4(al0); hold4(ah1); hold4(al1);
        const float scale = s < 3 ? SY : sx;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float2 m = *reinterpret_cast<const float2*>(neg + s * 16 + k0 + 8 * h);
            const float4 a = v[2 * h], b = v[2 * h + 1];
            split_pair(fmaf(a.x, scale, m.x), fmaf(b.x, scale, m.y), ah0[2 * h], al0[2 * h]);
            split_pair(fmaf(a.y, scale, m.x), fmaf(b.y, scale, m.y), ah0[2 * h + 1], al0[2 * h + 1]);
            split_pair(fmaf(a.z, scale, m.x), fmaf(b.z, scale, m.y), ah1[2 * h], al1[2 * h]);
            split_pair(fmaf(a.w, scale, m.x), fmaf(b.w, scale, m.y), ah1[2 * h + 1], al1[2 * h + 1]);
        }
        stream.next(v);                                   // two steps ahead
        const uint64_t high = weights + static_cast<uint64_t>(s * (5120 >> 4));
        const uint64_t low = high + static_cast<uint64_t>(FW >> 4);
        wg_fence();
        wgmma_rs(acc0, ah0, low, keep);
        wgmma_rs(acc1, ah1, low, keep);
        wgmma_rs(acc0, al0, high, 1);
        wgmma_rs(acc1, al1, high, 1);
        wgmma_rs(acc0, ah0, high, 1);
        wgmma_rs(acc1, ah1, high, 1);
        wg_commit();
    };

    float4 r0[4], r1[4];                                  // even and odd steps on their way
    stream.next(r0);
    stream.next(r1);
#pragma unroll 1
    for (int tile = walker; tile < TILES; tile += 2 * WALKERS) {
        step(r0, 0, 0);
        step(r1, 1, 1);
        step(r0, 2, 1);
        wg_wait();                                        // conv3 is complete: bn3, ReLU, bias of the shortcut's bn
        hold(acc0);
        hold(acc1);
#pragma unroll
        for (int j = 0; j < 20; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const float4 pr = par[j * 8 + k0 + e];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int i = 4 * j + 2 * h + e;
                    float a = fmaf(acc0[i], pr.x, pr.y), b = fmaf(acc1[i], pr.x, pr.y);
                    a = a < 0.0f ? 0.0f : a;
                    b = b < 0.0f ? 0.0f : b;
                    acc0[i] = (a + pr.z) * pr.w;
                    acc1[i] = (b + pr.z) * pr.w;
                }
            }
        hold(acc0);
        hold(acc1);
        step(r1, 3, 1);
#pragma unroll 1
        for (int s = 4; s < 18; s += 2) {
            step(r0, s, 1);
            step(r1, s + 1, 1);
        }
        wg_wait();
        hold(acc0);
        hold(acc1);
        const int n = tile / (HW / 128), p = (tile - n * (HW / 128)) * 128 + stream.pixel;
        float* to = out + static_cast<int64_t>(n * CO + q * 160 + k0) * HW + p;
#pragma unroll
        for (int j = 0; j < 20; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const float f = back[j * 8 + k0 + e];
                __stcs(reinterpret_cast<float4*>(to + (j * 8 + e) * HW),
                       make_float4(acc0[4 * j + e] * f, acc0[4 * j + 2 + e] * f,
                                   acc1[4 * j + e] * f, acc1[4 * j + 2 + e] * f));
            }
    }
}

// ---------------------------------------------------------------- launcher
extern "C" int shuffle_unit(const float* x, const float* w1, const float* g1, const float* b1, const float* w2,
                            const float* g2, const float* w3, const float* g3, const float* b3, const float* wz,
                            const float* gz, const float* bz, float* y1, float* y2, float* scratch, float* out,
                            void* stream_pointer) {
    cudaStream_t stream = static_cast<cudaStream_t>(stream_pointer);
    float* at = scratch;
    float* shift = at; at += 256;
    float* smax = at; at += 256;
    float* bmax = at; at += 256;
    double* dx = reinterpret_cast<double*>(at); at += 512;
    float* mx = at; at += 256;
    float* bn1 = at; at += 384;
    float* sh2 = at; at += 128;
    float* sxp = at; at += 64;
    float* part2 = at; at += DW_WALKERS * CM;             // 10560
    double* dy = reinterpret_cast<double*>(at); at += 256;
    float* my = at; at += 128;
    float* covp = at; at += P1_BLOCKS * COVP;             // 7856640
    float* covyp = at; at += 3 * DW_WALKERS * 2304;       // 608256
    double* covx = reinterpret_cast<double*>(at); at += 115200;
    double* covy = reinterpret_cast<double*>(at); at += 9600;
    float* prm = at; at += 2432;
    __half* wh = reinterpret_cast<__half*>(at); at += 69120;
    __half* wl = reinterpret_cast<__half*>(at);

    cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(pass_kernel),
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, P1_SMEM);
    if (error != cudaSuccess) return static_cast<int>(error);
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(depthwise_kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, DW_SMEM);
    if (error != cudaSuccess) return static_cast<int>(error);
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(final_kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, FINAL_SMEM);
    if (error != cudaSuccess) return static_cast<int>(error);

    sample_kernel<<<CI, 256, 0, stream>>>(x, shift, smax);
    pass_kernel<<<P1_BLOCKS, 256, P1_SMEM, stream>>>(x, w1, shift, smax, bmax, y1, covp, 0);
    pass_kernel<<<P1_BLOCKS, 256, P1_SMEM, stream>>>(x, w1, shift, smax, bmax, y1, covp, 1);
    reduce_x_kernel<<<COVP / 64, 256, 0, stream>>>(covp, shift, covx, dx, mx);
    bn1_kernel<<<CM + 1, 256, 0, stream>>>(covx, dx, w1, g1, b1, w2, bmax, bn1, sh2, sxp);
    depthwise_kernel<<<3 * DW_WALKERS, 384, DW_SMEM, stream>>>(y1, w2, bn1, sh2, y2, part2, covyp);
    finish2_kernel<<<1, 128, 0, stream>>>(part2, sh2, dy, my);
    reduce_y_kernel<<<108, 256, 0, stream>>>(covyp, dy, covy);
    prepare_kernel<<<CO / 4, 256, 0, stream>>>(covx, dx, covy, sxp, g2, w3, g3, b3, wz, gz, bz, wh, wl, prm);
    final_kernel<<<3 * WALKERS, 256, FINAL_SMEM, stream>>>(x, y2, wh, wl, prm, mx, my, sxp, out);
    return static_cast<int>(cudaGetLastError());
}
""".replace("@WGMMA@", WGMMA)

library = ctypes.CDLL(
    load_inline(
        name="shuffle_unit_two_reads",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
shuffle_unit = library.shuffle_unit
shuffle_unit.argtypes = [ctypes.c_void_p] * 17
shuffle_unit.restype = ctypes.c_int


class ChannelShuffle(nn.Module):
    def __init__(self, groups):
        super().__init__()
        self.groups = groups


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, groups=3):
        super().__init__()
        assert out_channels % 4 == 0
        mid_channels = out_channels // 4
        self.conv1 = nn.Conv2d(in_channels, mid_channels, kernel_size=1, stride=1, padding=0, groups=groups, bias=False)
        self.bn1 = nn.BatchNorm2d(mid_channels)
        self.conv2 = nn.Conv2d(
            mid_channels, mid_channels, kernel_size=3, stride=1, padding=1, groups=mid_channels, bias=False
        )
        self.bn2 = nn.BatchNorm2d(mid_channels)
        self.conv3 = nn.Conv2d(mid_channels, out_channels, kernel_size=1, stride=1, padding=0, groups=groups, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.shuffle = ChannelShuffle(groups)
        if in_channels == out_channels:
            self.shortcut = nn.Sequential()
        else:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=1, padding=0, bias=False),
                nn.BatchNorm2d(out_channels),
            )
        self.fits = (in_channels, out_channels, groups) == (240, 480, 3)

    @torch.no_grad()
    def forward(self, x):
        if not self.fits or tuple(x.shape) != (10, 240, 224, 224) or x.dtype != torch.float32:
            raise RuntimeError("ModelNew is specialised for an input of 10 x 240 x 224 x 224 in float32")
        x = x.contiguous()
        held = [
            x,
            self.conv1.weight.contiguous(),
            self.bn1.weight,
            self.bn1.bias,
            self.conv2.weight.contiguous(),
            self.bn2.weight,
            self.conv3.weight.contiguous(),
            self.bn3.weight,
            self.bn3.bias,
            self.shortcut[0].weight.contiguous(),
            self.shortcut[1].weight,
            self.shortcut[1].bias,
            torch.empty((10, 120, 224, 224), device=x.device, dtype=torch.float32),
            torch.empty((10, 120, 224, 224), device=x.device, dtype=torch.float32),
            torch.empty(8800000, device=x.device, dtype=torch.float32),
        ]
        out = torch.empty((10, 480, 224, 224), device=x.device, dtype=torch.float32)
        held.append(out)
        pointers = [tensor.data_ptr() for tensor in held]
        error = shuffle_unit(*pointers, torch.cuda.current_stream().cuda_stream)
        if error:
            raise RuntimeError(f"shuffle_unit: CUDA error {error}")
        return out
