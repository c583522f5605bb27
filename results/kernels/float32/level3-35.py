import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_fp16.h>

constexpr int kLayers = 6;
constexpr int kBatch = 10;
constexpr int kSteps = 512;
constexpr int kInput = 128;
constexpr int kHidden = 256;
constexpr int kOutput = 10;
constexpr int kCluster = 16;
constexpr int kSlots = 4;            // input slots (a power of two, 4: shifts below rely on it)
constexpr int kThreads = 320;        // 8 mma warps, loader, publisher
constexpr int kBarrierThreads = 288; // 8 mma warps and the publisher

constexpr int kBlockBytes = 640;               // one k tile (16 k) of h or x: hi and lo of 10 batches
constexpr int kSlotBytes = 16 * kBlockBytes;   // 256 k

constexpr int kOffH = 0;
constexpr int kOffX = kOffH + 2 * kSlotBytes;
constexpr int kOffPart = kOffX + kSlots * kSlotBytes;
constexpr int kOffStage = kOffPart + 4 * 64 * kBatch * 4;
constexpr int kOffBias = kOffStage + 5 * 128;
constexpr int kOffBar = kOffBias + 64 * 4;     // hbar[2], full[kSlots], empty[kSlots]
constexpr int kSharedBytes = kOffBar + 128;

struct Params {
    const float* w[4 * kLayers];  // w_ih, w_hh, b_ih, b_hh of each layer
    const float* x;
    const float* h0;
    const float* c0;
    const float* fcw;
    const float* fcb;
    float* out;
    unsigned char* hs;
    int* flags;
};

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void bar_init(uint32_t bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void bar_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void bar_expect(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bar_wait(uint32_t bar, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile(
            "{\n.reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(bar), "r"(parity)
            : "memory");
    } while (!done);
    __syncwarp();
}
__device__ __forceinline__ uint32_t map_to_rank(uint32_t address, uint32_t rank) {
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}
__device__ __forceinline__ void store_remote(uint32_t address, uint4 v, uint32_t bar) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
        "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(bar)
        : "memory");
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ int load_acquire(const int* pointer) {
    int v;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(pointer) : "memory");
    return v;
}
__device__ __forceinline__ void store_release(int* pointer, int v) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(pointer), "r"(v) : "memory");
}

// Two neighbours along k, split into fp16 hi and lo; the lower half is the lower k.
__device__ __forceinline__ void split_pair(float a, float b, uint32_t& hi, uint32_t& lo) {
    const __half ah = __float2half_rn(a), bh = __float2half_rn(b);
    const __half al = __float2half_rn(a - __half2float(ah)), bl = __float2half_rn(b - __half2float(bh));
    hi = uint32_t(__half_as_ushort(ah)) | uint32_t(__half_as_ushort(bh)) << 16;
    lo = uint32_t(__half_as_ushort(al)) | uint32_t(__half_as_ushort(bl)) << 16;
}

// Byte offset of element (k, batch), hi (lo = 0) or lo (lo = 1), in a slot.
__device__ __forceinline__ int place(int k, int b, int lo) {
    const int u = k & 15;
    const int tile = b < 8 ? lo : 2;
    const int n = b < 8 ? b : (b - 8) * 2 + lo;
    return (k >> 4) * kBlockBytes + tile * 256 + (n * 4 + ((u & 7) >> 1)) * 8 + (u >> 3) * 4 + (u & 1) * 2;
}

__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint2 b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

// Four k tiles from `source` on, two gates.
__device__ __forceinline__ void multiply(float (&acc)[2][3][4], const uint32_t (&hi)[2][4][4],
                                         const uint32_t (&lo)[2][4][4], const unsigned char* source, int lane) {
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
        const unsigned char* block = source + kk * kBlockBytes + lane * 8;
        const uint2 b0 = *reinterpret_cast<const uint2*>(block);
        const uint2 b1 = *reinterpret_cast<const uint2*>(block + 256);
        uint2 b2 = make_uint2(0u, 0u);
        if (lane < 16) b2 = *reinterpret_cast<const uint2*>(block + 512);
        mma(acc[0][0], hi[0][kk], b0);
        mma(acc[1][0], hi[1][kk], b0);
        mma(acc[0][1], hi[0][kk], b1);
        mma(acc[1][1], hi[1][kk], b1);
        mma(acc[0][2], hi[0][kk], b2);
        mma(acc[1][2], hi[1][kk], b2);
        mma(acc[0][0], lo[0][kk], b0);
        mma(acc[1][0], lo[1][kk], b0);
        mma(acc[0][2], lo[0][kk], b2);
        mma(acc[1][2], lo[1][kk], b2);
    }
}

