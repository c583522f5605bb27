import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline


def _multiply_source(n):
    count = n // 2
    registers = ", ".join("%" + str(i) for i in range(count))
    outputs = ", ".join('"+f"(d[' + str(i) + "])" for i in range(count))
    return (
        "__device__ __forceinline__ void multiply(float (&d)[" + str(count) + "], uint64_t a, uint64_t b, int add) {\n"
        '    asm volatile("{\\n.reg .pred p;\\nsetp.ne.b32 p, %' + str(count + 2) + ", 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n" + str(n) + "k16.f32.f16.f16 {" + registers + "}, %" + str(count)
        + ", %" + str(count + 1) + ', p, 1, 1, 0, 0;\\n}"\n'
        "        : " + outputs + "\n"
        '        : "l"(a), "l"(b), "r"(add));\n'
        "}\n"
    )


SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_fp16.h>

// ---------------------------------------------------------------- instructions

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void start(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void show_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// At the barrier of the same place in block `cta` of the cluster. No release at cluster scope: what it tells is that
// products have finished reading, and nothing was written.
__device__ __forceinline__ void arrive_at(uint64_t* barrier, uint32_t cta) {
    asm volatile(
        "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(shared_address(barrier)), "r"(cta)
        : "memory");
}
__device__ __forceinline__ void arrive_and_expect(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
// To the same place in every block of `mask`, each told at its own barrier.
__device__ __forceinline__ void bulk_load_to_all(void* to, const void* from, uint32_t bytes, uint64_t* barrier,
                                                 uint16_t mask) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
        "%4;" ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)), "h"(mask) : "memory");
}
__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// K-major operand without swizzle: panels of 16 bytes, `lines` lines each. Adding n moves it on by 16 n bytes.
__device__ __forceinline__ uint64_t k_major(uint32_t at, int lines) {
    const uint32_t leading = lines * 16, stride = 128;
    return (at & 0x3ffff) >> 4 | uint64_t(leading >> 4) << 16 | uint64_t(stride >> 4) << 32;
}

@MULTIPLY@

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending, int N>
__device__ __forceinline__ void wait_products(float (&d)[N]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void give_up_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
__device__ __forceinline__ void meet(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ void meet_without_waiting(int name, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// ---------------------------------------------------------------- scales and pieces

// `bits` of the largest magnitude: times the scale it lies in [2^13, 2^14).
__device__ __forceinline__ int exponent_of(int bits) {
    const int e = bits >> 23;
    return e < 27 ? 27 : (e > 240 ? 240 : e);
}
__device__ __forceinline__ float scale_of(int bits) { return __int_as_float((267 - exponent_of(bits)) << 23); }
__device__ __forceinline__ float inverse_scale_of(int bits) { return __int_as_float((exponent_of(bits) - 13) << 23); }

__device__ __forceinline__ void store_split(const float (&v)[8], float scale, __half* high, __half* low) {
    uint32_t h[4], l[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float a = v[2 * i] * scale, b = v[2 * i + 1] * scale;
        const __half2 p = __floats2half2_rn(a, b);
        const float2 f = __half22float2(p);
        const __half2 r = __floats2half2_rn(a - f.x, b - f.y);
        h[i] = *reinterpret_cast<const uint32_t*>(&p);
        l[i] = *reinterpret_cast<const uint32_t*>(&r);
    }
    *reinterpret_cast<uint4*>(high) = make_uint4(h[0], h[1], h[2], h[3]);
    *reinterpret_cast<uint4*>(low) = make_uint4(l[0], l[1], l[2], l[3]);
}

__device__ __forceinline__ float warp_max(float m) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, offset));
    return m;
}

