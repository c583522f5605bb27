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
constexpr int kThreads = 384;
constexpr int kSlots = 4;
constexpr int kSlotBytes = 16384;          // one input row: 64 ci x 64 pixels, at columns p - 1 and at p
constexpr int kEdgeBytes = 1024;           // 64 ci x the 8 pixels that follow
constexpr int kTapBytes = 32768;           // 256 lines (n) of 64 ci
constexpr int kStageBytes = 8192;          // 32 co x 128 outputs

constexpr int kWeightsAt = 0;
constexpr int kRowsAt = 131072;
constexpr int kStageAt = kRowsAt + kSlots * kSlotBytes;   // 196608
constexpr int kEdgeAt = kStageAt + 2 * kStageBytes;       // 212992
constexpr int kBiasAt = kEdgeAt + kSlots * kEdgeBytes;    // 217088
constexpr int kBarriersAt = kBiasAt + 256;
constexpr int kProgressAt = kBarriersAt + 128;
constexpr int kSharedBytes = kProgressAt + 64 + 1024;     // with room for the alignment to 1024

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
__device__ __forceinline__ void arrive_and_expect(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

// The column is a multiple of 8: the innermost coordinate has to be one of 16 bytes.
__device__ __forceinline__ void tensor_load(uint32_t to, const CUtensorMap* map, int column, int row, int plane,
                                            uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
        ::"r"(to), "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(column), "r"(row),
        "r"(plane) : "memory");
}

