import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int kBatch = 8;
constexpr float kLog2e = 1.4426950408889634f;

// ------------------------------------------------------------------ small helpers
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

template <class... Parameters, class... Values>
void launch_early(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                  Values... values) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared, config.stream = stream;
    config.attrs = &early, config.numAttrs = 1;
    cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(values)...);
}
__device__ __forceinline__ void let_next_kernel_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void wait_for_kernels_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ void split2(float a, float b, __half2& hi, __half2& lo) {
    hi = __floats2half2_rn(a, b);
    const float2 h = __half22float2(hi);
    lo = __floats2half2_rn(a - h.x, b - h.y);
}

__device__ __forceinline__ uint32_t half2_bits(__half2 v) { return *reinterpret_cast<uint32_t*>(&v); }

// Four values to the hi and the lo plane, 8 bytes each.
__device__ __forceinline__ void store_split4(__half* hi_pointer, __half* lo_pointer, float a, float b, float c,
                                             float d) {
    __half2 h0, l0, h1, l1;
    split2(a, b, h0, l0);
    split2(c, d, h1, l1);
    *reinterpret_cast<uint2*>(hi_pointer) = make_uint2(half2_bits(h0), half2_bits(h1));
    *reinterpret_cast<uint2*>(lo_pointer) = make_uint2(half2_bits(l0), half2_bits(l1));
}

// Merge `parts` (mean, M2) pairs of equal counts, `stride` pairs apart.
__device__ __forceinline__ float2 merge_equal(const float2* first, int parts, int stride, float count) {
    float mean = 0.0f;
    for (int i = 0; i < parts; ++i) mean += first[i * stride].x;
    mean /= static_cast<float>(parts);
    float m2 = 0.0f;
    for (int i = 0; i < parts; ++i) {
        const float2 v = first[i * stride];
        const float d = v.x - mean;
        m2 += v.y + count * d * d;
    }
    return make_float2(mean, m2);
}

// ------------------------------------------------------------------ barriers, TMA, wgmma
__device__ __forceinline__ void mbar_init(uint32_t bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void mbar_expect(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbar_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity) {
    uint32_t done = 0;
    while (!done) {
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n"
            "}\n"
            : "=r"(done)
            : "r"(bar), "r"(parity)
            : "memory");
    }
}
__device__ __forceinline__ void tma_load_4d(uint32_t dst, const CUtensorMap* map, uint32_t bar, int c0, int c1, int c2,
                                            int c3) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
        "[%2];\n" ::"r"(dst),
        "l"(reinterpret_cast<uint64_t>(map)), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
}
__device__ __forceinline__ void tma_load_3d(uint32_t dst, const CUtensorMap* map, uint32_t bar, int c0, int c1,
                                            int c2) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];\n" ::"r"(dst),
        "l"(reinterpret_cast<uint64_t>(map)), "r"(bar), "r"(c0), "r"(c1), "r"(c2)
        : "memory");
}

// K-major operand, 64-byte swizzle, 512 bytes between groups of 8 rows.
__device__ __forceinline__ uint64_t make_desc(uint32_t address) {
    return (static_cast<uint64_t>(1) << 16) | (static_cast<uint64_t>(512 >> 4) << 32) |
           (static_cast<uint64_t>(2) << 62) | static_cast<uint64_t>((address & 0x3FFFF) >> 4);
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

#define ACC4(d, i) "+f"(d[(i)]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define ACC16(d, i) ACC4(d, (i)), ACC4(d, (i) + 4), ACC4(d, (i) + 8), ACC4(d, (i) + 12)

__device__ __forceinline__ void wgmma_n128(float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 0;\n"
        "}\n"
        : ACC16(d, 0), ACC16(d, 16), ACC16(d, 32), ACC16(d, 48)
        : "l"(a), "l"(b), "r"(1));
}
__device__ __forceinline__ void wgmma_n64(float (&d)[32], uint64_t a, uint64_t b) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, 0, 0;\n"
        "}\n"
        : ACC16(d, 0), ACC16(d, 16)
        : "l"(a), "l"(b), "r"(1));
}

// ------------------------------------------------------------------ the GEMM kernel
template <int BN, bool UP>
struct Config {
    static constexpr int kTaps = UP ? 1 : 3;         // B tiles for each A tile
    static constexpr int kARows = UP ? 256 : 384;    // pixels of an A tile, with the halo of two rows
    static constexpr int kAPlane = kARows * 64;      // bytes: 32 fp16 a pixel
    static constexpr int kAStage = 2 * kAPlane;      // hi, lo
    static constexpr int kBPlane = BN * 64;
    static constexpr int kBStage = 2 * kBPlane;
    static constexpr int kAStages = (BN == 128 && !UP) ? 2 : 3;
    static constexpr int kBStages = (BN == 64 && !UP) ? 9 : 7;
    static constexpr int kStats = UP ? 0 : 2 * 8 * BN * 8;
    static constexpr int kShared = 1024 + kAStages * kAStage + kBStages * kBStage + kStats + 512;
};

struct GemmArgs {
    float* out;          // convolution: [split][pixel][channel]
    float2* part;        // (mean, M2) of 256 pixels: [tile][channel]; null with split K
    __half* up;          // transposed convolution: hi plane
    const float* bias;   // of the transposed convolution
    int64_t up_plane;    // from hi to lo
    int64_t split_stride;
    int H, W, log_w, log_h;
    int columns;         // GEMM columns in all
    int c0_chunks;       // chunks of 32 channels in the first input
    int tiles_n, tiles_m, tiles;
    int its;             // A tiles for each output tile
    int wt, nt, tw, th;  // tile: nt images, 4 rows, wt columns; tiles along W and H
    int log_cu;          // channels of the transposed convolution
};

