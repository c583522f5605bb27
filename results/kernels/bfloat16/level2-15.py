import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_bf16.h>

constexpr int kBatch = 16;
constexpr int kOut = 32;
constexpr int kOD = 31;
constexpr int kPlane = 63 * 63;
constexpr int kVolume = kOD * kPlane;

constexpr int kThreads = 256;
constexpr int kRowBytes = 34 * 32;            // positions -1 .. 32 of a row of x, 16 channels each
constexpr int kSlabRows = 17;
constexpr int kSliceBytes = kSlabRows * kRowBytes;
constexpr int kSlabBytes = 2 * kSliceBytes;   // 36992
constexpr int kPitch = 1040;                  // staged bytes of a channel: (7 + 504) * 2, an odd multiple of 16
constexpr int kStageBytes = kOut * kPitch;    // 33280
constexpr int kMainShared = kSlabBytes + 2 * kStageBytes;

constexpr int kOddBlocks = kBatch * 15 * 2;
constexpr int kEvenBlocks = kBatch * 16 * 2;

// Gram matrices of x. A slot holds five 16 x 16 matrices: dw = 0, only w = 0, only w = 31, dw = +1, dw = -1.
constexpr int kGramThreads = 320;             // 5 roles, 2 halves of the rows
constexpr int kCluster = 4;                   // neighbouring n of one d
constexpr int kSlot = 5 * 256;
constexpr int kRawSlots = 14;
constexpr int kSlots = 9;
constexpr int kSet = kSlots * kSlot;          // floats of one cluster
constexpr int kGramShared = kRawSlots * kSlot * 4;
constexpr int kForms = 76;                    // blocks that evaluate quadratic forms
constexpr int kFinishBlocks = kForms + kBatch;

struct Params {
    const uint16_t* x;
    const uint16_t* weight;
    const __nv_bfloat16* gamma;
    uint16_t* out;
    uint4* packed;      // [tap][channel parity][lane]
    float2* affine;     // [n][channel] scale, shift
    float* sums;        // [n][channel]
    float* parts;       // [form][channel]
    float* marginals;   // [n][d][h = 0, h = 31, others][all w, w = 0, w = 31][channel of x]
    float* gram;        // [d][n / 4][slot][matrix][16][16]
    unsigned* counter;
    float eps;
};

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_next_kernel_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ float4 load_of_rank(uint32_t address, uint32_t rank) {
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(remote) : "memory");
    return v;
}
__device__ __forceinline__ float widen(uint16_t v) { return __uint_as_float(static_cast<uint32_t>(v) << 16); }

__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void load_b(uint32_t (&b)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void show_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void bulk_store(void* to, const void* from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(to),
                 "r"(shared_address(from)), "r"(bytes) : "memory");
}
template <int kPending>
__device__ __forceinline__ void wait_stored() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Byte of channels half * 8 .. half * 8 + 7 of a position within its row.
__device__ __forceinline__ int place(int position, int half) {
    return position * 32 + ((half ^ ((position >> 2) & 1)) << 4);
}

// ---------------------------------------------------------------------------------------------------------------
// Statistics: Gram matrices of x.

// Two rows of x, for a lane: channels g and g + 8, eight neighbouring w from 8 q on.
struct Rows {
    uint32_t r[2][4];
    uint32_t s[2][4];
};

__device__ __forceinline__ void spread(uint32_t (&to)[4], const uint4& v) {
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
}

__device__ __forceinline__ void fetch(Rows& rows, const uint4* from_r, const uint4* from_s, int h, int h_s,
                                      bool plane_valid) {
    constexpr int kEightChannels = 8 * 16 * 128;
    const bool valid = plane_valid && h_s >= 0 && h_s < 32;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    const uint4 r0 = __ldg(from_r + h * 4);
    const uint4 r1 = __ldg(from_r + h * 4 + kEightChannels);
    uint4 s0 = zero, s1 = zero;
    if (valid) {
        s0 = __ldg(from_s + h_s * 4);
        s1 = __ldg(from_s + h_s * 4 + kEightChannels);
    }
    spread(rows.r[0], r0);
    spread(rows.r[1], r1);
    spread(rows.s[0], s0);
    spread(rows.s[1], s1);
}

// The same row, one w further; behind the last w stands 0.
__device__ __forceinline__ void shift_row(uint32_t (&to)[2][4], const uint32_t (&from)[2][4], int q) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        uint32_t next = __shfl_down_sync(0xffffffffu, from[i][0], 1);
        if (q == 3) next = 0u;
        to[i][0] = __byte_perm(from[i][0], from[i][1], 0x5432);
        to[i][1] = __byte_perm(from[i][1], from[i][2], 0x5432);
        to[i][2] = __byte_perm(from[i][2], from[i][3], 0x5432);
        to[i][3] = __byte_perm(from[i][3], next, 0x5432);
    }
}

