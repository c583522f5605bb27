import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_fp16.h>

constexpr int kCin = 64;
constexpr int kCout = 64;
constexpr int kSide = 256;                     // input rows and columns
constexpr int kPlaneIn = kSide * kSide;
constexpr int kPitch = kSide + 1;              // positions in a row
constexpr int kImage = kPitch * kPitch;        // positions in an image
constexpr int kOut = 2 * kSide + 1;            // output rows and columns
constexpr int kPlaneOut = kOut * kOut;

constexpr int kTile = 128;                     // positions in a tile
constexpr int kSlots = 5;                      // stages of the ring
constexpr int kLines = kSlots * kTile + 2;     // two lines before the ring repeat its last two
constexpr int kPanel = kLines * 16;            // bytes: 8 channels of all lines
constexpr int kRingBytes = 16 * kPanel;        // 8 panels of high pieces, 8 of low ones
constexpr int kRowPitch = 2 * kTile + 4;       // floats, of the buffer for outputs: 4 modulo 32
constexpr int kWarpBuffer = 8 * kRowPitch;     // floats
constexpr int kBufferBytes = 8 * kWarpBuffer * 4;
constexpr int kSharedBytes = kRingBytes + kBufferBytes + 128;
static_assert(kSharedBytes <= 232448, "too much shared memory");
static_assert(kRingBytes % 16 == 0 && (kRowPitch * 4) % 16 == 0, "bulk copies start on 16 bytes");