__device__ __forceinline__ void load8(const float* from, float (&v)[8]) {
    const float4 a = reinterpret_cast<const float4*>(from)[0], b = reinterpret_cast<const float4*>(from)[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// The columns of a tile of products are permuted within groups of 32, so that a lane of a quad has 8 neighbouring
// channels of a line: channel 8 q + 2 m + e lies in column 8 m + 2 q + e.
__host__ __device__ __forceinline__ constexpr int column_of(int c) {
    return c / 32 * 32 + c % 8 / 2 * 8 + c % 32 / 8 * 2 + c % 2;
}
// Where a lane has channel e of its 8 in group `block` of 32, in line `half` of its two.
__host__ __device__ __forceinline__ constexpr int sum_of(int block, int half, int e) {
    return 16 * block + 4 * (e / 2) + 2 * half + e % 2;
}
// The 8 channels of a lane.
template <int N>
__device__ __forceinline__ void put8(float* to, const float (&s)[N], int block, int half) {
    const int i = 16 * block + 2 * half;
    reinterpret_cast<float4*>(to)[0] = make_float4(s[i], s[i + 1], s[i + 4], s[i + 5]);
    reinterpret_cast<float4*>(to)[1] = make_float4(s[i + 8], s[i + 9], s[i + 12], s[i + 13]);
}

// ---------------------------------------------------------------- the products

// What a product writes: fp32 rows; fp32 pooled horizontally; the operand of the next convolution.
constexpr int kRows = 0, kPooled = 1, kOperand = 2;

// A step is a chunk of KC channels at one position with all KH kernel rows.
template <int NT, int KC, int KH, int WQ, int POS, int C, int COUT, int OH, int OW, int LPI, int AS, int BS, bool PAIRS,
          bool RELU, bool MFAST, int OUT>
struct Shape {
    static constexpr int kNT = NT, kKC = KC, kKH = KH, kWQ = WQ, kPos = POS, kC = C, kCout = COUT, kOH = OH, kOW = OW;
    static constexpr int kLPI = LPI, kAS = AS, kBS = BS;  // lines an image, stages
    static constexpr bool kPairs = PAIRS, kRelu = RELU, kMFast = MFAST;
    static constexpr int kOut = OUT;
    static constexpr int kChunks = C / KC, kPanels = KC / 8, kSteps = POS * kChunks;
    static constexpr int kHalo = (KH - 1) * WQ, kLines = 128 + kHalo;
    static constexpr int kAPiece = kPanels * kLines * 16, kABytes = 2 * kAPiece;
    static constexpr int kBHalves = KH * KC * NT, kBPiece = kBHalves * 2, kBBytes = 2 * kBPiece;
    static constexpr int kNTiles = (COUT + NT - 1) / NT;
    static constexpr int kSmem = AS * kABytes + BS * kBBytes;
    static constexpr int kEdgeBytes = OUT * 2 * 4 * NT * 4;
    static_assert(C % KC == 0 && KC % 16 == 0, "chunks");
    static_assert(OUT == kRows || (PAIRS && RELU && COUT % NT == 0), "what is written");
    static_assert(kSmem + kEdgeBytes + 512 <= 227 * 1024, "shared memory");
};

using Conv1 = Shape<96, 48, 3, 28, 4, 48, 96, 55, 55, 57 * 28, 3, 2, true, true, false, kPooled>;
using Conv2 = Shape<128, 32, 5, 14, 7, 96, 256, 27, 27, 29 * 14, 2, 2, true, true, false, kPooled>;
using Conv3 = Shape<128, 32, 3, 7, 4, 256, 384, 13, 13, 14 * 7, 4, 3, true, true, false, kOperand>;
using Conv4 = Shape<128, 32, 3, 7, 4, 384, 384, 13, 13, 14 * 7, 4, 3, true, true, false, kOperand>;
using Conv5 = Shape<128, 32, 3, 7, 4, 384, 256, 13, 13, 14 * 7, 4, 3, true, true, false, kPooled>;
using Fc1 = Shape<128, 64, 1, 1, 1, 9216, 4096, 1, 1, 1, 3, 3, false, true, true, kRows>;
using Fc2 = Shape<128, 64, 1, 1, 1, 4096, 4096, 1, 1, 1, 3, 3, false, true, true, kRows>;
using Fc3 = Shape<64, 64, 1, 1, 1, 4096, 1000, 1, 1, 1, 4, 4, false, false, true, kRows>;

struct Args {
    const __half* a;       // [piece][position][channel / 8][lines][8]
    const __half* b;       // [tile of n][step][piece][kh][panel][n][8]
    const float* bias;
    const float* inverse;  // of the weights' scale, for each output channel
    const int* max_in;     // for each image, bits: what the operand's scale was made of
    int* max_out;          // or null
    float* out;            // kRows: [image][channel]; kPooled: [image][channel / 4][oh][pooled column][4]
    __half* next;          // kOperand: the next operand, of as many lines
    const int* bound_out;  // kOperand: for each image, bits: what its scale is made of
    float* edges;          // kPooled: [line / 64][channel]; kOperand: [line / 64][6][channel]
    int64_t lines;
    int batch;
    int pairs;             // of tiles of 128 lines
};

template <class S>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1) product_kernel(const Args args) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ uint64_t full_a[S::kAS], empty_a[S::kAS], full_b[S::kBS], empty_b[S::kBS];
    // First column of a warp's first line, second column of its last line.
    __shared__ __align__(16) float firsts[2][4][S::kOut == kRows ? 4 : S::kNT];
    __shared__ __align__(16) float lasts[2][4][S::kOut == kOperand ? S::kNT : 4];
    unsigned char* const shared_a = shared;
    unsigned char* const shared_b = shared + S::kAS * S::kABytes;

    const uint32_t rank = cluster_rank();
    const int cluster = blockIdx.x / 2, clusters = gridDim.x / 2;
    const int tiles = args.pairs * S::kNTiles;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::kAS; ++i) start(&full_a[i], 1), start(&empty_a[i], 8);
        for (int i = 0; i < S::kBS; ++i) start(&full_b[i], 1), start(&empty_b[i], 16);
        show_started();
    }
    __syncthreads();
    cluster_barrier();

    const int group = threadIdx.x / 128;
    if (group == 0) {
        give_up_registers<40>();
        if (threadIdx.x == 0) {  // A
            int s = 0;
            uint32_t parity = 0;
            for (int tile = cluster; tile < tiles; tile += clusters) {
                const int pair = S::kMFast ? tile % args.pairs : tile / S::kNTiles;
                const int64_t m0 = (static_cast<int64_t>(pair) * 2 + rank) * 128;
                for (int pos = 0; pos < S::kPos; ++pos) {
                    for (int chunk = 0; chunk < S::kChunks; ++chunk) {
                        wait(&empty_a[s], parity ^ 1);
                        arrive_and_expect(&full_a[s], S::kABytes);
                        unsigned char* to = shared_a + s * S::kABytes;
#pragma unroll 1
                        for (int piece = 0; piece < 2; ++piece) {
                            const __half* from = args.a +
                                ((static_cast<int64_t>(piece * S::kPos + pos) * (S::kC / 8) + chunk * S::kPanels) *
                                     args.lines + m0) * 8;
#pragma unroll 1
                            for (int panel = 0; panel < S::kPanels; ++panel) {
                                bulk_load(to, from, S::kLines * 16, &full_a[s]);
                                to += S::kLines * 16;
                                from += args.lines * 8;
                            }
                        }
                        if (++s == S::kAS) s = 0, parity ^= 1;
                    }
                }
            }
        } else if (threadIdx.x == 32) {  // B: this block's piece, for both blocks
            int s = 0;
            uint32_t parity = 0;
            for (int tile = cluster; tile < tiles; tile += clusters) {
                const int nt = S::kMFast ? tile / args.pairs : tile % S::kNTiles;
                const __half* from = args.b + (static_cast<int64_t>(nt) * S::kSteps * 2 + rank) * S::kBHalves;
#pragma unroll 1
                for (int step = 0; step < S::kSteps; ++step) {
                    wait(&empty_b[s], parity ^ 1);
                    arrive_and_expect(&full_b[s], S::kBBytes);
                    bulk_load_to_all(shared_b + s * S::kBBytes + rank * S::kBPiece, from, S::kBPiece, &full_b[s],
                                     static_cast<uint16_t>(3));
                    from += 2 * S::kBHalves;
                    if (++s == S::kBS) s = 0, parity ^= 1;
                }
            }
        }
        __syncwarp();
    } else {
        take_registers<232>();
        constexpr int kAcc = S::kNT / 2;
        const int wg = group - 1;
        const int lane = threadIdx.x % 32;
        const int warp = threadIdx.x / 32 % 4;
        const uint32_t a_start = shared_address(shared_a) + wg * 64 * 16;
        const uint32_t b_start = shared_address(shared_b);
        float d[kAcc], s0[kAcc], s1[S::kPairs ? kAcc : 1];
        uint32_t sa = 0, pa = 0, sb = 0, pb = 0;
        if (wg == 1) meet_without_waiting(1, 256);  // the first turn is warpgroup 0's

#pragma unroll 1
        for (int tile = cluster; tile < tiles; tile += clusters) {
#pragma unroll
            for (int i = 0; i < kAcc; ++i) d[i] = 0.0f;  // so that they need not be kept over the end of a tile
#pragma unroll
            for (int i = 0; i < kAcc; ++i) {
                s0[i] = 0.0f;
                if constexpr (S::kPairs) s1[i] = 0.0f;
            }
#pragma unroll 1
            for (int pos = 0; pos < S::kPos; ++pos) {
#pragma unroll 1
                for (int chunk = 0; chunk < S::kChunks; ++chunk) {
                    const uint64_t a_high = k_major(a_start + sa * S::kABytes, S::kLines);
                    const uint64_t a_low = a_high + S::kAPiece / 16;
                    const uint64_t b_high = k_major(b_start + sb * S::kBBytes, S::kNT);
                    const uint64_t b_low = b_high + S::kBPiece / 16;
                    wait(&full_a[sa], pa);
                    wait(&full_b[sb], pb);
                    meet(1 + wg, 256);
                    begin_products();
                    // The small products first: their sum loses nothing to the large one's rounding.
#pragma unroll
                    for (int kh = 0; kh < S::kKH; ++kh) {
#pragma unroll
                        for (int k = 0; k < S::kKC / 16; ++k)
                            multiply(d, a_low + (kh * S::kWQ + k * 2 * S::kLines),
                                     b_high + (kh * S::kPanels + k * 2) * S::kNT, kh + k > 0);
                    }
#pragma unroll
                    for (int kh = 0; kh < S::kKH; ++kh) {
#pragma unroll
                        for (int k = 0; k < S::kKC / 16; ++k)
                            multiply(d, a_high + (kh * S::kWQ + k * 2 * S::kLines),
                                     b_low + (kh * S::kPanels + k * 2) * S::kNT, 1);
                    }
#pragma unroll
                    for (int kh = 0; kh < S::kKH; ++kh) {
#pragma unroll
                        for (int k = 0; k < S::kKC / 16; ++k)
                            multiply(d, a_high + (kh * S::kWQ + k * 2 * S::kLines),
                                     b_high + (kh * S::kPanels + k * 2) * S::kNT, 1);
                    }
                    commit_products();
                    meet_without_waiting(2 - wg, 256);
                    wait_products<0>(d);
                    __syncwarp();
                    if (lane == 0) {
                        arrive_at(&empty_b[sb], 0);
                        arrive_at(&empty_b[sb], 1);
                        arrive(&empty_a[sa]);
                    }
                    if (++sb == S::kBS) sb = 0, pb ^= 1;
                    if (++sa == S::kAS) sa = 0, pa ^= 1;
                    if constexpr (S::kPairs) {
                        if (pos != 3 && pos != 6) {
#pragma unroll
                            for (int i = 0; i < kAcc; ++i) s0[i] += d[i];
                        }
                        if (pos == 2) {
#pragma unroll
                            for (int i = 0; i < kAcc; ++i) s1[i] -= d[i];
                        } else if (pos != 0 && pos != 4) {
#pragma unroll
                            for (int i = 0; i < kAcc; ++i) s1[i] += d[i];
                        }
                    } else {
#pragma unroll
                        for (int i = 0; i < kAcc; ++i) s0[i] += d[i];
                    }
                    __syncwarp();
                }
            }

            // Scales, bias, ReLU, largest value of each image. A lane has 8 channels of each 32, of two lines.
            const int pair = S::kMFast ? tile % args.pairs : tile / S::kNTiles;
            const int nt = S::kMFast ? tile / args.pairs : tile % S::kNTiles;
            const int group_line = (pair * 2 + static_cast<int>(rank)) * 128 + wg * 64;
            const int first_line = group_line + warp * 16 + lane / 4;
            const int quad = lane % 4;
            const int first_n = nt * S::kNT + quad * 8;
            constexpr int kBlocks = S::kNT / 32;
            float largest[2] = {0.0f, 0.0f};
            int image[2];
            if constexpr (S::kOut == kRows) {
                float inverse_of[2];
                float* to[2];
                bool valid_of[2];
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int img = first_line + half * 8;
                    image[half] = img;
                    valid_of[half] = img < args.batch;
                    inverse_of[half] = valid_of[half] ? inverse_scale_of(args.max_in[img]) : 0.0f;
                    to[half] = args.out + static_cast<int64_t>(img) * S::kCout + first_n;
                }
#pragma unroll
                for (int block = 0; block < kBlocks; ++block) {
                    if (first_n + block * 32 < S::kCout) {  // kCout is a multiple of 8
                        float w[8], b[8];
                        load8(args.inverse + first_n + block * 32, w);
                        load8(args.bias + first_n + block * 32, b);
#pragma unroll
                        for (int half = 0; half < 2; ++half) {
                            float m = 0.0f;
#pragma unroll
                            for (int e = 0; e < 8; ++e) {
                                const int i = sum_of(block, half, e);
                                float y = s0[i] * inverse_of[half] * w[e] + b[e];
                                if (S::kRelu) y = fmaxf(y, 0.0f);
                                s0[i] = y;
                                m = fmaxf(m, y);
                            }
                            if (valid_of[half]) {
                                put8(to[half] + block * 32, s0, block, half);
                                largest[half] = fmaxf(largest[half], m);
                            }
                        }
                    }
                }
            } else {
                // The results take the place of the sums; zero where there is none.
                int oh_of[2], q_of[2];
                bool valid_of[2];
                float inverse_of[2], mask0[2], mask1[2], back_of[2];
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int line = first_line + half * 8;
                    const int img = line / S::kLPI;
                    const int rest = line - img * S::kLPI;
                    const int oh = rest / S::kWQ;
                    const int q = rest - oh * S::kWQ;
                    const bool valid = img < args.batch && oh < S::kOH;
                    float scale = 1.0f, back = 1.0f, inverse = 0.0f;
                    if (valid) {
                        inverse = inverse_scale_of(args.max_in[img]);
                        if constexpr (S::kOut == kOperand) {
                            const int bound = args.bound_out[img];
                            scale = scale_of(bound);
                            back = inverse_scale_of(bound);
                        }
                    }
                    inverse_of[half] = inverse;
                    mask0[half] = valid ? scale : 0.0f;
                    mask1[half] = valid && 2 * q + 1 < S::kOW ? scale : 0.0f;
                    back_of[half] = back;
                    image[half] = img;
                    oh_of[half] = oh;
                    q_of[half] = q;
                    valid_of[half] = valid;
                }
                __syncwarp();
#pragma unroll
                for (int block = 0; block < kBlocks; ++block) {
                    float w[8], b[8];
                    load8(args.inverse + first_n + block * 32, w);
                    load8(args.bias + first_n + block * 32, b);
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        float m = largest[half];
#pragma unroll
                        for (int e = 0; e < 8; ++e) {
                            const int i = sum_of(block, half, e);
                            const float factor = inverse_of[half] * w[e];  // powers of two
                            const float u = fmaxf(s0[i] * factor + b[e], 0.0f) * mask0[half];
                            const float v = fmaxf(s1[i] * factor + b[e], 0.0f) * mask1[half];
                            m = fmaxf(m, fmaxf(u, v));
                            s0[i] = u;
                            s1[i] = v;
                        }
                        largest[half] = m;
                    }
                }
