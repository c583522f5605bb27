import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_fp16.h>

constexpr int kLayers = 6;
constexpr int kBatch = 10;           // group A: batches 0 to 3, group B: 4 to 9
constexpr int kSteps = 512;
constexpr int kInput = 128;
constexpr int kHidden = 256;
constexpr int kOutput = 10;
constexpr int kCluster = 16;
constexpr int kSlots = 8;            // input slots
constexpr int kThreads = 512;        // 8 mma warps, 2 + 3 epilogue warps, 3 loaders
constexpr int kLoaders = 3;
constexpr int kBarrierA = 1;         // and 2, by the parity of the step
constexpr int kBarrierB = 3;         // and 4
constexpr int kCountA = 256 + 64;
constexpr int kCountB = 256 + 96;

// One k tile (16 k) of h or x: group A 256 bytes (column 2 b + lo), group B 192 bytes hi, 192 bytes lo.
constexpr int kBlockBytes = 640;
constexpr int kWideHi = 256;
constexpr int kWideLo = 448;
constexpr int kSlotBytes = 16 * kBlockBytes;       // 256 k
constexpr int kPartStride = 6;                     // floats a row of partial sums
constexpr int kPartFloats = 4 * 64 * kPartStride;  // partial sums of one step and group

constexpr int kOffH = 0;
constexpr int kOffX = kOffH + 2 * kSlotBytes;
constexpr int kOffPart = kOffX + kSlots * kSlotBytes;       // A: 2 buffers, B: 2 buffers
constexpr int kOffStage = kOffPart + 4 * kPartFloats * 4;
constexpr int kOffBias = kOffStage + 5 * 128;
constexpr int kOffBar = kOffBias + 64 * 4;                  // full[kSlots], empty[kSlots]
constexpr int kSharedBytes = kOffBar + 16 * kSlots;

struct Params {
    const float* w[4 * kLayers];  // w_ih, w_hh, b_ih, b_hh of each layer
    const float* x;
    const float* h0;
    const float* c0;
    const float* fcw;
    const float* fcb;
    float* out;
    unsigned char* hs;
    int* epoch;
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
__device__ __forceinline__ void named_arrive(int id, int count) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(count) : "memory");
}
__device__ __forceinline__ void named_sync(int id, int count) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
}
__device__ __forceinline__ uint32_t map_to_rank(uint32_t address, uint32_t rank) {
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}
__device__ __forceinline__ void store_remote(uint32_t address, uint4 v) {
    asm volatile("st.relaxed.cluster.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x),
                 "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ int load_int(const int* pointer) {
    int v;
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(pointer) : "memory");
    return v;
}
__device__ __forceinline__ uint4 load_global(const unsigned char* pointer) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(pointer)
                 : "memory");
    return v;
}
__device__ __forceinline__ void store_global(unsigned char* pointer, uint4 v) {
    asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}
