import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_fp16.h>

constexpr int kImages = 8, kIn = 64, kOut = 128;
constexpr int kHeight = 512, kWidth = 1024;
constexpr int kOutHeight = 510, kOutWidth = 1022;
constexpr int kPlane = kHeight * kWidth;           // floats of an input channel
constexpr int kOutPlane = kOutHeight * kOutWidth;  // floats of an output channel

constexpr int kTile = 128;                       // output pixels of a row of a tile; a tile has two rows
constexpr int kSums = kTile / 2;                 // sums a thread and row
constexpr int kLines = kTile + 2;                // input pixels of a row
constexpr int kItems = kLines * 4;               // 16-byte items of a piece: 32 channels of a row
constexpr int kPieceBytes = kItems * 16;
constexpr int kUnitBytes = 2 * kPieceBytes;      // hi, lo
constexpr int kUnits = 8;                        // 2 halves of the channels x 4 transformed rows
constexpr int kAcross = 8;                       // strips of an image
constexpr int kPairs = kOutHeight / 2;
constexpr int kTiles = kImages * kAcross * kPairs;
constexpr int kStageBytes = 4096;                // 64 couts x 16 channels, hi and lo
constexpr int kStages = 7;                       // of each consumer group
constexpr int kSteps = 48;                       // stages of a tile: 8 units x 3 kx x 2
constexpr int kBlocks = 132;
constexpr int kTilesPerBlock = (kTiles + kBlocks - 1) / kBlocks;
constexpr int kThreads = 512;
constexpr int kConverters = 224;
constexpr int kTurn = 136;                       // floats of a line of a turning buffer
constexpr int kTurnBytes = 8 * kTurn * 4;        // of each consumer warp
constexpr int kSharedBytes =
    kUnits * kUnitBytes + 2 * kStages * kStageBytes + 8 * kTurnBytes + (4 * kStages + 4) * 8;
constexpr float kScale = 32.0f;
static_assert(kAcross * kTile >= kOutWidth, "strips cover a row");
static_assert(kSharedBytes <= 232448, "shared memory");

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
__device__ __forceinline__ bool ready(uint64_t* barrier, uint32_t parity) {
    uint32_t done;
    asm volatile(
        "{\n.reg .pred done;\nmbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n}" : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
    return done != 0;
}
__device__ __forceinline__ void load_for_all(void* to, const void* from, uint32_t bytes, uint64_t* barrier, int mask) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
        "%4;" ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)),
        "h"(static_cast<uint16_t>(mask)) : "memory");
}
__device__ __forceinline__ void arrive_at(uint64_t* barrier, int rank) {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(barrier)), "r"(rank)
        : "memory");
}
__device__ __forceinline__ void cluster_meet() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ void show_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_groups() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
template <int N>
__device__ __forceinline__ void hold(float (&d)[N]) {
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

// Start address of a descriptor, in units of 16 bytes. In a cluster the shared address carries the rank of the block
// from bit 24 up; a descriptor takes the low 18 bits only, and the rest would spill into the leading offset.
__device__ __forceinline__ uint32_t descriptor_start(const void* pointer) {
    return (shared_address(pointer) & 0x3ffffu) >> 4;
}

// No swizzle: low word = start / 16 and, from bit 16, leading / 16; high word = stride / 16 = 128 / 16.
__device__ __forceinline__ uint64_t descriptor(uint32_t low) { return uint64_t(8) << 32 | low; }

__device__ __forceinline__ void multiply(float (&d)[kSums], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{@REGISTERS@}, %64, %65, p, 1, 1, 0, 0;\n}"
        : @OUTPUTS@
        : "l"(a), "l"(b), "r"(add));
}

__device__ __forceinline__ uint32_t bits(__half2 h) { return *reinterpret_cast<const uint32_t*>(&h); }