#pragma unroll
                for (int half = 0; half < 2; ++half) largest[half] *= back_of[half];

                // To the neighbouring warps. What they read of the last tile they read before the turns since.
                if (lane < 4) {
#pragma unroll
                    for (int block = 0; block < kBlocks; ++block)
                        put8(&firsts[wg][warp][quad * 8 + block * 32], s0, block, 0);
                }
                if constexpr (S::kOut == kOperand) {
                    if (lane >= 28) {
#pragma unroll
                        for (int block = 0; block < kBlocks; ++block)
                            put8(&lasts[wg][warp][quad * 8 + block * 32], s1, block, 1);
                    }
                }
                meet(3 + wg, 128);
                const int seam = group_line / 64;
                const int back = (lane + 28) % 32, ahead = (lane + 4) % 32;
                if constexpr (S::kOut == kPooled) {
                    constexpr int kP = (S::kOW - 1) / 2;
                    if (warp == 0 && lane < 4) {  // the line before lacks this
                        float* to = args.edges + static_cast<int64_t>(seam) * S::kCout + first_n;
#pragma unroll
                        for (int block = 0; block < kBlocks; ++block) put8(to + block * 32, s0, block, 0);
                    }
                    __syncwarp();
                    constexpr int64_t kPlane = static_cast<int64_t>(S::kOH) * kP * 4;  // of four channels
                    float* to[2];
                    bool keep[2];
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        keep[half] = valid_of[half] && q_of[half] < kP;
                        to[half] = args.out +
                                   (static_cast<int64_t>(image[half]) * (S::kCout / 4) + nt * (S::kNT / 4) + quad * 2) *
                                       kPlane + (oh_of[half] * kP + q_of[half]) * 4;
                    }
#pragma unroll
                    for (int block = 0; block < kBlocks; ++block) {
                        float edge[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
                        if (lane >= 28 && warp < 3) load8(&firsts[wg][warp + 1][quad * 8 + block * 32], edge);
                        __syncwarp();
                        float p0[8], p1[8];
#pragma unroll
                        for (int e = 0; e < 8; ++e) {
                            const int i = sum_of(block, 0, e), k = sum_of(block, 1, e);
                            const float r0 = __shfl_sync(0xffffffffu, s0[i], ahead);
                            const float r1 = __shfl_sync(0xffffffffu, s0[k], ahead);
                            p0[e] = fmaxf(fmaxf(s0[i], s1[i]), lane < 28 ? r0 : r1);
                            p1[e] = fmaxf(fmaxf(s0[k], s1[k]), lane < 28 ? r1 : edge[e]);
                        }
                        if (keep[0]) {
                            float* at = to[0] + block * 8 * kPlane;
                            *reinterpret_cast<float4*>(at) = make_float4(p0[0], p0[1], p0[2], p0[3]);
                            *reinterpret_cast<float4*>(at + kPlane) = make_float4(p0[4], p0[5], p0[6], p0[7]);
                        }
                        if (keep[1]) {
                            float* at = to[1] + block * 8 * kPlane;
                            *reinterpret_cast<float4*>(at) = make_float4(p1[0], p1[1], p1[2], p1[3]);
                            *reinterpret_cast<float4*>(at + kPlane) = make_float4(p1[4], p1[5], p1[6], p1[7]);
                        }
                        __syncwarp();
                    }
                } else {
                    // Slots of a seam between lines 64 t - 1 and 64 t: the columns from the second of line 64 t - 2 to
                    // the first of line 64 t + 1.
                    float* const slots = args.edges + static_cast<int64_t>(seam) * 6 * S::kCout + first_n;
                    if (warp == 0 && lane < 8) {
#pragma unroll
                        for (int block = 0; block < kBlocks; ++block) {
                            if (lane < 4) {
                                put8(slots + 3 * S::kCout + block * 32, s0, block, 0);
                                put8(slots + 4 * S::kCout + block * 32, s1, block, 0);
                            } else {
                                put8(slots + 5 * S::kCout + block * 32, s0, block, 0);
                            }
                        }
                    }
                    if (warp == 3 && lane >= 24) {
#pragma unroll
                        for (int block = 0; block < kBlocks; ++block) {
                            if (lane >= 28) {
                                put8(slots + 7 * S::kCout + block * 32, s0, block, 1);
                                put8(slots + 8 * S::kCout + block * 32, s1, block, 1);
                            } else {
                                put8(slots + 6 * S::kCout + block * 32, s1, block, 1);
                            }
                        }
                    }
                    __syncwarp();
                    // Eight lines of a plane are one line of 128 bytes: see where the operands start.
                    const int64_t line_bytes = args.lines * 16;
                    const int64_t position_bytes = (S::kCout / 8) * line_bytes;
                    char* to[2];
                    bool keep[2];
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const int line = first_line + half * 8;
                        const int in_group = line - group_line;
                        keep[half] = valid_of[half] && in_group != 0 && in_group != 63;
                        to[half] = reinterpret_cast<char*>(args.next) + (nt * (S::kNT / 8) + quad) * line_bytes +
                                   static_cast<int64_t>(line + S::kWQ) * 16;
                    }
