import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int kIn = 8;             // input channels
constexpr int kOut = 64;           // output channels
constexpr int kSide = 128;         // input height and width
constexpr int kPlane = kSide * kSide;
constexpr int kConv = 126;         // convolution height and width
constexpr int kPool = 31;          // pooled height and width
constexpr int kArea = kPool * kPool;
constexpr int kStrips = 32;        // 31 strips of 4 conv rows, one of 2
constexpr int kPairs = kConv / 2;  // 63 pairs of conv rows
constexpr int kStages = 4;         // a stage holds the four transformed rows of a pair
constexpr int kAhead = 4;          // strips of prefetch into L2
constexpr int kRowBytes = kSide * 16;            // one row of 8 fp16 channels a pixel
constexpr int kPieceBytes = 4 * kRowBytes;       // 8192
constexpr int kStageBytes = 2 * kPieceBytes;     // lo rows, then hi rows
constexpr int kHalfBytes = kRowBytes / 2;        // 64 columns, the part of a group
constexpr int kSpill = 11;                       // the first strips go through global memory
constexpr int kKept = kPool - kSpill;            // 20 strips stay in shared memory
constexpr int kLive = kKept * kPool;             // 620 floats a channel
constexpr int kPitch = kLive + 2;                // 622
constexpr int kPoolAt = kStages * kStageBytes;   // 65536
constexpr int kZeroAt = kPoolAt + kOut * kPitch * 4;  // 224768
constexpr int kSharedBytes = kZeroAt + kHalfBytes;    // 225792
constexpr int kImage = kOut * kArea;             // 61504 pooled values an image
static_assert(kPitch % 2 == 0 && kPitch / 2 % 2 == 1, "the stores of fragments are free of conflicts");

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void start_barrier(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void show_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void wait_for(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}
__device__ __forceinline__ void show_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void pin(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
__device__ __forceinline__ void wait_products() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
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
__device__ __forceinline__ void pass_turn(int name, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ float load_once(const float* pointer) {
    float value;
    asm volatile("ld.global.nc.L1::no_allocate.f32 %0, [%1];" : "=f"(value) : "l"(pointer));
    return value;
}
__device__ __forceinline__ float load_back(const float* pointer) {
    float value;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(pointer) : "memory");
    return value;
}
__device__ __forceinline__ void prefetch(const float* pointer) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer));
}
__device__ __forceinline__ float clamp_nan(float z, float low, float high) {
    z = z < low ? low : z;
    return z > high ? high : z;
}