// d += a b^T, 16 x 16, over the 32 w of a row.
__device__ __forceinline__ void gram_product(float (&d)[2][4], const uint32_t (&a)[2][4], const uint32_t (&b)[2][4]) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        const uint32_t fragment[4] = {a[0][2 * k], a[1][2 * k], a[0][2 * k + 1], a[1][2 * k + 1]};
#pragma unroll
        for (int j = 0; j < 2; ++j) multiply(d[j], fragment, b[j][2 * k], b[j][2 * k + 1]);
    }
}

__device__ __forceinline__ void keep_slot(float* slot, const float (&acc)[5][2][4], int g, int q) {
#pragma unroll
    for (int v = 0; v < 5; ++v) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            float* to = slot + v * 256 + g * 16 + j * 8 + 2 * q;
            *reinterpret_cast<float2*>(to) = make_float2(acc[v][j][0], acc[v][j][1]);
            *reinterpret_cast<float2*>(to + 128) = make_float2(acc[v][j][2], acc[v][j][3]);
        }
    }
}

// A block: one (d, n). Roles, as offsets in d and h from the first row to the second: (0, 0), (1, 0), (0, 1), (1, 1),
// (1, -1). Raw slots: 4 role + (h = 0, h = 31, others of each half) for the first two, 8 + 2 (role - 2) + half else.
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kGramThreads, 2) gram_kernel(const Params p) {
    extern __shared__ __align__(128) char shared[];
    float* slots = reinterpret_cast<float*>(shared);
    let_next_kernel_start();

    const int tid = threadIdx.x;
    const int warp = tid / 32, lane = tid % 32;
    const int g = lane / 4, q = lane % 4;
    const int n = blockIdx.x & 15, d = blockIdx.x >> 4;

    if (tid < 256) {  // the block's plane of x towards L2
        const uint16_t* line = p.x + ((n * 16 + (tid >> 4)) * 16 + d) * 1024 + (tid & 15) * 64;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
    }

    const int role = warp % 5, half = warp / 5;
    const int step_d = (role == 1 || role >= 3) ? 1 : 0;
    const int step_h = (role == 2 || role == 3) ? 1 : (role == 4 ? -1 : 0);
    const bool plane_valid = d + step_d < 16;

    const uint4* from_r = reinterpret_cast<const uint4*>(p.x) + ((n * 16 + g) * 16 + d) * 128 + q;
    const uint4* from_s = from_r + step_d * 128;

    float acc[5][2][4];
#pragma unroll
    for (int v = 0; v < 5; ++v)
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[v][j][i] = 0.0f;

    const uint32_t first_mask = q == 0 ? 0x0000ffffu : 0u;
    const uint32_t last_mask = q == 3 ? 0xffff0000u : 0u;

    Rows now;
    {
        const int h = half == 0 ? 0 : 31;
        fetch(now, from_r, from_s, h, h + step_h, plane_valid);
    }

    // The packed weights of the main kernel: 27 words for each block.
    if (tid < 27) {
        const int item = blockIdx.x * 27 + tid;
        const int tap = item >> 8, t = item & 255;
        const int parity = t >> 7, of_lane = (t >> 2) & 31, reg = t & 3;
        const int row = of_lane / 4 + (reg & 1) * 8;
        const int k = (of_lane % 4) * 2 + (reg >> 1) * 8;
        const int c = 2 * row + parity;
        const uint32_t low = p.weight[k * 864 + c * 27 + tap];
        const uint32_t high = p.weight[(k + 1) * 864 + c * 27 + tap];
        reinterpret_cast<uint32_t*>(p.packed)[((tap * 2 + parity) * 32 + of_lane) * 4 + reg] = low | (high << 16);
    }
    __syncwarp();

#pragma unroll 2
    for (int step = 0; step < 16; ++step) {
        Rows next;
        {
            const int later = step < 15 ? step + 1 : 15;
            const int h = half == 0 ? later : 31 - later;
            fetch(next, from_r, from_s, h, h + step_h, plane_valid);
        }

        gram_product(acc[0], now.r, now.s);
        {
            const uint32_t a[4] = {now.r[0][0] & first_mask, now.r[1][0] & first_mask, 0u, 0u};
            multiply(acc[1][0], a, now.s[0][0], now.s[0][1]);
            multiply(acc[1][1], a, now.s[1][0], now.s[1][1]);
        }
        {
            const uint32_t a[4] = {0u, 0u, now.r[0][3] & last_mask, now.r[1][3] & last_mask};
            multiply(acc[2][0], a, now.s[0][2], now.s[0][3]);
            multiply(acc[2][1], a, now.s[1][2], now.s[1][3]);
        }
        {
            uint32_t shifted[2][4];
            shift_row(shifted, now.s, q);
            gram_product(acc[3], now.r, shifted);
        }
        if (role != 0) {
            uint32_t shifted[2][4];
            shift_row(shifted, now.r, q);
            gram_product(acc[4], shifted, now.s);
        } else {
            // Sums: columns 0 .. 7 over all w, even ones of 8 .. 15 only w = 0, odd ones only w = 31.
            const uint32_t only_first = (q == 0 && (g & 1) == 0) ? 0x00003f80u : 0u;
            const uint32_t only_last = (q == 3 && (g & 1) == 1) ? 0x3f800000u : 0u;
            const uint32_t ones[2][4] = {{0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u},
                                         {only_first, 0u, 0u, only_last}};
            gram_product(acc[4], now.r, ones);
        }

        if (step == 0 && role < 2) {  // h = 0 or h = 31 apart
            keep_slot(slots + (role * 4 + half) * kSlot, acc, g, q);
#pragma unroll
            for (int v = 0; v < 5; ++v)
#pragma unroll
                for (int j = 0; j < 2; ++j)
#pragma unroll
                    for (int i = 0; i < 4; ++i) acc[v][j][i] = 0.0f;
        }
        now = next;
    }
    keep_slot(slots + (role < 2 ? role * 4 + 2 + half : 8 + 2 * (role - 2) + half) * kSlot, acc, g, q);

    __syncthreads();
    sync_cluster();

    if (tid < 144) {
        const int rows = tid / 48, which = (tid / 16) % 3, ci = tid % 16;
        const int column = which == 0 ? 0 : 7 + which;
        float v = slots[rows * kSlot + 4 * 256 + ci * 16 + column];
        if (rows == 2) v += slots[3 * kSlot + 4 * 256 + ci * 16 + column];
        p.marginals[(n * 16 + d) * 144 + tid] = v;
    }

    constexpr int kShare = kSet / 4 / kCluster;  // float4s of a block: 720
    const int rank = blockIdx.x & (kCluster - 1);
    const uint32_t base = shared_address(slots);
    float4* to = reinterpret_cast<float4*>(p.gram + (blockIdx.x / kCluster) * kSet);
    for (int i = tid; i < kShare; i += kGramThreads) {
        const int e = rank * kShare + i;
        const int slot = e / (kSlot / 4), within = e % (kSlot / 4);
        const int raw = slot < 3 ? slot : (slot < 6 ? slot + 1 : 2 * slot - 4);
        const bool two = slot == 2 || slot >= 5;
        const uint32_t address = base + static_cast<uint32_t>(raw * kSlot * 4 + within * 16);
        float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int other = 0; other < kCluster; ++other) {
            float4 v = load_of_rank(address, other);
            if (two) {
                const float4 more = load_of_rank(address + kSlot * 4, other);
                v.x += more.x;
                v.y += more.y;
                v.z += more.z;
                v.w += more.w;
            }
            total.x += v.x;
            total.y += v.y;
            total.z += v.z;
            total.w += v.w;
        }
        to[e] = total;
    }
    sync_cluster();  // the shared memory of all blocks has been read
}