template <int BN, bool UP>
__global__ void __launch_bounds__(384, 1)
    gemm_kernel(const __grid_constant__ CUtensorMap map_a0, const __grid_constant__ CUtensorMap map_a1,
                const __grid_constant__ CUtensorMap map_b, const __grid_constant__ GemmArgs g) {
    using C = Config<BN, UP>;
    extern __shared__ uint8_t dynamic_shared[];
    let_next_kernel_start();
    const uint32_t raw_base = shared_address(dynamic_shared);
    const uint32_t pad = (1024u - (raw_base & 1023u)) & 1023u;
    const uint32_t a_base = raw_base + pad;
    const uint32_t b_base = a_base + C::kAStages * C::kAStage;
    float2* stats = reinterpret_cast<float2*>(dynamic_shared + pad + C::kAStages * C::kAStage +
                                              C::kBStages * C::kBStage);
    const uint32_t full_a = b_base + C::kBStages * C::kBStage + C::kStats;
    const uint32_t empty_a = full_a + 8 * C::kAStages;
    const uint32_t full_b = empty_a + 8 * C::kAStages;
    const uint32_t empty_b = full_b + 8 * C::kBStages;

    if (threadIdx.x == 0) {
        for (int i = 0; i < C::kAStages; ++i) {
            mbar_init(full_a + 8 * i, 1);
            mbar_init(empty_a + 8 * i, 8);
        }
        for (int i = 0; i < C::kBStages; ++i) {
            mbar_init(full_b + 8 * i, 1);
            mbar_init(empty_b + 8 * i, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    __syncthreads();
    wait_for_kernels_before();

    const int group = threadIdx.x >> 7;
    if (group == 0) {
        // ---------------- producer
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            int sa = 0, sb = 0;
            uint32_t pa = 1, pb = 1;  // a fresh barrier lets a wait for parity 1 pass
            for (int tile = blockIdx.x; tile < g.tiles; tile += gridDim.x) {
                const int n0 = (tile % g.tiles_n) * BN;
                const int rest = tile / g.tiles_n;
                const int m = rest % g.tiles_m;
                const int split = rest / g.tiles_m;
                const int x0 = (m % g.tw) * g.wt;
                const int my = m / g.tw;
                const int y0 = (my % g.th) * 4;
                const int image = (my / g.th) * g.nt;
                const int it_end = (split + 1) * g.its;
                for (int it = split * g.its; it < it_end; ++it) {
                    const int chunk = UP ? it : it / 3;
                    const int kx = UP ? 0 : it - chunk * 3;
                    const bool second = chunk >= g.c0_chunks;
                    const CUtensorMap* map = second ? &map_a1 : &map_a0;
                    const int channel = (second ? chunk - g.c0_chunks : chunk) * 32;
                    const int x = UP ? x0 : x0 + kx - 1;
                    const int y = UP ? y0 : y0 - 1;
                    mbar_wait(empty_a + 8 * sa, pa);
                    mbar_expect(full_a + 8 * sa, C::kAStage);
                    const uint32_t a_dst = a_base + sa * C::kAStage;
                    tma_load_4d(a_dst, map, full_a + 8 * sa, channel, x, y, image);
                    tma_load_4d(a_dst + C::kAPlane, map, full_a + 8 * sa, channel, x, y, image + kBatch);
                    if (++sa == C::kAStages) {
                        sa = 0;
                        pa ^= 1;
                    }
                    for (int ky = 0; ky < C::kTaps; ++ky) {
                        const int tap = UP ? 0 : ky * 3 + kx;
                        mbar_wait(empty_b + 8 * sb, pb);
                        mbar_expect(full_b + 8 * sb, C::kBStage);
                        tma_load_3d(b_base + sb * C::kBStage, &map_b, full_b + 8 * sb, chunk * 32, n0, tap * 2);
                        if (++sb == C::kBStages) {
                            sb = 0;
                            pb ^= 1;
                        }
                    }
                }
            }
        }
    } else {
        // ---------------- two consumer warpgroups, 128 pixels each
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int wg = group - 1;
        const int lane = threadIdx.x & 31;
        const int warp4 = (threadIdx.x >> 5) & 3;
        const int warp8 = wg * 4 + warp4;
        const bool wide = g.wt == 64;
        const int row_step = (wide ? 64 : 32) * 64;  // bytes for one ky
        int row_start[2];                            // bytes
#pragma unroll
        for (int mb = 0; mb < 2; ++mb) {
            const int j = wg * 2 + mb;
            row_start[mb] = (UP || wide) ? j * 64 * 64 : ((j >> 1) * 6 + (j & 1) * 2) * 32 * 64;
        }
        float acc[2][64];
        float acl[2][BN == 64 ? 32 : 1];
        int sa = 0, sb = 0;
        uint32_t pa = 0, pb = 0;
        int parity = 0;

        for (int tile = blockIdx.x; tile < g.tiles; tile += gridDim.x) {
#pragma unroll
            for (int mb = 0; mb < 2; ++mb) {
#pragma unroll
                for (int i = 0; i < 64; ++i) acc[mb][i] = 0.0f;
                if constexpr (BN == 64) {
#pragma unroll
                    for (int i = 0; i < 32; ++i) acl[mb][i] = 0.0f;
                }
            }
            int prev_a = -1, prev_b = -1;
            for (int it = 0; it < g.its; ++it) {
                mbar_wait(full_a + 8 * sa, pa);
                const uint32_t a_stage = a_base + sa * C::kAStage;
#pragma unroll
                for (int ky = 0; ky < C::kTaps; ++ky) {
                    mbar_wait(full_b + 8 * sb, pb);
                    const uint64_t db = make_desc(b_base + sb * C::kBStage);
                    wgmma_fence();
#pragma unroll
                    for (int k = 0; k < 2; ++k) {
#pragma unroll
                        for (int mb = 0; mb < 2; ++mb) {
                            const uint64_t da = make_desc(a_stage + row_start[mb] + ky * row_step) + 2 * k;
                            const uint64_t da_lo = da + (C::kAPlane >> 4);
                            if constexpr (BN == 128) {
                                wgmma_n128(acc[mb], da, db + 2 * k);
                                wgmma_n128(acc[mb], da, db + (C::kBPlane >> 4) + 2 * k);
                                wgmma_n128(acc[mb], da_lo, db + 2 * k);
                            } else {
                                // columns 0..63: B hi, columns 64..127: B lo (its rows follow in shared memory)
                                wgmma_n128(acc[mb], da, db + 2 * k);
                                wgmma_n64(acl[mb], da_lo, db + 2 * k);
                            }
                        }
                    }
                    wgmma_commit();
                    wgmma_wait<1>();  // the group before is done: free what it read
                    if (lane == 0) {
                        if (prev_b >= 0) mbar_arrive(empty_b + 8 * prev_b);
                        if (ky == 0 && prev_a >= 0) mbar_arrive(empty_a + 8 * prev_a);
                    }
                    __syncwarp();
                    prev_b = sb;
                    if (++sb == C::kBStages) {
                        sb = 0;
                        pb ^= 1;
                    }
                }
                prev_a = sa;
                if (++sa == C::kAStages) {
                    sa = 0;
                    pa ^= 1;
                }
            }
            wgmma_wait<0>();
            if (lane == 0) {
                mbar_arrive(empty_b + 8 * prev_b);
                mbar_arrive(empty_a + 8 * prev_a);
            }
            __syncwarp();
#pragma unroll
            for (int mb = 0; mb < 2; ++mb) {
#pragma unroll
                for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(acc[mb][i])::"memory");
                if constexpr (BN == 64) {
#pragma unroll
                    for (int i = 0; i < 32; ++i) {
                        asm volatile("" : "+f"(acl[mb][i])::"memory");
                        acc[mb][i] += acc[mb][i + 32] + acl[mb][i];
                    }
                }
            }

            // ---------------- epilogue
            const int n0 = (tile % g.tiles_n) * BN;
            const int rest = tile / g.tiles_n;
            const int m = rest % g.tiles_m;
            const int split = rest / g.tiles_m;
            const int x0 = (m % g.tw) * g.wt;
            const int my = m / g.tw;
            const int y0 = (my % g.th) * 4;
            const int image = (my / g.th) * g.nt;
            const int quad = (lane & 3) * 2;
#pragma unroll
            for (int mb = 0; mb < 2; ++mb) {
                const int j = wg * 2 + mb;
                const int base = wide ? (image * g.H + y0 + j) * g.W + x0 : image * g.H * g.W + j * 64;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int pixel = base + warp4 * 16 + (lane >> 2) + 8 * h;
                    if constexpr (UP) {
                        constexpr float kUnscale = 1.0f / 16384.0f;  // 2^11 / 2^25
                        const int cu = 1 << g.log_cu;
                        const int x = pixel & (g.W - 1);
                        const int y = (pixel >> g.log_w) & (g.H - 1);
                        const int n = pixel >> (g.log_w + g.log_h);
#pragma unroll
                        for (int j8 = 0; j8 < BN / 8; ++j8) {
                            const int column = n0 + j8 * 8 + quad;
                            const int t = column >> g.log_cu;
                            const int co = column & (cu - 1);
                            const float2 b = *reinterpret_cast<const float2*>(g.bias + co);
                            const int64_t target = static_cast<int64_t>((n * 2 * g.H + 2 * y + (t >> 1)) * (2 * g.W) +
                                                                        2 * x + (t & 1)) * cu + co;
                            __half2 hi, lo;
                            split2(acc[mb][j8 * 4 + h * 2] * kUnscale + b.x * 2048.0f,
                                   acc[mb][j8 * 4 + h * 2 + 1] * kUnscale + b.y * 2048.0f, hi, lo);
                            *reinterpret_cast<__half2*>(g.up + target) = hi;
                            *reinterpret_cast<__half2*>(g.up + g.up_plane + target) = lo;
                        }
                    } else {
                        constexpr float kUnscale = 1.0f / 33554432.0f;  // 2^-25
                        float* row = g.out + split * g.split_stride + static_cast<int64_t>(pixel) * g.columns + n0 +
                                     quad;
#pragma unroll
                        for (int j8 = 0; j8 < BN / 8; ++j8) {
                            const float v0 = acc[mb][j8 * 4 + h * 2] * kUnscale;
                            const float v1 = acc[mb][j8 * 4 + h * 2 + 1] * kUnscale;
                            acc[mb][j8 * 4 + h * 2] = v0;
                            acc[mb][j8 * 4 + h * 2 + 1] = v1;
                            *reinterpret_cast<float2*>(row + j8 * 8) = make_float2(v0, v1);
                        }
                    }
                }
            }
            if constexpr (!UP) {
                if (g.part != nullptr) {
                    float2* buffer = stats + parity * 8 * BN;
#pragma unroll
                    for (int j8 = 0; j8 < BN / 8; ++j8) {
#pragma unroll
                        for (int e = 0; e < 2; ++e) {
                            const float v0 = acc[0][j8 * 4 + e], v1 = acc[0][j8 * 4 + 2 + e];
                            const float v2 = acc[1][j8 * 4 + e], v3 = acc[1][j8 * 4 + 2 + e];
                            float sum = (v0 + v1) + (v2 + v3);
                            sum += __shfl_xor_sync(0xffffffffu, sum, 4);
                            sum += __shfl_xor_sync(0xffffffffu, sum, 8);
                            sum += __shfl_xor_sync(0xffffffffu, sum, 16);
                            const float mean = sum * (1.0f / 32.0f);
                            const float d0 = v0 - mean, d1 = v1 - mean, d2 = v2 - mean, d3 = v3 - mean;
                            float m2 = (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3);
                            m2 += __shfl_xor_sync(0xffffffffu, m2, 4);
                            m2 += __shfl_xor_sync(0xffffffffu, m2, 8);
                            m2 += __shfl_xor_sync(0xffffffffu, m2, 16);
                            if (lane < 4) buffer[warp8 * BN + j8 * 8 + quad + e] = make_float2(mean, m2);
                        }
                    }
                    asm volatile("bar.sync 1, 256;" ::: "memory");
                    const int column = threadIdx.x - 128;
                    if (column < BN)
                        g.part[static_cast<int64_t>(m) * g.columns + n0 + column] =
                            merge_equal(buffer + column, 8, BN, 32.0f);
                    parity ^= 1;  // the next tile writes the other buffer: one barrier a tile is enough
                }
            }
        }
    }
}