// One block a cout. Halves of `packed`: [unit * 6 + kx * 2 + ci % 32 / 16][cout / 64][piece][ci % 16 / 8][cout % 64]
// [ci % 8]. Units: m0 / 2, m3 / 2, m1, m2 of channels 0 to 31, then m1, m2, m0, m3 of channels 32 to 63.
__global__ void pack_kernel(const float* __restrict__ weight, __half* __restrict__ packed,
                            float* __restrict__ inverse, unsigned* __restrict__ peaks) {
    constexpr int kPackThreads = 192;
    const int cout = blockIdx.x, tid = threadIdx.x;
    if (cout == 0 && tid < kImages) peaks[tid] = 0;
    const int ci = tid / 3, kx = tid - ci * 3;
    float g[3];
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        g[i] = weight[(cout * kIn + ci) * 9 + i * 3 + kx];
        largest = fmaxf(largest, fabsf(g[i]));
    }
    for (int offset = 16; offset > 0; offset /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    __shared__ float partial[kPackThreads / 32];
    if (tid % 32 == 0) partial[tid / 32] = largest;
    __syncthreads();
    largest = 0.0f;
    for (int i = 0; i < kPackThreads / 32; ++i) largest = fmaxf(largest, partial[i]);
    int exponent = 14;
    if (largest > 0.0f && largest < 3.0e38f) frexpf(largest, &exponent);  // largest < 2^exponent
    int shift = 14 - exponent;
    if (shift > 100) shift = 100;
    const float scale = ldexpf(1.0f, shift);
    if (tid == 0) inverse[cout] = ldexpf(1.0f, -shift) / kScale;
    const float g0 = g[0] * scale, g1 = g[1] * scale, g2 = g[2] * scale;
    const float outer = g0 + g2;
    const int half = ci / 32;
    const float ends = half == 0 ? 0.5f : 1.0f;
    const float value[4] = {g0 * ends, g2 * ends, 0.5f * (outer + g1), 0.5f * (outer - g1)};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int unit = half * 4 + (j ^ (half * 2));
        const int step = unit * 6 + kx * 2 + ci % 32 / 16;
        const int place = step * 4096 + cout / 64 * 2048 + ci % 16 / 8 * 512 + cout % 64 * 8 + ci % 8;
        const __half hi = __float2half_rn(value[j]);
        const __half lo = __float2half_rn(value[j] - __half2float(hi));
        packed[place] = hi;
        packed[place + 1024] = lo;
    }
}

struct Ring {
    uint64_t* full;
    uint64_t* empty;
    int stage, before;  // before: the stage whose products may still run, or -1
    uint32_t parity;
};

// The products of one unit: 3 kx x 32 channels.
__device__ __forceinline__ void run_unit(float (&d)[kSums], uint32_t a_base, uint32_t b_unit, bool begins, Ring& ring,
                                         int lane) {
#pragma unroll 1
    for (int kx = 0; kx < 3; ++kx) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const uint32_t a_hi = a_base + ring.stage * (kStageBytes / 16);
            const uint32_t a_lo = a_hi + kStageBytes / 32;
            const uint32_t b_hi = b_unit + kx + k * 2 * kLines;
            const uint32_t b_lo = b_hi + kPieceBytes / 16;
            const int add = (begins && kx == 0 && k == 0) ? 0 : 1;
            wait(ring.full + ring.stage, ring.parity);
            begin_products();
            multiply(d, descriptor(a_lo), descriptor(b_hi), add);
            multiply(d, descriptor(a_hi), descriptor(b_lo), 1);
            multiply(d, descriptor(a_hi), descriptor(b_hi), 1);
            commit_products();
            wait_groups<1>();
            if (ring.before >= 0 && lane < 2) arrive_at(ring.empty + ring.before, lane);
            ring.before = ring.stage;
            if (++ring.stage == kStages) {
                ring.stage = 0;
                ring.parity ^= 1;
            }
        }
    }
}

// Stores 16 couts x 128 pixels of a warp: 8 couts at a time through the warp's buffer.
__device__ __forceinline__ void emit(const float (&d)[kSums], float* turn, float* to, bool left, bool right,
                                     float inverse_0, float inverse_1, int lane) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
        const float factor = part == 0 ? inverse_0 : inverse_1;
        float* mine = turn + lane / 4 * kTurn + lane % 4 * 2;
        __syncwarp();
#pragma unroll
        for (int j = 0; j < kTile / 8; ++j)
            *reinterpret_cast<float2*>(mine + 8 * j) =
                make_float2(d[4 * j + 2 * part] * factor, d[4 * j + 2 * part + 1] * factor);
        __syncwarp();