// D (64 x 64) += A (64 x 16, registers) B (16 x 64, K-major lines in shared memory), fp16.
__device__ __forceinline__ void multiply(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// Lines of 16 bytes, no swizzle: k 0 to 7 from `address`, k 8 to 15 from `address + leading`, 8 lines are 128 bytes.
__device__ __forceinline__ uint64_t window(uint32_t address, uint32_t leading) {
    return (uint64_t(8) << 32) | uint64_t(((leading >> 4) << 16) | (address >> 4));
}

// Two points of the transform, each into its accumulator: lo x hi, hi x lo, hi x hi for the three taps of a row.
// `u_low` and `v_low` are the lo rows of the two points, at this group's columns. The turn is passed before the end.
__device__ __forceinline__ void two_points(float (&u)[32], float (&v)[32], const uint32_t (&u_high_w)[4],
                                           const uint32_t (&u_low_w)[4], const uint32_t (&u_both_w)[4],
                                           const uint32_t (&v_high_w)[4], const uint32_t (&v_low_w)[4],
                                           const uint32_t (&v_both_w)[4], uint32_t u_low, uint32_t v_low,
                                           uint32_t zeros, int add_v, int next_turn) {
    const uint32_t u_high = u_low + kPieceBytes, v_high = v_low + kPieceBytes;
    pin(u);
    pin(v);
    begin_products();
    multiply(u, u_high_w, window(u_low, 16), 1);
    multiply(v, v_high_w, window(v_low, 16), add_v);
    multiply(u, u_low_w, window(u_high, 16), 1);
    multiply(v, v_low_w, window(v_high, 16), 1);
    multiply(u, u_both_w, window(u_low + 32, kPieceBytes), 1);
    multiply(v, v_both_w, window(v_low + 32, kPieceBytes), 1);
    multiply(u, u_high_w, window(u_high, 16), 1);
    multiply(v, v_high_w, window(v_high, 16), 1);
    pass_turn(next_turn, 256);
    multiply(u, u_both_w, window(u_high + 32, zeros - (u_high + 32)), 1);
    multiply(v, v_both_w, window(v_high + 32, zeros - (v_high + 32)), 1);
    commit_products();
    wait_products();
    pin(u);
    pin(v);
}

// The power of two that brings a largest magnitude (its bits) to 2^14 .. 2^15, and its inverse.
__device__ __forceinline__ void power_of_two(uint32_t largest, float& scale, float& inverse) {
    uint32_t exponent = largest >> 23;
    exponent = exponent < 15u ? 15u : (exponent > 254u ? 254u : exponent);
    scale = __uint_as_float((268u - exponent) << 23);
    inverse = __uint_as_float((exponent - 14u) << 23);
}

__device__ __forceinline__ void split_pair(float a, float b, uint32_t& high, uint32_t& low) {
    const __half2 h = __floats2half2_rn(a, b);
    const float2 back = __half22float2(h);
    const __half2 l = __floats2half2_rn(a - back.x, b - back.y);
    high = *reinterpret_cast<const uint32_t*>(&h);
    low = *reinterpret_cast<const uint32_t*>(&l);
}

__device__ __forceinline__ float sign_of(float gamma, float scale) {
    return ((gamma < 0.0f) != (scale < 0.0f)) ? -1.0f : 1.0f;
}

__global__ void __launch_bounds__(384, 1)
conv_norm_pool_kernel(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                      const float* __restrict__ gamma, const float* __restrict__ beta,
                      const float* __restrict__ scale, float* out, float eps, float clamp_min, float clamp_max) {
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ uint64_t full[kStages];
    __shared__ uint64_t empty[kStages];
    __shared__ float inverse_x[kStages];
    __shared__ uint32_t largest_of_warp[2][4];
    __shared__ double statistics[2][kOut][2];
    __shared__ float slope[kOut];
    __shared__ float offset[kOut];

    const int image = blockIdx.x;
    const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);

    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) {
            start_barrier(&full[s], 128);
            start_barrier(&empty[s], 8);
        }
        show_started();
    }
    if (threadIdx.x < kHalfBytes / 16) {
        reinterpret_cast<uint4*>(shared + kZeroAt)[threadIdx.x] = make_uint4(0u, 0u, 0u, 0u);
        show_stores();
    }
    __syncthreads();

    if (group == 2) {
        // The producer: a thread a column.
        give_up_registers<136>();
        const int column = threadIdx.x - 256;
        const int warp = column / 32, lane = column % 32;
        const float* image_x = x + static_cast<int64_t>(image) * (kIn * kPlane);
        const float* source = image_x + column;
        float v[6][kIn];
#pragma unroll
        for (int r = 0; r < 6; ++r) {
#pragma unroll
            for (int c = 0; c < kIn; ++c) v[r][c] = load_once(source + c * kPlane + r * kSide);
        }
        // Strip s (from 1 on) adds rows 4 s + 2 to 4 s + 5: 16 lines of 128 bytes in each of 8 channels, one a thread.
        const int ahead_row = 2 + column % 16 / 4;
        const float* ahead = image_x + (column / 16) * kPlane + 2 * kSide + (column % 16) * 32;
#pragma unroll
        for (int k = 1; k < kAhead; ++k) prefetch(ahead + 4 * k * kSide);

#pragma unroll 1
        for (int s = 0; s < kStrips; ++s) {
            float largest = 0.0f;
#pragma unroll
            for (int r = 0; r < 6; ++r) {
#pragma unroll
                for (int c = 0; c < kIn; ++c) largest = fmaxf(largest, fabsf(v[r][c]));
            }
            uint32_t bits = __reduce_max_sync(0xffffffffu, __float_as_uint(largest));
            if (lane == 0) largest_of_warp[s & 1][warp] = bits;
            meet(3, 128);
            bits = max(max(largest_of_warp[s & 1][0], largest_of_warp[s & 1][1]),
                       max(largest_of_warp[s & 1][2], largest_of_warp[s & 1][3]));
            float factor, inverse;
            power_of_two(bits, factor, inverse);
            factor *= 0.5f;  // sums of two stay below 2^15
            inverse *= 2.0f;

            // Pair `half` has input rows 2 half to 2 half + 3 of the strip.
            uint32_t high[2][4][4], low[2][4][4];
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                float u[6][2];
#pragma unroll
                for (int r = 0; r < 6; ++r) {
                    u[r][0] = v[r][2 * p] * factor;
                    u[r][1] = v[r][2 * p + 1] * factor;
                }
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int b = 2 * half;
                    split_pair(u[b][0] - u[b + 2][0], u[b][1] - u[b + 2][1], high[half][0][p], low[half][0][p]);
                    split_pair(u[b + 1][0] + u[b + 2][0], u[b + 1][1] + u[b + 2][1], high[half][1][p],
                               low[half][1][p]);
                    split_pair(u[b + 2][0] - u[b + 1][0], u[b + 2][1] - u[b + 1][1], high[half][2][p],
                               low[half][2][p]);
                    split_pair(u[b + 3][0] - u[b + 1][0], u[b + 3][1] - u[b + 1][1], high[half][3][p],
                               low[half][3][p]);
                }
            }

            // The next strip's rows 0 and 1 are this one's rows 4 and 5; the loads run while this one waits.