// ------------------------------------------------------------------ packing of weights, first convolution
struct PackEntry {
    const float* src;
    __half* dst;
    int start;  // first block
    int cin, cout;
    int cup;    // input channels that come from a transposed convolution
    int up;     // 1: weights of a transposed convolution
};
constexpr int kPackEntries = 21;
struct PackTable {
    PackEntry e[kPackEntries];
};
constexpr int kFirstBlocks = 2048;  // 8 * 64 rows, 4 segments of 128 pixels
constexpr int kInterleave = 7;      // every 7th block is one of the first convolution

__device__ __forceinline__ void pack_block(const PackTable& table, int block, float* s) {
    const int t = threadIdx.x;
    int which = 0;
    while (which + 1 < kPackEntries && block >= table.e[which + 1].start) ++which;
    const float* src = table.e[which].src;
    __half* dst = table.e[which].dst;
    const int cin = table.e[which].cin, cout = table.e[which].cout;
    const int local = block - table.e[which].start;
    const int ci_blocks = cin / 64;
    const int ci0 = (local % ci_blocks) * 64;
    if (!table.e[which].up) {
        // (cout, cin, 9) to [tap][hi, lo][cout][cin]: 4 cout by 64 cin
        const int co0 = (local / ci_blocks) * 4;
        const float scale = ci0 < table.e[which].cup ? 16384.0f : 1024.0f;
        for (int i = t; i < 576; i += 256) {
            const int co = i / 144, q = i % 144;
            const float4 v = *reinterpret_cast<const float4*>(
                src + (static_cast<int64_t>(co0 + co) * cin + ci0) * 9 + q * 4);
            *reinterpret_cast<float4*>(s + co * 576 + q * 4) = v;
        }
        __syncthreads();
        for (int i = t; i < 1152; i += 256) {
            const int pair = i & 31, rest = i >> 5;
            const int co = rest & 3, tap = rest >> 2;
            const float* from = s + co * 576 + pair * 18 + tap;
            __half2 hi, lo;
            split2(from[0] * scale, from[9] * scale, hi, lo);
            __half* to = dst + (static_cast<int64_t>(tap * 2) * cout + co0 + co) * cin + ci0 + pair * 2;
            *reinterpret_cast<__half2*>(to) = hi;
            *reinterpret_cast<__half2*>(to + static_cast<int64_t>(cout) * cin) = lo;
        }
    } else {
        // (cin, cout, 4) to [hi, lo][t * cout + co][cin]: 64 cin by 16 co by 4
        const int co0 = (local / ci_blocks) * 16;
        for (int i = t; i < 1024; i += 256) {
            const int ci = i >> 4, q = i & 15;
            const float4 v = *reinterpret_cast<const float4*>(
                src + static_cast<int64_t>(ci0 + ci) * cout * 4 + co0 * 4 + q * 4);
            float* to = s + ci * 65 + q * 4;
            to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
        }
        __syncthreads();
        for (int i = t; i < 2048; i += 256) {
            const int pair = i & 31, f = i >> 5;
            const int row = (f & 3) * cout + co0 + (f >> 2);
            __half2 hi, lo;
            split2(s[pair * 2 * 65 + f] * 1024.0f, s[(pair * 2 + 1) * 65 + f] * 1024.0f, hi, lo);
            __half* to = dst + static_cast<int64_t>(row) * cin + ci0 + pair * 2;
            *reinterpret_cast<__half2*>(to) = hi;
            *reinterpret_cast<__half2*>(to + static_cast<int64_t>(4) * cout * cin) = lo;
        }
    }
}