constexpr float kScaleX = 16.0f;
constexpr int kLogScaleX = 4;
constexpr float kLargestX = 4000.0f;

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void start_barrier(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void show_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive_on(uint64_t* barrier) {
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
__device__ __forceinline__ void meet_without_waiting(int name, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// Bulk copies from shared to global memory: both addresses and the size are multiples of 16 bytes.
__device__ __forceinline__ void copy_out(float* to, const float* from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
                 "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_copies_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void wait_copies_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// No swizzle: `leading` between the two panels of an instruction, `stride` between groups of 8 lines.
__device__ __forceinline__ uint64_t describe(uint32_t start, uint32_t leading, uint32_t stride) {
    return static_cast<uint64_t>((start & 0x3ffff) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
           static_cast<uint64_t>(stride >> 4) << 32;
}

#define D4(m, i) m(d[i]), m(d[i + 1]), m(d[i + 2]), m(d[i + 3])
#define D16(m, i) D4(m, i), D4(m, i + 4), D4(m, i + 8), D4(m, i + 12)
#define D64(m) D16(m, 0), D16(m, 16), D16(m, 32), D16(m, 48)
#define PRODUCT_TEXT                                                                        \
    "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"                                            \
    "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "                                  \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "               \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "      \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "      \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "     \
    "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}"

// D (64 x 128) = A (64 x 16, registers) B (16 x 128, K-major in shared memory)
__device__ __forceinline__ void multiply_first(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(PRODUCT_TEXT : D64("=f") : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(0));
}
// D += A B
__device__ __forceinline__ void multiply_add(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(PRODUCT_TEXT : D64("+f") : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}

// Two values, the first in the lower half: high pieces and low pieces.
__device__ __forceinline__ void split_pair(float first, float second, uint32_t& high, uint32_t& low) {
    const __half2 h = __floats2half2_rn(first, second);
    const float2 back = __half22float2(h);
    const __half2 l = __floats2half2_rn(first - back.x, second - back.y);
    high = *reinterpret_cast<const uint32_t*>(&h);
    low = *reinterpret_cast<const uint32_t*>(&l);
}

// Volatile, so that the second reading is not merged with the first.
__device__ __forceinline__ float4 load_weights(const float* from) {
    float4 f;
    asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(f.x), "=f"(f.y), "=f"(f.z), "=f"(f.w) : "l"(from));
    return f;
}

// tanh of v, given z = 2 * log2(e) * v
__device__ __forceinline__ float tanh_of(float z) {
    float e, r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(z));
    e += 1.0f;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(e));
    return fmaf(-2.0f, r, 1.0f);
}

// Elements lo to hi - 1 of a row, from line[e] in shared memory to to[e]; line[e] and to[e] both lie at (shift + e) & 3
// floats behind a multiple of 16 bytes. Four lanes a row, t4 from 0 to 3: the first starts the copy of whole 16 bytes,
// all store what is left at the ends.
__device__ __forceinline__ void store_stretch(float* to, const float* line, int shift, int lo, int hi, int t4) {
    const int begin = lo + (-(shift + lo) & 3);
    const int end = hi - ((shift + hi) & 3);
    if (t4 == 0 && end > begin) copy_out(to + begin, line + begin, (end - begin) * 4);
    const int head = lo + t4;
    if (head < min(begin, hi)) to[head] = line[head];
    const int tail = max(begin, end) + t4;
    if (tail < hi) to[tail] = line[tail];
}

// Position q = (n * 257 + ph) * 257 + pw. Outputs (2 ph - 1 + r, 2 pw - 1 + s) read inputs (ph - dy, pw - dx) with
// weights (r + 2 dy, s + 2 dx); the inputs' positions are q, q - 1, q - 257, q - 258. A block has one r and a stretch
// of tiles. Stage j of its ring has the inputs of tile first + j - 3; tile i uses stages i + 3, i + 2, i + 1 and the
// last two lines of stage i.
__global__ void __launch_bounds__(384, 1)
transposed_kernel(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ conv_bias,
                  const float* __restrict__ bias, float* __restrict__ out, int* __restrict__ flag, int epoch,
                  int total, int all_tiles) {
    extern __shared__ __align__(1024) unsigned char shared[];
    unsigned char* ring = shared;
    float* buffers = reinterpret_cast<float*>(shared + kRingBytes);
    uint64_t* full = reinterpret_cast<uint64_t*>(shared + kRingBytes + kBufferBytes);
    uint64_t* empty = full + kSlots;

    const int r = blockIdx.x & 1;
    const int chunk = blockIdx.x >> 1;
    const int chunks = gridDim.x >> 1;
    const int each = all_tiles / chunks, rest = all_tiles % chunks;
    const int first = chunk * each + min(chunk, rest);
    const int tiles = each + (chunk < rest ? 1 : 0);
    if (tiles == 0) return;

    if (threadIdx.x == 0) {
        for (int s = 0; s < kSlots; ++s) {
            start_barrier(&full[s], 128);
            start_barrier(&empty[s], 8);
        }
        show_started();
    }
    __syncthreads();

    const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
    if (group == 0) {
        // The producer: a thread a line.
        give_up_registers<56>();
        const int line = threadIdx.x;
        float largest = 0.0f;
        int slot = 0;
        uint32_t parity = 1;
        for (int j = 0; j < tiles + 3; ++j) {
            const int q = (first + j - 3) * kTile + line;
            const unsigned uq = q < 0 ? 0u : static_cast<unsigned>(q);
            const unsigned n = uq / kImage;
            const unsigned in_image = uq - n * kImage;
            const unsigned ih = in_image / kPitch;
            const unsigned iw = in_image - ih * kPitch;
            const bool valid = q >= 0 && q < total && ih < kSide && iw < kSide && (j > 0 || line >= kTile - 2);
            const float* from = x + (static_cast<int64_t>(n) * (kCin * kPlaneIn) + ih * kSide + iw);
            unsigned char* to = ring + (slot * kTile + line + 2) * 16;
            const bool repeat = slot == kSlots - 1 && line >= kTile - 2;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float v[32];
#pragma unroll
                for (int i = 0; i < 32; ++i) v[i] = 0.0f;
                if (valid) {
#pragma unroll
                    for (int i = 0; i < 32; ++i) v[i] = __ldg(from + (half * 32 + i) * kPlaneIn);
                }
                if (half == 0) wait_for(&empty[slot], parity);
#pragma unroll
                for (int p = 0; p < 4; ++p) {
                    uint4 high, low;
#pragma unroll
                    for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(v[p * 8 + i]));
                    split_pair(v[p * 8 + 0] * kScaleX, v[p * 8 + 1] * kScaleX, high.x, low.x);
                    split_pair(v[p * 8 + 2] * kScaleX, v[p * 8 + 3] * kScaleX, high.y, low.y);
                    split_pair(v[p * 8 + 4] * kScaleX, v[p * 8 + 5] * kScaleX, high.z, low.z);
                    split_pair(v[p * 8 + 6] * kScaleX, v[p * 8 + 7] * kScaleX, high.w, low.w);
                    unsigned char* place = to + (half * 4 + p) * kPanel;
                    *reinterpret_cast<uint4*>(place) = high;
                    *reinterpret_cast<uint4*>(place + 8 * kPanel) = low;
                    if (repeat) {
                        *reinterpret_cast<uint4*>(place - kSlots * kTile * 16) = high;
                        *reinterpret_cast<uint4*>(place + 8 * kPanel - kSlots * kTile * 16) = low;
                    }
                }
            }
            show_stores();
            arrive_on(&full[slot]);
            if (++slot == kSlots) {
                slot = 0;
                parity ^= 1;
            }
        }
        if (largest > kLargestX) *flag = epoch;
    } else {
        take_registers<224>();
        const int w = group - 1;
        const int warp = (threadIdx.x & 127) >> 5;
        const int lane = threadIdx.x & 31;
        const int g = lane >> 2, t4 = lane & 3;
        const int co0 = 32 * w + 8 * warp;
        const int co = co0 + g;

        // Weights: row g of the warp's 16 is (co, s = 0), row g + 8 is (co, s = 1); k = (dy * 2 + dx) * 64 + ci.
        uint32_t high[16][4], low[16][4];
        float scale_out, shift_out;
        {
            const float* from = weight + co * 16 + r * 4 + t4 * 2 * (kCout * 16);
            float largest = 0.0f;
#pragma unroll 1
            for (int c = 0; c < 4; ++c) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
#pragma unroll
                    for (int dy = 0; dy < 2; ++dy) {
                        const float4 f =
                            load_weights(from + (c * 16 + (e & 1) + (e >> 1) * 8) * (kCout * 16) + dy * 8);
                        largest = fmaxf(largest, fmaxf(fmaxf(fabsf(f.x), fabsf(f.y)), fmaxf(fabsf(f.z), fabsf(f.w))));
                    }
                }
            }
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            int exponent = static_cast<int>(__float_as_uint(largest) >> 23 & 255u) - 127;
            exponent = min(max(exponent, -60), 100);
            const float scale = __uint_as_float(static_cast<uint32_t>(127 + 13 - exponent) << 23);
            const float inverse = __uint_as_float(static_cast<uint32_t>(127 + exponent - 13 - kLogScaleX) << 23);
            constexpr float kTwoLog2E = 2.885390081777927f;
            scale_out = inverse * kTwoLog2E;
            shift_out = (__ldg(conv_bias + co) - __ldg(bias + co)) * kTwoLog2E;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
#pragma unroll
                for (int dy = 0; dy < 2; ++dy) {
                    float4 f[4];
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        f[e] = load_weights(from + (c * 16 + (e & 1) + (e >> 1) * 8) * (kCout * 16) + dy * 8);
                        f[e].x *= scale;
                        f[e].y *= scale;
                        f[e].z *= scale;
                        f[e].w *= scale;
                    }
                    const int k0 = (dy * 2 + 0) * 4 + c, k1 = (dy * 2 + 1) * 4 + c;
                    split_pair(f[0].x, f[1].x, high[k0][0], low[k0][0]);
                    split_pair(f[0].y, f[1].y, high[k0][1], low[k0][1]);
                    split_pair(f[2].x, f[3].x, high[k0][2], low[k0][2]);
                    split_pair(f[2].y, f[3].y, high[k0][3], low[k0][3]);
                    split_pair(f[0].z, f[1].z, high[k1][0], low[k1][0]);
                    split_pair(f[0].w, f[1].w, high[k1][1], low[k1][1]);
                    split_pair(f[2].z, f[3].z, high[k1][2], low[k1][2]);
                    split_pair(f[2].w, f[3].w, high[k1][3], low[k1][3]);
                }
            }