// Blocks 0 .. 75: the quadratic form of one matrix for all channels. Blocks 76 .. 91: the sums of one n.
__global__ void __launch_bounds__(kThreads) finish_kernel(const Params p) {
    __shared__ float wa[9 * 512];
    __shared__ float wb[9 * 512];
    __shared__ __align__(16) float matrix[256];
    __shared__ float of_warps[256];
    __shared__ double of_groups[256];
    __shared__ float of_channel[kOut];
    __shared__ int is_last;

    const int b = blockIdx.x;
    const int tid = threadIdx.x;
    const int c = tid & 31, r = tid >> 5;
    float acc = 0.0f;

    if (b < kForms) {
        int role, variant, rows = 0, kind = 1;  // kind: the tap along d, where both rows have the same d
        if (b < 36) {
            role = 0;
            variant = b % 4;
            rows = (b / 4) % 3;
            kind = b / 12;
        } else if (b < 51) {
            role = 1;
            variant = (b - 36) % 5;
            rows = (b - 36) / 5;
        } else if (b < 66) {
            role = 2;
            variant = (b - 51) % 5;
            kind = (b - 51) / 5;
        } else if (b < 71) {
            role = 3;
            variant = b - 66;
        } else {
            role = 4;
            variant = b - 71;
        }
        const bool cross_d = role == 1 || role >= 3;
        const bool cross_h = role >= 2;
        const int slot = role < 2 ? role * 3 + rows : 4 + role;
        const int kd_a = cross_d ? 2 : kind;
        const int kd_b = cross_d ? 0 : kind;

#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int pair = tid + 256 * i;  // channel of x * 32 + channel of the output
            const uint16_t* from = p.weight + pair * 27;
#pragma unroll
            for (int t = 0; t < 9; ++t) {
                wa[t * 512 + pair] = widen(from[kd_a * 9 + t]);
                wb[t * 512 + pair] = widen(from[kd_b * 9 + t]);
            }
        }

        wait_for_kernel_before();
        let_next_kernel_start();

        // Tap 1 meets all d, tap 2 not the last, tap 0 not the first.
        const int d_first = (!cross_d && kind == 0) ? 1 : 0;
        const int d_last = (!cross_d && kind == 2) ? 14 : 15;
        const float* from = p.gram + slot * kSlot + variant * 256 + tid;
        float v0 = 0.0f, v1 = 0.0f, v2 = 0.0f, v3 = 0.0f;
#pragma unroll
        for (int d = 0; d < 16; ++d) {
            const bool used = d >= d_first && d <= d_last;
            v0 += used ? __ldcg(from + (d * 4) * kSet) : 0.0f;
            v1 += used ? __ldcg(from + (d * 4 + 1) * kSet) : 0.0f;
            v2 += used ? __ldcg(from + (d * 4 + 2) * kSet) : 0.0f;
            v3 += used ? __ldcg(from + (d * 4 + 3) * kSet) : 0.0f;
        }
        matrix[tid] = (v0 + v1) + (v2 + v3);
        __syncthreads();

        // Which equal taps along h and w the matrix belongs to; crossed taps have one entry.
        const int h_mask = cross_h ? 1 : (rows == 0 ? 6 : (rows == 1 ? 3 : 7));
        const int w_mask = variant == 0 ? 7 : (variant == 2 ? 4 : 1);
        const float4* row0 = reinterpret_cast<const float4*>(matrix + 2 * r * 16);
        const float4* row1 = row0 + 4;
#pragma unroll 1
        for (int i = 0; i < 3; ++i) {
            if (((h_mask >> i) & 1) == 0) continue;
            const int kh_a = cross_h ? (role == 4 ? 0 : 2) : i;
            const int kh_b = cross_h ? 2 - kh_a : i;
#pragma unroll 1
            for (int j = 0; j < 3; ++j) {
                if (((w_mask >> j) & 1) == 0) continue;
                const int kw_a = variant == 3 ? 2 : (variant == 4 ? 0 : j);
                const int kw_b = variant >= 3 ? 2 - kw_a : j;
                const float* a = wa + (kh_a * 3 + kw_a) * 512 + 2 * r * 32 + c;
                const float* of_b = wb + (kh_b * 3 + kw_b) * 512 + c;
                float s0 = 0.0f, s1 = 0.0f;
#pragma unroll
                for (int m = 0; m < 4; ++m) {
                    const float4 u = row0[m];
                    const float4 v = row1[m];
                    const float b0 = of_b[(4 * m) * 32];
                    const float b1 = of_b[(4 * m + 1) * 32];
                    const float b2 = of_b[(4 * m + 2) * 32];
                    const float b3 = of_b[(4 * m + 3) * 32];
                    s0 = fmaf(u.x, b0, s0);
                    s0 = fmaf(u.y, b1, s0);
                    s0 = fmaf(u.z, b2, s0);
                    s0 = fmaf(u.w, b3, s0);
                    s1 = fmaf(v.x, b0, s1);
                    s1 = fmaf(v.y, b1, s1);
                    s1 = fmaf(v.z, b2, s1);
                    s1 = fmaf(v.w, b3, s1);
                }
                acc = fmaf(a[0], s0, acc);
                acc = fmaf(a[32], s1, acc);
            }
        }
        if (role != 0 || variant == 3) acc *= 2.0f;            // the same pair the other way round
        if (variant == 1 || variant == 2) acc = -acc;          // taken off the whole
    } else {
        const int n = b - kForms;
        uint16_t own[2][27];
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int t = 0; t < 27; ++t) own[i][t] = p.weight[((2 * r + i) * 32 + c) * 27 + t];

        wait_for_kernel_before();
        let_next_kernel_start();