// 128 pixels of a row by 64 channels, 8 input channels, fp32. A thread: 8 pixels by 4 channels.
__device__ __forceinline__ void first_conv_block(const float* __restrict__ x, const float* __restrict__ w,
                                                 float* __restrict__ out, float2* __restrict__ part, int block,
                                                 float* s) {
    constexpr int kRow = 136, kPitch = 68;
    float* xs = s;                                                   // [ci * 3 + ky][136]
    float* ws = s + 24 * kRow;                                       // [ci * 9 + ky * 3 + kx][68]
    float2* st = reinterpret_cast<float2*>(s + 24 * kRow + 72 * kPitch);  // [8][64]
    const int t = threadIdx.x;
    const int x0 = (block & 3) * 128;
    const int row = block >> 2;
    const int n = row >> 6, y0 = row & 63;
    for (int i = t; i < 4608; i += 256) {
        const int co = i / 72, k = i % 72;
        ws[k * kPitch + co] = w[i];
    }
    for (int i = t; i < 24 * 130; i += 256) {
        const int r = i / 130, c = i % 130;
        const int ci = r / 3;
        const int y = y0 + (r - ci * 3) - 1, xx = x0 + c - 1;
        float v = 0.0f;
        if (y >= 0 && y < 64 && xx >= 0 && xx < 512) v = x[((n * 8 + ci) * 64 + y) * 512 + xx];
        xs[r * kRow + c] = v;
    }
    __syncthreads();
    const int cg = t & 15, pg = t >> 4;
    float acc[8][4];
#pragma unroll
    for (int p = 0; p < 8; ++p) {
#pragma unroll
        for (int q = 0; q < 4; ++q) acc[p][q] = 0.0f;
    }
#pragma unroll 2
    for (int r = 0; r < 24; ++r) {
        const float* line = xs + r * kRow + pg * 8;
        const float4 u0 = *reinterpret_cast<const float4*>(line);
        const float4 u1 = *reinterpret_cast<const float4*>(line + 4);
        const float2 u2 = *reinterpret_cast<const float2*>(line + 8);
        const float xv[10] = {u0.x, u0.y, u0.z, u0.w, u1.x, u1.y, u1.z, u1.w, u2.x, u2.y};
#pragma unroll
        for (int kx = 0; kx < 3; ++kx) {
            // r = ci * 3 + ky, so r * 3 + kx = ci * 9 + ky * 3 + kx
            const float4 wv = *reinterpret_cast<const float4*>(ws + (r * 3 + kx) * kPitch + cg * 4);
#pragma unroll
            for (int p = 0; p < 8; ++p) {
                acc[p][0] = fmaf(xv[p + kx], wv.x, acc[p][0]);
                acc[p][1] = fmaf(xv[p + kx], wv.y, acc[p][1]);
                acc[p][2] = fmaf(xv[p + kx], wv.z, acc[p][2]);
                acc[p][3] = fmaf(xv[p + kx], wv.w, acc[p][3]);
            }
        }
    }
    float* to = out + (static_cast<int64_t>(row) * 512 + x0 + pg * 8) * 64 + cg * 4;
#pragma unroll
    for (int p = 0; p < 8; ++p)
        *reinterpret_cast<float4*>(to + p * 64) = make_float4(acc[p][0], acc[p][1], acc[p][2], acc[p][3]);
#pragma unroll
    for (int q = 0; q < 4; ++q) {
        float sum = 0.0f;
#pragma unroll
        for (int p = 0; p < 8; ++p) sum += acc[p][q];
        sum += __shfl_xor_sync(0xffffffffu, sum, 16);
        const float mean = sum * (1.0f / 16.0f);
        float m2 = 0.0f;
#pragma unroll
        for (int p = 0; p < 8; ++p) {
            const float d = acc[p][q] - mean;
            m2 += d * d;
        }
        m2 += __shfl_xor_sync(0xffffffffu, m2, 16);
        if ((t & 31) < 16) st[(t >> 5) * 64 + cg * 4 + q] = make_float2(mean, m2);
    }
    __syncthreads();
    if (t < 64) part[block * 64 + t] = merge_equal(st + t, 8, 64, 16.0f);
}

constexpr int kFrontFloats = 24 * 136 + 72 * 68 + 8 * 64 * 2;

__global__ void __launch_bounds__(256, 4)
    front_kernel(const __grid_constant__ PackTable table, const float* x, const float* w, float* out, float2* part) {
    __shared__ __align__(16) float s[kFrontFloats];
    let_next_kernel_start();
    wait_for_kernels_before();
    const int b = blockIdx.x;
    if (b % kInterleave == 0 && b / kInterleave < kFirstBlocks) {
        first_conv_block(x, w, out, part, b / kInterleave, s);
    } else {
        int before = (b + kInterleave - 1) / kInterleave;
        if (before > kFirstBlocks) before = kFirstBlocks;
        pack_block(table, b - before, s);
    }
}

// ------------------------------------------------------------------ batch norm
// scale[c] = gamma / sqrt(var + eps) * log2(e) from T partial (mean, M2) of `count` values. 8 channels a block.
__global__ void __launch_bounds__(1024)
    finalize_kernel(const float2* part, int T, float count, int channels, const float* gamma, float* scale) {
    __shared__ float red[2][32][8];
    let_next_kernel_start();
    wait_for_kernels_before();
    const int t = threadIdx.x, cl = t & 7, warp = t >> 5;
    const float2* from = part + blockIdx.x * 8 + cl;
    float sum = 0.0f;
#pragma unroll 4
    for (int i = t >> 3; i < T; i += 128) sum += from[static_cast<int64_t>(i) * channels].x;
    sum += __shfl_xor_sync(0xffffffffu, sum, 8);
    sum += __shfl_xor_sync(0xffffffffu, sum, 16);
    if ((t & 31) < 8) red[0][warp][cl] = sum;
    __syncthreads();
    float mean = 0.0f;
#pragma unroll
    for (int i = 0; i < 32; ++i) mean += red[0][i][cl];
    mean /= static_cast<float>(T);
    float m2 = 0.0f;
#pragma unroll 4
    for (int i = t >> 3; i < T; i += 128) {
        const float2 v = from[static_cast<int64_t>(i) * channels];
        const float d = v.x - mean;
        m2 += v.y + count * d * d;
    }
    m2 += __shfl_xor_sync(0xffffffffu, m2, 8);
    m2 += __shfl_xor_sync(0xffffffffu, m2, 16);
    if ((t & 31) < 8) red[1][warp][cl] = m2;
    __syncthreads();
    if (t < 8) {
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < 32; ++i) total += red[1][i][t];
        const float variance = total / (static_cast<float>(T) * count);
        scale[blockIdx.x * 8 + t] = gamma[blockIdx.x * 8 + t] / sqrtf(variance + 1e-5f) * kLog2e;
    }
}