__device__ __forceinline__ void load_weights(uint32_t (&hi)[2][4][4], uint32_t (&lo)[2][4][4],
                                             const float* __restrict__ w, int columns, float scale, int mg, int kg,
                                             int rank, int lane) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int kk = 0; kk < 4; ++kk) {
            const int row = (mg * 2 + m) * kHidden + rank * 16 + (lane >> 2);
            const int k = (kg * 4 + kk) * 16 + (lane & 3) * 2;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                // a0: (g, c), a1: (g + 8, c), a2: (g, c + 8), a3: (g + 8, c + 8)
                const float2 v = __ldg(reinterpret_cast<const float2*>(
                    w + static_cast<int64_t>(row + (i & 1) * 8) * columns + k + (i >> 1) * 8));
                split_pair(v.x * scale, v.y * scale, hi[m][kk][i], lo[m][kk][i]);
            }
        }
    }
}

__device__ __forceinline__ float sigmoid(float v) { return __fdividef(1.0f, 1.0f + __expf(-v)); }
__device__ __forceinline__ float tanh_accurate(float v) {
    const float large = 1.0f - __fdividef(2.0f, 1.0f + __expf(2.0f * v));
    const float s = v * v;
    float r = 21844.0f / 6081075.0f;
    r = fmaf(r, s, -1382.0f / 155925.0f);
    r = fmaf(r, s, 62.0f / 2835.0f);
    r = fmaf(r, s, -17.0f / 315.0f);
    r = fmaf(r, s, 2.0f / 15.0f);
    r = fmaf(r, s, -1.0f / 3.0f);
    r = r * s;
    const float small = fmaf(r, v, v);
    return fabsf(v) < 0.4f ? small : large;
}

__device__ __forceinline__ void load_x(float4 (&v)[kBatch], const float* x, int t, int lane) {
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
        v[b] = __ldg(reinterpret_cast<const float4*>(x + (b * kSteps + t) * kInput) + lane);
}
__device__ __forceinline__ void prefetch_x(const float* x, int t, int lane) {
    for (int i = lane; i < kBatch * 4; i += 32) {
        const float* pointer = x + ((i >> 2) * kSteps + t) * kInput + (i & 3) * 32;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer));
    }
}