#pragma unroll
            for (int c = 0; c < kIn; ++c) {
                v[0][c] = v[4][c];
                v[1][c] = v[5][c];
            }
            if (s + 1 < kStrips) {
                const float* next = source + 4 * (s + 1) * kSide;
                // The last strip has no rows 4 and 5 (and uses none): rows 2 and 3 stand in for them.
                const float* late = s + 2 == kStrips ? next - 2 * kSide : next;
#pragma unroll
                for (int r = 2; r < 6; ++r) {
#pragma unroll
                    for (int c = 0; c < kIn; ++c) {
                        v[r][c] = load_once((r < 4 ? next : late) + c * kPlane + r * kSide);
                    }
                }
            }
            if (4 * (s + kAhead) + ahead_row < kSide) prefetch(ahead + 4 * (s + kAhead) * kSide);

#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int pair = 2 * s + half;
                if (pair < kPairs) {
                    const int stage = pair % kStages, parity = pair / kStages % 2;
                    wait_for(&empty[stage], parity ^ 1);
                    unsigned char* to = shared + stage * kStageBytes + column * 16;
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        *reinterpret_cast<uint4*>(to + i * kRowBytes) =
                            make_uint4(low[half][i][0], low[half][i][1], low[half][i][2], low[half][i][3]);
                        *reinterpret_cast<uint4*>(to + kPieceBytes + i * kRowBytes) =
                            make_uint4(high[half][i][0], high[half][i][1], high[half][i][2], high[half][i][3]);
                    }
                    if (column == 0) inverse_x[stage] = inverse;
                    show_stores();
                    arrive(&full[stage]);
                }
            }
        }
    } else {
        // Two consumers, 64 columns each: in turn one multiplies while the other takes maxima and sums.
        take_registers<184>();
        const int t = threadIdx.x % 128;
        const int warp = t / 32, lane = t % 32, quad = lane % 4;
        const int row = warp * 16 + lane / 4;  // channels row and row + 8
        const bool last_quad = group == 1 && quad == 3;  // has columns 126 and 127
        const bool odd = (lane & 1) != 0;
        const bool right = (lane & 2) != 0;

        // The transformed weights of the four points: taps 0 and 1 of a row, and tap 2 as hi and lo.
        uint32_t high[4][4], low[4][4], both[4][4];
        float inverse_w[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int channel = row + 8 * h;
            const float* from = weight + (channel * kIn + quad * 2) * 9;
            float w[4][3][2];
            float largest = 0.0f;
#pragma unroll
            for (int e = 0; e < 2; ++e) {
#pragma unroll
                for (int tap = 0; tap < 3; ++tap) {
                    const float g0 = __ldg(from + e * 9 + tap);
                    const float g1 = __ldg(from + e * 9 + 3 + tap);
                    const float g2 = __ldg(from + e * 9 + 6 + tap);
                    w[0][tap][e] = g0;
                    w[1][tap][e] = 0.5f * ((g0 + g2) + g1);
                    w[2][tap][e] = 0.5f * ((g0 + g2) - g1);
                    w[3][tap][e] = g2;
#pragma unroll
                    for (int i = 0; i < 4; ++i) largest = fmaxf(largest, fabsf(w[i][tap][e]));
                }
            }
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            float factor;
            power_of_two(__float_as_uint(largest), factor, inverse_w[h]);
            factor *= sign_of(gamma[channel], scale[channel]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int tap = 0; tap < 3; ++tap) {
                    uint32_t hi, lo;
                    split_pair(w[i][tap][0] * factor, w[i][tap][1] * factor, hi, lo);
                    if (tap < 2) {
                        high[i][tap * 2 + h] = hi;
                        low[i][tap * 2 + h] = lo;
                    } else {
                        both[i][h] = hi;
                        both[i][2 + h] = lo;
                    }
                }
            }
        }

        double sum[2] = {0.0, 0.0}, square[2] = {0.0, 0.0};
        float upper[32], under[32];  // the two conv rows of a pair