#pragma unroll
        for (int r = 0; r < 8; ++r) {
            const float2 first = *reinterpret_cast<const float2*>(turn + r * kTurn + lane * 2);
            const float2 second = *reinterpret_cast<const float2*>(turn + r * kTurn + 64 + lane * 2);
            float* line = to + static_cast<int64_t>(part * 8 + r) * kOutPlane;
            if (left) __stcs(reinterpret_cast<float2*>(line), first);
            if (right) __stcs(reinterpret_cast<float2*>(line + 64), second);
        }
    }
}

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
conv_kernel(const float* __restrict__ x, const __half* __restrict__ packed, const float* __restrict__ inverse,
            float* __restrict__ out, unsigned* __restrict__ peaks) {
    extern __shared__ __align__(1024) unsigned char memory[];
    unsigned char* units = memory;
    unsigned char* stages = units + kUnits * kUnitBytes;
    unsigned char* turns = stages + 2 * kStages * kStageBytes;
    uint64_t* full = reinterpret_cast<uint64_t*>(turns + 8 * kTurnBytes);  // [group][stage]
    uint64_t* empty = full + 2 * kStages;
    uint64_t* half_full = empty + 2 * kStages;
    uint64_t* half_empty = half_full + 2;

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * kStages; ++i) {
            start(&full[i], 1);
            start(&empty[i], 8);  // 4 consumer warps of each of two blocks
        }
        for (int i = 0; i < 2; ++i) {
            start(&half_full[i], kConverters);
            start(&half_empty[i], 8);
        }
        show_started();
    }
    cluster_meet();

    const int first = blockIdx.x * kTilesPerBlock;

    if (threadIdx.x < 256) {
        give_up_registers<88>();
        if (warp == 7) {
            // Weights: rank 0 loads the hi pieces, rank 1 the lo pieces, for both blocks; a ring for each group.
            if (lane == 0) {
                const int part = (blockIdx.x & 1) * (kStageBytes / 2);
                const unsigned char* from = reinterpret_cast<const unsigned char*>(packed) + part;
                int left_0 = kTilesPerBlock * kSteps, left_1 = left_0;
                int stage_0 = 0, stage_1 = 0, step_0 = 0, step_1 = 0;
                uint32_t parity_0 = 1, parity_1 = 1;
                auto feed = [&](int group, int& left, int& stage, int& step, uint32_t& parity) {
                    const int at = group * kStages + stage;
                    if (left > 0 && ready(&empty[at], parity)) {
                        arrive_and_expect(&full[at], kStageBytes);
                        load_for_all(stages + at * kStageBytes + part, from + (step * 2 + group) * kStageBytes,
                                     kStageBytes / 2, &full[at], 3);
                        --left;
                        if (++step == kSteps) step = 0;
                        if (++stage == kStages) {
                            stage = 0;
                            parity ^= 1;
                        }
                    }
                };
#pragma unroll 1
                while (left_0 > 0 || left_1 > 0) {
                    feed(0, left_0, stage_0, step_0, parity_0);
                    feed(1, left_1, stage_1, step_1, parity_1);
                }
            }
            __syncwarp();
        } else {
            // Four input rows to four transformed rows, fp32 to two fp16 pieces.
            const int tid = threadIdx.x;
            unsigned peak = 0;
            int last_image = -1;
#pragma unroll 1
            for (int tile = 0; tile < kTilesPerBlock; ++tile) {
                const int t = min(first + tile, kTiles - 1);
                const int strip = t / kPairs;
                const int pair = t - strip * kPairs;
                const int image = strip / kAcross;
                const int x0 = (strip - image * kAcross) * kTile;
                if (image != last_image) {
                    if (last_image >= 0) {
                        const unsigned all = __reduce_max_sync(0xffffffffu, peak);
                        if (lane == 0) atomicMax(&peaks[last_image], all);
                    }
                    peak = 0;
                    last_image = image;
                }
                const float* base = x + static_cast<int64_t>(image) * kIn * kPlane + 2 * pair * kWidth + x0;
#pragma unroll 1
                for (int half = 0; half < 2; ++half) {
                    wait(&half_empty[half], (tile & 1) ^ 1);
                    unsigned char* to = units + half * 4 * kUnitBytes;
                    const float* half_base = base + static_cast<int64_t>(half) * 32 * kPlane;
#pragma unroll 1
                    for (int item = tid; item < kItems; item += kConverters) {
                        const int chunk = item / kLines;
                        const int p = item - chunk * kLines;
                        const bool inside = x0 + p < kWidth;
                        const float* from = half_base + chunk * 8 * kPlane + p;
                        float v[4][8];
#pragma unroll
                        for (int c = 0; c < 8; ++c) {
#pragma unroll
                            for (int r = 0; r < 4; ++r)
                                v[r][c] = inside ? __ldg(from + c * kPlane + r * kWidth) : 0.0f;
                        }
#pragma unroll
                        for (int c = 0; c < 8; ++c) {
#pragma unroll
                            for (int r = 0; r < 4; ++r) {
                                peak = max(peak, __float_as_uint(v[r][c]) & 0x7fffffffu);
                                v[r][c] *= kScale;
                            }
                        }
#pragma unroll
                        for (int j = 0; j < 4; ++j) {
                            uint32_t hi[4], lo[4];
#pragma unroll
                            for (int c = 0; c < 4; ++c) {
                                float s[2];
#pragma unroll
                                for (int e = 0; e < 2; ++e) {
                                    const int i = 2 * c + e;
                                    s[e] = j == 0   ? v[0][i] - v[2][i]
                                           : j == 1 ? v[3][i] - v[1][i]
                                           : j == 2 ? v[1][i] + v[2][i]
                                                    : v[2][i] - v[1][i];
                                }
                                const __half2 h = __floats2half2_rn(s[0], s[1]);
                                const float2 back = __half22float2(h);
                                const __half2 l = __floats2half2_rn(s[0] - back.x, s[1] - back.y);
                                hi[c] = bits(h);
                                lo[c] = bits(l);
                            }
                            unsigned char* place = to + (j ^ (half * 2)) * kUnitBytes + item * 16;
                            *reinterpret_cast<uint4*>(place) = make_uint4(hi[0], hi[1], hi[2], hi[3]);
                            *reinterpret_cast<uint4*>(place + kPieceBytes) = make_uint4(lo[0], lo[1], lo[2], lo[3]);
                        }
                    }
                    show_stores();
                    arrive(&half_full[half]);
                }
            }
            __syncwarp();
            const unsigned all = __reduce_max_sync(0xffffffffu, peak);
            if (lane == 0) atomicMax(&peaks[last_image], all);
        }
    } else {
        take_registers<168>();
        const int group = threadIdx.x / 128 - 2;
        const int couts = group * 64 + (warp & 3) * 16;  // first of the warp
        const float inverse_0 = inverse[couts + lane / 4], inverse_1 = inverse[couts + lane / 4 + 8];
        const uint32_t a_base = descriptor_start(stages + group * kStages * kStageBytes) | (64u << 16);
        const uint32_t b_base = descriptor_start(units) | (static_cast<uint32_t>(kLines) << 16);
        float* turn = reinterpret_cast<float*>(turns + (group * 4 + (warp & 3)) * kTurnBytes);
        float d0[kSums], d1[kSums];
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
            d0[i] = 0.0f;
            d1[i] = 0.0f;
        }
        Ring ring;
        ring.full = full + group * kStages;
        ring.empty = empty + group * kStages;
        ring.stage = 0;
        ring.before = -1;
        ring.parity = 0;
        // The second group begins a quarter of a tile later, so that the two do not pause together.
        if (group == 1) asm volatile("bar.sync 1, 256;" ::: "memory");