#pragma unroll
                    for (int block = 0; block < kBlocks; ++block) {
                        float before[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
                        float after[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
                        if (lane < 4 && warp > 0) load8(&lasts[wg][warp - 1][quad * 8 + block * 32], before);
                        if (lane >= 28 && warp < 3) load8(&firsts[wg][warp + 1][quad * 8 + block * 32], after);
                        __syncwarp();
                        float left[2][8], right[2][8];
#pragma unroll
                        for (int e = 0; e < 8; ++e) {
                            const int i = sum_of(block, 0, e), k = sum_of(block, 1, e);
                            const float l0 = __shfl_sync(0xffffffffu, s1[i], back);
                            const float l1 = __shfl_sync(0xffffffffu, s1[k], back);
                            const float r0 = __shfl_sync(0xffffffffu, s0[i], ahead);
                            const float r1 = __shfl_sync(0xffffffffu, s0[k], ahead);
                            left[0][e] = lane >= 4 ? l0 : before[e];
                            left[1][e] = lane >= 4 ? l1 : l0;
                            right[0][e] = lane < 28 ? r0 : r1;
                            right[1][e] = lane < 28 ? r1 : after[e];
                        }
#pragma unroll
                        for (int half = 0; half < 2; ++half) {
                            if (keep[half]) {
                                char* at = to[half] + block * 4 * line_bytes;
#pragma unroll
                                for (int p = 0; p < 4; ++p) {
                                    float t[8];
#pragma unroll
                                    for (int e = 0; e < 8; ++e) {
                                        const int i = sum_of(block, half, e);
                                        const float d1 = s0[i], d2 = s1[i];
                                        if (p == 0) t[e] = (q_of[half] == 0 ? 0.0f : left[half][e]) - d2;
                                        if (p == 1) t[e] = d1 + d2;
                                        if (p == 2) t[e] = d2 - d1;
                                        if (p == 3) t[e] = d1 - (q_of[half] == S::kWQ - 1 ? 0.0f : right[half][e]);
                                    }
                                    store_split(t, 1.0f, reinterpret_cast<__half*>(at),
                                                reinterpret_cast<__half*>(at + 4 * position_bytes));
                                    at += position_bytes;
                                }
                            }
                        }
                        __syncwarp();
                    }
                }
            }
            if (args.max_out != nullptr) {
                __syncwarp();
                const int one = __shfl_sync(0xffffffffu, image[0], 0);
                if (__all_sync(0xffffffffu, image[0] == one && image[1] == one)) {
                    const float m = warp_max(fmaxf(largest[0], largest[1]));
                    if (lane == 0 && one < args.batch) atomicMax(args.max_out + one, __float_as_int(m));
                } else {
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        float m = largest[half];
                        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
                        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
                        if (lane % 4 == 0 && image[half] < args.batch)
                            atomicMax(args.max_out + image[half], __float_as_int(m));
                    }
                }
            }
            __syncwarp();
        }
        if (wg == 0) meet(1, 256);  // takes up the last arrival of warpgroup 1
    }
    cluster_barrier();  // no block leaves while the other may still reach into it
}

// ---------------------------------------------------------------- weights

template <class S, int kMode>  // 0: conv1 in blocks of 4 x 4; 1: 3 x 3; 2: 5 x 5
__device__ __forceinline__ float tap(const float* row, int c, int kh, int kw) {
    if constexpr (kMode == 0) {
        const int channel = c / 16, ky = 4 * kh + c / 4 % 4, kx = 4 * kw + c % 4;
        return ky < 11 && kx < 11 ? row[channel * 121 + ky * 11 + kx] : 0.0f;
    } else {
        return row[(c * S::kKH + kh) * S::kKH + kw];
    }
}

struct PackArgs {
    const float* weight[8];
    const float* bias[5];
    __half* packed[8];
    float* inverse[8];
    int* norms;
};

