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
constexpr int kStages = 2;         // one for each consumer group
constexpr int kAhead = 4;          // strips of prefetch into L2
constexpr int kRowBytes = kSide * 16;            // one row of 8 fp16 channels a pixel
constexpr int kPieceBytes = 6 * kRowBytes;       // 12288
constexpr int kStageBytes = 2 * kPieceBytes;     // lo rows, then hi rows
constexpr int kSpill = 9;                        // the first strips go through global memory
constexpr int kKept = kPool - kSpill;            // 22 strips stay in shared memory
constexpr int kPitch = kKept * kPool;            // 682 floats a channel
constexpr int kPoolAt = kStages * kStageBytes;   // 49152
constexpr int kZeroAt = kPoolAt + kOut * kPitch * 4;  // 223744
constexpr int kSharedBytes = kZeroAt + kRowBytes;     // 225792
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

// D (64 x 128) += A (64 x 16, registers) B (16 x 128, K-major lines in shared memory), fp16.
__device__ __forceinline__ void multiply(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// Lines of 16 bytes, no swizzle: k 0 to 7 from `address`, k 8 to 15 from `address + leading`, 8 lines are 128 bytes.
__device__ __forceinline__ uint64_t window(uint32_t address, uint32_t leading) {
    return (uint64_t(8) << 32) | uint64_t(((leading >> 4) << 16) | (address >> 4));
}
__host__ __device__ constexpr uint32_t tap_offset(int tap) { return (tap / 3) * kRowBytes + (tap % 3) * 16; }

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
            start_barrier(&empty[s], 4);
        }
        show_started();
    }
    if (threadIdx.x < kRowBytes / 16) {
        reinterpret_cast<uint4*>(shared + kZeroAt)[threadIdx.x] = make_uint4(0u, 0u, 0u, 0u);
        show_stores();
    }
    __syncthreads();

    if (group == 2) {
        // The producer: a thread a column.
        give_up_registers<120>();
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
            const int stage = s % kStages, parity = s / kStages % 2;
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

            uint32_t high[6][4], low[6][4];
#pragma unroll
            for (int r = 0; r < 6; ++r) {
#pragma unroll
                for (int p = 0; p < 4; ++p) {
                    split_pair(v[r][2 * p] * factor, v[r][2 * p + 1] * factor, high[r][p], low[r][p]);
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

            wait_for(&empty[stage], parity ^ 1);
            unsigned char* to = shared + stage * kStageBytes + column * 16;
#pragma unroll
            for (int r = 0; r < 6; ++r) {
                *reinterpret_cast<uint4*>(to + r * kRowBytes) =
                    make_uint4(low[r][0], low[r][1], low[r][2], low[r][3]);
                *reinterpret_cast<uint4*>(to + kPieceBytes + r * kRowBytes) =
                    make_uint4(high[r][0], high[r][1], high[r][2], high[r][3]);
            }
            if (column == 0) inverse_x[stage] = inverse;
            show_stores();
            arrive(&full[stage]);
        }
    } else {
        // Two consumers: strips in turn; row by row one multiplies while the other takes maxima and sums.
        take_registers<192>();
        const int t = threadIdx.x % 128;
        const int warp = t / 32, lane = t % 32, quad = lane % 4;
        const int row = warp * 16 + lane / 4;  // channels row and row + 8
        const bool last_quad = quad == 3;
        const bool odd = (lane & 1) != 0;
        const bool right = (lane & 2) != 0;

        uint32_t high[4][4], low[4][4], both[4];
        float inverse_w[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int channel = row + 8 * h;
            const float* from = weight + (channel * kIn + quad * 2) * 9;
            float w[18];
            float largest = 0.0f;
#pragma unroll
            for (int i = 0; i < 18; ++i) {
                w[i] = __ldg(from + i);
                largest = fmaxf(largest, fabsf(w[i]));
            }
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            float factor;
            power_of_two(__float_as_uint(largest), factor, inverse_w[h]);
            factor *= sign_of(gamma[channel], scale[channel]);
#pragma unroll
            for (int tap = 0; tap < 9; ++tap) {
                uint32_t hi, lo;
                split_pair(w[tap] * factor, w[9 + tap] * factor, hi, lo);
                if (tap < 8) {
                    high[tap / 2][tap % 2 * 2 + h] = hi;
                    low[tap / 2][tap % 2 * 2 + h] = lo;
                } else {
                    both[h] = hi;
                    both[2 + h] = lo;
                }
            }
        }

        double sum[2] = {0.0, 0.0}, square[2] = {0.0, 0.0};
        float d[64];
#pragma unroll
        for (int i = 0; i < 64; ++i) d[i] = 0.0f;
        const uint32_t shared_base = shared_address(shared);
        const uint32_t zeros = shared_base + kZeroAt;
        float* pooled = reinterpret_cast<float*>(shared + kPoolAt);
        float* out_image = out + static_cast<int64_t>(image) * kImage;
        float* out_warp = out_image + warp * 16 * kArea;

        // Barriers 1 and 2: the turns of groups 0 and 1, 64 each.
        if (group == 1) pass_turn(1, 256);

#pragma unroll 1
        for (int s = group; s < kStrips; s += 2) {
            const int stage = s % kStages, parity = s / kStages % 2;
            const int rows = s == kStrips - 1 ? 2 : 4;
            wait_for(&full[stage], parity);
            __syncwarp();
            const float inverse_strip = inverse_x[stage];
            float best[16][2];
#pragma unroll
            for (int j = 0; j < 16; ++j) best[j][0] = best[j][1] = __int_as_float(0xff800000);
            float shift[2] = {0.0f, 0.0f}, first[2] = {0.0f, 0.0f}, second[2] = {0.0f, 0.0f};

#pragma unroll 1
            for (int r = 0; r < rows; ++r) {
                const uint32_t x_low = shared_base + stage * kStageBytes + r * kRowBytes;
                const uint32_t x_high = x_low + kPieceBytes;
                meet(1 + group, 256);
                begin_products();
#pragma unroll
                for (int p = 0; p < 4; ++p) {
                    const uint32_t at = tap_offset(2 * p), leading = tap_offset(2 * p + 1) - tap_offset(2 * p);
                    multiply(d, high[p], window(x_low + at, leading), p > 0 ? 1 : 0);
                }
#pragma unroll
                for (int p = 0; p < 4; ++p) {
                    const uint32_t at = tap_offset(2 * p), leading = tap_offset(2 * p + 1) - tap_offset(2 * p);
                    multiply(d, low[p], window(x_high + at, leading), 1);
                }
                multiply(d, both, window(x_low + tap_offset(8), kPieceBytes), 1);
#pragma unroll
                for (int p = 0; p < 4; ++p) {
                    const uint32_t at = tap_offset(2 * p), leading = tap_offset(2 * p + 1) - tap_offset(2 * p);
                    multiply(d, high[p], window(x_high + at, leading), 1);
                }
                multiply(d, both, window(x_high + tap_offset(8), zeros - (x_high + tap_offset(8))), 1);
                commit_products();
                pass_turn(2 - group, 256);
                wait_products<0>(d);

                if (r == rows - 1) {  // the stage has been read
                    __syncwarp();
                    if (lane == 0) arrive(&empty[stage]);
                    __syncwarp();
                }
                if (r == 0) {
                    shift[0] = d[0];
                    shift[1] = d[2];
                }
#pragma unroll
                for (int j = 0; j < 16; ++j) {
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const float a = d[4 * j + 2 * h], b = d[4 * j + 2 * h + 1];
                        best[j][h] = fmaxf(best[j][h], fmaxf(a, b));
                        float from_a = a - shift[h], from_b = b - shift[h];
                        if (j == 15) {  // columns 126 and 127 are no outputs
                            from_a = last_quad ? 0.0f : from_a;
                            from_b = last_quad ? 0.0f : from_b;
                        }
                        first[h] += from_a;
                        second[h] = fmaf(from_a, from_a, second[h]);
                        first[h] += from_b;
                        second[h] = fmaf(from_b, from_b, second[h]);
                    }
                }
            }
            // Group 1's last strip has two rows: two empty turns, the last of which nobody waits for.
#pragma unroll 1
            for (int r = rows; r < 4; ++r) {
                meet(1 + group, 256);
                if (r < 3) pass_turn(2 - group, 256);
            }

            const double count = static_cast<double>(rows * (last_quad ? 30 : 32));
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const double inverse = static_cast<double>(inverse_strip) * static_cast<double>(inverse_w[h]);
                const double k = shift[h], s1 = first[h], s2 = second[h];
                sum[h] += inverse * (count * k + s1);
                square[h] += inverse * inverse * (s2 + k * (2.0 * s1 + count * k));
            }

            if (s < kPool) {
                const float inverse = inverse_strip * (odd ? inverse_w[1] : inverse_w[0]);
                // Early strips pass through the place of strip 28 or 29, which this very warp fills later.
                const int slot = s < kSpill ? kKept - 3 + group : s - kSpill;
                float* to = pooled + (row + (odd ? 8 : 0)) * kPitch + slot * kPool + (right ? 1 : 0);
#pragma unroll
                for (int j = 0; j < 16; ++j) {
                    const float send = odd ? best[j][0] : best[j][1];
                    const float keep = odd ? best[j][1] : best[j][0];
                    const float got = __shfl_xor_sync(0xffffffffu, send, 1);
                    if (j < 15 || !right) to[2 * j] = fmaxf(keep, got) * inverse;  // no column 31
                }
                if (s < kSpill) {
                    __syncwarp();
                    if (lane < kPool) {
                        const float* from = pooled + warp * 16 * kPitch + slot * kPool + lane;
#pragma unroll
                        for (int k = 0; k < 16; ++k) {
                            out_warp[(k * kPool + s) * kPool + lane] = from[k * kPitch];
                        }
                    }
                    __syncwarp();
                }
            }
        }

        // The early strips come back, each value to the lane that wrote it (lane 31 repeats lane 30 and stores none).
        constexpr int kEarly = (kSpill + 1) / 2;
        float early[kEarly][16];
        {
            const int column = lane < kPool ? lane : kPool - 1;
            __syncwarp();
#pragma unroll
            for (int i = 0; i < kEarly; ++i) {
                const int s = group + 2 * i;
#pragma unroll
                for (int k = 0; k < 16; ++k) early[i][k] = 0.0f;
                if (s < kSpill) {
#pragma unroll
                    for (int k = 0; k < 16; ++k) early[i][k] = load_back(out_warp + (k * kPool + s) * kPool + column);
                }
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
#pragma unroll
        for (int k = 0; k < 16; ++k) {
            const float a = slope[warp * 16 + k], b = offset[warp * 16 + k];
#pragma unroll
            for (int i = 0; i < kEarly; ++i) {
                const int s = group + 2 * i;
                if (s < kSpill && lane < kPool) {
                    out_warp[(k * kPool + s) * kPool + lane] =
                        clamp_nan(fmaf(early[i][k], a, b), clamp_min, clamp_max);
                }
            }
        }
        // The other strips from shared memory: 682 values in a row of each channel, in aligned lines of 32. Reads
        // before and behind a channel's values stay inside the shared memory and are not stored.
        constexpr int kLines = (kPitch + 31 + 31) / 32;  // 23
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
                if (static_cast<unsigned>(at + 32 * k) < static_cast<unsigned>(kPitch)) {
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
        name="conv_norm_pool_kept",
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