#pragma unroll
        for (int i = 0; i < 9; ++i) wa[tid + 256 * i] = __ldcg(p.marginals + n * 16 * 144 + tid + 256 * i);
        __syncthreads();
        for (int e = tid; e < 432; e += kThreads) {
            const int t = e >> 4, ci = e & 15;
            const int kd = t / 9, kh = (t / 3) % 3, kw = t % 3;
            const int d_first = kd == 0 ? 1 : 0;
            const int d_last = kd == 2 ? 14 : 15;
            float v = 0.0f;
            for (int d = d_first; d <= d_last; ++d) {
#pragma unroll
                for (int rows = 0; rows < 3; ++rows) {
                    const float* at = wa + d * 144 + rows * 48 + ci;
                    float f = at[0];
                    if (kw == 0) f -= at[16];
                    if (kw == 2) f -= at[32];
                    const bool used = !((rows == 0 && kh == 0) || (rows == 1 && kh == 2));
                    v += used ? f : 0.0f;
                }
            }
            wb[e] = v;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int t = 0; t < 27; ++t) acc = fmaf(widen(own[i][t]), wb[t * 16 + 2 * r + i], acc);
    }

    of_warps[tid] = acc;
    __syncthreads();
    if (tid < kOut) {
        float v = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) v += of_warps[i * 32 + tid];
        if (b < kForms)
            p.parts[b * kOut + tid] = v;
        else
            p.sums[(b - kForms) * kOut + tid] = v;
        __threadfence();
    }
    __syncthreads();
    if (tid == 0) is_last = atomicAdd(p.counter, 1u) == static_cast<unsigned>(kFinishBlocks - 1) ? 1 : 0;
    __syncthreads();
    if (is_last) {
        __threadfence();
        double v = 0.0;
#pragma unroll
        for (int i = 0; i < 10; ++i) {
            const int index = r + 8 * i;
            if (index < kForms) v += static_cast<double>(__ldcg(p.parts + index * kOut + c));
        }
        of_groups[tid] = v;
        __syncthreads();
        if (tid < kOut) {
            double total = 0.0, total_square = 0.0;
#pragma unroll
            for (int i = 0; i < 8; ++i) total_square += of_groups[i * 32 + tid];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) total += static_cast<double>(__ldcg(p.sums + i * kOut + tid));
            constexpr double kInverse = 1.0 / (static_cast<double>(kBatch) * kVolume);
            const double mean = total * kInverse;
            double variance = total_square * kInverse - mean * mean;
            if (variance < 0.0) variance = 0.0;
            of_channel[tid] = __bfloat162float(p.gamma[tid]) / sqrtf(static_cast<float>(variance) + p.eps);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int e = tid + 256 * i;
            const float factor = of_channel[e & 31];
            const float own_sum = __ldcg(p.sums + e);
            p.affine[e] = make_float2(factor, -factor * (own_sum / static_cast<float>(kVolume)));
        }
        if (tid == 0) *p.counter = 0u;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// The convolution.