// Output channel n, by 256 threads.
// norms: the largest L1 norm of a filter, the largest magnitude of a bias (bits, zero at the start).
template <class S, int kMode>
__device__ __forceinline__ void pack_conv(int n, const float* __restrict__ weight, const float* __restrict__ bias,
                                          __half* __restrict__ packed, float* __restrict__ inverse,
                                          int* __restrict__ norms, float* partial, float* sums) {
    constexpr int kRow = kMode == 0 ? 363 : S::kC * S::kKH * S::kKH;
    const float* row = weight + static_cast<int64_t>(n) * kRow;
    float m = 0.0f, sum = 0.0f;
    for (int i = threadIdx.x; i < kRow; i += 256) {
        const float a = fabsf(row[i]);
        m = fmaxf(m, a);
        sum += a;
    }
    __syncwarp();
    m = warp_max(m);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) {
        partial[threadIdx.x / 32] = m;
        sums[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    m = partial[0];
    sum = sums[0];
#pragma unroll
    for (int i = 1; i < 8; ++i) {
        m = fmaxf(m, partial[i]);
        sum += sums[i];
    }
    const float scale = scale_of(__float_as_int(m));
    if (threadIdx.x == 0) {
        inverse[n] = inverse_scale_of(__float_as_int(m));
        atomicMax(norms, __float_as_int(sum));
        atomicMax(norms + 1, __float_as_int(fabsf(bias[n])));
    }
    const int nt = n / S::kNT, column = column_of(n % S::kNT);
    for (int i = threadIdx.x; i < S::kSteps * S::kKH * S::kPanels; i += 256) {
        const int panel = i % S::kPanels, kh = i / S::kPanels % S::kKH, step = i / (S::kPanels * S::kKH);
        const int chunk = step % S::kChunks, pos = step / S::kChunks;
        float v[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const int c = chunk * S::kKC + panel * 8 + e;
            float value;
            if (pos == 0) {
                value = tap<S, kMode>(row, c, kh, 0);
            } else if (pos == 1 || pos == 2) {
                const float outer = tap<S, kMode>(row, c, kh, 0) + tap<S, kMode>(row, c, kh, 2);
                const float middle = tap<S, kMode>(row, c, kh, 1);
                value = (pos == 1 ? outer + middle : outer - middle) * 0.5f;
            } else if (pos == 3) {
                value = -tap<S, kMode>(row, c, kh, 2);
            } else {
                value = 0.0f;
                if constexpr (kMode == 2) {
                    const float g3 = tap<S, kMode>(row, c, kh, 3), g4 = tap<S, kMode>(row, c, kh, 4);
                    value = pos == 4 ? g3 : (pos == 5 ? g3 + g4 : -g4);
                }
            }
            v[e] = value;
        }
        __half* high = packed + (static_cast<int64_t>(nt) * S::kSteps + step) * 2 * S::kBHalves +
                       ((kh * S::kPanels + panel) * S::kNT + column) * 8;
        store_split(v, scale, high, high + S::kBHalves);
    }
}

// A block for each output channel of the five convolutions, those with the most weights first.
constexpr int kPackConvBlocks = 384 + 384 + 256 + 256 + 96;

__global__ void __launch_bounds__(256) pack_convs_kernel(const PackArgs p) {
    __shared__ float partial[8], sums[8];
    int n = blockIdx.x;
    if (n < 384) {
        pack_conv<Conv4, 1>(n, p.weight[3], p.bias[3], p.packed[3], p.inverse[3], p.norms + 6, partial, sums);
        return;
    }
    n -= 384;
    if (n < 384) {
        pack_conv<Conv3, 1>(n, p.weight[2], p.bias[2], p.packed[2], p.inverse[2], p.norms + 4, partial, sums);
        return;
    }
    n -= 384;
    if (n < 256) {
        pack_conv<Conv5, 1>(n, p.weight[4], p.bias[4], p.packed[4], p.inverse[4], p.norms + 8, partial, sums);
        return;
    }
    n -= 256;
    if (n < 256) {
        pack_conv<Conv2, 2>(n, p.weight[1], p.bias[1], p.packed[1], p.inverse[1], p.norms + 2, partial, sums);
        return;
    }
    n -= 256;
    pack_conv<Conv1, 0>(n, p.weight[0], p.bias[0], p.packed[0], p.inverse[0], p.norms, partial, sums);
}

// By a block: the 8 rows of a linear layer that lie in 8 neighbouring columns of its packed weights.
template <class S>
__device__ __forceinline__ void pack_linear(int first_column, const float* __restrict__ weight,
                                            __half* __restrict__ packed, float* __restrict__ inverse, int* largest) {
    constexpr int kK = S::kC;
    static_assert(kK % 256 == 0, "whole passes");
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_row = first_column / 32 * 32 + first_column % 32 / 8 * 2;
    {
        const int row_index = first_row + warp / 2 * 8 + warp % 2;
        if (row_index < S::kCout) {
            const float4* row = reinterpret_cast<const float4*>(weight + static_cast<int64_t>(row_index) * kK);
            float m = 0.0f;
#pragma unroll 8
            for (int i = lane; i < kK / 4; i += 32) {
                const float4 v = row[i];
                m = fmaxf(m, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
            }
            m = warp_max(m);
            if (lane == 0) {
                largest[warp] = __float_as_int(m);
                inverse[row_index] = inverse_scale_of(__float_as_int(m));
            }
        }
    }
    __syncthreads();
    const int which = threadIdx.x % 8;
    const int n = first_row + which / 2 * 8 + which % 2;
    if (n >= S::kCout) return;
    const float scale = scale_of(largest[which]);
    const float4* row = reinterpret_cast<const float4*>(weight + static_cast<int64_t>(n) * kK);
    const int nt = first_column / S::kNT, column = first_column % S::kNT + which;
    // Backwards: what was read last is still in the L2.
#pragma unroll 4
    for (int i = kK / 8 - 32 + static_cast<int>(threadIdx.x) / 8; i >= 0; i -= 32) {
        const float4 x = row[2 * i], y = row[2 * i + 1];
        const float v[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
        const int step = i / S::kPanels, panel = i % S::kPanels;
        __half* high = packed + (static_cast<int64_t>(nt) * S::kSteps + step) * 2 * S::kBHalves +
                       (panel * S::kNT + column) * 8;
        store_split(v, scale, high, high + S::kBHalves);
    }
}

constexpr int kPackLinearBlocks = 512 + 512 + 128;

__global__ void __launch_bounds__(256) pack_linears_kernel(const PackArgs p) {
    __shared__ int largest[8];
    int block = blockIdx.x;
    if (block < 512) {
        pack_linear<Fc1>(block * 8, p.weight[5], p.packed[5], p.inverse[5], largest);
        return;
    }
    block -= 512;
    if (block < 512) {
        pack_linear<Fc2>(block * 8, p.weight[6], p.packed[6], p.inverse[6], largest);
        return;
    }
    block -= 512;
    pack_linear<Fc3>(block * 8, p.weight[7], p.packed[7], p.inverse[7], largest);
}

// ---------------------------------------------------------------- activations

// The input in blocks of 4 x 4, channel = input channel * 16 + dy * 4 + dx, and its largest magnitude. A cluster holds
// an image: grid (8, batch), 448 threads. In shared memory a row has 2 columns of zeros before and 6 after.
constexpr int kRowPitch = 232, kBlocksSmem = 3 * 32 * kRowPitch * 4, kBlocksThreads = 448;

__global__ void __cluster_dims__(8, 1, 1) __launch_bounds__(kBlocksThreads, 2)
    blocks_kernel(const float* __restrict__ x, int* max_out, __half* __restrict__ to, int64_t lines) {
    extern __shared__ __align__(128) unsigned char shared[];
    float* const rows = reinterpret_cast<float*>(shared);  // [channel][row][column]
    const int image = blockIdx.y, part = blockIdx.x;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;  // 14 warps
    const int first = part * 57 / 8, count = (part + 1) * 57 / 8 - first;  // rows of blocks, 7 or 8
    float m = 0.0f;
#pragma unroll 1
    for (int round = 0; round < 2; ++round) {
        float4 a[4], b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int which = warp + 14 * (4 * round + i);
            const int channel = which / 32, local = which % 32;
            const int y = 4 * first - 2 + local;
            a[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            b[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (which < 96 && local < 4 * count && y >= 0 && y < 224) {
                const float4* from =
                    reinterpret_cast<const float4*>(x + ((static_cast<int64_t>(image) * 3 + channel) * 224 + y) * 224);
                a[i] = from[lane];
                if (lane < 24) b[i] = from[lane + 32];
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int which = warp + 14 * (4 * round + i);
            if (which < 96) {
                m = fmaxf(m, fmaxf(fmaxf(fabsf(a[i].x), fabsf(a[i].y)), fmaxf(fabsf(a[i].z), fabsf(a[i].w))));
                m = fmaxf(m, fmaxf(fmaxf(fabsf(b[i].x), fabsf(b[i].y)), fmaxf(fabsf(b[i].z), fabsf(b[i].w))));
                float* row = rows + which * kRowPitch;
                float2* at = reinterpret_cast<float2*>(row + 2 + 4 * lane);
                at[0] = make_float2(a[i].x, a[i].y);
                at[1] = make_float2(a[i].z, a[i].w);
                if (lane < 24) {
                    at[64] = make_float2(b[i].x, b[i].y);
                    at[65] = make_float2(b[i].z, b[i].w);
                } else if (lane < 28) {
                    const int column = lane == 24 ? 0 : 226 + 2 * (lane - 25);
                    *reinterpret_cast<float2*>(row + column) = make_float2(0.0f, 0.0f);
                }
            }
        }
    }
    __syncwarp();
    m = warp_max(m);
    if (lane == 0) atomicMax(max_out + image, __float_as_int(m));
    __syncthreads();
    cluster_barrier();
    const float scale = scale_of(__ldcg(max_out + image));
    // 224 threads for the lines of a plane, two planes at a time.
    const int odd = threadIdx.x / 224, line = threadIdx.x % 224;
    if (line >= count * 28) return;
    const int r = line / 28, q = line - r * 28;
    const float* source = rows + (4 * r + 2 * odd) * kRowPitch + 8 * q;
    const int64_t plane = lines * 8;  // halves
    __half* target =
        to + odd * plane + (static_cast<int64_t>(image) * Conv1::kLPI + first * 28 + line) * 8;
#pragma unroll 1
    for (int channel = 0; channel < 3; ++channel) {
        float v[2][16];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const float4* at = reinterpret_cast<const float4*>(source + k * kRowPitch);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float4 f = at[j];
                v[k][4 * j] = f.x, v[k][4 * j + 1] = f.y, v[k][4 * j + 2] = f.z, v[k][4 * j + 3] = f.w;
            }
        }
        __half* high = target;
#pragma unroll
        for (int pos = 0; pos < 4; ++pos) {
            float t[8];
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                const float d0 = v[e / 4][e % 4], d1 = v[e / 4][4 + e % 4];
                const float d2 = v[e / 4][8 + e % 4], d3 = v[e / 4][12 + e % 4];
                t[e] = pos == 0 ? d0 - d2 : (pos == 1 ? d1 + d2 : (pos == 2 ? d2 - d1 : d1 - d3));
            }
            store_split(t, scale, high, high + 24 * plane);
            high += 6 * plane;
        }
        source += 32 * kRowPitch;
        target += 2 * plane;
    }
}

// Above every result: what the next operand's scale is made of.
__global__ void bound_kernel(const int* __restrict__ max_in, const int* __restrict__ norms, int* __restrict__ bound,
                             int batch) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < batch)
        bound[i] = __float_as_int(__int_as_float(max_in[i]) * __int_as_float(norms[0]) + __int_as_float(norms[1]));
}