__global__ void __launch_bounds__(kThreads, 1) lstm_kernel(const __grid_constant__ Params p) {
    extern __shared__ __align__(128) unsigned char shared[];
    const int tid = threadIdx.x;
    const int lane = tid & 31;
    const int warp = tid >> 5;
    const int layer = blockIdx.x / kCluster;
    const int rank = blockIdx.x % kCluster;
    const uint32_t base = shared_address(shared);
    const uint32_t hbar = base + kOffBar;
    const uint32_t full = hbar + 16;
    const uint32_t empty = full + 8 * kSlots;

    if (tid == 0) {
        bar_init(hbar, 1);
        bar_init(hbar + 8, 1);
        for (int s = 0; s < kSlots; ++s) {
            bar_init(full + 8 * s, 32);
            bar_init(empty + 8 * s, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        bar_expect(hbar, kSlotBytes);      // h(0)
        bar_expect(hbar + 8, kSlotBytes);  // h(1)
    }
    // h(-1) lies in buffer 1.
    for (int i = tid; i < kBatch * kHidden; i += kThreads) {
        const int b = i / kHidden, k = i % kHidden;
        const float v = p.h0[(layer * kBatch + b) * kHidden + k] * 16.0f;
        const __half hi = __float2half_rn(v);
        const __half lo = __float2half_rn(v - __half2float(hi));
        unsigned char* buffer = shared + kOffH + kSlotBytes;
        *reinterpret_cast<unsigned short*>(buffer + place(k, b, 0)) = __half_as_ushort(hi);
        *reinterpret_cast<unsigned short*>(buffer + place(k, b, 1)) = __half_as_ushort(lo);
    }
    if (tid < 64) {
        const int row = (tid >> 4) * kHidden + rank * 16 + (tid & 15);
        reinterpret_cast<float*>(shared + kOffBias)[tid] = p.w[layer * 4 + 2][row] + p.w[layer * 4 + 3][row];
    }
    __syncthreads();
    cluster_sync();

    if (warp < 8) {
        const int mg = warp & 1;   // gates 2 mg and 2 mg + 1
        const int kg = warp >> 1;  // k tiles 4 kg to 4 kg + 3
        const bool has_input = layer > 0 || kg < 2;  // layer 0 has 8 k tiles of x
        uint32_t in_hi[2][4][4], in_lo[2][4][4], re_hi[2][4][4], re_lo[2][4][4];
        // Sums are 4096 times too large: h is scaled by 16 and weights by 256, x by 1 and its weights by 4096.
        if (has_input) {
            load_weights(in_hi, in_lo, p.w[layer * 4], layer == 0 ? kInput : kHidden, layer == 0 ? 4096.0f : 256.0f,
                         mg, kg, rank, lane);
        } else {
#pragma unroll
            for (int m = 0; m < 2; ++m)
#pragma unroll
                for (int kk = 0; kk < 4; ++kk)
#pragma unroll
                    for (int i = 0; i < 4; ++i) in_hi[m][kk][i] = 0u, in_lo[m][kk][i] = 0u;
        }
        load_weights(re_hi, re_lo, p.w[layer * 4 + 1], kHidden, 256.0f, mg, kg, rank, lane);

        const int unit = lane & 15;
        const int half_warp = lane >> 4;
        const int batch = warp * 2 + half_warp;  // for warps 0 to 4
        float cell = 0.0f;
        if (warp < 5) cell = p.c0[(layer * kBatch + batch) * kHidden + rank * 16 + unit];

        float* const part = reinterpret_cast<float*>(shared + kOffPart);
        const float* const bias = reinterpret_cast<const float*>(shared + kOffBias);

        float acc[2][3][4];
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int n = 0; n < 3; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) acc[m][n][i] = 0.0f;

        bar_wait(full, 0);
        if (has_input) multiply(acc, in_hi, in_lo, shared + kOffX + kg * 4 * kBlockBytes, lane);
        __syncwarp();
        if (lane == 0) bar_arrive(empty);

#pragma unroll 1
        for (int t = 0; t < kSteps; ++t) {
            const int before = (t + 1) & 1;  // buffer of h(t - 1)
            if (t > 0) {
                bar_wait(hbar + 8 * before, ((t - 1) >> 1) & 1);
                if (tid == 0 && t + 1 < kSteps) bar_expect(hbar + 8 * before, kSlotBytes);  // for h(t + 1)
                __syncwarp();
            }
            multiply(acc, re_hi, re_lo, shared + kOffH + before * kSlotBytes + kg * 4 * kBlockBytes, lane);

#pragma unroll
            for (int m = 0; m < 2; ++m) {
                float* row = part + (kg * 64 + (mg * 2 + m) * 16 + (lane >> 2)) * kBatch;
                const int c = (lane & 3) * 2;
                *reinterpret_cast<float2*>(row + c) =
                    make_float2(acc[m][0][0] + acc[m][1][0], acc[m][0][1] + acc[m][1][1]);
                *reinterpret_cast<float2*>(row + 8 * kBatch + c) =
                    make_float2(acc[m][0][2] + acc[m][1][2], acc[m][0][3] + acc[m][1][3]);
                if ((lane & 3) < 2) {
                    row[8 + (lane & 3)] = acc[m][2][0] + acc[m][2][1];
                    row[8 * kBatch + 8 + (lane & 3)] = acc[m][2][2] + acc[m][2][3];
                }
            }
            __syncwarp();
            asm volatile("bar.sync 1, %0;" ::"n"(kBarrierThreads) : "memory");

            if (warp < 5) {
                float gate[4];
#pragma unroll
                for (int g = 0; g < 4; ++g) {
                    const float* column = part + (g * 16 + unit) * kBatch + batch;
                    const float sum = (column[0] + column[64 * kBatch]) +
                                      (column[128 * kBatch] + column[192 * kBatch]);
                    gate[g] = fmaf(sum, 1.0f / 4096.0f, bias[g * 16 + unit]);
                }
                const float gi = sigmoid(gate[0]);
                const float gf = sigmoid(gate[1]);
                const float gg = tanh_accurate(gate[2]);
                const float go = sigmoid(gate[3]);
                cell = fmaf(gf, cell, gi * gg);
                const float h = go * tanh_accurate(cell) * 16.0f;
                const __half hi = __float2half_rn(h);
                const __half lo = __float2half_rn(h - __half2float(hi));

                unsigned char* stage = shared + kOffStage + warp * 128;
                const int pair = (unit & 7) >> 1;
                const int at = (warp < 4 ? half_warp * 4 + pair : half_warp * 8 + pair) * 8 + (unit >> 3) * 4 +
                               (unit & 1) * 2;
                *reinterpret_cast<unsigned short*>(stage + at) = __half_as_ushort(hi);
                *reinterpret_cast<unsigned short*>(stage + at + (warp < 4 ? 64 : 32)) = __half_as_ushort(lo);
                __syncwarp();
                const int chunk = lane & 7;
                const uint4 v = *reinterpret_cast<const uint4*>(stage + chunk * 16);
                const int inside = warp < 4 ? warp * 64 + (chunk & 3) * 16 + (chunk >> 2) * 256 : 512 + chunk * 16;
                const uint32_t target = base + kOffH + (t & 1) * kSlotBytes + rank * kBlockBytes + inside;
                const uint32_t target_bar = hbar + 8 * (t & 1);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const uint32_t peer = (lane >> 3) + 4 * i;
                    store_remote(map_to_rank(target, peer), v, map_to_rank(target_bar, peer));
                }
                __syncwarp();
            }

            if (t + 1 < kSteps) {
                const int slot = (t + 1) & (kSlots - 1);
#pragma unroll
                for (int m = 0; m < 2; ++m)
#pragma unroll
                    for (int n = 0; n < 3; ++n)
#pragma unroll
                        for (int i = 0; i < 4; ++i) acc[m][n][i] = 0.0f;
                bar_wait(full + 8 * slot, ((t + 1) / kSlots) & 1);
                if (has_input)
                    multiply(acc, in_hi, in_lo, shared + kOffX + slot * kSlotBytes + kg * 4 * kBlockBytes, lane);
                __syncwarp();
                if (lane == 0) bar_arrive(empty + 8 * slot);
            }
        }

        // h(kSteps - 1) lies in buffer (kSteps - 1) & 1.
        bar_wait(hbar + 8 * ((kSteps - 1) & 1), ((kSteps - 1) >> 1) & 1);
        if (layer == kLayers - 1) {
            const int index = rank * 8 + warp;
            if (index < kBatch * kOutput) {
                const int b = index / kOutput, o = index % kOutput;
                const unsigned char* buffer = shared + kOffH + ((kSteps - 1) & 1) * kSlotBytes;
                float sum = 0.0f;
#pragma unroll
                for (int j = 0; j < kHidden / 32; ++j) {
                    const int k = j * 32 + lane;
                    const float hi = __half2float(
                        __ushort_as_half(*reinterpret_cast<const unsigned short*>(buffer + place(k, b, 0))));
                    const float lo = __half2float(
                        __ushort_as_half(*reinterpret_cast<const unsigned short*>(buffer + place(k, b, 1))));
                    sum = fmaf((hi + lo) * (1.0f / 16.0f), p.fcw[o * kHidden + k], sum);
                }
#pragma unroll
                for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
                if (lane == 0) p.out[b * kOutput + o] = sum + p.fcb[o];
            }
        }
    } else if (warp == 8) {
        // Loader: the input of each step into its slot.
        if (layer == 0) {
            for (int t = 0; t < 16; ++t) prefetch_x(p.x, t, lane);
            float4 current[kBatch], next[kBatch];
            load_x(current, p.x, 0, lane);
            const int u = (4 * lane) & 15;
            const int inside = (lane >> 2) * kBlockBytes + ((u & 7) >> 1) * 8 + (u >> 3) * 4;
#pragma unroll 1
            for (int t = 0; t < kSteps; ++t) {
                const int slot = t & (kSlots - 1);
                load_x(next, p.x, t + 1 < kSteps ? t + 1 : t, lane);
                if (t + 16 < kSteps) prefetch_x(p.x, t + 16, lane);
                if (t >= kSlots) bar_wait(empty + 8 * slot, (t / kSlots + 1) & 1);
                unsigned char* target = shared + kOffX + slot * kSlotBytes + inside;
#pragma unroll
                for (int b = 0; b < kBatch; ++b) {
                    uint32_t hi0, lo0, hi1, lo1;
                    split_pair(current[b].x, current[b].y, hi0, lo0);
                    split_pair(current[b].z, current[b].w, hi1, lo1);
                    const int at_hi = b < 8 ? b * 32 : 512 + (b - 8) * 64;
                    const int at_lo = b < 8 ? 256 + b * 32 : 512 + (b - 8) * 64 + 32;
                    *reinterpret_cast<uint32_t*>(target + at_hi) = hi0;
                    *reinterpret_cast<uint32_t*>(target + at_hi + 8) = hi1;
                    *reinterpret_cast<uint32_t*>(target + at_lo) = lo0;
                    *reinterpret_cast<uint32_t*>(target + at_lo + 8) = lo1;
                }
                bar_arrive(full + 8 * slot);
#pragma unroll
                for (int b = 0; b < kBatch; ++b) current[b] = next[b];
            }
        } else {
            const int* flags = p.flags + (layer - 1) * 32;
            const unsigned char* source = p.hs + static_cast<int64_t>(layer - 1) * kSteps * kSlotBytes;
            int seen = lane < kCluster ? 0 : 0x7fffffff;
#pragma unroll 1
            for (int t = 0; t < kSteps; ++t) {
                const int slot = t & (kSlots - 1);
                if (t >= kSlots) bar_wait(empty + 8 * slot, (t / kSlots + 1) & 1);
                while (!__all_sync(0xffffffffu, seen > t)) {
                    if (lane < kCluster) seen = load_acquire(flags + lane);
                }
                __syncwarp();
                const unsigned char* from = source + static_cast<int64_t>(t) * kSlotBytes + lane * 16;
                const uint32_t to = base + kOffX + slot * kSlotBytes + lane * 16;
#pragma unroll
                for (int j = 0; j < kSlotBytes / 512; ++j)
                    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + j * 512), "l"(from + j * 512)
                                 : "memory");
                asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full + 8 * slot)
                             : "memory");
            }
            asm volatile("cp.async.wait_all;" ::: "memory");
        }
        __syncwarp();
    } else {
        // Publisher: this block's part of h(t - 1) for the layer above.
        int* flag = p.flags + layer * 32 + rank;
        asm volatile("bar.arrive 1, %0;" ::"n"(kBarrierThreads) : "memory");  // step 0
#pragma unroll 1
        for (int t = 1; t <= kSteps; ++t) {
            const int buffer = (t - 1) & 1;
            bar_wait(hbar + 8 * buffer, ((t - 1) >> 1) & 1);
            const unsigned char* own = shared + kOffH + buffer * kSlotBytes + rank * kBlockBytes + lane * 16;
            const uint4 first = *reinterpret_cast<const uint4*>(own);
            uint4 second = make_uint4(0u, 0u, 0u, 0u);
            if (lane < 8) second = *reinterpret_cast<const uint4*>(own + 512);
            __syncwarp();
            if (t < kSteps) asm volatile("bar.arrive 1, %0;" ::"n"(kBarrierThreads) : "memory");
            if (layer < kLayers - 1) {
                unsigned char* to = p.hs + (static_cast<int64_t>(layer) * kSteps + (t - 1)) * kSlotBytes +
                                    rank * kBlockBytes + lane * 16;
                __stcg(reinterpret_cast<uint4*>(to), first);
                if (lane < 8) __stcg(reinterpret_cast<uint4*>(to + 512), second);
                __syncwarp();
                if (lane == 0) {
                    __threadfence();
                    store_release(flag, t);
                }
                __syncwarp();
            }
        }
    }

    __syncwarp();
    cluster_sync();
    // Every block of this cluster has seen the last flag of the layer below: ready for the next call.
    if (layer > 0 && rank == 0 && tid < kCluster) p.flags[(layer - 1) * 32 + tid] = 0;
}