__device__ __forceinline__ uint2 load_pair(uint32_t address) {
    uint2 v;
    asm volatile("ld.volatile.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
    return v;
}
__device__ __forceinline__ uint32_t load_word(uint32_t address) {
    uint32_t v;
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
    return v;
}

// Two neighbours along k, split into fp16 hi and lo; the lower half is the lower k.
__device__ __forceinline__ void split_pair(float a, float b, uint32_t& hi, uint32_t& lo) {
    const __half ah = __float2half_rn(a), bh = __float2half_rn(b);
    const __half al = __float2half_rn(a - __half2float(ah)), bl = __float2half_rn(b - __half2float(bh));
    hi = uint32_t(__half_as_ushort(ah)) | uint32_t(__half_as_ushort(bh)) << 16;
    lo = uint32_t(__half_as_ushort(al)) | uint32_t(__half_as_ushort(bl)) << 16;
}

// One value as fp16 hi and lo whose lowest bits are `tag`; lo makes up for the bit in hi.
__device__ __forceinline__ void split_tagged(float v, uint32_t tag, unsigned short& hi, unsigned short& lo) {
    hi = static_cast<unsigned short>((uint32_t(__half_as_ushort(__float2half_rn(v))) & 0xfffeu) | tag);
    const float rest = v - __half2float(__ushort_as_half(hi));
    lo = static_cast<unsigned short>((uint32_t(__half_as_ushort(__float2half_rn(rest))) & 0xfffeu) | tag);
}

// Byte offset of element (k, batch), hi (lo = 0) or lo (lo = 1), in a slot.
__device__ __forceinline__ int place(int k, int b, int lo) {
    const int u = k & 15;
    const int column = b < 4 ? b * 64 + lo * 32 : kWideHi + lo * (kWideLo - kWideHi) + (b - 4) * 32;
    return (k >> 4) * kBlockBytes + column + ((u & 7) >> 1) * 8 + (u >> 3) * 4 + (u & 1) * 2;
}

__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint2 b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

struct Fragment {
    uint2 b0, b1;  // group A uses b0 only
};

// One k tile, two gates. acc[m][0] and acc[m][1] are summed at the end, so either takes any product; they
// alternate. Columns 6 and 7 of group B are copies that nobody reads.
template <bool kWide>
__device__ __forceinline__ void multiply_tile(float (&acc)[2][2][4], const uint32_t (&hi0)[4],
                                              const uint32_t (&hi1)[4], const uint32_t (&lo0)[4],
                                              const uint32_t (&lo1)[4], const Fragment& f, bool odd) {
    if (!kWide) {
        mma(acc[0][0], hi0, f.b0);
        mma(acc[1][0], hi1, f.b0);
        mma(acc[0][1], lo0, f.b0);
        mma(acc[1][1], lo1, f.b0);
    } else if (odd) {
        mma(acc[0][0], hi0, f.b0);
        mma(acc[1][0], hi1, f.b0);
        mma(acc[0][1], hi0, f.b1);
        mma(acc[1][1], hi1, f.b1);
        mma(acc[0][0], lo0, f.b0);
        mma(acc[1][0], lo1, f.b0);
    } else {
        mma(acc[0][1], hi0, f.b1);
        mma(acc[1][1], hi1, f.b1);
        mma(acc[0][0], hi0, f.b0);
        mma(acc[1][0], hi1, f.b0);
        mma(acc[0][1], lo0, f.b0);
        mma(acc[1][1], lo1, f.b0);
    }
}

// Four k tiles of the input; `source` is this lane's place in the first one.
template <bool kWide>
__device__ __forceinline__ void multiply_input(float (&acc)[2][2][4], const uint32_t (&hi)[2][4][4],
                                               const uint32_t (&lo)[2][4][4], const unsigned char* source) {
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
        Fragment f;
        f.b0 = *reinterpret_cast<const uint2*>(source + kk * kBlockBytes);
        f.b1 = f.b0;
        if (kWide) f.b1 = *reinterpret_cast<const uint2*>(source + kk * kBlockBytes + (kWideLo - kWideHi));
        multiply_tile<kWide>(acc, hi[0][kk], hi[1][kk], lo[0][kk], lo[1][kk], f, (kk & 1) != 0);
    }
}

template <bool kWide>
__device__ __forceinline__ Fragment load_fragment(uint32_t address) {
    Fragment f;
    f.b0 = load_pair(address);
    f.b1 = f.b0;
    if (kWide) f.b1 = load_pair(address + (kWideLo - kWideHi));
    return f;
}
template <bool kWide>
__device__ __forceinline__ bool missing(const Fragment& f, uint32_t tag) {
    uint32_t wrong = (f.b0.x ^ tag) | (f.b0.y ^ tag);
    if (kWide) wrong |= (f.b1.x ^ tag) | (f.b1.y ^ tag);
    return (wrong & 1u) != 0u;
}