#pragma unroll
        for (int i = 0; i < 32; ++i) upper[i] = under[i] = 0.0f;
        const uint32_t shared_base = shared_address(shared);
        const uint32_t zeros = shared_base + kZeroAt;
        float* pooled = reinterpret_cast<float*>(shared + kPoolAt);
        float* out_image = out + static_cast<int64_t>(image) * kImage;
        float* out_warp = out_image + warp * 16 * kArea;
        // Pooled strips through global memory: a lane has a column and every second channel of the warp.
        const int side = lane / 16;
        const int side_column = group * 16 + lane % 16;
        const bool side_live = side_column < kPool;

        float best[8][2];
#pragma unroll
        for (int j = 0; j < 8; ++j) best[j][0] = best[j][1] = __int_as_float(0xff800000);
        float shift[2] = {0.0f, 0.0f}, first[2] = {0.0f, 0.0f}, second[2] = {0.0f, 0.0f};
        float old_shift[2] = {0.0f, 0.0f};
        float inverse_strip = 1.0f, old_inverse = 1.0f;

        // Barriers 1 and 2: the turns of groups 0 and 1, 128 arrivals each of both.
        if (group == 1) pass_turn(1, 256);

#pragma unroll 1
        for (int q = 0; q < kPairs; ++q) {
            const int stage = q % kStages;
            wait_for(&full[stage], q / kStages % 2);
            __syncwarp();
            if (q % 2 == 0) {
                // A strip begins. Its shift is the mean that lane 1 of the quad saw in the strip before (64 values).
                old_inverse = inverse_strip;
                inverse_strip = inverse_x[stage];
                const float ratio = old_inverse * __uint_as_float(0x7f000000u - __float_as_uint(inverse_strip));
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    old_shift[h] = shift[h];
                    const float mean = fmaf(first[h], 0.015625f, shift[h]);
                    const float k = __shfl_sync(0xffffffffu, mean, (lane & 28) | 1) * ratio;
                    shift[h] = fabsf(k) < 1e11f ? k : 0.0f;
                }
            }
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                upper[4 * j] = upper[4 * j + 1] = -shift[0];
                upper[4 * j + 2] = upper[4 * j + 3] = -shift[1];
            }
            const uint32_t x_low = shared_base + stage * kStageBytes + group * kHalfBytes;

            meet(1 + group, 256);
            two_points(upper, under, high[1], low[1], both[1], high[2], low[2], both[2], x_low + kRowBytes,
                       x_low + 2 * kRowBytes, zeros, 0, 2 - group);