// 128-byte swizzle, 8 lines of 128 bytes every 1024 bytes.
__device__ __forceinline__ uint64_t describe(uint32_t start_at, uint32_t leading, uint32_t stride) {
    return static_cast<uint64_t>((start_at & 0x3ffff) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
           static_cast<uint64_t>(stride >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}

// D (64 x 256) += A (64 x 16, M-major) B (16 x 256, K-major)
__device__ __forceinline__ void multiply(float (&d)[128], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{@REGISTERS@}, %128, %129, p, 1, 1, 1, 0;\n}"
        : @OPERANDS@
        : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void show_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_all_products(float (&d)[128]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(d[i])::"memory");
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
__device__ __forceinline__ uint32_t load_word(uint32_t at) {
    uint32_t value;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
    return value;
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

__global__ void __launch_bounds__(kThreads, 1)
transposed_tanh_kernel(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_edge,
                       const __nv_bfloat16* __restrict__ x, const __nv_bfloat16* __restrict__ weight,
                       const __nv_bfloat16* __restrict__ conv_bias, const __nv_bfloat16* __restrict__ bias,
                       __nv_bfloat16* __restrict__ out, int total) {
    extern __shared__ uint8_t raw_memory[];
    uint8_t* const base = raw_memory + ((1024u - (shared_address(raw_memory) & 1023u)) & 1023u);
    const uint32_t base_at = shared_address(base);
    float* const biases = reinterpret_cast<float*>(base + kBiasAt);
    uint64_t* const loaded = reinterpret_cast<uint64_t*>(base + kBarriersAt);   // the row has come
    uint64_t* const full = loaded + kSlots;                                     // the shifted copy is made
    uint64_t* const empty = full + kSlots;
    volatile int* const progress = reinterpret_cast<volatile int*>(base + kProgressAt);

    const int lane = threadIdx.x % 32;
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
    const int tile_column = blockIdx.x & 3;
    const int group = blockIdx.x >> 2, groups = gridDim.x >> 2;
    const int low = total * group / groups;
    const int high = total * (group + 1) / groups;
    const int count = high - low;

    if (threadIdx.x == 0) {
        for (int s = 0; s < kSlots; ++s) {
            start(&loaded[s], 1);
            start(&full[s], 2);    // two warps make the shifted copy
            start(&empty[s], 8);   // four warps of each of the two tiles that use a row
        }
        show_started();
        *progress = 0;
    }
    if (threadIdx.x < 64) {
        biases[threadIdx.x] = __bfloat162float(conv_bias[threadIdx.x]) - __bfloat162float(bias[threadIdx.x]);
    }
    __syncwarp();

    // Pack the weights: a warp takes one co at a time, a lane the input channels 2 * lane and 2 * lane + 1.
    for (int co = warp; co < 64; co += kThreads / 32) {
        const uint4* first = reinterpret_cast<const uint4*>(weight + ((2 * lane) * 64 + co) * 16);
        const uint4* second = reinterpret_cast<const uint4*>(weight + ((2 * lane + 1) * 64 + co) * 16);
        const uint4 f0 = __ldg(first), f1 = __ldg(first + 1);
        const uint4 s0 = __ldg(second), s1 = __ldg(second + 1);
        const uint32_t f[8] = {f0.x, f0.y, f0.z, f0.w, f1.x, f1.y, f1.z, f1.w};
        const uint32_t s[8] = {s0.x, s0.y, s0.z, s0.w, s1.x, s1.y, s1.z, s1.w};
        const int c = co >> 4, g0 = co >> 3 & 1, r = co & 7;
#pragma unroll
        for (int k = 0; k < 16; ++k) {
            const int ky = k >> 2, kx = k & 3;
            const int py = ky & 1, a = 1 - (ky >> 1);
            const int px = kx & 1, b = 1 - (kx >> 1);
            const int j = py * 16 + (r >> 2) * 8 + (r & 3) * 2 + g0;
            const int n = j * 8 + c * 2 + px;
            const uint32_t value = __byte_perm(f[k / 2], s[k / 2], k % 2 ? 0x7632 : 0x5410);
            store_word(base_at + kWeightsAt + (a * 2 + b) * kTapBytes + n * 128 + ((lane * 4) ^ ((n & 7) * 16)), value);
        }
    }
    show_stores();
    __syncthreads();

    if (warp == 8) {
        // Loads: each tile brings input row q; the first of a segment row q - 1 as well.
        if (lane == 0) {
            int l = 0;
            for (int i = 0; i < count; ++i) {
                const int index = low + i, image = index / kPairs, q = index - image * kPairs;
                const bool first = i == 0 || q == 0;
                for (int row = first ? q - 1 : q; row <= q; ++row, ++l) {
                    const int s = l & (kSlots - 1);
                    wait(&empty[s], ((l / kSlots) & 1) ^ 1);
                    arrive_and_expect(&loaded[s], kSlotBytes / 2 + kEdgeBytes);
                    tensor_load(base_at + kRowsAt + s * kSlotBytes, &map_x, tile_column * 64, row, image * 64,
                                &loaded[s]);
                    tensor_load(base_at + kEdgeAt + s * kEdgeBytes, &map_edge, tile_column * 64 + 64, row, image * 64,
                                &loaded[s]);
                }
                *progress = i + 1;
            }
        }
    } else if (warp == 9) {
        // Output column 0, from input column 0 and the taps b = 1 with px = 1. Of every four tiles each block of
        // a group takes one. A lane has the lines n = 2 * lane + 1 + 64 * u.
        const int side = lane >> 2 & 1;   // lanes 4 to 7 of 8 take the neighbouring 16 bytes: no bank conflict
        const int line = 2 * lane + 1;
        for (int i = tile_column; i < count; i += 4) {
            while (*progress <= i) __nanosleep(200);
            __syncwarp();
            const int index = low + i, image = index / kPairs, q = index - image * kPairs;
            float values[2][2];
#pragma unroll
            for (int a = 0; a < 2; ++a) {
                const int row = q - 1 + a;
                const bool inside = row >= 0 && row < kSide;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int ci = lane + 32 * half;
                    values[a][half] = 0.0f;
                    if (inside) {
                        values[a][half] = __bfloat162float(
                            x[(static_cast<int64_t>(image * 64 + ci) * kSide + row) * kSide]);
                    }
                }
            }
            float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int a = 0; a < 2; ++a) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
#pragma unroll 1
                    for (int part = 0; part < 4; ++part) {
                        const int chunk = (half * 4 + part) ^ side;
                        const uint8_t* from = base + kWeightsAt + (a * 2 + 1) * kTapBytes + line * 128 +
                                              ((chunk ^ (line & 7)) * 16);
                        uint32_t w[4][4];
#pragma unroll
                        for (int u = 0; u < 4; ++u) {
                            const uint4 v = *reinterpret_cast<const uint4*>(from + u * 8192);
                            w[u][0] = v.x;
                            w[u][1] = v.y;
                            w[u][2] = v.z;
                            w[u][3] = v.w;
                        }
                        const int source = (part ^ side) * 8;
#pragma unroll
                        for (int e = 0; e < 8; ++e) {
                            const float value = __shfl_sync(0xffffffffu, values[a][half], source + e);
#pragma unroll
                            for (int u = 0; u < 4; ++u) {
                                const uint32_t bits = e % 2 ? w[u][e / 2] & 0xffff0000u : w[u][e / 2] << 16;
                                sums[u] = fmaf(value, __uint_as_float(bits), sums[u]);
                            }
                        }
                    }
                }
            }
#pragma unroll
            for (int u = 0; u < 4; ++u) {
                const int j = 8 * u + (lane >> 2);
                const int py = j >> 4;
                const int co = (lane & 3) * 16 + (j & 1) * 8 + (j >> 3 & 1) * 4 + (j >> 1 & 3);
                const int oy = 2 * q - 1 + py;
                if (oy >= 0) {
                    out[static_cast<int64_t>(image * 64 + co) * kPlane + oy * kOut] =
                        __float2bfloat16(quick_tanh(sums[u] + biases[co]));
                }
            }
            __syncwarp();
        }
    } else if (warp >= 10) {
        // The second copy of each row, one pixel further on: a lane takes 16 bytes, eight lanes a line (ci).
        const int part = lane & 7;
        int l = 0;
        for (int i = 0; i < count; ++i) {
            const int index = low + i, q = index - index / kPairs * kPairs;
            const int rows = (i == 0 || q == 0) ? 2 : 1;
            for (int row = 0; row < rows; ++row, ++l) {
                const int s = l & (kSlots - 1);
                wait(&loaded[s], (l / kSlots) & 1);
                __syncwarp();
                uint8_t* const slot = base + kRowsAt + s * kSlotBytes;
                const uint8_t* const edge = base + kEdgeAt + s * kEdgeBytes;
                uint4 v[8];
                uint32_t tail[8];
#pragma unroll
                for (int step = 0; step < 8; ++step) {
                    const int line = (warp - 10) * 32 + step * 4 + (lane >> 3);
                    const int at = line * 128 + ((part ^ (line & 7)) * 16);
                    v[step] = *reinterpret_cast<const uint4*>(slot + at);
                    tail[step] = 0;
                    if (part == 7) tail[step] = *reinterpret_cast<const uint32_t*>(edge + line * 16);
                }
                __syncwarp();
#pragma unroll
                for (int step = 0; step < 8; ++step) {
                    const int line = (warp - 10) * 32 + step * 4 + (lane >> 3);
                    const int at = line * 128 + ((part ^ (line & 7)) * 16);
                    uint32_t next = __shfl_down_sync(0xffffffffu, v[step].x, 1);
                    if (part == 7) next = tail[step];
                    uint4 moved;
                    moved.x = __byte_perm(v[step].x, v[step].y, 0x5432);
                    moved.y = __byte_perm(v[step].y, v[step].z, 0x5432);
                    moved.z = __byte_perm(v[step].z, v[step].w, 0x5432);
                    moved.w = __byte_perm(v[step].w, next, 0x5432);
                    *reinterpret_cast<uint4*>(slot + 8192 + at) = moved;
                }
                show_stores();
                __syncwarp();
                if (lane == 0) arrive(&full[s]);
                __syncwarp();
            }
        }
    } else {
        const int me = warp / 4;               // which of the two consumer warpgroups
        const int w4 = warp % 4;
        const int c = lane & 3;

        // Places of staging stores for g0 = 0, 1 and rows + 0, + 8.
        const uint32_t stage_at = base_at + kStageAt + me * kStageBytes;
        uint32_t place_of[2][2];
#pragma unroll
        for (int g0 = 0; g0 < 2; ++g0) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int g = c * 2 + g0;
                const int byte = (w4 & 1) * 64 + h * 32 + (lane >> 2) * 4;
                place_of[g0][h] = stage_at + (w4 >> 1) * 1024 + g * 128 + (byte ^ (g * 16));
            }
        }

        const uint64_t b_start = describe(base_at + kWeightsAt, 4096, 1024);
        uint16_t* const out16 = reinterpret_cast<uint16_t*>(out);

        if (me == 1 && count > 0) meet_without_waiting(1, 256);
        int l = 0;
        for (int i = 0; i < count; ++i) {
            const int index = low + i, image = index / kPairs, q = index - image * kPairs;
            const bool first = i == 0 || q == 0;
            const bool last = i + 1 == count || q == kPairs - 1;
            l += first ? 2 : 1;
            if ((i & 1) != me) continue;
            const int l0 = l - 2, l1 = l - 1;
            const int s0 = l0 & (kSlots - 1), s1 = l1 & (kSlots - 1);
            wait(&loaded[s0], (l0 / kSlots) & 1);
            wait(&full[s0], (l0 / kSlots) & 1);
            wait(&loaded[s1], (l1 / kSlots) & 1);
            wait(&full[s1], (l1 / kSlots) & 1);
            __syncwarp();
            meet(1 + me, 256);   // my turn at the tensor cores

            float d[128];
            const uint64_t a0 = describe(base_at + kRowsAt + s0 * kSlotBytes, 8192, 1024);
            const uint64_t a1 = describe(base_at + kRowsAt + s1 * kSlotBytes, 8192, 1024);
            begin_products();
#pragma unroll
            for (int b = 0; b < 2; ++b) {
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    multiply(d, a0 + ((b * 8192 + k * 2048) >> 4), b_start + ((b * kTapBytes + k * 32) >> 4),
                             b + k > 0 ? 1 : 0);
                }
            }