// Four k tiles of h, each as soon as all its words bear the tag.
template <bool kWide>
__device__ __forceinline__ void multiply_hidden(float (&acc)[2][2][4], const uint32_t (&hi)[2][4][4],
                                                const uint32_t (&lo)[2][4][4], uint32_t address, uint32_t tag) {
    Fragment next = load_fragment<kWide>(address);
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
        Fragment now = next;
        while (__any_sync(0xffffffffu, missing<kWide>(now, tag)))
            now = load_fragment<kWide>(address + kk * kBlockBytes);
        if (kk < 3) next = load_fragment<kWide>(address + (kk + 1) * kBlockBytes);
        multiply_tile<kWide>(acc, hi[0][kk], hi[1][kk], lo[0][kk], lo[1][kk], now, (kk & 1) != 0);
    }
}

// Stores this warp's partial sums and clears them. `row` is the row of this lane's first values.
template <bool kWide>
__device__ __forceinline__ void store_partial(float (&acc)[2][2][4], float* row, int lane) {
    const int q = lane & 3;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
        float* r = row + m * 16 * kPartStride;
        if (kWide) {
            if (q < 3) {
                *reinterpret_cast<float2*>(r + 2 * q) =
                    make_float2(acc[m][0][0] + acc[m][1][0], acc[m][0][1] + acc[m][1][1]);
                *reinterpret_cast<float2*>(r + 8 * kPartStride + 2 * q) =
                    make_float2(acc[m][0][2] + acc[m][1][2], acc[m][0][3] + acc[m][1][3]);
            }
        } else {
            r[q] = (acc[m][0][0] + acc[m][1][0]) + (acc[m][0][1] + acc[m][1][1]);
            r[8 * kPartStride + q] = (acc[m][0][2] + acc[m][1][2]) + (acc[m][0][3] + acc[m][1][3]);
        }
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[m][n][i] = 0.0f;
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

// Five batches of x of one step; a lane has 4 k of each.
template <int kFirst>
__device__ __forceinline__ void load_x(float4 (&v)[5], const float* x, int t, int lane) {
#pragma unroll
    for (int b = 0; b < 5; ++b)
        v[b] = __ldg(reinterpret_cast<const float4*>(x + ((b + kFirst) * kSteps + t) * kInput) + lane);
}
template <int kFirst>
__device__ __forceinline__ void store_x(unsigned char* target, const float4 (&v)[5]) {
#pragma unroll
    for (int i = 0; i < 5; ++i) {
        const int b = i + kFirst;
        uint32_t hi0, lo0, hi1, lo1;
        split_pair(v[i].x, v[i].y, hi0, lo0);
        split_pair(v[i].z, v[i].w, hi1, lo1);
        const int at_hi = b < 4 ? b * 64 : kWideHi + (b - 4) * 32;
        const int at_lo = b < 4 ? b * 64 + 32 : kWideLo + (b - 4) * 32;
        *reinterpret_cast<uint32_t*>(target + at_hi) = hi0;
        *reinterpret_cast<uint32_t*>(target + at_hi + 8) = hi1;
        *reinterpret_cast<uint32_t*>(target + at_lo) = lo0;
        *reinterpret_cast<uint32_t*>(target + at_lo + 8) = lo1;
    }
}
__device__ __forceinline__ void prefetch_x(const float* x, int t, int lane) {
    for (int i = lane; i < kBatch * 4; i += 32) {
        const float* pointer = x + ((i >> 2) * kSteps + t) * kInput + (i & 3) * 32;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer));
    }
}

// The gates of 16 units and two batches a warp. Warps 0 and 1 have group A, warps 2 to 4 group B.
struct Epilogue {
    float cell;
    float bias[4];
    uint32_t target[4];            // this lane's 16 bytes in buffer 0 of four peers
    const float* column;
    unsigned short* stage_hi;
    unsigned short* stage_lo;
    const uint4* stage_read;
    unsigned char* publish;
    uint32_t call_tag;
    bool odd;
    bool publishes;
};