#pragma unroll 1
        for (int tile = 0; tile < kTilesPerBlock; ++tile) {
#pragma unroll 1
            for (int two = 0; two < 4; ++two) {  // two units each
                const int half = two / 2;
                const uint32_t b_unit = b_base + two * 2 * (kUnitBytes / 16);
                if ((two & 1) == 0) wait(&half_full[half], tile & 1);
                run_unit(d0, a_base, b_unit, two == 0, ring, lane);
                run_unit(d1, a_base, b_unit + kUnitBytes / 16, two == 0, ring, lane);
                wait_groups<0>();
                hold(d0);
                hold(d1);
                if (lane < 2) arrive_at(ring.empty + ring.before, lane);
                ring.before = -1;
                if ((two & 1) == 0) {
                    // From (m0, m3) to (P, Q), or from (P, Q) to (y0, y1).
#pragma unroll
                    for (int i = 0; i < kSums; ++i) {
                        const float a = d0[i], b = d1[i];
                        d0[i] = a + b;
                        d1[i] = a - b;
                    }
                } else if (lane == 0) {
                    arrive(&half_empty[half]);
                }
                __syncwarp();
                if (tile == 0 && two == 0 && group == 0) asm volatile("bar.arrive 1, 256;" ::: "memory");
            }

            const int t = first + tile;
            if (t < kTiles) {
                const int strip = t / kPairs;
                const int pair = t - strip * kPairs;
                const int image = strip / kAcross;
                const int column = (strip - image * kAcross) * kTile + lane * 2;
                float* to =
                    out + (static_cast<int64_t>(image * kOut + couts) * kOutHeight + 2 * pair) * kOutWidth + column;
                const bool left = column < kOutWidth, right = column + 64 < kOutWidth;
                emit(d0, turn, to, left, right, inverse_0, inverse_1, lane);
                emit(d1, turn, to + kOutWidth, left, right, inverse_0, inverse_1, lane);
            }
            __syncwarp();
        }
    }
    __syncwarp();
    cluster_meet();
}