#pragma unroll
            for (int k = 0; k < 16; ++k) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    asm volatile("" : "+r"(high[k][i]));
                    asm volatile("" : "+r"(low[k][i]));
                }
            }
        }

        // A lane's outputs are all of channel co; the four lanes of a channel share a row of the warp's buffer.
        float* buffer_row = buffers + (w * 4 + warp) * kWarpBuffer + g * kRowPitch;
        float* out_channel = out + static_cast<int64_t>(co) * kPlaneOut;
        const uint64_t descriptor = describe(shared_address(ring), kPanel, 128);

        int slot = 3;
        uint32_t parity = 0;
        int free_slot = 0;
        if (w == 1) meet_without_waiting(1, 256);  // the first turn is that of w = 0
#pragma unroll 1
        for (int i = 0; i < tiles; ++i) {
            wait_for(&full[slot], parity);
            meet(1 + w, 256);
            float d[64];
            {
                const int near_line = slot * kTile;
                const int far_line = (slot >= 2 ? slot - 2 : slot + kSlots - 2) * kTile;
                const uint64_t b[4] = {descriptor + static_cast<uint64_t>(near_line + 2),
                                       descriptor + static_cast<uint64_t>(near_line + 1),
                                       descriptor + static_cast<uint64_t>(far_line + 1),
                                       descriptor + static_cast<uint64_t>(far_line)};
                begin_products();
                multiply_first(d, low[0], b[0]);
#pragma unroll
                for (int k = 0; k < 16; ++k) {
                    if (k > 0) multiply_add(d, low[k], b[k / 4] + static_cast<uint64_t>((k % 4) * 2 * kLines));
                    multiply_add(d, high[k], b[k / 4] + static_cast<uint64_t>((8 + (k % 4) * 2) * kLines));
                }
#pragma unroll
                for (int k = 0; k < 16; ++k)
                    multiply_add(d, high[k], b[k / 4] + static_cast<uint64_t>((k % 4) * 2 * kLines));
                commit_products();
            }
            if (w == 0 || i + 1 < tiles) meet_without_waiting(2 - w, 256);
            wait_products<0>(d);
            __syncwarp();
            if (lane == 0) arrive_on(&empty[free_slot]);
            if (++slot == kSlots) {
                slot = 0;
                parity ^= 1;
            }
            if (++free_slot == kSlots) free_slot = 0;

            // Element e = 2 * (q - q0) + s of the tile; a tile touches at most two rows of positions.
            const int q0 = (first + i) * kTile;
            const int n0 = q0 / kImage;
            const int in_image = q0 - n0 * kImage;
            const int ph0 = in_image / kPitch;
            const int pw0 = in_image - ph0 * kPitch;
            int n1 = n0, ph1 = ph0 + 1;
            if (ph1 == kPitch) {
                ph1 = 0;
                ++n1;
            }
            const int oh0 = 2 * ph0 - 1 + r, oh1 = 2 * ph1 - 1 + r;
            const int base0 = n0 * (kCout * kPlaneOut) + oh0 * kOut + 2 * pw0 - 1;
            const int base1 = n1 * (kCout * kPlaneOut) + oh1 * kOut + 2 * pw0 - 2 * kPitch - 1;

            // The row of the buffer is shifted so that its addresses agree with those in `out` modulo 16 bytes.
            const int shift = (base0 + co * kPlaneOut) & 3;
            float* line = buffer_row + shift;
            wait_copies_read();  // those of the tile before
            __syncwarp();
            {
                float* write = line + 4 * t4;
#pragma unroll
                for (int jj = 0; jj < 16; ++jj) {
                    const int at = 4 * jj;
                    write[16 * jj + 0] = tanh_of(fmaf(d[at + 0], scale_out, shift_out));
                    write[16 * jj + 1] = tanh_of(fmaf(d[at + 2], scale_out, shift_out));
                    write[16 * jj + 2] = tanh_of(fmaf(d[at + 1], scale_out, shift_out));
                    write[16 * jj + 3] = tanh_of(fmaf(d[at + 3], scale_out, shift_out));
                }
            }
            show_stores();
            __syncwarp();

            const int limit = min(2 * kTile, 2 * (total - q0));
            const int cut = 2 * (kPitch - pw0);  // the first element of the second row, in column -1
            const int lo0 = pw0 == 0 ? 1 : 0, hi0 = min(limit, cut);
            if (oh0 >= 0 && lo0 < hi0) store_stretch(out_channel + base0, line, shift, lo0, hi0, t4);
            const int lo1 = cut + 1;
            if (oh1 >= 0 && lo1 < limit) {
                float* to = out_channel + base1;
                if (((base1 - base0) & 3) == 0) {
                    store_stretch(to, line, shift, lo1, limit, t4);
                } else {  // only where an image ends within the tile
#pragma unroll 1
                    for (int e = lo1 + t4; e < limit; e += 4) to[e] = line[e];
                }
            }
            commit_copies();
            __syncwarp();
        }
        wait_copies_done();
    }
}