extern "C" int lstm_forward(const void* const* weights, const float* x, const float* h0, const float* c0,
                            const float* fcw, const float* fcb, float* out, void* hs, void* flags, void* stream) {
    Params params;
    for (int i = 0; i < 4 * kLayers; ++i) params.w[i] = static_cast<const float*>(weights[i]);
    params.x = x;
    params.h0 = h0;
    params.c0 = c0;
    params.fcw = fcw;
    params.fcb = fcb;
    params.out = out;
    params.hs = static_cast<unsigned char*>(hs);
    params.flags = static_cast<int*>(flags);

    cudaError_t error = cudaFuncSetAttribute((const void*)lstm_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) return static_cast<int>(error);
    error = cudaFuncSetAttribute((const void*)lstm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    if (error != cudaSuccess) return static_cast<int>(error);

    cudaLaunchAttribute attribute[1] = {};
    attribute[0].id = cudaLaunchAttributeClusterDimension;
    attribute[0].val.clusterDim.x = kCluster;
    attribute[0].val.clusterDim.y = 1;
    attribute[0].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(kLayers * kCluster);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kSharedBytes;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = attribute;
    config.numAttrs = 1;
    error = cudaLaunchKernelEx(&config, lstm_kernel, params);
    if (error != cudaSuccess) return static_cast<int>(error);
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="lstm_wavefront_cluster",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
lstm_forward = library.lstm_forward
lstm_forward.argtypes = [ctypes.POINTER(ctypes.c_void_p)] + [ctypes.c_void_p] * 9
lstm_forward.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, num_layers, output_size, dropout=0.0):
        super(ModelNew, self).__init__()
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.lstm = nn.LSTM(input_size, hidden_size, num_layers,
                            batch_first=True, dropout=dropout, bidirectional=False)
        self.fc = nn.Linear(hidden_size, output_size)
        self._fits = (input_size, hidden_size, num_layers, output_size) == (128, 256, 6, 10) and dropout == 0.0
        self._hs = None
        self._flags = None

    def forward(self, x, h0=None, c0=None):
        batch_size = x.size(0)
        if h0 is None:
            h0 = torch.randn(self.num_layers, batch_size, self.hidden_size, device=x.device)
        if c0 is None:
            c0 = torch.randn(self.num_layers, batch_size, self.hidden_size, device=x.device)

        if not (self._fits and x.is_cuda and x.dtype == torch.float32 and tuple(x.shape) == (10, 512, 128)):
            out, _ = self.lstm(x, (h0, c0))
            return self.fc(out[:, -1, :])

        if self._hs is None or self._hs.device != x.device:
            self._hs = torch.empty(5 * 512 * 10240, dtype=torch.uint8, device=x.device)
            self._flags = torch.zeros(6 * 32, dtype=torch.int32, device=x.device)

        x = x.contiguous()
        h0 = h0.contiguous()
        c0 = c0.contiguous()
        lstm = self.lstm
        weights = []
        for layer in range(6):
            weights.append(getattr(lstm, f"weight_ih_l{layer}").contiguous())
            weights.append(getattr(lstm, f"weight_hh_l{layer}").contiguous())
            weights.append(getattr(lstm, f"bias_ih_l{layer}").contiguous())
            weights.append(getattr(lstm, f"bias_hh_l{layer}").contiguous())
        pointers = (ctypes.c_void_p * 24)(*[w.data_ptr() for w in weights])
        fcw = self.fc.weight.contiguous()
        fcb = self.fc.bias.contiguous()
        out = torch.empty(10, 10, dtype=torch.float32, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = lstm_forward(pointers, x.data_ptr(), h0.data_ptr(), c0.data_ptr(), fcw.data_ptr(), fcb.data_ptr(),
                             out.data_ptr(), self._hs.data_ptr(), self._flags.data_ptr(), stream)
        if error:
            raise RuntimeError(f"lstm_forward: CUDA error {error}")
        return out