// Images whose magnitudes the constant scale does not suit, in plain fp32; for all others it returns at once.
__global__ void repair_kernel(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out,
                              const unsigned* __restrict__ peaks) {
    const int image = blockIdx.y;
    const unsigned peak = peaks[image];
    if (peak == 0 || (peak >= __float_as_uint(4.0e-4f) && peak <= __float_as_uint(1020.0f))) return;
    const float* from = x + static_cast<int64_t>(image) * kIn * kPlane;
    float* to = out + static_cast<int64_t>(image) * kOut * kOutPlane;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < kOut * kOutPlane; i += gridDim.x * blockDim.x) {
        const int cout = i / kOutPlane;
        const int rest = i - cout * kOutPlane;
        const int row = rest / kOutWidth, column = rest - row * kOutWidth;
        float sum = 0.0f;
        for (int ci = 0; ci < kIn; ++ci) {
            const float* w = weight + (cout * kIn + ci) * 9;
            const float* p = from + ci * kPlane + row * kWidth + column;
            for (int ky = 0; ky < 3; ++ky)
                for (int kx = 0; kx < 3; ++kx) sum = fmaf(p[ky * kWidth + kx], w[ky * 3 + kx], sum);
        }
        to[i] = sum;
    }
}

extern "C" int conv_forward(const float* x, const float* weight, void* packed, float* inverse, void* peaks, float* out,
                            void* stream_pointer) {
    cudaStream_t stream = static_cast<cudaStream_t>(stream_pointer);
    static bool prepared = false;
    if (!prepared) {
        const cudaError_t error =
            cudaFuncSetAttribute(conv_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        prepared = true;
    }
    pack_kernel<<<kOut, 192, 0, stream>>>(weight, static_cast<__half*>(packed), inverse,
                                          static_cast<unsigned*>(peaks));
    conv_kernel<<<kBlocks, kThreads, kSharedBytes, stream>>>(x, static_cast<const __half*>(packed), inverse, out,
                                                             static_cast<unsigned*>(peaks));
    repair_kernel<<<dim3(132, kImages), 256, 0, stream>>>(x, weight, out, static_cast<const unsigned*>(peaks));
    return static_cast<int>(cudaGetLastError());
}
"""

SOURCE = SOURCE.replace("@REGISTERS@", ", ".join(f"%{i}" for i in range(64)))
SOURCE = SOURCE.replace("@OUTPUTS@", ", ".join(f'"+f"(d[{i}])' for i in range(64)))

library = ctypes.CDLL(
    load_inline(
        name="conv3x3_winograd_rows_split_fp16_n128",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
conv_forward = library.conv_forward
conv_forward.argtypes = [ctypes.c_void_p] * 7
conv_forward.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0,
                 dilation: int = 1, groups: int = 1, bias: bool = False):
        super().__init__()
        self.conv2d = nn.Conv2d(in_channels, out_channels, (kernel_size, kernel_size), stride=stride, padding=padding,
                                dilation=dilation, groups=groups, bias=bias)
        self.special = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bool(bias)) == (
            64, 128, 3, 1, 0, 1, 1, False)
        self.scratch = None

    def forward(self, x):
        weight = self.conv2d.weight
        if not self.special or x.shape != (8, 64, 512, 1024) or x.dtype != torch.float32 or not x.is_cuda:
            return self.conv2d(x)
        x = x.contiguous()
        weight = weight.contiguous()
        if self.scratch is None or self.scratch[0].device != x.device:
            self.scratch = (
                torch.empty(48 * 4096, dtype=torch.float16, device=x.device),
                torch.empty(128, dtype=torch.float32, device=x.device),
                torch.empty(8, dtype=torch.int32, device=x.device),
            )
        packed, inverse, peaks = self.scratch
        out = torch.empty((8, 128, 510, 1022), dtype=torch.float32, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = conv_forward(x.data_ptr(), weight.data_ptr(), packed.data_ptr(), inverse.data_ptr(), peaks.data_ptr(),
                             out.data_ptr(), stream)
        if error:
            raise RuntimeError(f"conv_forward: CUDA error {error}")
        return out