// The lines at the seams of a product that writes an operand. Grid (seams), kCout / 4 threads.
template <class S>
__global__ void seam_kernel(const float* __restrict__ edges, __half* __restrict__ to, int64_t lines, int batch) {
    const int side = threadIdx.x / (S::kCout / 8), cb = threadIdx.x % (S::kCout / 8);
    const int line = static_cast<int>(blockIdx.x) * 64 - 1 + side;
    if (line < 0) return;
    const int image = line / S::kLPI, rest = line % S::kLPI;
    const int q = rest % S::kWQ;
    if (image >= batch || rest / S::kWQ >= S::kOH) return;
    const float* from = edges + (static_cast<int64_t>(blockIdx.x) * 6 + 2 * side) * S::kCout + cb * 8;
    float d[4][8];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const bool zero = (k == 0 && q == 0) || (k == 3 && q == S::kWQ - 1);
        const float4* at = reinterpret_cast<const float4*>(from + k * S::kCout);
        const float4 nothing = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        const float4 a = zero ? nothing : at[0], b = zero ? nothing : at[1];
        d[k][0] = a.x, d[k][1] = a.y, d[k][2] = a.z, d[k][3] = a.w;
        d[k][4] = b.x, d[k][5] = b.y, d[k][6] = b.z, d[k][7] = b.w;
    }
#pragma unroll
    for (int pos = 0; pos < 4; ++pos) {
        float t[8];
#pragma unroll
        for (int e = 0; e < 8; ++e)
            t[e] = pos == 0 ? d[0][e] - d[2][e]
                            : (pos == 1 ? d[1][e] + d[2][e] : (pos == 2 ? d[2][e] - d[1][e] : d[1][e] - d[3][e]));
        __half* high = to + (static_cast<int64_t>(pos * (S::kCout / 8) + cb) * lines + line + S::kWQ) * 8;
        store_split(t, 1.0f, high, high + static_cast<int64_t>(4 * (S::kCout / 8)) * lines * 8);
    }
}

__device__ __forceinline__ float4 max4(float4 a, float4 b) {
    return make_float4(fmaxf(a.x, b.x), fmaxf(a.y, b.y), fmaxf(a.z, b.z), fmaxf(a.w, b.w));
}

// Pooled in full from the horizontally pooled result of From, four channels (channel and the next) of a plane.
template <class From>
__device__ __forceinline__ float4 pooled(const float* __restrict__ plane, const float* __restrict__ edges, int image,
                                         int row, int column, int channel) {
    constexpr int kP = (From::kOW - 1) / 2;
    float4 m = make_float4(0.0f, 0.0f, 0.0f, 0.0f);  // after ReLU
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        m = max4(m, *reinterpret_cast<const float4*>(plane + ((row + k) * kP + column) * 4));
        const int line = image * From::kLPI + (row + k) * From::kWQ + column;
        if (line % 64 == 63)
            m = max4(m, *reinterpret_cast<const float4*>(edges + static_cast<int64_t>(line / 64 + 1) * From::kCout +
                                                         channel));
    }
    return m;
}

// From the result of From to the operand of S, two planes of 4 channels a block. Grid (channels / 8, batch).
template <class From, class S, int kThreads>
__global__ void __launch_bounds__(kThreads)
    transform_kernel(const float* __restrict__ y, const float* __restrict__ edges, const int* __restrict__ max_in,
                     __half* __restrict__ to, int64_t lines) {
    constexpr int kP = (From::kOW - 1) / 2, kOut = S::kOH;
    constexpr int kC = S::kC, kPad = S::kKH / 2, kWQ = S::kWQ;
    constexpr int kTaken = S::kPos == 7 ? 6 : 4;  // columns for a pair
    constexpr int kPlaces = 2 * (kWQ - 1) + kTaken, kHalfPlaces = kPlaces / 2;
    constexpr int kFromPlane = From::kOH * kP * 4;
    static_assert(kP == kOut && kC == From::kCout && kPlaces % 2 == 0, "extents");
    // [channels 0-3, 4-7][odd column][row][column / 2], four more so that even and odd columns lie in other banks
    __shared__ float4 tile[2][2][kOut * kHalfPlaces + 4];
    const int cb = blockIdx.x, image = static_cast<int>(gridDim.y) - 1 - static_cast<int>(blockIdx.y);
    const float* planes = y + (static_cast<int64_t>(image) * (kC / 4) + cb * 2) * kFromPlane;
#pragma unroll 2
    for (int i = threadIdx.x; i < kOut * kPlaces * 2; i += kThreads) {
        const int place = i % kPlaces, at = i / kPlaces;
        const int part = at >= kOut ? 1 : 0, row = at - part * kOut;
        const int column = place - kPad;
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (column >= 0 && column < kOut)
            v = pooled<From>(planes + part * kFromPlane, edges, image, 2 * row, column, cb * 8 + part * 4);
        tile[part][place % 2][row * kHalfPlaces + place / 2] = v;
    }
    __syncthreads();
    const float scale = scale_of(max_in[image]);
    const int64_t first_line = static_cast<int64_t>(image) * S::kLPI + kPad * kWQ;
    const int64_t piece = static_cast<int64_t>(S::kPos * (kC / 8)) * lines * 8;
#pragma unroll 1
    for (int i = threadIdx.x; i < kOut * kWQ; i += kThreads) {
        const int q = i % kWQ, r = i / kWQ;
        float d[kTaken][8];
#pragma unroll
        for (int k = 0; k < kTaken; ++k) {
            const int at = r * kHalfPlaces + q + k / 2;
            const float4 a = tile[0][k % 2][at], b = tile[1][k % 2][at];
            d[k][0] = a.x, d[k][1] = a.y, d[k][2] = a.z, d[k][3] = a.w;
            d[k][4] = b.x, d[k][5] = b.y, d[k][6] = b.z, d[k][7] = b.w;
        }
#pragma unroll
        for (int pos = 0; pos < S::kPos; ++pos) {
            float t[8];
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                if (pos == 0) t[e] = d[0][e] - d[2][e];
                if (pos == 1) t[e] = d[1][e] + d[2][e];
                if (pos == 2) t[e] = d[2][e] - d[1][e];
                if (pos == 3) t[e] = d[1][e] - d[3][e];
                if constexpr (kTaken == 6) {
                    if (pos == 4) t[e] = d[3][e] - d[4][e];
                    if (pos == 5) t[e] = d[4][e];
                    if (pos == 6) t[e] = d[4][e] - d[5][e];
                }
            }
            __half* high = to + (static_cast<int64_t>(pos * (kC / 8) + cb) * lines + first_line + i) * 8;
            store_split(t, scale, high, high + piece);
        }
    }
}