// Sums the splits of K and takes the statistics: 256 pixels by 32 channels a block.
template <int S>
__global__ void __launch_bounds__(256)
    reduce_kernel(const float* in, int64_t split_stride, float* out, float2* part, int channels) {
    __shared__ float2 st[8][32];
    let_next_kernel_start();
    wait_for_kernels_before();
    const int t = threadIdx.x, cl = t & 7, p0 = t >> 3;
    const int64_t base =
        (static_cast<int64_t>(blockIdx.y) * 256 + p0) * channels + static_cast<int>(blockIdx.x) * 32 + cl * 4;
    float v[8][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float* from = in + base + static_cast<int64_t>(i) * 32 * channels;
        float4 sum = *reinterpret_cast<const float4*>(from);
#pragma unroll
        for (int s = 1; s < S; ++s) {
            const float4 u = *reinterpret_cast<const float4*>(from + s * split_stride);
            sum.x += u.x, sum.y += u.y, sum.z += u.z, sum.w += u.w;
        }
        *reinterpret_cast<float4*>(out + base + static_cast<int64_t>(i) * 32 * channels) = sum;
        v[i][0] = sum.x, v[i][1] = sum.y, v[i][2] = sum.z, v[i][3] = sum.w;
    }
#pragma unroll
    for (int q = 0; q < 4; ++q) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += v[i][q];
        sum += __shfl_xor_sync(0xffffffffu, sum, 8);
        sum += __shfl_xor_sync(0xffffffffu, sum, 16);
        const float mean = sum * (1.0f / 32.0f);
        float m2 = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float d = v[i][q] - mean;
            m2 += d * d;
        }
        m2 += __shfl_xor_sync(0xffffffffu, m2, 8);
        m2 += __shfl_xor_sync(0xffffffffu, m2, 16);
        if ((t & 31) < 8) st[t >> 5][cl * 4 + q] = make_float2(mean, m2);
    }
    __syncthreads();
    if (t < 32)
        part[static_cast<int64_t>(blockIdx.y) * channels + blockIdx.x * 32 + t] = merge_equal(&st[0][t], 8, 32, 32.0f);
}

// ------------------------------------------------------------------ softmax along the width
// Loads V pixels of 4 channels, leaves exp2(v * s - max) in v and the reciprocal of the row's sum in inv.
// CL lanes hold the channels of a pixel; `red_max`, `red_sum` are [warps][CL].
template <int V, int CL, int WARPS>
__device__ __forceinline__ void row_exponentials(float (&v)[V][4], const float (&s)[4], float (&inv)[4],
                                                 float4* red_max, float4* red_sum) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, cl = threadIdx.x & (CL - 1);
    float m[4], sum[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
        m[q] = v[0][q] * s[q];
#pragma unroll
        for (int i = 1; i < V; ++i) m[q] = fmaxf(m[q], v[i][q] * s[q]);
#pragma unroll
        for (int offset = CL; offset < 32; offset *= 2)
            m[q] = fmaxf(m[q], __shfl_xor_sync(0xffffffffu, m[q], offset));
    }
    if (lane < CL) red_max[warp * CL + cl] = make_float4(m[0], m[1], m[2], m[3]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; ++i) {
        const float4 u = red_max[i * CL + cl];
        m[0] = fmaxf(m[0], u.x), m[1] = fmaxf(m[1], u.y), m[2] = fmaxf(m[2], u.z), m[3] = fmaxf(m[3], u.w);
    }
#pragma unroll
    for (int q = 0; q < 4; ++q) {
        sum[q] = 0.0f;
#pragma unroll
        for (int i = 0; i < V; ++i) {
            v[i][q] = exp2f(fmaf(v[i][q], s[q], -m[q]));
            sum[q] += v[i][q];
        }
#pragma unroll
        for (int offset = CL; offset < 32; offset *= 2) sum[q] += __shfl_xor_sync(0xffffffffu, sum[q], offset);
    }
    if (lane < CL) red_sum[warp * CL + cl] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    __syncthreads();
#pragma unroll
    for (int q = 0; q < 4; ++q) sum[q] = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) {
        const float4 u = red_sum[i * CL + cl];
        sum[0] += u.x, sum[1] += u.y, sum[2] += u.z, sum[3] += u.w;
    }
#pragma unroll
    for (int q = 0; q < 4; ++q) inv[q] = 1.0f / sum[q];
}

// A block: one row (POOL: two rows) of 32 channels. Thread: 4 channels, W / 32 pixels, in pairs where there are any.
template <int W, bool POOL>
__global__ void __launch_bounds__(256)
    softmax_kernel(const float* in, const float* scale, __half* out, int64_t plane, __half* pool, int64_t pool_plane,
                   int channels) {
    constexpr int V = W / 32;
    constexpr int kRows = POOL ? 2 : 1;
    __shared__ float4 red_max[8 * 8];
    __shared__ float4 red_sum[8 * 8];
    let_next_kernel_start();
    wait_for_kernels_before();
    const int t = threadIdx.x, cl = t & 7, g = t >> 3;
    const int c = static_cast<int>(blockIdx.y) * 32 + cl * 4;
    const float4 s4 = *reinterpret_cast<const float4*>(scale + c);
    const float s[4] = {s4.x, s4.y, s4.z, s4.w};
    float pooled[POOL ? V / 2 : 1][4];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows + r;
        const int64_t base = row * W * channels + c;
        float v[V][4], inv[4];
#pragma unroll
        for (int i = 0; i < V; ++i) {
            const int w = V == 1 ? g : ((i >> 1) * 32 + g) * 2 + (i & 1);
            const float4 u = *reinterpret_cast<const float4*>(in + base + static_cast<int64_t>(w) * channels);
            v[i][0] = u.x, v[i][1] = u.y, v[i][2] = u.z, v[i][3] = u.w;
        }
        row_exponentials<V, 8, 8>(v, s, inv, red_max, red_sum);
#pragma unroll
        for (int q = 0; q < 4; ++q) inv[q] *= 32768.0f;
#pragma unroll
        for (int i = 0; i < V; ++i) {
            const int w = V == 1 ? g : ((i >> 1) * 32 + g) * 2 + (i & 1);
#pragma unroll
            for (int q = 0; q < 4; ++q) v[i][q] *= inv[q];
            __half* to = out + base + static_cast<int64_t>(w) * channels;
            store_split4(to, to + plane, v[i][0], v[i][1], v[i][2], v[i][3]);
        }
        if constexpr (POOL) {
#pragma unroll
            for (int i = 0; i < V / 2; ++i) {
#pragma unroll
                for (int q = 0; q < 4; ++q) {
                    const float larger = fmaxf(v[2 * i][q], v[2 * i + 1][q]);
                    pooled[i][q] = r == 0 ? larger : fmaxf(pooled[i][q], larger);
                }
            }
        }
    }
    if constexpr (POOL) {
        // rows 2 * blockIdx.x and + 1 of all images make row blockIdx.x of the pooled images
        const int64_t base = static_cast<int64_t>(blockIdx.x) * (W / 2) * channels + c;
#pragma unroll
        for (int i = 0; i < V / 2; ++i) {
            __half* to = pool + base + static_cast<int64_t>(i * 32 + g) * channels;
            store_split4(to, to + pool_plane, pooled[i][0], pooled[i][1], pooled[i][2], pooled[i][3]);
        }
    }
}