// Only where an input was too large for the kernel above: everything again in plain fp32.
__global__ void __launch_bounds__(256)
plain_kernel(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ conv_bias,
             const float* __restrict__ bias, float* __restrict__ out, const int* __restrict__ flag, int epoch,
             int64_t elements) {
    if (*flag != epoch) return;
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < elements; at += step) {
        const int ow = static_cast<int>(at % kOut);
        const int64_t rows = at / kOut;
        const int oh = static_cast<int>(rows % kOut);
        const int64_t planes = rows / kOut;
        const int co = static_cast<int>(planes % kCout);
        const int64_t n = planes / kCout;
        float sum = 0.0f;
        for (int dy = 0; dy < 2; ++dy) {
            const int ih = ((oh + 1) >> 1) - dy, kh = ((oh + 1) & 1) + 2 * dy;
            if (ih < 0 || ih >= kSide) continue;
            for (int dx = 0; dx < 2; ++dx) {
                const int iw = ((ow + 1) >> 1) - dx, kw = ((ow + 1) & 1) + 2 * dx;
                if (iw < 0 || iw >= kSide) continue;
                const float* from = x + n * (kCin * kPlaneIn) + ih * kSide + iw;
                const float* by = weight + co * 16 + kh * 4 + kw;
                for (int ci = 0; ci < kCin; ++ci) sum = fmaf(from[ci * kPlaneIn], by[ci * (kCout * 16)], sum);
            }
        }
        out[at] = tanhf(sum + conv_bias[co] - bias[co]);
    }
}