// The last pooling and flattening, to (k / 8, image, 8) with k = channel * 36 + place. Grid (4, batch), 256 threads.
__global__ void flatten_kernel(const float* __restrict__ y, const float* __restrict__ edges,
                               const int* __restrict__ max_in, __half* __restrict__ to, int64_t lines) {
    constexpr int kFromPlane = 13 * 6 * 4;
    __shared__ __align__(16) float v[64 * 36];
    const int part = blockIdx.x, image = static_cast<int>(gridDim.y) - 1 - static_cast<int>(blockIdx.y);
    for (int i = threadIdx.x; i < 36 * 16; i += 256) {
        const int four = i / 36, place = i - four * 36, c = four * 4;
        const float* plane = y + (static_cast<int64_t>(image) * 64 + part * 16 + four) * kFromPlane;
        const float4 m = pooled<Conv5>(plane, edges, image, place / 6 * 2, place % 6, part * 64 + c);
        v[c * 36 + place] = m.x;
        v[(c + 1) * 36 + place] = m.y;
        v[(c + 2) * 36 + place] = m.z;
        v[(c + 3) * 36 + place] = m.w;
    }
    __syncthreads();
    const float scale = scale_of(max_in[image]);
    for (int i = threadIdx.x; i < 288; i += 256) {
        float t[8];
        load8(v + i * 8, t);
        __half* high = to + (static_cast<int64_t>(part * 288 + i) * lines + image) * 8;
        store_split(t, scale, high, high + static_cast<int64_t>(1152) * lines * 8);
    }
}