// Rows h0 .. h0 + 16 of kSlices slices from d0 on, as [slice][row][position + 1][channel].
template <int kSlices>
__device__ __forceinline__ void load_slab(char* slab, const uint16_t* __restrict__ x, int n, int d0, int h0) {
    constexpr int kRows = kSlices * kSlabRows;
    constexpr int kRounds = (kRows + 7) / 8;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int pair = lane & 15, half = lane >> 4;
    uint32_t v[kRounds][8];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        const int row = warp + 8 * i;
        const int slice = row >= kSlabRows ? 1 : 0;
        const int h = h0 + row - slice * kSlabRows;
        const bool valid = row < kRows && h < 32;
        const uint32_t* from =
            reinterpret_cast<const uint32_t*>(x + (((n * 16 + half * 8) * 16 + d0 + slice) * 32 + h) * 32) + pair;
#pragma unroll
        for (int j = 0; j < 8; ++j) v[i][j] = valid ? __ldg(from + j * 8192) : 0u;
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        const int row = warp + 8 * i;
        if (row < kRows) {
            char* to = slab + row * kRowBytes;
            uint4 first, second;
            first.x = __byte_perm(v[i][0], v[i][1], 0x5410);
            first.y = __byte_perm(v[i][2], v[i][3], 0x5410);
            first.z = __byte_perm(v[i][4], v[i][5], 0x5410);
            first.w = __byte_perm(v[i][6], v[i][7], 0x5410);
            second.x = __byte_perm(v[i][0], v[i][1], 0x7632);
            second.y = __byte_perm(v[i][2], v[i][3], 0x7632);
            second.z = __byte_perm(v[i][4], v[i][5], 0x7632);
            second.w = __byte_perm(v[i][6], v[i][7], 0x7632);
            *reinterpret_cast<uint4*>(to + place(2 * pair + 1, half)) = first;
            *reinterpret_cast<uint4*>(to + place(2 * pair + 2, half)) = second;
            if (lane < 4)  // positions -1 and 32
                *reinterpret_cast<uint4*>(to + (lane >> 1 ? 33 * 32 : 0) + (lane & 1) * 16) = make_uint4(0, 0, 0, 0);
        }
    }
}