#pragma unroll
            for (int b = 0; b < 2; ++b) {
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    multiply(d, a1 + ((b * 8192 + k * 2048) >> 4), b_start + (((2 + b) * kTapBytes + k * 32) >> 4), 1);
                }
            }
            commit_products();
            if (i + 1 < count) meet_without_waiting(2 - me, 256);   // the other's turn

            wait_all_products(d);
            if (lane == 0) {
                arrive(&empty[s0]);
                if (first) arrive(&empty[s0]);
                arrive(&empty[s1]);
                if (last) arrive(&empty[s1]);
            }
            __syncwarp();

            // Four chunks of 8 KB: py, then the upper bit of r.
#pragma unroll
            for (int chunk = 0; chunk < 4; ++chunk) {
                const int oy = 2 * q - 1 + (chunk >> 1);
                if (oy >= 0) {
                    uint32_t packed[16];
#pragma unroll
                    for (int g0 = 0; g0 < 2; ++g0) {
                        const float4 shift =
                            *reinterpret_cast<const float4*>(biases + c * 16 + g0 * 8 + (chunk & 1) * 4);
                        const float shifts[4] = {shift.x, shift.y, shift.z, shift.w};
#pragma unroll
                        for (int r = 0; r < 4; ++r) {
                            const int jj = r * 2 + g0;
                            const int j = chunk * 8 + jj;
#pragma unroll
                            for (int h = 0; h < 2; ++h) {
                                packed[2 * jj + h] = pair(quick_tanh(d[4 * j + 2 * h] + shifts[r]),
                                                          quick_tanh(d[4 * j + 2 * h + 1] + shifts[r]));
                            }
                        }
                    }
                    meet(3 + me, 128);   // all have read what was staged before
#pragma unroll
                    for (int jj = 0; jj < 8; ++jj) {
#pragma unroll
                        for (int h = 0; h < 2; ++h) {
                            store_word(place_of[jj & 1][h] + (jj >> 1) * 2048, packed[2 * jj + h]);
                        }
                    }
                    meet(3 + me, 128);

                    // This warp has the channels g * 8 + (chunk & 1) * 4 + w4, 128 outputs of each.
                    uint32_t words[8][2];
#pragma unroll
                    for (int g = 0; g < 8; ++g) {
                        const uint32_t at = stage_at + w4 * 2048 + g * 128 + ((lane * 4) ^ (g * 16));
                        words[g][0] = load_word(at);
                        words[g][1] = load_word(at + 1024);
                    }
                    uint16_t* const begin =
                        out16 + static_cast<int64_t>(image * 64 + (chunk & 1) * 4 + w4) * kPlane + oy * kOut + 1 +
                        128 * tile_column;
                    if (((w4 + oy + 1) & 1) == 0) {
                        // The first output lies at a multiple of 4 bytes.
#pragma unroll
                        for (int g = 0; g < 8; ++g) {
                            uint16_t* const to = begin + static_cast<int64_t>(g) * 8 * kPlane;
                            *reinterpret_cast<uint32_t*>(to + 2 * lane) = words[g][0];
                            *reinterpret_cast<uint32_t*>(to + 64 + 2 * lane) = words[g][1];
                        }
                    } else {
                        // The second one does.
#pragma unroll
                        for (int g = 0; g < 8; ++g) {
                            uint16_t* const to = begin + static_cast<int64_t>(g) * 8 * kPlane;
                            const uint32_t v0 = words[g][0], v1 = words[g][1];
                            const uint32_t t0 = __shfl_sync(0xffffffffu, v0, (lane + 1) & 31);
                            const uint32_t t1 = __shfl_sync(0xffffffffu, v1, (lane + 1) & 31);
                            const uint32_t n0 = lane == 31 ? t1 : t0;
                            *reinterpret_cast<uint32_t*>(to + 1 + 2 * lane) = __byte_perm(v0, n0, 0x5432);
                            if (lane < 31) {
                                *reinterpret_cast<uint32_t*>(to + 65 + 2 * lane) = __byte_perm(v1, t1, 0x5432);
                            } else {
                                to[127] = static_cast<uint16_t>(v1 >> 16);
                            }
                            if (lane == 0) to[0] = static_cast<uint16_t>(v0 & 0xffffu);
                            __syncwarp();
                        }
                    }
                    __syncwarp();
                }
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
    static int blocks = 0;
    if (encode == nullptr) {
        void* driver = dlopen("libcuda.so.1", RTLD_NOW);
        if (driver == nullptr) return 10001;
        EncodeTiled found = reinterpret_cast<EncodeTiled>(dlsym(driver, "cuTensorMapEncodeTiled"));
        if (found == nullptr) return 10002;
        int device = 0, processors = 0;
        cudaError_t error = cudaGetDevice(&device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaFuncSetAttribute(transposed_tanh_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        blocks = processors / 4 * 4;
        if (blocks < 4) blocks = 4;
        encode = found;
    }

    alignas(64) CUtensorMap map_x;
    alignas(64) CUtensorMap map_edge;
    const cuuint64_t sizes[3] = {kSide, kSide, static_cast<cuuint64_t>(batch) * 64};
    const cuuint64_t strides[2] = {kSide * 2, kSide * kSide * 2};
    const cuuint32_t steps[3] = {1, 1, 1};
    {
        const cuuint32_t box[3] = {64, 1, 64};
        const CUresult result =
            encode(&map_x, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(x), sizes, strides, box, steps,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
        if (result != CUDA_SUCCESS) return 20000 + static_cast<int>(result);
    }
    {
        const cuuint32_t box[3] = {8, 1, 64};
        const CUresult result =
            encode(&map_edge, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(x), sizes, strides, box, steps,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
        if (result != CUDA_SUCCESS) return 30000 + static_cast<int>(result);
    }
    transposed_tanh_kernel<<<static_cast<unsigned>(blocks), kThreads, kSharedBytes,
                             static_cast<cudaStream_t>(stream)>>>(
        map_x, map_edge, static_cast<const __nv_bfloat16*>(x), static_cast<const __nv_bfloat16*>(weight),
        static_cast<const __nv_bfloat16*>(conv_bias), static_cast<const __nv_bfloat16*>(bias),
        static_cast<__nv_bfloat16*>(out), static_cast<int>(batch) * kPairs);
    return static_cast<int>(cudaGetLastError());
}
"""

SOURCE = SOURCE.replace("@REGISTERS@", ", ".join(f"%{i}" for i in range(128)))
SOURCE = SOURCE.replace("@OPERANDS@", ", ".join(f'"+f"(d[{i}])' for i in range(128)))

library = ctypes.CDLL(
    load_inline(
        name="transposed_tanh",
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