// (image, 4096) to (k / 8, image, 8). Grid (images / 32, 64), 32 x 8 threads.
__global__ void rows_kernel(const float* __restrict__ y, const int* __restrict__ max_in, __half* __restrict__ to,
                            int64_t lines, int batch) {
    const int image = blockIdx.x * 32 + threadIdx.x, cb = blockIdx.y * 8 + threadIdx.y;
    if (image >= batch) return;
    const float4* from = reinterpret_cast<const float4*>(y + static_cast<int64_t>(image) * 4096 + cb * 8);
    const float4 a = from[0], b = from[1];
    const float t[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    __half* high = to + (static_cast<int64_t>(cb) * lines + image) * 8;
    store_split(t, scale_of(max_in[image]), high, high + static_cast<int64_t>(512) * lines * 8);
}

// ---------------------------------------------------------------- launches

template <class S>
static int pairs_of(int batch) {
    return static_cast<int>((static_cast<int64_t>(batch) * S::kLPI + 255) / 256);
}
// Lines of a plane: a multiple of 8, so that planes start at lines of 128 bytes. Python has the same.
template <class S>
static int64_t lines_of(int batch) {
    return static_cast<int64_t>(pairs_of<S>(batch)) * 256 + (S::kHalo + 7) / 8 * 8;
}

template <class S>
static int launch_product(const void* a, const void* b, const void* bias, const void* inverse, const int* max_in,
                          int* max_out, void* out, void* next, const int* bound_out, void* edges, int batch, int sms,
                          cudaStream_t stream) {
    static const cudaError_t set =
        cudaFuncSetAttribute(product_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSmem);
    if (set != cudaSuccess) return static_cast<int>(set);
    Args args;
    args.a = static_cast<const __half*>(a);
    args.b = static_cast<const __half*>(b);
    args.bias = static_cast<const float*>(bias);
    args.inverse = static_cast<const float*>(inverse);
    args.max_in = max_in;
    args.max_out = max_out;
    args.out = static_cast<float*>(out);
    args.next = static_cast<__half*>(next);
    args.bound_out = bound_out;
    args.edges = static_cast<float*>(edges);
    args.lines = lines_of<S>(batch);
    args.batch = batch;
    args.pairs = pairs_of<S>(batch);
    const int tiles = args.pairs * S::kNTiles;
    const int clusters = sms / 2 < tiles ? sms / 2 : tiles;
    product_kernel<S><<<clusters * 2, 384, S::kSmem, stream>>>(args);
    return static_cast<int>(cudaGetLastError());
}

#define CHECK(call)                \
    do {                           \
        const int error_ = (call); \
        if (error_) return error_; \
    } while (0)
#define LAUNCHED() CHECK(static_cast<int>(cudaGetLastError()))

// p: 0 to 7 weights, 8 to 15 biases, 16 to 23 packed weights, 24 to 31 inverse scales, 32 to 36 operands of conv1 to
// conv5, 37 and 38 operands of fc1, of fc2 and fc3, 39 results (fp32), 40 largest values (8 batch), norms (16) and
// bounds (2 batch), 41 edges, 42 x, 43 out.
extern "C" int alexnet(void** p, int64_t batch64, int64_t sms64, void* stream_pointer) {
    const int batch = static_cast<int>(batch64), sms = static_cast<int>(sms64);
    if (batch == 0) return 0;
    cudaStream_t stream = static_cast<cudaStream_t>(stream_pointer);
    const unsigned images = static_cast<unsigned>(batch);
    auto weight = [&](int i) { return static_cast<const float*>(p[i]); };
    auto bias = [&](int i) { return static_cast<const float*>(p[8 + i]); };
    auto packed = [&](int i) { return static_cast<__half*>(p[16 + i]); };
    auto inverse = [&](int i) { return static_cast<float*>(p[24 + i]); };
    auto operand = [&](int i) { return static_cast<__half*>(p[i]); };
    float* y = static_cast<float*>(p[39]);
    int* largest = static_cast<int*>(p[40]);
    int* norms = largest + 8 * static_cast<int64_t>(batch);
    int* bound3 = norms + 16;
    int* bound4 = bound3 + batch;
    float* edges = static_cast<float*>(p[41]);
    const float* x = static_cast<const float*>(p[42]);
    const unsigned bound_grid = (images + 255) / 256;

    CHECK(static_cast<int>(
        cudaMemsetAsync(largest, 0, sizeof(int) * (8 * static_cast<size_t>(batch) + 16), stream)));
    PackArgs pack;
    for (int i = 0; i < 8; ++i) {
        pack.weight[i] = weight(i);
        pack.packed[i] = packed(i);
        pack.inverse[i] = inverse(i);
    }
    for (int i = 0; i < 5; ++i) pack.bias[i] = bias(i);
    pack.norms = norms;
    pack_convs_kernel<<<kPackConvBlocks, 256, 0, stream>>>(pack);
    LAUNCHED();
    pack_linears_kernel<<<kPackLinearBlocks, 256, 0, stream>>>(pack);
    LAUNCHED();

    static const cudaError_t set =
        cudaFuncSetAttribute(blocks_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBlocksSmem);
    CHECK(static_cast<int>(set));
    blocks_kernel<<<dim3(8, images), kBlocksThreads, kBlocksSmem, stream>>>(x, largest, operand(32),
                                                                            lines_of<Conv1>(batch));
    LAUNCHED();
    CHECK(launch_product<Conv1>(p[32], p[16], p[8], p[24], largest, largest + batch, y, nullptr, nullptr, edges, batch,
                                sms, stream));

    transform_kernel<Conv1, Conv2, 256><<<dim3(96 / 8, images), 256, 0, stream>>>(
        y, edges, largest + batch, operand(33), lines_of<Conv2>(batch));
    LAUNCHED();
    CHECK(launch_product<Conv2>(p[33], p[17], p[9], p[25], largest + batch, largest + 2 * batch, y, nullptr, nullptr,
                                edges, batch, sms, stream));

    transform_kernel<Conv2, Conv3, 128><<<dim3(256 / 8, images), 128, 0, stream>>>(
        y, edges, largest + 2 * batch, operand(34), lines_of<Conv3>(batch));
    LAUNCHED();
    bound_kernel<<<bound_grid, 256, 0, stream>>>(largest + 2 * batch, norms + 4, bound3, batch);
    LAUNCHED();
    // These two start one line (8 halves) later: what is written to line l + 7 then lies 8 lines after line l, and
    // eight lines from a multiple of eight on are a line of 128 bytes.
    __half* const operand4 = operand(35) + 8;
    __half* const operand5 = operand(36) + 8;
    CHECK(launch_product<Conv3>(p[34], p[18], p[10], p[26], largest + 2 * batch, largest + 3 * batch, nullptr, operand4,
                                bound3, edges, batch, sms, stream));
    seam_kernel<Conv3><<<pairs_of<Conv3>(batch) * 4, Conv3::kCout / 4, 0, stream>>>(edges, operand4,
                                                                                  lines_of<Conv4>(batch), batch);
    LAUNCHED();
    bound_kernel<<<bound_grid, 256, 0, stream>>>(largest + 3 * batch, norms + 6, bound4, batch);
    LAUNCHED();
    CHECK(launch_product<Conv4>(operand4, p[19], p[11], p[27], bound3, largest + 4 * batch, nullptr, operand5, bound4,
                                edges, batch, sms, stream));
    seam_kernel<Conv4><<<pairs_of<Conv4>(batch) * 4, Conv4::kCout / 4, 0, stream>>>(edges, operand5,
                                                                                  lines_of<Conv5>(batch), batch);
    LAUNCHED();
    CHECK(launch_product<Conv5>(operand5, p[20], p[12], p[28], bound4, largest + 5 * batch, y, nullptr, nullptr, edges,
                                batch, sms, stream));

    flatten_kernel<<<dim3(4, images), 256, 0, stream>>>(y, edges, largest + 5 * batch, operand(37),
                                                        lines_of<Fc1>(batch));
    LAUNCHED();
    CHECK(launch_product<Fc1>(p[37], p[21], p[13], p[29], largest + 5 * batch, largest + 6 * batch, y, nullptr, nullptr,
                              nullptr, batch, sms, stream));

    const dim3 row_grid((images + 31) / 32, 64), row_block(32, 8);
    rows_kernel<<<row_grid, row_block, 0, stream>>>(y, largest + 6 * batch, operand(38), lines_of<Fc2>(batch), batch);
    LAUNCHED();
    CHECK(launch_product<Fc2>(p[38], p[22], p[14], p[30], largest + 6 * batch, largest + 7 * batch, y, nullptr, nullptr,
                              nullptr, batch, sms, stream));

    rows_kernel<<<row_grid, row_block, 0, stream>>>(y, largest + 7 * batch, operand(38), lines_of<Fc3>(batch), batch);
    LAUNCHED();
    CHECK(launch_product<Fc3>(p[38], p[23], p[15], p[31], largest + 7 * batch, nullptr, p[43], nullptr, nullptr,
                              nullptr, batch, sms, stream));
    return 0;
}
""".replace("@MULTIPLY@", _multiply_source(64) + _multiply_source(96) + _multiply_source(128))

library = ctypes.CDLL(
    load_inline(
        name="alexnet_split_products_wide_ends",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
alexnet = library.alexnet
alexnet.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
alexnet.restype = ctypes.c_int

# Halves of the packed weights: tiles of n * steps * 2 pieces * (kernel rows * k of a chunk) * (n of a tile).
PACKED = [
    1 * 4 * 2 * (3 * 48) * 96,
    2 * 21 * 2 * (5 * 32) * 128,
    3 * 32 * 2 * (3 * 32) * 128,
    3 * 48 * 2 * (3 * 32) * 128,
    2 * 48 * 2 * (3 * 32) * 128,
    32 * 144 * 2 * 64 * 128,
    32 * 64 * 2 * 64 * 128,
    16 * 64 * 2 * 64 * 64,
]
CHANNELS = [96, 256, 384, 384, 256, 4096, 4096, 1024]


class ModelNew(nn.Module):
    def __init__(self, num_classes=1000):
        super().__init__()
        if num_classes != 1000:
            raise ValueError("built for 1000 classes")
        self.conv1 = nn.Conv2d(3, 96, kernel_size=11, stride=4, padding=2)
        self.conv2 = nn.Conv2d(96, 256, kernel_size=5, padding=2)
        self.conv3 = nn.Conv2d(256, 384, kernel_size=3, padding=1)
        self.conv4 = nn.Conv2d(384, 384, kernel_size=3, padding=1)
        self.conv5 = nn.Conv2d(384, 256, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(256 * 6 * 6, 4096)
        self.fc2 = nn.Linear(4096, 4096)
        self.fc3 = nn.Linear(4096, num_classes)
        self._scratch = None
        self._scratch_key = None

    def _prepare(self, batch, device):
        # Zeros once: the rows of padding between the images are never written afterwards.
        # Lines of a plane are a multiple of 8: 16 of halo where 14 are read, as in lines_of.
        def lines(per_image, halo):
            return -(-batch * per_image // 256) * 256 + halo

        def seams(per_image):
            return -(-batch * per_image // 256) * 4 + 1

        def halves(count):
            return torch.zeros(count, dtype=torch.float16, device=device)

        tensors = [halves(count) for count in PACKED]
        tensors += [torch.zeros(count, dtype=torch.float32, device=device) for count in CHANNELS]
        tensors += [
            halves(2 * 4 * 48 * lines(57 * 28, 2 * 28)),
            halves(2 * 7 * 96 * lines(29 * 14, 4 * 14)),
            halves(2 * 4 * 256 * lines(14 * 7, 16)),
            halves(2 * 4 * 384 * lines(14 * 7, 16)),
            halves(2 * 4 * 384 * lines(14 * 7, 16)),
            halves(2 * 9216 * lines(1, 0)),
            halves(2 * 4096 * lines(1, 0)),
            torch.empty(batch * 55 * 27 * 96, dtype=torch.float32, device=device),
            torch.zeros(10 * batch + 16, dtype=torch.int32, device=device),
            torch.zeros(
                max(seams(57 * 28) * 96, seams(29 * 14) * 256, seams(14 * 7) * 6 * 384),
                dtype=torch.float32,
                device=device,
            ),
        ]
        self._scratch = tensors
        self._scratch_pointers = [tensor.data_ptr() for tensor in tensors]
        self._sms = torch.cuda.get_device_properties(device).multi_processor_count
        self._scratch_key = (batch, device)

    def forward(self, x):
        x = x.contiguous()
        batch = x.shape[0]
        if tuple(x.shape[1:]) != (3, 224, 224) or x.dtype != torch.float32:
            raise ValueError("built for fp32 images of 3 x 224 x 224")
        if self._scratch_key != (batch, x.device):
            self._prepare(batch, x.device)
        out = torch.empty((batch, 1000), dtype=torch.float32, device=x.device)
        layers = (self.conv1, self.conv2, self.conv3, self.conv4, self.conv5, self.fc1, self.fc2, self.fc3)
        weights = [layer.weight.detach().contiguous() for layer in layers]
        biases = [layer.bias.detach().contiguous() for layer in layers]
        values = [w.data_ptr() for w in weights] + [b.data_ptr() for b in biases]
        values += self._scratch_pointers
        values += [x.data_ptr(), out.data_ptr()]
        pointers = (ctypes.c_void_p * len(values))(*values)
        stream = torch.cuda.current_stream().cuda_stream
        error = alexnet(ctypes.addressof(pointers), batch, self._sms, stream)
        if error:
            raise RuntimeError(f"alexnet: CUDA error {error}")
        return out