// Softmax of the last layer (64 channels, 512 wide) and the 1x1 convolution to 4 channels. A block: one row.
__global__ void __launch_bounds__(512)
    final_kernel(const float* in, const float* scale, const float* weight, const float* bias, float* out) {
    constexpr int V = 16;
    __shared__ float4 red_max[16 * 16];
    __shared__ float4 red_sum[16 * 16];
    __shared__ __align__(16) float staged[4][512];
    let_next_kernel_start();
    wait_for_kernels_before();
    const int t = threadIdx.x, cl = t & 15, g = t >> 4;
    const int c = cl * 4;
    const float4 s4 = *reinterpret_cast<const float4*>(scale + c);
    const float s[4] = {s4.x, s4.y, s4.z, s4.w};
    const int row = blockIdx.x;  // n * 64 + h
    const float* from = in + static_cast<int64_t>(row) * 512 * 64 + c;
    float v[V][4], inv[4];
#pragma unroll
    for (int i = 0; i < V; ++i) {
        const float4 u = *reinterpret_cast<const float4*>(from + (g + 32 * i) * 64);
        v[i][0] = u.x, v[i][1] = u.y, v[i][2] = u.z, v[i][3] = u.w;
    }
    row_exponentials<V, 16, 16>(v, s, inv, red_max, red_sum);
    float wv[4][4];
#pragma unroll
    for (int o = 0; o < 4; ++o) {
        const float4 u = *reinterpret_cast<const float4*>(weight + o * 64 + c);
        wv[o][0] = u.x * inv[0], wv[o][1] = u.y * inv[1], wv[o][2] = u.z * inv[2], wv[o][3] = u.w * inv[3];
    }
    const bool b0 = (cl & 1) != 0, b1 = (cl & 2) != 0;
    const int o = (b0 ? 2 : 0) + (b1 ? 1 : 0);
    const float bias_o = bias[o];
#pragma unroll
    for (int i = 0; i < V; ++i) {
        float a[4];
#pragma unroll
        for (int k = 0; k < 4; ++k)
            a[k] = (v[i][0] * wv[k][0] + v[i][1] * wv[k][1]) + (v[i][2] * wv[k][2] + v[i][3] * wv[k][3]);
        // lanes with bit 0 clear keep outputs 0, 1, the others 2, 3; then bit 1 picks one of the two
        const float r0 = __shfl_xor_sync(0xffffffffu, b0 ? a[0] : a[2], 1);
        const float r1 = __shfl_xor_sync(0xffffffffu, b0 ? a[1] : a[3], 1);
        const float k0 = (b0 ? a[2] : a[0]) + r0;
        const float k1 = (b0 ? a[3] : a[1]) + r1;
        float k = (b1 ? k1 : k0) + __shfl_xor_sync(0xffffffffu, b1 ? k0 : k1, 2);
        k += __shfl_xor_sync(0xffffffffu, k, 4);
        k += __shfl_xor_sync(0xffffffffu, k, 8);
        if (cl < 4) staged[o][g + 32 * i] = k + bias_o;
    }
    __syncthreads();
    const int channel = t >> 7, w = (t & 127) * 4;
    const int n = row >> 6, h = row & 63;
    *reinterpret_cast<float4*>(out + static_cast<int64_t>((n * 4 + channel) * 64 + h) * 512 + w) =
        *reinterpret_cast<const float4*>(&staged[channel][w]);
}

// ------------------------------------------------------------------ host
using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

struct ConvSpec {
    int parameter, cin, cout, cup;
};
// The 3x3 convolutions from the second on, then the transposed ones; `parameter` counts Model.parameters().
static const ConvSpec kConvs[17] = {
    {4, 64, 64, 0},       {8, 64, 128, 0},      {12, 128, 128, 0},  {16, 128, 256, 0},  {20, 256, 256, 0},
    {24, 256, 512, 0},    {28, 512, 512, 0},    {32, 512, 1024, 0}, {36, 1024, 1024, 0}, {42, 1024, 512, 512},
    {46, 512, 512, 0},    {52, 512, 256, 256},  {56, 256, 256, 0},  {62, 256, 128, 128}, {66, 128, 128, 0},
    {72, 128, 64, 64},    {76, 64, 64, 0}};
static const ConvSpec kUps[4] = {{40, 1024, 512, 0}, {50, 512, 256, 0}, {60, 256, 128, 0}, {70, 128, 64, 0}};

static int64_t level_pixels(int level) { return static_cast<int64_t>(kBatch) * (64 >> level) * (512 >> level); }

struct Workspace {
    float *raw, *reduced, *scale;
    float2* part;
    __half *mid, *enc[4], *pool[4], *up[4], *dec;
    __half *conv_w[17], *up_w[4];
    int64_t bytes;
};

static Workspace plan(char* base) {
    Workspace ws;
    int64_t used = 0;
    auto take = [&](int64_t bytes) {
        char* p = base + used;
        used += (bytes + 1023) / 1024 * 1024;
        return p;
    };
    ws.raw = reinterpret_cast<float*>(take(level_pixels(0) * 64 * 4));
    ws.reduced = reinterpret_cast<float*>(take(level_pixels(3) * 512 * 4));
    ws.scale = reinterpret_cast<float*>(take(1024 * 4));
    ws.part = reinterpret_cast<float2*>(take(2048 * 64 * 8));
    ws.mid = reinterpret_cast<__half*>(take(level_pixels(0) * 64 * 4));
    ws.dec = reinterpret_cast<__half*>(take(level_pixels(1) * 128 * 4));
    for (int l = 0; l < 4; ++l) {
        ws.enc[l] = reinterpret_cast<__half*>(take(level_pixels(l) * (64 << l) * 4));
        ws.pool[l] = reinterpret_cast<__half*>(take(level_pixels(l + 1) * (64 << l) * 4));
        ws.up[l] = reinterpret_cast<__half*>(take(level_pixels(l) * (64 << l) * 4));
    }
    for (int i = 0; i < 17; ++i)
        ws.conv_w[i] = reinterpret_cast<__half*>(take(static_cast<int64_t>(kConvs[i].cin) * kConvs[i].cout * 36));
    for (int i = 0; i < 4; ++i)
        ws.up_w[i] = reinterpret_cast<__half*>(take(static_cast<int64_t>(kUps[i].cin) * kUps[i].cout * 16));
    ws.bytes = used;
    return ws;
}

struct Runner {
    EncodeTiled encode;
    const void* const* p;
    cudaStream_t stream;
    Workspace ws;
    int processors;
    int failure;

    const float* parameter(int i) const { return static_cast<const float*>(p[i]); }

    // Activations: [hi, lo][n][y][x][channel] as (channel, x, y, n + 8 * plane).
    CUtensorMap activation_map(const __half* data, int channels, int level, int box_rows) {
        CUtensorMap map;
        const int W = 512 >> level, H = 64 >> level;
        const cuuint64_t c = channels, w = W, h = H;
        const cuuint64_t dims[4] = {c, w, h, 2 * kBatch};
        const cuuint64_t strides[3] = {c * 2, c * w * 2, c * w * h * 2};
        const cuuint32_t box[4] = {32, static_cast<cuuint32_t>(W >= 64 ? 64 : 32), static_cast<cuuint32_t>(box_rows),
                                   static_cast<cuuint32_t>(W >= 64 ? 1 : 2)};
        const cuuint32_t ones[4] = {1, 1, 1, 1};
        const CUresult r = encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, const_cast<__half*>(data), dims, strides,
                                  box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_64B,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
        if (r != CUDA_SUCCESS && failure == 0) failure = 10000 + static_cast<int>(r);
        return map;
    }