__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
}

// The outputs of one row that a thread holds, of two channels, to the staged segment.
__device__ __forceinline__ void put(char* at, bool odd_base, const float (&e)[4], const float (&o)[4],
                                    const float (&scale)[2], const float (&shift)[2], bool first, bool last) {
    const uint32_t order = odd_base ? 0x1032u : 0x3210u;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const uint32_t w0 = __byte_perm(
            pack_pair(fmaf(e[2 * h], scale[h], shift[h]), fmaf(o[2 * h], scale[h], shift[h])), 0u, order);
        const uint32_t w1 = __byte_perm(
            pack_pair(fmaf(e[2 * h + 1], scale[h], shift[h]), fmaf(o[2 * h + 1], scale[h], shift[h])), 0u, order);
        char* to = at + h * 16 * kPitch;
        if (first && odd_base)
            *reinterpret_cast<uint16_t*>(to + 2) = static_cast<uint16_t>(w0 >> 16);
        else
            *reinterpret_cast<uint32_t*>(to) = w0;
        if (last && !odd_base)
            *reinterpret_cast<uint16_t*>(to + 4) = static_cast<uint16_t>(w1 & 0xffffu);
        else
            *reinterpret_cast<uint32_t*>(to + 4) = w1;
    }
}

// One half of an output plane, all channels. kSlices: 1 where od is even, 2 where it is odd.
template <int kSlices>
__device__ __forceinline__ void work(const Params& p, int n, int od, int half, char* shared) {
    const int tid = threadIdx.x;
    const int warp = tid / 32, lane = tid % 32;
    const int parity = warp & 1, tile = warp >> 1;
    const int g = lane / 4, q = lane % 4;
    char* slab = shared;
    char* stage = shared + kSlabBytes;

    load_slab<kSlices>(slab, p.x, n, od >> 1, half * 16);

    // Parity of the first element's address, of even rows and of odd rows.
    const bool odd_base0 = ((parity + od) & 1) != 0;
    const bool odd_base1 = !odd_base0;

    // [slice][kh][0: even w, centre; 1: odd w, centre; 2: odd w, other]
    // The weights were packed two kernels before; the kernel before has waited for that one.
    uint32_t a[kSlices][3][3][4];
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
        const int kd = kSlices == 1 ? 1 : (s == 0 ? 2 : 0);
#pragma unroll
        for (int kh = 0; kh < 3; ++kh) {
            const bool odd_base = kh == 1 ? odd_base0 : odd_base1;
#pragma unroll
            for (int role = 0; role < 3; ++role) {
                int kw = 1;
                if (role == 1) kw = odd_base ? 0 : 2;
                if (role == 2) kw = odd_base ? 2 : 0;
                const uint4 v = p.packed[((kd * 9 + kh * 3 + kw) * 2 + parity) * 32 + lane];
                a[s][kh][role][0] = v.x;
                a[s][kh][role][1] = v.y;
                a[s][kh][role][2] = v.z;
                a[s][kh][role][3] = v.w;
            }
        }
    }

    const int c0 = 2 * g + parity;  // the other channel is c0 + 16
    wait_for_kernel_before();       // scale and shift
    const float2 affine0 = __ldcg(p.affine + n * kOut + c0);
    const float2 affine1 = __ldcg(p.affine + n * kOut + c0 + 16);
    const float scale[2] = {affine0.x, affine1.x};
    const float shift[2] = {affine0.y, affine1.y};
    __syncthreads();

    const bool first = tile == 0 && q == 0;
    const bool last = tile == 3 && q == 3;

    // Lane addresses of the B operands: matrices 0, 1 are the centre, 2, 3 the other.
    const int matrix = lane >> 3;
    const int centre = 8 * tile + (lane & 7) + 1;
    const int position0 = centre + (matrix >= 2 ? (odd_base0 ? -1 : 1) : 0);
    const int position1 = centre + (matrix >= 2 ? (odd_base1 ? -1 : 1) : 0);
    uint32_t address0 = shared_address(slab) + place(position0, matrix & 1);
    uint32_t address1 = shared_address(slab) + place(position1, matrix & 1);

    // 16 channels further and 8 rows further the address is the same modulo 8 elements.
    const int own_shift = (((n * kOut + c0) * kOD + od) * kPlane) & 7;
    const int offset0 = c0 * kPitch + (own_shift - (odd_base0 ? 1 : 0) + 16 * tile + 4 * q) * 2;
    const int offset1 = c0 * kPitch + (own_shift + 63 - (odd_base1 ? 1 : 0) + 16 * tile + 4 * q) * 2;

    uint32_t before[kSlices][4];