#pragma unroll
            for (int i = 0; i < 32; ++i) {
                const float a = upper[i], b = under[i];
                upper[i] = a + b;
                under[i] = a - b;
            }

            if (q % 2 == 0 && q > 0) {
                // The strip before is complete.
                const int s = q / 2 - 1;
                const double count = last_quad ? 56.0 : 64.0;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const double inverse = static_cast<double>(old_inverse) * static_cast<double>(inverse_w[h]);
                    const double k = old_shift[h], s1 = first[h], s2 = second[h];
                    sum[h] += inverse * (count * k + s1);
                    square[h] += inverse * inverse * (s2 + k * (2.0 * s1 + count * k));
                    first[h] = second[h] = 0.0f;
                }
                const float inverse = old_inverse * (odd ? inverse_w[1] : inverse_w[0]);
                const float k = odd ? old_shift[1] : old_shift[0];  // the same in the lanes of a quad
                // Early strips pass through the place of strip 30, which this very warp fills later.
                const int slot = s < kSpill ? kKept - 1 : s - kSpill;
                float* to = pooled + (row + (odd ? 8 : 0)) * kPitch + slot * kPool + group * 16 + (right ? 1 : 0);
                const bool beyond = group == 1 && right;
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    const float send = odd ? best[j][0] : best[j][1];
                    const float keep = odd ? best[j][1] : best[j][0];
                    const float got = __shfl_xor_sync(0xffffffffu, send, 1);
                    if (j < 7 || !beyond) to[2 * j] = (fmaxf(keep, got) + k) * inverse;  // no column 31
                    best[j][0] = best[j][1] = __int_as_float(0xff800000);
                }
                if (s < kSpill) {
                    __syncwarp();
                    if (side_live) {
                        const float* from = pooled + (warp * 16 + side) * kPitch + slot * kPool + side_column;
                        float* early_to = out_warp + (side * kPool + s) * kPool + side_column;
#pragma unroll
                        for (int i = 0; i < 8; ++i) early_to[2 * i * kArea] = from[2 * i * kPitch];
                    }
                    __syncwarp();
                }
            }

            meet(1 + group, 256);
            two_points(upper, under, high[0], low[0], both[0], high[3], low[3], both[3], x_low,
                       x_low + 3 * kRowBytes, zeros, 1, 2 - group);

            __syncwarp();
            if (lane == 0) arrive(&empty[stage]);  // the stage has been read
            __syncwarp();
#pragma unroll
            for (int j = 0; j < 8; ++j) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    float a = upper[4 * j + 2 * h], b = upper[4 * j + 2 * h + 1];
                    float c = under[4 * j + 2 * h], e = under[4 * j + 2 * h + 1];
                    best[j][h] = fmaxf(best[j][h], fmaxf(fmaxf(a, b), fmaxf(c, e)));
                    if (j == 7) {  // columns 126 and 127 are no outputs
                        a = last_quad ? 0.0f : a;
                        b = last_quad ? 0.0f : b;
                        c = last_quad ? 0.0f : c;
                        e = last_quad ? 0.0f : e;
                    }
                    first[h] += a;
                    second[h] = fmaf(a, a, second[h]);
                    first[h] += b;
                    second[h] = fmaf(b, b, second[h]);
                    first[h] += c;
                    second[h] = fmaf(c, c, second[h]);
                    first[h] += e;
                    second[h] = fmaf(e, e, second[h]);
                }
            }
        }
        if (group == 0) meet(1, 256);  // takes up group 1's last arrival

        // The last strip has one pair of rows and no pooled values.
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const double count = last_quad ? 28.0 : 32.0;
            const double inverse = static_cast<double>(inverse_strip) * static_cast<double>(inverse_w[h]);
            const double k = shift[h], s1 = first[h], s2 = second[h];
            sum[h] += inverse * (count * k + s1);
            square[h] += inverse * inverse * (s2 + k * (2.0 * s1 + count * k));
        }

        // The early strips come back, each value to the lane that wrote it (a lane at column 31 repeats column 30 and
        // stores nothing).
        float early[kSpill][8];
        {
            const int column = side_live ? side_column : kPool - 1;
            const float* from = out_warp + side * kArea + column;
            __syncwarp();
#pragma unroll
            for (int s = 0; s < kSpill; ++s) {
#pragma unroll
                for (int i = 0; i < 8; ++i) early[s][i] = load_back(from + 2 * i * kArea + s * kPool);
            }
        }

        // Statistics of the image.
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int step = 1; step <= 2; step *= 2) {
                sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], step);
                square[h] += __shfl_xor_sync(0xffffffffu, square[h], step);
            }
            if (quad == 0) {
                statistics[group][row + 8 * h][0] = sum[h];
                statistics[group][row + 8 * h][1] = square[h];
            }
        }
        meet(4, 256);
        const int thread = threadIdx.x;
        if (thread < kOut) {
            const double pixels = static_cast<double>(kConv * kConv);
            double total = 0.0, squares = 0.0;
            for (int k = 0; k < 4; ++k) {
                const int c = (thread & ~3) + k;
                const double b = bias[c];
                const double s1 = static_cast<double>(sign_of(gamma[c], scale[c])) *
                                  (statistics[0][c][0] + statistics[1][c][0]);
                const double s2 = statistics[0][c][1] + statistics[1][c][1];
                total += s1 + pixels * b;
                squares += s2 + b * (2.0 * s1 + pixels * b);
            }
            const double mean = total / (4.0 * pixels);
            double variance = squares / (4.0 * pixels) - mean * mean;
            if (variance < 0.0) variance = 0.0;
            const double factor = static_cast<double>(gamma[thread]) * static_cast<double>(scale[thread]) /
                                  sqrt(variance + static_cast<double>(eps));
            slope[thread] = static_cast<float>(static_cast<double>(sign_of(gamma[thread], scale[thread])) * factor);
            offset[thread] =
                static_cast<float>((static_cast<double>(bias[thread]) - mean) * factor +
                                   static_cast<double>(beta[thread]) * static_cast<double>(scale[thread]));
        }
        meet(4, 256);

        // The affine map and the clamp: a warp's early strips from its registers.
        if (side_live) {
            float* to = out_warp + side * kArea + side_column;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int c = warp * 16 + 2 * i + side;
                const float a = slope[c], b = offset[c];
#pragma unroll
                for (int s = 0; s < kSpill; ++s) {
                    to[2 * i * kArea + s * kPool] = clamp_nan(fmaf(early[s][i], a, b), clamp_min, clamp_max);
                }
            }
        }
        // The other strips from shared memory: 620 values in a row of each channel, in aligned lines of 32. Reads
        // before and behind a channel's values stay inside the shared memory and are not stored.
        constexpr int kLines = (kLive + 31 + 31) / 32;  // 21