    // Weights: [tap][hi, lo][row][cin] as (cin, row, tap * 2 + plane).
    CUtensorMap weight_map(const __half* data, int cin, int rows, int planes, int bn) {
        CUtensorMap map;
        const cuuint64_t c = cin, r = rows;
        const cuuint64_t dims[3] = {c, r, static_cast<cuuint64_t>(planes)};
        const cuuint64_t strides[2] = {c * 2, c * r * 2};
        const cuuint32_t box[3] = {32, static_cast<cuuint32_t>(bn), 2};
        const cuuint32_t ones[3] = {1, 1, 1};
        const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, const_cast<__half*>(data), dims,
                                       strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_64B,
                                       CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
        if (result != CUDA_SUCCESS && failure == 0) failure = 20000 + static_cast<int>(result);
        return map;
    }

    void check() {
        const cudaError_t error = cudaGetLastError();
        if (error != cudaSuccess && failure == 0) failure = static_cast<int>(error);
    }

    GemmArgs geometry(int level) {
        GemmArgs g = {};
        g.H = 64 >> level, g.W = 512 >> level;
        g.log_h = 6 - level, g.log_w = 9 - level;
        g.wt = g.W >= 64 ? 64 : 32;
        g.nt = g.W >= 64 ? 1 : 2;
        g.tw = g.W / g.wt;
        g.th = g.H / 4;
        g.tiles_m = static_cast<int>(level_pixels(level) / 256);
        return g;
    }

    template <int BN, bool UP>
    void launch_gemm(const CUtensorMap& a0, const CUtensorMap& a1, const CUtensorMap& b, const GemmArgs& g) {
        const int blocks = g.tiles < processors ? g.tiles : processors;
        launch_early(gemm_kernel<BN, UP>, dim3(blocks), dim3(384), Config<BN, UP>::kShared, stream, a0, a1, b, g);
        check();
    }

    void finalize(int T, float count, int channels, const float* gamma) {
        launch_early(finalize_kernel, dim3(channels / 8), dim3(1024), 0, stream, ws.part, T, count, channels, gamma,
                     ws.scale);
        check();
    }

    template <int W, bool POOL>
    void launch_softmax(const float* in, int level, int channels, __half* out, __half* pool) {
        const int rows = kBatch * (64 >> level) / (POOL ? 2 : 1);
        launch_early(softmax_kernel<W, POOL>, dim3(rows, channels / 32), dim3(256), 0, stream, in, ws.scale, out,
                     level_pixels(level) * channels, pool, level_pixels(level) / 4 * channels, channels);
        check();
    }
    void softmax(const float* in, int level, int channels, __half* out, __half* pool) {
        if (pool) {
            if (level == 0) launch_softmax<512, true>(in, level, channels, out, pool);
            if (level == 1) launch_softmax<256, true>(in, level, channels, out, pool);
            if (level == 2) launch_softmax<128, true>(in, level, channels, out, pool);
            if (level == 3) launch_softmax<64, true>(in, level, channels, out, pool);
        } else {
            if (level == 0) launch_softmax<512, false>(in, level, channels, out, pool);
            if (level == 1) launch_softmax<256, false>(in, level, channels, out, pool);
            if (level == 2) launch_softmax<128, false>(in, level, channels, out, pool);
            if (level == 3) launch_softmax<64, false>(in, level, channels, out, pool);
            if (level == 4) launch_softmax<32, false>(in, level, channels, out, pool);
        }
    }

    // 3x3 convolution number `index`, scale of its batch norm, softmax (none where out is null).
    void layer(int index, int level, const __half* first, const __half* second, __half* out, __half* pool) {
        const ConvSpec spec = kConvs[index];
        const int c0 = second ? spec.cup : spec.cin;
        const int bn = spec.cout == 64 ? 64 : 128;
        const int splits = level == 4 ? 4 : level == 3 ? 2 : 1;
        const CUtensorMap a0 = activation_map(first, c0, level, 6);
        const CUtensorMap a1 = second ? activation_map(second, spec.cin - c0, level, 6) : a0;
        const CUtensorMap b = weight_map(ws.conv_w[index], spec.cin, spec.cout, 18, bn);
        const int64_t pixels = level_pixels(level);
        GemmArgs g = geometry(level);
        g.out = ws.raw;
        g.part = splits == 1 ? ws.part : nullptr;
        g.split_stride = pixels * spec.cout;
        g.columns = spec.cout;
        g.c0_chunks = c0 / 32;
        g.tiles_n = spec.cout / bn;
        g.tiles = g.tiles_n * g.tiles_m * splits;
        g.its = spec.cin / 32 * 3 / splits;
        if (bn == 64)
            launch_gemm<64, false>(a0, a1, b, g);
        else
            launch_gemm<128, false>(a0, a1, b, g);
        const float* result = ws.raw;
        if (splits > 1) {
            const dim3 grid(spec.cout / 32, static_cast<unsigned>(pixels / 256));
            if (splits == 2)
                launch_early(reduce_kernel<2>, grid, dim3(256), 0, stream, ws.raw, g.split_stride, ws.reduced, ws.part,
                             spec.cout);
            else
                launch_early(reduce_kernel<4>, grid, dim3(256), 0, stream, ws.raw, g.split_stride, ws.reduced, ws.part,
                             spec.cout);
            check();
            result = ws.reduced;
        }
        finalize(static_cast<int>(pixels / 256), 256.0f, spec.cout, parameter(spec.parameter + 2));
        if (out) softmax(result, level, spec.cout, out, pool);
    }

    // Transposed convolution number `index` from `level` to the level above.
    void upconv(int index, int level, const __half* in) {
        const ConvSpec spec = kUps[index];
        const int bn = index == 0 ? 64 : 128;
        const CUtensorMap a = activation_map(in, spec.cin, level, 4);
        const CUtensorMap b = weight_map(ws.up_w[index], spec.cin, 4 * spec.cout, 2, bn);
        GemmArgs g = geometry(level);
        g.up = ws.up[level - 1];
        g.bias = parameter(spec.parameter + 1);
        g.up_plane = level_pixels(level - 1) * spec.cout;
        g.columns = 4 * spec.cout;
        g.c0_chunks = spec.cin / 32;
        g.tiles_n = g.columns / bn;
        g.tiles = g.tiles_n * g.tiles_m;
        g.its = spec.cin / 32;
        g.log_cu = 6;
        while ((1 << g.log_cu) < spec.cout) ++g.log_cu;
        if (bn == 64)
            launch_gemm<64, true>(a, a, b, g);
        else
            launch_gemm<128, true>(a, a, b, g);
    }
};

extern "C" int64_t unet_workspace_bytes() { return plan(nullptr).bytes; }