#pragma unroll
    for (int s = 0; s < kSlices; ++s) load_b(before[s], address1 + s * kSliceBytes);

#pragma unroll 1
    for (int chunk = 0; chunk < 4; ++chunk) {
        char* buffer = stage + (chunk & 1) * kStageBytes;
        const bool cut = half == 1 && chunk == 3;  // there is no row 63
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            {
                float e[4] = {0.0f, 0.0f, 0.0f, 0.0f}, o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
                for (int s = 0; s < kSlices; ++s) {
                    uint32_t b[4];
                    load_b(b, address0 + s * kSliceBytes + j * kRowBytes);
                    multiply(o, a[s][1][1], b[0], b[1]);
                    multiply(e, a[s][1][0], b[0], b[1]);
                    multiply(o, a[s][1][2], b[2], b[3]);
                }
                put(buffer + offset0 + j * 252, odd_base0, e, o, scale, shift, first, last);
            }
            if (j < 3 || !cut) {
                float e[4] = {0.0f, 0.0f, 0.0f, 0.0f}, o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                uint32_t after[kSlices][4];
#pragma unroll
                for (int s = 0; s < kSlices; ++s)
                    load_b(after[s], address1 + s * kSliceBytes + (j + 1) * kRowBytes);
#pragma unroll
                for (int s = 0; s < kSlices; ++s) {
                    multiply(o, a[s][2][1], before[s][0], before[s][1]);
                    multiply(e, a[s][2][0], before[s][0], before[s][1]);
                    multiply(o, a[s][2][2], before[s][2], before[s][3]);
                }
#pragma unroll
                for (int s = 0; s < kSlices; ++s) {
                    multiply(o, a[s][0][1], after[s][0], after[s][1]);
                    multiply(e, a[s][0][0], after[s][0], after[s][1]);
                    multiply(o, a[s][0][2], after[s][2], after[s][3]);
                }
#pragma unroll
                for (int s = 0; s < kSlices; ++s) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) before[s][i] = after[s][i];
                }
                put(buffer + offset1 + j * 252, odd_base1, e, o, scale, shift, first, last);
            }
        }
        address0 += 4 * kRowBytes;
        address1 += 4 * kRowBytes;

        show_stores();
        __syncthreads();
        if (lane < 4) {
            const int c = warp * 4 + lane;
            const int from = ((n * kOut + c) * kOD + od) * kPlane + (half * 32 + chunk * 8) * 63;
            const int skew = from & 7;
            const int length = cut ? 441 : 504;
            const int start = chunk == 0 && skew != 0 ? 8 : 0;
            const int end = (skew + length) & ~7;
            char* region = buffer + c * kPitch;
            char* to = reinterpret_cast<char*>(p.out + (from - skew));
            bulk_store(to + start * 2, region + start * 2, static_cast<uint32_t>((end - start) * 2));
            if (start != 0) {
                int i = skew;
                if (i & 1) {
                    *reinterpret_cast<uint16_t*>(to + i * 2) = *reinterpret_cast<const uint16_t*>(region + i * 2);
                    i += 1;
                }
                if (i & 2) {
                    *reinterpret_cast<uint32_t*>(to + i * 2) = *reinterpret_cast<const uint32_t*>(region + i * 2);
                    i += 2;
                }
                if (i & 4)
                    *reinterpret_cast<uint2*>(to + i * 2) = *reinterpret_cast<const uint2*>(region + i * 2);
            }
            if (chunk == 3) {
                const int rest = (skew + length) & 7;
                int i = end;
                if (rest & 4) {
                    *reinterpret_cast<uint2*>(to + i * 2) = *reinterpret_cast<const uint2*>(region + i * 2);
                    i += 4;
                }
                if (rest & 2) {
                    *reinterpret_cast<uint32_t*>(to + i * 2) = *reinterpret_cast<const uint32_t*>(region + i * 2);
                    i += 2;
                }
                if (rest & 1)
                    *reinterpret_cast<uint16_t*>(to + i * 2) = *reinterpret_cast<const uint16_t*>(region + i * 2);
                wait_stored<0>();
            } else {
                // The other buffer is free when the chunk before has been read; the last elements move on to it.
                wait_stored<1>();
                char* next = stage + ((chunk + 1) & 1) * kStageBytes + c * kPitch;
                *reinterpret_cast<uint4*>(next) = *reinterpret_cast<const uint4*>(region + 1008);
            }
        }
        __syncthreads();
    }
}