extern "C" int transposed_tanh(const float* x, const float* weight, const float* conv_bias, const float* bias,
                               float* out, int* flag, int64_t batch, int64_t epoch, void* stream) {
    if (batch == 0) return 0;
    static int processors = 0;
    if (processors == 0) {
        int device = 0, count = 0;
        cudaError_t error = cudaGetDevice(&device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaFuncSetAttribute(transposed_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        processors = count;
    }
    const int blocks = processors / 2 * 2;
    const int total = static_cast<int>(batch) * kImage;
    const int tiles = (total + kTile - 1) / kTile;
    cudaStream_t queue = static_cast<cudaStream_t>(stream);
    transposed_kernel<<<blocks, 384, kSharedBytes, queue>>>(x, weight, conv_bias, bias, out, flag,
                                                            static_cast<int>(epoch), total, tiles);
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return static_cast<int>(error);
    plain_kernel<<<processors * 4, 256, 0, queue>>>(x, weight, conv_bias, bias, out, flag, static_cast<int>(epoch),
                                                    batch * kCout * kPlaneOut);
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="transposed_tanh_split_bulk",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
transposed_tanh = library.transposed_tanh
transposed_tanh.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int64] * 2 + [ctypes.c_void_p]
transposed_tanh.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, bias_shape, stride=2, padding=1, output_padding=1):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, output_padding=output_padding
        )
        self.bias = nn.Parameter(torch.randn(bias_shape))
        self.special = (
            in_channels == 64
            and out_channels == 64
            and kernel_size == 4
            and stride == 2
            and padding == 1
            and output_padding == 1
            and self.bias.numel() == 64
        )
        self.flag = None
        self.epoch = 0

    def forward(self, x):
        if not self.special or x.dim() != 4 or x.shape[1:] != (64, 256, 256) or x.shape[0] > 120:
            return torch.tanh(self.conv_transpose(x) - self.bias)
        x = x.contiguous()
        weight = self.conv_transpose.weight.contiguous()
        conv_bias = self.conv_transpose.bias
        bias = self.bias.contiguous()
        if self.flag is None or self.flag.device != x.device:
            self.flag = torch.zeros(1, dtype=torch.int32, device=x.device)
        self.epoch = self.epoch % 2000000000 + 1
        batch = x.shape[0]
        out = torch.empty((batch, 64, 513, 513), dtype=torch.float32, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = transposed_tanh(
            x.data_ptr(),
            weight.data_ptr(),
            conv_bias.data_ptr(),
            bias.data_ptr(),
            out.data_ptr(),
            self.flag.data_ptr(),
            batch,
            self.epoch,
            stream,
        )
        if error:
            raise RuntimeError(f"transposed_tanh: CUDA error {error}")
        return out