__device__ __forceinline__ void prepare(Epilogue& e, const Params& p, unsigned char* shared, uint32_t base, int index,
                                        int layer, int rank, int lane, uint32_t call_tag) {
    const bool wide = index >= 2;
    const int group = wide ? index - 2 : index;  // pair of batches in its group
    const int unit = lane & 15;
    const int half_warp = lane >> 4;
    const int batch = index * 2 + half_warp;     // group B starts at batch 4
    e.cell = p.c0[(layer * kBatch + batch) * kHidden + rank * 16 + unit];
#pragma unroll
    for (int g = 0; g < 4; ++g) e.bias[g] = reinterpret_cast<const float*>(shared + kOffBias)[g * 16 + unit];
    e.column = reinterpret_cast<const float*>(shared + kOffPart) + (wide ? 2 * kPartFloats : 0) +
               unit * kPartStride + group * 2 + half_warp;

    unsigned char* stage = shared + kOffStage + index * 128;
    const int pair = (unit & 7) >> 1;
    const int at = (wide ? half_warp * 32 : half_warp * 64) + pair * 8 + (unit >> 3) * 4 + (unit & 1) * 2;
    e.stage_hi = reinterpret_cast<unsigned short*>(stage + at);
    e.stage_lo = reinterpret_cast<unsigned short*>(stage + at + (wide ? 64 : 32));
    const int chunk = lane & 7;
    e.stage_read = reinterpret_cast<const uint4*>(stage + chunk * 16);

    const int inside = wide ? kWideHi + group * 64 + (chunk & 3) * 16 + (chunk >> 2) * (kWideLo - kWideHi)
                            : group * 128 + chunk * 16;
    const uint32_t here = base + kOffH + rank * kBlockBytes + inside;
#pragma unroll
    for (int i = 0; i < 4; ++i) e.target[i] = map_to_rank(here, (rank + (lane >> 3) + 4 * i) & (kCluster - 1));
    e.publishes = layer < kLayers - 1 && lane < 8;
    e.publish = p.hs + static_cast<int64_t>(e.publishes ? layer : 0) * kSteps * kSlotBytes + rank * kBlockBytes + inside;
    e.call_tag = call_tag;
    e.odd = (unit & 1) != 0;
}

__device__ __forceinline__ void finish_step(Epilogue& e, int t) {
    const float* column = e.column + (t & 1) * kPartFloats;
    float gate[4];
#pragma unroll
    for (int g = 0; g < 4; ++g) {
        const float* c = column + g * 16 * kPartStride;
        const float sum = (c[0] + c[64 * kPartStride]) + (c[128 * kPartStride] + c[192 * kPartStride]);
        gate[g] = fmaf(sum, 1.0f / 4096.0f, e.bias[g]);
    }
    const float gi = sigmoid(gate[0]);
    const float gf = sigmoid(gate[1]);
    const float gg = tanh_accurate(gate[2]);
    const float go = sigmoid(gate[3]);
    e.cell = fmaf(gf, e.cell, gi * gg);
    const float h = go * tanh_accurate(e.cell) * 16.0f;
    // Bit 0 of a word: parity of the step in its buffer. Bit 16: parity of the call.
    const uint32_t tag = e.odd ? e.call_tag : static_cast<uint32_t>((t >> 1) & 1);
    unsigned short hi, lo;
    split_tagged(h, tag, hi, lo);
    *e.stage_hi = hi;
    *e.stage_lo = lo;
    __syncwarp();
    const uint4 v = *e.stage_read;
    const uint32_t offset = (t & 1) * kSlotBytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) store_remote(e.target[i] + offset, v);
    if (e.publishes) store_global(e.publish, v);
    e.publish += kSlotBytes;
    __syncwarp();
}

