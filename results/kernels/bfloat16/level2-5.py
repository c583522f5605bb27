import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

constexpr int kSide = 256;                 // input height and width
constexpr int kOut = 513;                  // output height and width
constexpr int kPlane = kOut * kOut;
constexpr int kPairs = 257;                // pairs of output rows (2q - 1, 2q), q = 0 .. 256
constexpr int kThreads = 512;              // four warpgroups
constexpr int kWarps = kThreads / 32;
constexpr int kSlots = 9;
constexpr int kSlotBytes = 16384;          // one unit: 64 ci x 64 pixels, at columns p - 1 and at p
constexpr int kStageRow = 544;             // 272 outputs; 8 banks further for each row
constexpr int kStageWarp = 8 * kStageRow;

constexpr int kStageAt = kSlots * kSlotBytes;                // 147456
constexpr int kBarriersAt = kStageAt + kWarps * kStageWarp;  // 217088
constexpr int kLoadedAt = kBarriersAt;                       // the unit has come
constexpr int kFullAt = kLoadedAt + 8 * kSlots;              // the shifted copy is made
constexpr int kEmptyAt = kFullAt + 8 * kSlots;               // the slot may be overwritten
constexpr int kSharedBytes = kBarriersAt + 256 + 1024;       // with room for the alignment to 1024

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
// Read anew each time, so that nothing derived from it has to live across the products.
__device__ __forceinline__ int thread_index() {
    int value;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(value));
    return value;
}
__device__ __forceinline__ void start(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void show_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive_and_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(barrier), "r"(parity) : "memory");
}

// The column is a multiple of 8: the innermost coordinate has to be one of 16 bytes.
__device__ __forceinline__ void tensor_load(uint32_t to, const CUtensorMap* map, int column, int row, int plane,
                                            uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
        ::"r"(to), "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(column), "r"(row), "r"(plane)
        : "memory");
}