__global__ void __launch_bounds__(kThreads, 2) conv_kernel(const Params p) {
    extern __shared__ __align__(128) char shared[];
    int index = blockIdx.x;
    if (index < kOddBlocks) {
        const int half = index & 1;
        index >>= 1;
        work<2>(p, index / 15, 2 * (index % 15) + 1, half, shared);
    } else {
        index -= kOddBlocks;
        const int half = index & 1;
        index >>= 1;
        work<1>(p, index / 16, 2 * (index % 16), half, shared);
    }
}

extern "C" int conv_norm(const void* x, const void* weight, const void* gamma, void* out, void* scratch, float eps,
                         void* stream) {
    static bool prepared = false;
    if (!prepared) {
        cudaError_t error = cudaFuncSetAttribute(conv_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMainShared);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaFuncSetAttribute(gram_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kGramShared);
        if (error != cudaSuccess) return static_cast<int>(error);
        cudaFuncSetAttribute(conv_kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
        prepared = true;
    }
    char* base = static_cast<char*>(scratch);
    Params p;
    p.x = static_cast<const uint16_t*>(x);
    p.weight = static_cast<const uint16_t*>(weight);
    p.gamma = static_cast<const __nv_bfloat16*>(gamma);
    p.out = static_cast<uint16_t*>(out);
    p.packed = reinterpret_cast<uint4*>(base);
    p.affine = reinterpret_cast<float2*>(base + 27648);
    p.sums = reinterpret_cast<float*>(base + 31744);
    p.parts = reinterpret_cast<float*>(base + 33792);
    p.counter = reinterpret_cast<unsigned*>(base + 43520);
    p.marginals = reinterpret_cast<float*>(base + 43776);
    p.gram = reinterpret_cast<float*>(base + 191232);
    p.eps = eps;

    cudaStream_t on = static_cast<cudaStream_t>(stream);
    gram_kernel<<<256, kGramThreads, kGramShared, on>>>(p);
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return static_cast<int>(error);

    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[0].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.blockDim = dim3(kThreads);
    config.stream = on;
    config.attrs = attribute;
    config.numAttrs = 1;

    config.gridDim = dim3(kFinishBlocks);
    config.dynamicSmemBytes = 0;
    error = cudaLaunchKernelEx(&config, finish_kernel, p);
    if (error != cudaSuccess) return static_cast<int>(error);
    config.gridDim = dim3(kOddBlocks + kEvenBlocks);
    config.dynamicSmemBytes = kMainShared;
    error = cudaLaunchKernelEx(&config, conv_kernel, p);
    if (error != cudaSuccess) return static_cast<int>(error);
    return static_cast<int>(cudaGetLastError());
}
"""

# packed weights, scale and shift, sums, parts, counter, marginals, Gram matrices of 64 clusters
SCRATCH_BYTES = 191232 + 64 * 9 * 5 * 256 * 4

library = ctypes.CDLL(
    load_inline(
        name="conv_transpose3d_norm_subtract_gram",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
conv_norm = library.conv_norm
conv_norm.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_float, ctypes.c_void_p]
conv_norm.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride, padding, bias=True):
        super().__init__()
        # They hold the parameters. The convolution's bias and the normalization's bias cancel in the subtraction.
        self.conv_transpose = nn.ConvTranspose3d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, bias=bias
        )
        self.batch_norm = nn.BatchNorm3d(out_channels)
        if (in_channels, out_channels, kernel_size, stride, padding) != (16, 32, 3, 2, 1):
            raise ValueError("specialised for 16 to 32 channels, kernel 3, stride 2, padding 1")
        self.scratch = None

    def forward(self, x):
        if x.shape != (16, 16, 16, 32, 32) or x.dtype != torch.bfloat16:
            raise ValueError("specialised for bfloat16 of shape (16, 16, 16, 32, 32)")
        x = x.contiguous()
        if x.data_ptr() % 16:
            x = x.clone()
        weight = self.conv_transpose.weight.contiguous()
        gamma = self.batch_norm.weight
        scratch = self.scratch
        if scratch is None or scratch.device != x.device:
            scratch = torch.zeros(SCRATCH_BYTES, dtype=torch.uint8, device=x.device)
            self.scratch = scratch
        out = torch.empty((16, 32, 31, 63, 63), dtype=torch.bfloat16, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = conv_norm(
            x.data_ptr(),
            weight.data_ptr(),
            gamma.data_ptr(),
            out.data_ptr(),
            scratch.data_ptr(),
            self.batch_norm.eps,
            stream,
        )
        if error:
            raise RuntimeError(f"conv_norm: CUDA error {error}")
        return out