extern "C" int unet_forward(const void* const* parameters, const float* x, float* out, void* workspace,
                            void* encode_function, void* stream_pointer) {
    Runner r;
    r.encode = reinterpret_cast<EncodeTiled>(encode_function);
    r.p = parameters;
    r.stream = static_cast<cudaStream_t>(stream_pointer);
    r.ws = plan(static_cast<char*>(workspace));
    r.failure = 0;
    int device = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&r.processors, cudaDevAttrMultiProcessorCount, device);
    cudaFuncSetAttribute(gemm_kernel<64, false>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         Config<64, false>::kShared);
    cudaFuncSetAttribute(gemm_kernel<128, false>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         Config<128, false>::kShared);
    cudaFuncSetAttribute(gemm_kernel<64, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         Config<64, true>::kShared);
    cudaFuncSetAttribute(gemm_kernel<128, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         Config<128, true>::kShared);
    r.check();
    const Workspace& ws = r.ws;

    // Weights and the first convolution.
    PackTable table = {};
    int blocks = 0;
    for (int i = 0; i < 17; ++i) {
        PackEntry& e = table.e[i];
        e.src = r.parameter(kConvs[i].parameter);
        e.dst = ws.conv_w[i];
        e.start = blocks;
        e.cin = kConvs[i].cin, e.cout = kConvs[i].cout, e.cup = kConvs[i].cup, e.up = 0;
        blocks += (e.cin / 64) * (e.cout / 4);
    }
    for (int i = 0; i < 4; ++i) {
        PackEntry& e = table.e[17 + i];
        e.src = r.parameter(kUps[i].parameter);
        e.dst = ws.up_w[i];
        e.start = blocks;
        e.cin = kUps[i].cin, e.cout = kUps[i].cout, e.cup = 0, e.up = 1;
        blocks += (e.cin / 64) * (e.cout / 16);
    }
    launch_early(front_kernel, dim3(blocks + kFirstBlocks), dim3(256), 0, r.stream, table, x, r.parameter(0), ws.raw,
                 ws.part);
    r.check();
    r.finalize(kFirstBlocks, 128.0f, 64, r.parameter(2));
    __half* const no_pool = nullptr;
    r.softmax(ws.raw, 0, 64, ws.mid, no_pool);

    // Encoder.
    r.layer(0, 0, ws.mid, nullptr, ws.enc[0], ws.pool[0]);
    r.layer(1, 1, ws.pool[0], nullptr, ws.mid, no_pool);
    r.layer(2, 1, ws.mid, nullptr, ws.enc[1], ws.pool[1]);
    r.layer(3, 2, ws.pool[1], nullptr, ws.mid, no_pool);
    r.layer(4, 2, ws.mid, nullptr, ws.enc[2], ws.pool[2]);
    r.layer(5, 3, ws.pool[2], nullptr, ws.mid, no_pool);
    r.layer(6, 3, ws.mid, nullptr, ws.enc[3], ws.pool[3]);
    r.layer(7, 4, ws.pool[3], nullptr, ws.mid, no_pool);
    r.layer(8, 4, ws.mid, nullptr, ws.dec, no_pool);
    // Decoder.
    r.upconv(0, 4, ws.dec);
    r.layer(9, 3, ws.up[3], ws.enc[3], ws.mid, no_pool);
    r.layer(10, 3, ws.mid, nullptr, ws.dec, no_pool);
    r.upconv(1, 3, ws.dec);
    r.layer(11, 2, ws.up[2], ws.enc[2], ws.mid, no_pool);
    r.layer(12, 2, ws.mid, nullptr, ws.dec, no_pool);
    r.upconv(2, 2, ws.dec);
    r.layer(13, 1, ws.up[1], ws.enc[1], ws.mid, no_pool);
    r.layer(14, 1, ws.mid, nullptr, ws.dec, no_pool);
    r.upconv(3, 1, ws.dec);
    r.layer(15, 0, ws.up[0], ws.enc[0], ws.mid, no_pool);
    r.layer(16, 0, ws.mid, nullptr, nullptr, no_pool);
    launch_early(final_kernel, dim3(kBatch * 64), dim3(512), 0, r.stream, ws.raw, ws.scale, r.parameter(80),
                 r.parameter(81), out);
    r.check();
    return r.failure;
}
"""

library = ctypes.CDLL(
    load_inline(
        name="unet_softmax_split_fp16",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
unet_forward = library.unet_forward
unet_forward.argtypes = [ctypes.c_void_p] * 6
unet_forward.restype = ctypes.c_int
unet_workspace_bytes = library.unet_workspace_bytes
unet_workspace_bytes.argtypes = []
unet_workspace_bytes.restype = ctypes.c_int64

# The driver's encoder of tensor maps; the driver is loaded by torch anyway.
_driver = ctypes.CDLL("libcuda.so.1")
_encode = ctypes.cast(_driver.cuTensorMapEncodeTiled, ctypes.c_void_p).value


class DoubleConv(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1),
            nn.BatchNorm2d(out_channels),
            nn.Softmax(dim=-1),
            nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1),
            nn.BatchNorm2d(out_channels),
            nn.Softmax(dim=-1),
        )


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, features):
        super().__init__()
        if (in_channels, out_channels, features) != (8, 4, 64):
            raise ValueError("specialised for in_channels=8, out_channels=4, features=64")
        self.encoder1 = DoubleConv(in_channels, features)
        self.pool1 = nn.MaxPool2d(kernel_size=2, stride=2)
        self.encoder2 = DoubleConv(features, features * 2)
        self.pool2 = nn.MaxPool2d(kernel_size=2, stride=2)
        self.encoder3 = DoubleConv(features * 2, features * 4)
        self.pool3 = nn.MaxPool2d(kernel_size=2, stride=2)
        self.encoder4 = DoubleConv(features * 4, features * 8)
        self.pool4 = nn.MaxPool2d(kernel_size=2, stride=2)

        self.bottleneck = DoubleConv(features * 8, features * 16)

        self.upconv4 = nn.ConvTranspose2d(features * 16, features * 8, kernel_size=2, stride=2)
        self.decoder4 = DoubleConv(features * 16, features * 8)
        self.upconv3 = nn.ConvTranspose2d(features * 8, features * 4, kernel_size=2, stride=2)
        self.decoder3 = DoubleConv(features * 8, features * 4)
        self.upconv2 = nn.ConvTranspose2d(features * 4, features * 2, kernel_size=2, stride=2)
        self.decoder2 = DoubleConv(features * 4, features * 2)
        self.upconv1 = nn.ConvTranspose2d(features * 2, features, kernel_size=2, stride=2)
        self.decoder1 = DoubleConv(features * 2, features)

        self.final_conv = nn.Conv2d(features, out_channels, kernel_size=1)
        self._workspace = None

    def forward(self, x):
        x = x.contiguous()
        parameters = [parameter.detach().contiguous() for parameter in self.parameters()]
        pointers = (ctypes.c_void_p * len(parameters))(*[parameter.data_ptr() for parameter in parameters])
        if self._workspace is None or self._workspace.device != x.device:
            self._workspace = torch.empty(unet_workspace_bytes(), dtype=torch.uint8, device=x.device)
        out = torch.empty((8, 4, 64, 512), dtype=torch.float32, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = unet_forward(
            ctypes.cast(pointers, ctypes.c_void_p),
            x.data_ptr(),
            out.data_ptr(),
            self._workspace.data_ptr(),
            _encode,
            stream,
        )
        if error:
            raise RuntimeError(f"unet_forward: CUDA error {error}")
        return out