#pragma unroll 1
        for (int i = 0; i < 8; ++i) {
            const int c = (thread / 32) * 8 + i;
            const float a = slope[c], b = offset[c];
            const int start = c * kArea + kSpill * kPool;
            const int at = lane - (start & 31);
            const float* from = pooled + c * kPitch + at;
            float* to = out_image + start + at;
            float y[kLines];
#pragma unroll
            for (int k = 0; k < kLines; ++k) y[k] = from[32 * k];
#pragma unroll
            for (int k = 0; k < kLines; ++k) {
                if (static_cast<unsigned>(at + 32 * k) < static_cast<unsigned>(kLive)) {
                    to[32 * k] = clamp_nan(fmaf(y[k], a, b), clamp_min, clamp_max);
                }
            }
        }
    }
}

extern "C" int conv_norm_pool(const float* x, const float* weight, const float* bias, const float* gamma,
                              const float* beta, const float* scale, float* out, int64_t images, float eps,
                              float clamp_min, float clamp_max, void* stream) {
    if (images == 0) return 0;
    static bool ready = false;
    if (!ready) {
        const cudaError_t error =
            cudaFuncSetAttribute(conv_norm_pool_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        ready = true;
    }
    conv_norm_pool_kernel<<<static_cast<unsigned>(images), 384, kSharedBytes, static_cast<cudaStream_t>(stream)>>>(
        x, weight, bias, gamma, beta, scale, out, eps, clamp_min, clamp_max);
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="conv_norm_pool_winograd",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
conv_norm_pool = library.conv_norm_pool
conv_norm_pool.argtypes = (
    [ctypes.c_void_p] * 7 + [ctypes.c_int64] + [ctypes.c_float] * 3 + [ctypes.c_void_p]
)
conv_norm_pool.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, num_groups, scale_shape, maxpool_kernel_size,
                 clamp_min, clamp_max):
        super().__init__()
        if (in_channels, out_channels, kernel_size, num_groups, maxpool_kernel_size) != (8, 64, 3, 16, 4):
            raise ValueError("specialised for 8 to 64 channels, kernel 3, 16 groups, pool 4")
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.group_norm = nn.GroupNorm(num_groups, out_channels)
        self.scale = nn.Parameter(torch.ones(scale_shape))
        self.maxpool = nn.MaxPool2d(kernel_size=maxpool_kernel_size)
        self.clamp_min = clamp_min
        self.clamp_max = clamp_max

    def forward(self, x):
        x = x.contiguous()
        if x.shape[1:] != (8, 128, 128):
            raise ValueError("specialised for inputs of 8 x 128 x 128")
        images = x.shape[0]
        out = torch.empty((images, 64, 31, 31), dtype=x.dtype, device=x.device)
        weight = self.conv.weight.contiguous()
        bias = self.conv.bias
        gamma = self.group_norm.weight
        beta = self.group_norm.bias
        scale = self.scale.contiguous()
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
            self.group_norm.eps,
            self.clamp_min,
            self.clamp_max,
            stream,
        )
        if error:
            raise RuntimeError(f"conv_norm_pool: CUDA error {error}")
        return out