// Why the buffers suffice, for each group by itself. A block sends h(t) after its barrier of step t, so after
// all its mma warps together have seen every word of h(t - 1) of all 16 blocks; each block sent that after its
// barrier of step t - 1, so after its reads of h(t - 2), whose buffer h(t) takes. A mma warp writes partial
// sums of t + 2 and arrives at that barrier after it saw h(t + 1) of some block, which sent it after it had
// seen all of this block's h(t): the barrier of t is complete and the partial sums of t are read.
__global__ void __launch_bounds__(kThreads, 1) lstm_kernel(const __grid_constant__ Params p) {
    extern __shared__ __align__(128) unsigned char shared[];
    const int tid = threadIdx.x;
    const int lane = tid & 31;
    const int warp = tid >> 5;
    const int layer = blockIdx.x / kCluster;
    const int rank = blockIdx.x % kCluster;
    const uint32_t base = shared_address(shared);
    const uint32_t full = base + kOffBar;
    const uint32_t empty = full + 8 * kSlots;
    const int epoch = load_int(p.epoch);
    const uint32_t call_tag = static_cast<uint32_t>(epoch) & 1u;

    if (tid == 0) {
        for (int s = 0; s < kSlots; ++s) {
            bar_init(full + 8 * s, 32);
            bar_init(empty + 8 * s, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    // h(-1) lies in buffer 1 and bears tag 1; buffer 0 bears tag 1 until h(0) comes with tag 0.
    for (int i = tid; i < kBatch * kHidden; i += kThreads) {
        const int b = i / kHidden, k = i % kHidden;
        const float v = p.h0[(layer * kBatch + b) * kHidden + k] * 16.0f;
        unsigned short hi, lo;
        split_tagged(v, 1u, hi, lo);
        unsigned char* buffer = shared + kOffH + kSlotBytes;
        *reinterpret_cast<unsigned short*>(buffer + place(k, b, 0)) = hi;
        *reinterpret_cast<unsigned short*>(buffer + place(k, b, 1)) = lo;
    }
    for (int i = tid; i < kSlotBytes / 4; i += kThreads) reinterpret_cast<uint32_t*>(shared + kOffH)[i] = 1u;
    if (tid < 64) {
        const int row = (tid >> 4) * kHidden + rank * 16 + (tid & 15);
        reinterpret_cast<float*>(shared + kOffBias)[tid] = p.w[layer * 4 + 2][row] + p.w[layer * 4 + 3][row];
    }
    __syncthreads();
    cluster_sync();

    if (warp < 8) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 192;");
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

        // Group B has 6 columns; lanes of columns 6 and 7 read copies of 4 and 5.
        const int at_a = kg * 4 * kBlockBytes + lane * 8;
        const int at_b = kg * 4 * kBlockBytes + kWideHi + (lane < 24 ? lane : lane - 8) * 8;
        float* const part_a = reinterpret_cast<float*>(shared + kOffPart) +
                              (kg * 64 + mg * 32 + (lane >> 2)) * kPartStride;
        float* const part_b = part_a + 2 * kPartFloats;
        const unsigned char* const input_a = shared + kOffX + at_a;
        const unsigned char* const input_b = shared + kOffX + at_b;
        const uint32_t hidden_a = base + kOffH + at_a;
        const uint32_t hidden_b = base + kOffH + at_b;

        float acc_a[2][2][4], acc_b[2][2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) acc_a[m][n][i] = 0.0f, acc_b[m][n][i] = 0.0f;

        bar_wait(full, 0);
        if (has_input) {
            multiply_input<false>(acc_a, in_hi, in_lo, input_a);
            multiply_input<true>(acc_b, in_hi, in_lo, input_b);
        }
        __syncwarp();
        if (lane == 0) bar_arrive(empty);

#pragma unroll 1
        for (int t = 0; t < kSteps; ++t) {
            // h(t - 1): buffer (t - 1) & 1, tag ((t - 1) >> 1) & 1, both 1 at t = 0
            const uint32_t tag = static_cast<uint32_t>(((t - 1) >> 1) & 1);
            const uint32_t buffer = ((t + 1) & 1) * kSlotBytes;
            const int slot = (t + 1) & (kSlots - 1);

            multiply_hidden<false>(acc_a, re_hi, re_lo, hidden_a + buffer, tag);
            store_partial<false>(acc_a, part_a + (t & 1) * kPartFloats, lane);
            __syncwarp();
            named_arrive(kBarrierA + (t & 1), kCountA);
            if (t + 1 < kSteps) {
                bar_wait(full + 8 * slot, ((t + 1) / kSlots) & 1);
                if (has_input) multiply_input<false>(acc_a, in_hi, in_lo, input_a + slot * kSlotBytes);
            }

            multiply_hidden<true>(acc_b, re_hi, re_lo, hidden_b + buffer, tag);
            store_partial<true>(acc_b, part_b + (t & 1) * kPartFloats, lane);
            __syncwarp();
            named_arrive(kBarrierB + (t & 1), kCountB);
            if (t + 1 < kSteps) {
                if (has_input) multiply_input<true>(acc_b, in_hi, in_lo, input_b + slot * kSlotBytes);
                __syncwarp();
                if (lane == 0) bar_arrive(empty + 8 * slot);
            }
        }

        // h(kSteps - 1) lies in buffer (kSteps - 1) & 1.
        if (layer == kLayers - 1) {
            const int index = rank * 8 + warp;
            if (index < kBatch * kOutput) {
                const int b = index / kOutput, o = index % kOutput;
                const uint32_t buffer = base + kOffH + ((kSteps - 1) & 1) * kSlotBytes;
                const uint32_t tag = ((kSteps - 1) >> 1) & 1;
                float sum = 0.0f;
#pragma unroll 1
                for (int j = 0; j < kHidden / 32; ++j) {
                    const int k = j * 32 + lane;
                    const uint32_t at_hi = buffer + place(k & ~1, b, 0);
                    const uint32_t at_lo = buffer + place(k & ~1, b, 1);
                    uint32_t hi_word, lo_word;
                    do {
                        hi_word = load_word(at_hi);
                        lo_word = load_word(at_lo);
                    } while ((((hi_word ^ tag) | (lo_word ^ tag)) & 1u) != 0u);
                    const int shift = (k & 1) * 16;
                    const float hi = __half2float(__ushort_as_half(static_cast<unsigned short>(hi_word >> shift)));
                    const float lo = __half2float(__ushort_as_half(static_cast<unsigned short>(lo_word >> shift)));
                    sum = fmaf((hi + lo) * (1.0f / 16.0f), p.fcw[o * kHidden + k], sum);
                }
                __syncwarp();
#pragma unroll
                for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
                if (lane == 0) p.out[b * kOutput + o] = sum + p.fcb[o];
            }
        }
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
        if (warp < 13) {
            // Warps 8 and 9: group A, warps 10 to 12: group B.
            Epilogue e;
            prepare(e, p, shared, base, warp - 8, layer, rank, lane, call_tag);
            const int barrier = warp < 10 ? kBarrierA : kBarrierB;
            const int count = warp < 10 ? kCountA : kCountB;
            __syncwarp();
#pragma unroll 1
            for (int t = 0; t < kSteps; ++t) {
                named_sync(barrier + (t & 1), count);
                finish_step(e, t);
            }
        } else {
            // Loaders: the input of each step into its slot.
            const int first = warp - 13;
            if (layer == 0) {
                for (int t = first; t < 15; t += kLoaders) prefetch_x(p.x, t, lane);
                const int u = (4 * lane) & 15;
                const int inside = (lane >> 2) * kBlockBytes + ((u & 7) >> 1) * 8 + (u >> 3) * 4;
#pragma unroll 1
                for (int t = first; t < kSteps; t += kLoaders) {
                    const int slot = t & (kSlots - 1);
                    unsigned char* target = shared + kOffX + slot * kSlotBytes + inside;
                    float4 current[5];
                    load_x<0>(current, p.x, t, lane);
                    if (t + 15 < kSteps) prefetch_x(p.x, t + 15, lane);
                    if (t >= kSlots) bar_wait(empty + 8 * slot, (t / kSlots + 1) & 1);
                    store_x<0>(target, current);
                    load_x<5>(current, p.x, t, lane);
                    store_x<5>(target, current);
                    bar_arrive(full + 8 * slot);
                }
            } else {
                const unsigned char* source = p.hs + static_cast<int64_t>(layer - 1) * kSteps * kSlotBytes;
                const uint32_t mark = call_tag << 16;
#pragma unroll 1
                for (int t = first; t < kSteps; t += kLoaders) {
                    const int slot = t & (kSlots - 1);
                    const unsigned char* from = source + static_cast<int64_t>(t) * kSlotBytes;
                    // A probe of one place of each group in each block, until all have come.
                    uint32_t wrong;
                    do {
                        const uint4 v = load_global(from + lane * 320);
                        wrong = ((v.x ^ mark) | (v.y ^ mark) | (v.z ^ mark) | (v.w ^ mark)) & 0x10000u;
                    } while (__any_sync(0xffffffffu, wrong != 0u));
                    if (t >= kSlots) bar_wait(empty + 8 * slot, (t / kSlots + 1) & 1);
                    unsigned char* target = shared + kOffX + slot * kSlotBytes + lane * 16;
                    from += lane * 16;
                    constexpr int kPieces = kSlotBytes / 1024;  // 16 bytes a lane, half a slot at a time
#pragma unroll 1
                    for (int half = 0; half < 2; ++half) {
                        uint4 v[kPieces];
                        do {
                            wrong = 0u;
#pragma unroll
                            for (int j = 0; j < kPieces; ++j) v[j] = load_global(from + j * 512);
#pragma unroll
                            for (int j = 0; j < kPieces; ++j)
                                wrong |= (v[j].x ^ mark) | (v[j].y ^ mark) | (v[j].z ^ mark) | (v[j].w ^ mark);
                        } while (__any_sync(0xffffffffu, (wrong & 0x10000u) != 0u));
#pragma unroll
                        for (int j = 0; j < kPieces; ++j) *reinterpret_cast<uint4*>(target + j * 512) = v[j];
                        from += kPieces * 512;
                        target += kPieces * 512;
                    }
                    bar_arrive(full + 8 * slot);
                }
            }
        }
    }

    __syncwarp();
    cluster_sync();
    // The last layer ends after all blocks have read the counter: the next call takes the other parity.
    if (layer == kLayers - 1 && rank == 0 && tid == 0) *p.epoch = epoch + 1;
}

extern "C" int lstm_forward(const void* const* weights, const float* x, const float* h0, const float* c0,
                            const float* fcw, const float* fcb, float* out, void* hs, void* epoch, void* stream) {
    Params params;
    for (int i = 0; i < 4 * kLayers; ++i) params.w[i] = static_cast<const float*>(weights[i]);
    params.x = x;
    params.h0 = h0;
    params.c0 = c0;
    params.fcw = fcw;
    params.fcb = fcb;
    params.out = out;
    params.hs = static_cast<unsigned char*>(hs);
    params.epoch = static_cast<int*>(epoch);

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
        name="lstm_wavefront_two_groups",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        # setmaxnreg is not in the plain target
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
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
        self._epoch = None

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
            # The words start with call tag 0, the first call has tag 1.
            self._hs = torch.zeros(5 * 512 * 10240, dtype=torch.uint8, device=x.device)
            self._epoch = torch.ones(1, dtype=torch.int32, device=x.device)

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
                             out.data_ptr(), self._hs.data_ptr(), self._epoch.data_ptr(), stream)
        if error:
            raise RuntimeError(f"lstm_forward: CUDA error {error}")
        return out