// 128-byte swizzle, 8 lines of 128 bytes every 1024 bytes.
__device__ __forceinline__ uint64_t describe(uint32_t start_at, uint32_t leading, uint32_t stride) {
    return static_cast<uint64_t>((start_at & 0x3ffff) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
           static_cast<uint64_t>(stride >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}

// D (64 x 64) += A (64 x 16, registers) B (16 x 64, N-major)
__device__ __forceinline__ void multiply(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{@REGISTERS@}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
        : @OPERANDS@
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
// D (16 x 8) += A (16 x 16) B (16 x 8), one warp
__device__ __forceinline__ void multiply_small(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void load_turned(uint32_t (&v)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ void show_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_all_products(float (&d)[32]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 32; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
__device__ __forceinline__ void meet(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ void meet_without_waiting(int name, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ void store_word(uint32_t at, uint32_t value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}
__device__ __forceinline__ void store_half(uint32_t at, uint32_t value) {
    const uint16_t bits = static_cast<uint16_t>(value);
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(at), "h"(bits) : "memory");
}
__device__ __forceinline__ uint16_t load_half(uint32_t at) {
    uint16_t value;
    asm volatile("ld.shared.b16 %0, [%1];" : "=h"(value) : "r"(at) : "memory");
    return value;
}
__device__ __forceinline__ uint32_t load_word(uint32_t at) {
    uint32_t value;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
    return value;
}
__device__ __forceinline__ uint4 load_four(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
__device__ __forceinline__ void store_four(uint32_t at, uint4 v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
// Relative error of at most 2^-11, a quarter of what rounding to bf16 adds.
__device__ __forceinline__ float quick_tanh(float v) {
    float r;
    asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
__device__ __forceinline__ uint32_t pair(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
}

// Stage a tile: a thread has four consecutive outputs of each of 8 blocks. With kOdd the first of them lies in the
// upper half of a word, and the output before it comes from the lane (or the block, or the tile) before.
template <bool kOdd>
__device__ __forceinline__ void stage(const float (&d)[32], float shift, uint32_t at, bool swap, int c, int source,
                                      uint32_t& last) {
    const uint32_t first_at = at + (swap ? 4 : 0);
    const uint32_t second_at = at + (swap ? 0 : 4);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        uint32_t w0 = pair(quick_tanh(d[4 * j] + shift), quick_tanh(d[4 * j + 2] + shift));
        uint32_t w1 = pair(quick_tanh(d[4 * j + 1] + shift), quick_tanh(d[4 * j + 3] + shift));
        if (kOdd) {
            const uint32_t given = c == 3 ? last : w1;
            const uint32_t got = __shfl_sync(0xffffffffu, given, source);
            last = w1;
            const uint32_t n0 = __byte_perm(got, w0, 0x5432);
            const uint32_t n1 = __byte_perm(w0, w1, 0x5432);
            w0 = n0;
            w1 = n1;
        }
        store_word(first_at + 32 * j, swap ? w1 : w0);
        store_word(second_at + 32 * j, swap ? w0 : w1);
    }
}

__global__ void __launch_bounds__(kThreads, 1)
transposed_tanh_kernel(const __grid_constant__ CUtensorMap map_x, const __nv_bfloat16* __restrict__ weight,
                       const __nv_bfloat16* __restrict__ conv_bias, const __nv_bfloat16* __restrict__ bias,
                       __nv_bfloat16* __restrict__ out, int total) {
    extern __shared__ uint8_t raw_memory[];
    const uint32_t base_at = (shared_address(raw_memory) + 1023u) & ~1023u;

    const int low = static_cast<int>(static_cast<int64_t>(total) * blockIdx.x / gridDim.x);
    const int high = static_cast<int>(static_cast<int64_t>(total) * (blockIdx.x + 1) / gridDim.x);
    const int count = high - low;
    const int units = 4 * (count + 1);     // unit u: input row low - 1 + u / 4, pixels from 64 * (u % 4) on

    if (threadIdx.x == 0) {
        for (int s = 0; s < kSlots; ++s) {
            start(base_at + kLoadedAt + 8 * s, 1);
            start(base_at + kFullAt + 8 * s, kWarps);
            start(base_at + kEmptyAt + 8 * s, kWarps);
        }
        show_started();
    }
    __syncthreads();

    // Rows -1 and 256 of an image are out of bounds, hence zeros: the row 256 of one is the row -1 of the next.
    auto load_unit = [&](int line, int column, int s, int parity) {
        const int image = line / kPairs, row = line - image * kPairs;   // -1 gives image 0, row -1
        const uint32_t barrier = base_at + kLoadedAt + 8 * s;
        wait(base_at + kEmptyAt + 8 * s, parity ^ 1);
        arrive_and_expect(barrier, kSlotBytes / 2);
        tensor_load(base_at + s * kSlotBytes, &map_x, column, row, image * 64, barrier);
    };
    if (threadIdx.x == 0 && count > 0) {
        for (int u = 0; u < 8; ++u) load_unit(low - 1 + (u >> 2), (u & 3) * 64, u, 0);   // there are at least 8
    }
    __syncwarp();

    // The warp's 16 rows: channels 8 * index_of(r) + residue, r = 0 .. 7, with px = 0 and (8 further) px = 1,
    // where index_of(r) = 0, 2, 4, 6, 1, 3, 5, 7.
    float shift;
    uint32_t w[16][4];
    {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int residue = warp & 7, py = warp >> 3;
        const int r = lane >> 2, c = lane & 3;
        const int co = 8 * (((r & 3) << 1) | (r >> 2)) + residue;
        shift = __bfloat162float(conv_bias[co]) - __bfloat162float(bias[co]);

        // Weights: w[a * 8 + b * 4 + g] has the input channels 16 * g .. 16 * g + 15; ky = py + 2 * (1 - a),
        // kx = px + 2 * (1 - b).
#pragma unroll
        for (int g = 0; g < 4; ++g) {
#pragma unroll
            for (int upper = 0; upper < 2; ++upper) {
                const int ci = 16 * g + 8 * upper + 2 * c;
#pragma unroll
                for (int a = 0; a < 2; ++a) {
                    const int ky = py + 2 * (1 - a);
                    const uint2 v0 = __ldg(reinterpret_cast<const uint2*>(weight + (ci * 64 + co) * 16 + ky * 4));
                    const uint2 v1 =
                        __ldg(reinterpret_cast<const uint2*>(weight + ((ci + 1) * 64 + co) * 16 + ky * 4));
                    w[a * 8 + 4 + g][2 * upper + 0] = __byte_perm(v0.x, v1.x, 0x5410);
                    w[a * 8 + 4 + g][2 * upper + 1] = __byte_perm(v0.x, v1.x, 0x7632);
                    w[a * 8 + g][2 * upper + 0] = __byte_perm(v0.y, v1.y, 0x5410);
                    w[a * 8 + g][2 * upper + 1] = __byte_perm(v0.y, v1.y, 0x7632);
                }
            }
        }
    }
#pragma unroll
    for (int k = 0; k < 16; ++k) {
#pragma unroll
        for (int v = 0; v < 4; ++v) asm volatile("" : "+r"(w[k][v]));
    }

    // The second copy of a unit, one pixel further on: a warp takes four lines (ci), eight lanes a line. The pixel
    // after the unit is the first one of the next unit, or zero at the end of the row.
    auto share = [&](int s, int parity, int next_s, int next_parity, bool more) {
        wait(base_at + kLoadedAt + 8 * s, parity);
        if (more) wait(base_at + kLoadedAt + 8 * next_s, next_parity);
        __syncwarp();
        const int thread = thread_index();
        const int part = thread & 7, line = thread >> 3;
        const uint32_t line_at = base_at + line * 128;
        const uint32_t at = line_at + s * kSlotBytes + ((part ^ (line & 7)) * 16);
        const uint4 v = load_four(at);
        uint32_t tail = 0;
        if (more && part == 7) tail = load_word(line_at + next_s * kSlotBytes + (line & 7) * 16);
        __syncwarp();
        uint32_t next = __shfl_down_sync(0xffffffffu, v.x, 1);
        if (part == 7) next = tail;
        uint4 moved;
        moved.x = __byte_perm(v.x, v.y, 0x5432);
        moved.y = __byte_perm(v.y, v.z, 0x5432);
        moved.z = __byte_perm(v.z, v.w, 0x5432);
        moved.w = __byte_perm(v.w, next, 0x5432);
        store_four(at + 8192, moved);
        show_stores();
        __syncwarp();
        if ((thread & 31) == 0) arrive(base_at + kFullAt + 8 * s);
        __syncwarp();
    };
    if (count > 0) {
#pragma unroll 1
        for (int u = 0; u < 5; ++u) share(u, 0, u + 1, 0, u != 3);
        if ((thread_index() >> 7) == 3) meet_without_waiting(1, 256);   // the first turn is warpgroup 0's
    }

    uint32_t last = 0;
    int s0 = 0, p0 = 0;   // slot of the unit u0, and the parity of its round

#pragma unroll 1
    for (int i = 0; i < count; ++i) {
        const int index = low + i, image = index / kPairs, q = index - image * kPairs;

#pragma unroll 1
        for (int t = 0; t < 4; ++t) {
            const int u0 = 4 * i + t;   // the row above; the row below is the unit u0 + 4
            int s1 = s0 + 4, p1 = p0;
            if (s1 >= kSlots) {
                s1 -= kSlots;
                p1 ^= 1;
            }
            if (u0 < 4) wait(base_at + kFullAt + 8 * s0, p0);   // later ones have been waited for as row below
            wait(base_at + kFullAt + 8 * s1, p1);
            __syncwarp();
            const uint32_t at0 = base_at + s0 * kSlotBytes;
            const uint32_t at1 = base_at + s1 * kSlotBytes;

            if (t == 0) {
                // Output column 0: pixel 0 with the taps b = 1 and px = 1.
                const int lane = thread_index() & 31;
                const uint32_t lane_at = lane * 128 + (lane & 7) * 16;
                float z0[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                float z1[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    uint32_t v0[4], v1[4];
                    load_turned(v0, at0 + 4096 * half + lane_at);
                    load_turned(v1, at1 + 4096 * half + lane_at);
                    multiply_small(z0, w[4 + 2 * half], v0[0], v0[1]);
                    multiply_small(z1, w[12 + 2 * half], v1[0], v1[1]);
                    multiply_small(z0, w[4 + 2 * half + 1], v0[2], v0[3]);
                    multiply_small(z1, w[12 + 2 * half + 1], v1[2], v1[3]);
                }
                const uint32_t column = pair(0.0f, quick_tanh(z0[2] + z1[2] + shift));
                last = __shfl_sync(0xffffffffu, column, lane & 28);
            }

            const int me = thread_index() >> 7;   // which of the four warpgroups
            meet(1 + me, 256);                    // my turn at the tensor cores
            float d[32];
            const uint64_t b0 = describe(at0, 8192, 1024);
            const uint64_t b1 = describe(at1, 8192, 1024);
            begin_products();
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                multiply(d, w[k], b0 + (((k >> 2) * 8192 + (k & 3) * 2048) >> 4), k > 0 ? 1 : 0);
            }
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                multiply(d, w[8 + k], b1 + (((k >> 2) * 8192 + (k & 3) * 2048) >> 4), 1);
            }
            commit_products();
            if (me < 3 || u0 + 5 < units) meet_without_waiting(1 + ((me + 1) & 3), 256);   // the next one's turn

            // While the products run: the shifted copy that the next tile needs.
            if (u0 + 5 < units) {
                int s = s0 + 5, p = p0;
                if (s >= kSlots) {
                    s -= kSlots;
                    p ^= 1;
                }
                int next_s = s + 1, next_p = p;
                if (next_s >= kSlots) {
                    next_s = 0;
                    next_p ^= 1;
                }
                share(s, p, next_s, next_p, t != 2);   // t == 2: the last unit of a row
            }

            wait_all_products(d);

            const int thread = thread_index();
            const int lane = thread & 31, warp = thread >> 5;
            if (lane == 0) arrive(base_at + kEmptyAt + 8 * s0);
            if (thread == 0 && u0 + 8 < units) {
                // The slot before this one: every warpgroup's products with it come before mine.
                int s = s0 + 8, p = p0;
                if (s >= kSlots) {
                    s -= kSlots;
                    p ^= 1;
                }
                load_unit(index + 1, t * 64, s, p);
            }
            __syncwarp();

            const int residue = warp & 7, py = warp >> 3;
            const int oy = 2 * q - 1 + py;
            if (oy >= 0) {
                const int r = lane >> 2, c = lane & 3;
                const bool odd = ((residue + py) & 1) != 0;   // output column 1 lies in the upper half of a word
                const bool swap = r >= 4;   // these lanes store their second word first: no bank conflict
                const int source = (lane & 28) | ((lane + 3) & 3);
                const uint32_t stage_at = base_at + kStageAt + warp * kStageWarp;
                const int flat = (image * 64 + residue) * kPlane + oy * kOut;   // of the warp's first row
                const int e0 = flat & 15;   // of rows 0 .. 3, from a multiple of 32 bytes
                const int e1 = e0 ^ 8;      // of rows 4 .. 7
                const int e = swap ? e1 : e0;
                const uint32_t lane_at = stage_at + r * kStageRow + 8 * c + 2 * e + (odd ? 0 : 2);
                const int half = t >> 1;    // of the row; 256 outputs, and up to 16 of them go along

                if (t == 2) {
                    const uint32_t to = stage_at + (lane >> 2) * kStageRow + (lane & 3) * 8;
                    const uint32_t v0 = load_word(to + 512);
                    const uint32_t v1 = load_word(to + 516);
                    store_word(to, v0);
                    store_word(to + 4, v1);
                    __syncwarp();
                }
                const uint32_t at = lane_at + (t & 1) * 256;
                if (odd) {
                    stage<true>(d, shift, at, swap, c, source, last);
                    if (t == 3 && c == 3) store_half(lane_at + 488, last >> 16);   // output column 512
                } else {
                    if (t == 0 && c == 0) store_half(lane_at - 2, last >> 16);     // output column 0
                    stage<false>(d, shift, at, swap, c, source, last);
                }
                __syncwarp();

                if (t & 1) {
                    // 512 bytes of each row: 16 whole sectors, or 15 where a row begins within the first one.
#pragma unroll
                    for (int g = 0; g < 2; ++g) {
                        const int before = g ? e1 : e0;
                        __nv_bfloat16* const to =
                            out + static_cast<int64_t>(flat - before + g * (8 * kPlane) + 256 * half + 8 * lane);
                        const uint32_t from = stage_at + g * (4 * kStageRow) + lane * 16;
                        uint4 v[4];
#pragma unroll
                        for (int k = 0; k < 4; ++k) v[k] = load_four(from + k * kStageRow);
                        if (half != 0 || before == 0 || lane >= 2) {
#pragma unroll
                            for (int k = 0; k < 4; ++k) {
                                *reinterpret_cast<uint4*>(to + static_cast<int64_t>(k) * (16 * kPlane)) = v[k];
                            }
                        }
                    }
                    // The sector where a row begins, or the one where it ends.
                    const int upper = lane >> 4, z = lane & 15;
                    uint16_t bits[4];
#pragma unroll
                    for (int step = 0; step < 4; ++step) {
                        bits[step] = load_half(stage_at + (2 * step + upper) * kStageRow + 512 * half + 2 * z);
                    }
#pragma unroll
                    for (int step = 0; step < 4; ++step) {
                        const int before = step < 2 ? e0 : e1;
                        const bool mine = half == 0 ? (before != 0 && z >= before) : z <= before;
                        if (mine) {
                            const int channel = (step & 1) * 4 + 2 * upper + (step >> 1);   // index_of(row)
                            const int place = flat + channel * (8 * kPlane) - before + 512 * half + z;
                            reinterpret_cast<uint16_t*>(out)[static_cast<int64_t>(place)] = bits[step];
                        }
                    }
                    __syncwarp();
                }
            }

            if (++s0 == kSlots) {
                s0 = 0;
                p0 ^= 1;
            }
        }
    }
}

typedef CUresult (*EncodeTiled)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

extern "C" int transposed_tanh(const void* x, const void* weight, const void* conv_bias, const void* bias, void* out,
                               int64_t batch, void* stream) {
    if (batch == 0) return 0;
    static EncodeTiled encode = nullptr;
    static int processors = 0;
    if (encode == nullptr) {
        void* driver = dlopen("libcuda.so.1", RTLD_NOW);
        if (driver == nullptr) return 10001;
        EncodeTiled found = reinterpret_cast<EncodeTiled>(dlsym(driver, "cuTensorMapEncodeTiled"));
        if (found == nullptr) return 10002;
        int device = 0;
        cudaError_t error = cudaGetDevice(&device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaFuncSetAttribute(transposed_tanh_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        encode = found;
    }

    alignas(64) CUtensorMap map_x;
    const cuuint64_t sizes[3] = {kSide, kSide, static_cast<cuuint64_t>(batch) * 64};
    const cuuint64_t strides[2] = {kSide * 2, kSide * kSide * 2};
    const cuuint32_t steps[3] = {1, 1, 1};
    const cuuint32_t box[3] = {64, 1, 64};
    const CUresult result =
        encode(&map_x, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(x), sizes, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) return 20000 + static_cast<int>(result);

    const int total = static_cast<int>(batch) * kPairs;
    const int blocks = processors < total ? processors : total;
    transposed_tanh_kernel<<<static_cast<unsigned>(blocks), kThreads, kSharedBytes,
                             static_cast<cudaStream_t>(stream)>>>(
        map_x, static_cast<const __nv_bfloat16*>(weight), static_cast<const __nv_bfloat16*>(conv_bias),
        static_cast<const __nv_bfloat16*>(bias), static_cast<__nv_bfloat16*>(out), total);
    return static_cast<int>(cudaGetLastError());
}
"""

SOURCE = SOURCE.replace("@REGISTERS@", ", ".join(f"%{i}" for i in range(32)))
SOURCE = SOURCE.replace("@OPERANDS@", ", ".join(f'"+f"(d[{i}])' for i in range(32)))

library = ctypes.CDLL(
    load_inline(
        name="transposed_tanh_rows_direct",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
        extra_ldflags=["-ldl"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
transposed_tanh = library.transposed_tanh
transposed_tanh.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64, ctypes.c_void_p]
transposed_tanh.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, bias_shape, stride=2, padding=1, output_padding=1):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, output_padding=output_padding
        )
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x):
        x = x.contiguous()
        weight = self.conv_transpose.weight.contiguous()
        conv_bias = self.conv_transpose.bias.contiguous()
        bias = self.bias.contiguous()
        if x.dtype != torch.bfloat16 or tuple(x.shape[1:]) != (64, 256, 256) or tuple(weight.shape) != (64, 64, 4, 4):
            raise RuntimeError("transposed_tanh: made for bfloat16 inputs of (batch, 64, 256, 256)")
        batch = x.shape[0]
        out = torch.empty((batch, 64, 513, 513), dtype=x.dtype, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = transposed_tanh(
            x.data_ptr(),
            weight.data_ptr(),
            conv_bias.data_ptr(),
            bias.data_ptr(),
            out.data_ptr(),
            batch,
            stream,
        )
        if error:
            raise RuntimeError(f"transposed_tanh: error {error}")
        return out
