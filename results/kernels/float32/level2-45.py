import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_fp16.h>

constexpr int kM = 16384;       // rows of x
constexpr int kIn = 2048;       // k of the first product
constexpr int kHidden = 4096;   // n of the first, k of the second
constexpr int kOut = 1024;      // n of the second
constexpr int kWide = 256;      // columns of a block's tile
constexpr int kGroups = 2;      // warpgroups that multiply, 64 rows each
constexpr int kParts = kOut / kWide;
constexpr float kHiddenScale = 16384.0f;
constexpr float kLog2E = 1.4426950408889634f;

// All blocks must be resident at once, one a multiprocessor.
constexpr int BLOCKS = 128;
constexpr int kClusters = BLOCKS / 2;
// Stretches of k that the second product sums apart.
constexpr int FOLDS = 2;

// The first product's tiles come in waves of kClusters tiles, which cover kWaveRows rows of x.
constexpr int kWaveRows = kClusters / (kHidden / kWide) * 256;
constexpr int kWaves = kM / kWaveRows;
constexpr int kBlockRows = kWaveRows / BLOCKS;  // rows of x that a block splits in a wave
static_assert(kClusters % (kHidden / kWide) == 0 && kM % kWaveRows == 0, "waves");
static_assert(kWaveRows % BLOCKS == 0 && 256 % kBlockRows == 0, "rows of a block");
static_assert(kOut % BLOCKS == 0, "rows of w2 of a block");

// ---------------------------------------------------------------------------------------------------- instructions

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void start_barrier(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void show_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive_and_expect(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void wait_for(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
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
__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// 64-byte swizzle, K-major: the stride between groups of 8 lines is 512 bytes.
__device__ __forceinline__ uint64_t describe(uint32_t at, uint32_t lines) {
    return static_cast<uint64_t>((at & 0x3ffff) >> 4) | static_cast<uint64_t>(lines * 16 >> 4) << 16 |
           static_cast<uint64_t>(512 >> 4) << 32 | static_cast<uint64_t>(2) << 62;
}

__device__ __forceinline__ void multiply(float (&d)[128], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, "
        "%72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, "
        "%88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, "
        "%104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, "
        "%120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, p, 1, 1, 0, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
          "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
          "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
          "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
          "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]),
          "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]),
          "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]),
          "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_all_but_one() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
__device__ __forceinline__ void wait_all(float (&d)[128]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void give_up_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Two values to their two pieces.
__device__ __forceinline__ void split_pair(float x, float y, uint32_t& hi, uint32_t& lo) {
    const __half2 h = __floats2half2_rn(x, y);
    const float2 back = __half22float2(h);
    const __half2 l = __floats2half2_rn(x - back.x, y - back.y);
    hi = *reinterpret_cast<const uint32_t*>(&h);
    lo = *reinterpret_cast<const uint32_t*>(&l);
}

__device__ __forceinline__ void arrive_here(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void fence_proxies() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ __forceinline__ void add_release(uint32_t* to, uint32_t count) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(count) : "memory");
}
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* from) {
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}
__device__ __forceinline__ float load_l2(const float* from) {
    float value;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");
    return value;
}
__device__ __forceinline__ float4 load_l2(const float4* from) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}
__device__ __forceinline__ void store_l2(float4* to, float x, float y, float z, float w) {
    asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}
__device__ __forceinline__ float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float fast_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ------------------------------------------------------------------------------------------------ splitting operands

// The exponent that brings a row's largest magnitude to [2^14, 2^15).
__device__ __forceinline__ int exponent_for(float top) {
    int e = 0;
    if (top > 0.0f) {
        e = 14 - (static_cast<int>(__float_as_uint(top) >> 23) - 127);
        e = max(-60, min(60, e));
    }
    return e;
}
__device__ __forceinline__ float power_of_two(int e) { return __uint_as_float(static_cast<uint32_t>(127 + e) << 23); }

// Where a lane's 16 bytes of a row start. `lines` is the number of rows in a block of the stored form: 64 for A, 256
// for B.
template <int kK>
__device__ __forceinline__ uint8_t* stored_row(uint8_t* to, int row, int lines, int lane) {
    const int line = row % lines;
    return to + static_cast<int64_t>(row / lines) * (kK / 32) * (lines * 128) + line * 64 +
           (((lane % 4) ^ ((line >> 1) & 3)) << 4) + static_cast<int64_t>(lane / 4) * (lines * 128);
}

__device__ __forceinline__ void store_pieces(uint8_t* at, int lines, const float (&v)[8], float up) {
    uint32_t hi[4], lo[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) split_pair(v[2 * j] * up, v[2 * j + 1] * up, hi[j], lo[j]);
    *reinterpret_cast<uint4*>(at) = make_uint4(hi[0], hi[1], hi[2], hi[3]);
    *reinterpret_cast<uint4*>(at + lines * 64) = make_uint4(lo[0], lo[1], lo[2], lo[3]);
}

__device__ __forceinline__ float largest_of_warp(float top) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
    return top;
}
__device__ __forceinline__ float largest_of(float4 f) {
    return fmaxf(fmaxf(fabsf(f.x), fabsf(f.y)), fmaxf(fabsf(f.z), fabsf(f.w)));
}

// One warp a row, the row in registers. Returns the scale that undoes the row's.
template <int kK>
__device__ __forceinline__ float split_row(const float* __restrict__ from, uint8_t* __restrict__ to, int row,
                                           int lines) {
    constexpr int kSteps = kK / 256;
    const int lane = threadIdx.x % 32;
    const float* source = from + static_cast<int64_t>(row) * kK;
    float v[kSteps][8];
    float top = 0.0f;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
        const float4* p = reinterpret_cast<const float4*>(source + s * 256 + lane * 8);
        const float4 f = p[0], g = p[1];
        v[s][0] = f.x, v[s][1] = f.y, v[s][2] = f.z, v[s][3] = f.w;
        v[s][4] = g.x, v[s][5] = g.y, v[s][6] = g.z, v[s][7] = g.w;
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int i = 0; i < 8; ++i) top = fmaxf(top, fabsf(v[s][i]));
    }
    const int e = exponent_for(largest_of_warp(top));
    const float up = power_of_two(e);
    uint8_t* base = stored_row<kK>(to, row, lines, lane);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) store_pieces(base + static_cast<int64_t>(s) * 8 * (lines * 128), lines, v[s], up);
    return power_of_two(-e);
}

// The same with few registers: the row is read twice, the second time from a cache. kPermute: pairs of columns in the
// order in which the first product's threads hold them.
template <int kK, bool kPermute>
__device__ __forceinline__ float split_row_lean(const float* from, uint8_t* to, int row, int lines) {
    static_assert(kK % 512 == 0, "steps");
    const int lane = threadIdx.x % 32;
    const float* source = from + static_cast<int64_t>(row) * kK;
    const float4* wide = reinterpret_cast<const float4*>(source) + lane;
    float top = 0.0f;
#pragma unroll 1
    for (int s = 0; s < kK / 512; ++s) {
        const float4 f0 = __ldg(wide);
        const float4 f1 = __ldg(wide + 32);
        const float4 f2 = __ldg(wide + 64);
        const float4 f3 = __ldg(wide + 96);
        wide += 128;
        top = fmaxf(top, fmaxf(fmaxf(largest_of(f0), largest_of(f1)), fmaxf(largest_of(f2), largest_of(f3))));
    }
    const int e = exponent_for(largest_of_warp(top));
    const float up = power_of_two(e);
    uint8_t* at = stored_row<kK>(to, row, lines, lane);
    const float* p = kPermute ? source + lane / 4 * 32 + lane % 4 * 2 : source + lane * 8;
#pragma unroll 1
    for (int s = 0; s < kK / 256; ++s) {
        float v[8];
        if constexpr (kPermute) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float2 f = __ldg(reinterpret_cast<const float2*>(p + 8 * j));
                v[2 * j] = f.x;
                v[2 * j + 1] = f.y;
            }
        } else {
            const float4 f = __ldg(reinterpret_cast<const float4*>(p));
            const float4 g = __ldg(reinterpret_cast<const float4*>(p) + 1);
            v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
            v[4] = g.x, v[5] = g.y, v[6] = g.z, v[7] = g.w;
        }
        store_pieces(at, lines, v, up);
        p += 256;
        at += 8 * (lines * 128);
    }
    return power_of_two(-e);
}

// All of w1, the first wave's rows of x, and the counters to zero. The terms of a hidden column are its scale and its
// bias, both times -log2(e).
__global__ void __launch_bounds__(256, 2)
split_first_kernel(const float* __restrict__ x, const float* __restrict__ w1, const float* __restrict__ b1,
                   uint8_t* __restrict__ xs, uint8_t* __restrict__ w1s, float* __restrict__ x_scale,
                   float2* __restrict__ w1_terms, uint32_t* __restrict__ ready) {
    if (blockIdx.x == 0 && threadIdx.x < kM / 256) ready[threadIdx.x] = 0;
    const int row = blockIdx.x * 8 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row < kHidden) {
        const float down = split_row<kIn>(w1, w1s, row, kWide);
        if (lane == 0) w1_terms[row] = make_float2(-kLog2E * down, -kLog2E * b1[row]);
    } else if (row < kHidden + kWaveRows) {
        const float down = split_row<kIn>(x, xs, row - kHidden, 64);
        if (lane == 0) x_scale[row - kHidden] = down;
    }
}

// --------------------------------------------------------------------------------------------------------- products

constexpr int kStages = 4;
constexpr int kBytesA = kGroups * 8192;
constexpr int kBytesB = kWide * 128;
constexpr int kHalfB = kBytesB / 2;
constexpr int kStageBytes = kBytesA + kBytesB;
constexpr int kShared = 1024 + kStages * kStageBytes + 256;
constexpr int kThreads = (kGroups + 1) * 128;
// Warpgroup 1 starts a stretch once warpgroup 0 has issued this chunk. Below kStages, or both wait for ever.
constexpr int kLead = 2;
static_assert(kLead < kStages, "lead");

// What the first product's spare warps split meanwhile.
struct Later {
    const float* x;
    const float* w2;
    const float* b2;
    uint8_t* xs;
    uint8_t* w2s;
    float* x_scale;
    float2* w2_terms;
    uint32_t* ready;  // for every 256 rows of x: how many are split
};

// `pace` holds the number of tiles that this block's producer has begun to load.
__device__ __forceinline__ void split_meanwhile(const Later& later, const volatile int* pace) {
    const int helper = threadIdx.x / 32 - 1;  // 0, 1, 2
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int wave = 1; wave < kWaves; ++wave) {
        while (*pace < wave) __nanosleep(500);
        __syncwarp();
        const int first_row = wave * kWaveRows + blockIdx.x * kBlockRows;
#pragma unroll 1
        for (int r = helper; r < kBlockRows; r += 3) {
            const float down = split_row_lean<kIn, false>(later.x, later.xs, first_row + r, 64);
            if (lane == 0) later.x_scale[first_row + r] = down;
            __threadfence();
            fence_proxies();
            __syncwarp();
            if (lane == 0) add_release(later.ready + first_row / 256, 1);
        }
    }
    while (*pace < kWaves) __nanosleep(500);
    __syncwarp();
    constexpr int kRows = kOut / BLOCKS;
#pragma unroll 1
    for (int r = helper; r < kRows; r += 3) {
        const int row = blockIdx.x * kRows + r;
        const float down = split_row_lean<kHidden, true>(later.w2, later.w2s, row, kWide);
        if (lane == 0) later.w2_terms[row] = make_float2(down * (1.0f / kHiddenScale), later.b2[row]);
    }
}

// A cluster makes 256 x 256 outputs, each of its two blocks 128 x 256, each warpgroup 64 x 256.
// kFirst: hidden = split(sigmoid(a b' + bias)); else: partial = (max, sum of exp) of 256 columns of a b' + bias.
// k is summed in kFolds stretches; what the earlier one gives is kept in `folded`, which only its own thread touches.
template <int kK, int kN, bool kFirst, int kFolds>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
product_kernel(const uint8_t* a, const uint8_t* b, const float* row_scale, const float2* __restrict__ column_terms,
               uint8_t* hidden, float2* partial, float4* folded, Later later) {
    constexpr int kChunks = kK / 32;
    constexpr int kStretch = kChunks / kFolds;
    constexpr int kAcross = kN / kWide;            // cluster tiles along n
    constexpr int kDown = kM / (kGroups * 64 * 2); // cluster tiles along m
    constexpr int kTiles = kAcross * kDown;
    static_assert(kFolds == 1 || kFolds == 2, "folds");
    static_assert(kChunks % kFolds == 0 && kStretch > kLead, "stretch");
    static_assert(kM % (kGroups * 128) == 0 && kN % kWide == 0, "tiles");
    static_assert(!kFirst || kTiles == kWaves * kClusters, "waves");

    extern __shared__ uint8_t raw[];
    uint8_t* tiles = raw + ((1024 - (shared_address(raw) & 1023)) & 1023);
    uint64_t* full = reinterpret_cast<uint64_t*>(tiles + kStages * kStageBytes);
    uint64_t* empty = full + kStages;
    uint64_t* lead = empty + kStages;
    volatile int* pace = reinterpret_cast<volatile int*>(lead + 1);

    const int rank = blockIdx.x & 1;
    const int first_tile = blockIdx.x >> 1;

    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) {
            start_barrier(&full[s], 1);
            start_barrier(&empty[s], kGroups * 4 * 2);
        }
        start_barrier(lead, 1);
        *pace = 0;
        show_started();
    }
    __syncthreads();
    cluster_barrier();

    const int group_of_block = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
    if (group_of_block == 0) {
        give_up_registers<40>();
        if (threadIdx.x == 0) {
            int stage = 0;
            uint32_t parity = 0;
            int begun = 0;
#pragma unroll 1
            for (int tile = first_tile; tile < kTiles; tile += kClusters) {
                const int m_tile = tile / kAcross * 2 + rank;
                const int n_tile = tile % kAcross;
                const uint8_t* from_a = a + static_cast<int64_t>(m_tile) * kGroups * kChunks * 8192;
                const uint8_t* from_b = b + static_cast<int64_t>(n_tile) * kChunks * kBytesB + rank * kHalfB;
                if constexpr (kFirst) {
                    *pace = ++begun;
                    if (begun > 1) {
                        const uint32_t* counter = later.ready + tile / kAcross;
                        while (load_acquire(counter) < 256u) __nanosleep(100);
                        fence_proxies();
                    }
                }
#pragma unroll 1
                for (int chunk = 0; chunk < kChunks; ++chunk) {
                    uint8_t* to = tiles + stage * kStageBytes;
                    wait_for(&empty[stage], parity ^ 1);
                    arrive_and_expect(&full[stage], kStageBytes);
                    // Block 0 fetches the high pieces of B for both, block 1 the low ones.
                    load_for_all(to + kBytesA + rank * kHalfB, from_b, kHalfB, &full[stage], 3);
#pragma unroll
                    for (int g = 0; g < kGroups; ++g) {
                        bulk_load(to + g * 8192, from_a + g * (kChunks * 8192), 8192, &full[stage]);
                    }
                    from_a += 8192;
                    from_b += kBytesB;
                    if (++stage == kStages) {
                        stage = 0;
                        parity ^= 1;
                    }
                }
            }
        } else if (kFirst && threadIdx.x >= 32) {
            split_meanwhile(later, pace);
        }
    } else {
        take_registers<232>();
        const int group = group_of_block - 1;
        const int lane = threadIdx.x % 32;
        const int warp = threadIdx.x % 128 / 32;
        const int row0 = warp * 16 + lane / 4;
        const int q = lane % 4;
        const uint32_t tiles_at = shared_address(tiles);
        float4* mine = nullptr;
        if constexpr (kFolds > 1) {
            mine = folded + static_cast<int64_t>(blockIdx.x) * 32 * (kGroups * 128) + (threadIdx.x - 128);
        }

        float d[128];
#pragma unroll
        for (int i = 0; i < 128; ++i) d[i] = 0.0f;
        int stage = 0;
        uint32_t parity = 0;
        uint32_t lead_parity = 0;
#pragma unroll 1
        for (int tile = first_tile; tile < kTiles; tile += kClusters) {
            const int m_tile = tile / kAcross * 2 + rank;
            const int n_tile = tile % kAcross;

#pragma unroll 1
            for (int fold = 0; fold < kFolds; ++fold) {
                // Warpgroup 1 stays behind, so that one multiplies while the other folds or finishes a tile.
                if (group == 1) wait_for(lead, lead_parity);
                lead_parity ^= 1;
                __syncwarp();
                int before = 0;
#pragma unroll 1
                for (int chunk = 0; chunk < kStretch; ++chunk) {
                    const uint32_t at = tiles_at + stage * kStageBytes;
                    const uint64_t a_hi = describe(at + group * 8192, 64);
                    const uint64_t a_lo = a_hi + (4096 >> 4);
                    const uint64_t b_hi = describe(at + kBytesA, kWide);
                    const uint64_t b_lo = b_hi + (kHalfB >> 4);
                    wait_for(&full[stage], parity);
                    begin_products();
                    multiply(d, a_lo, b_hi, chunk > 0 ? 1 : 0);
                    multiply(d, a_hi, b_lo, 1);
                    multiply(d, a_lo + 2, b_hi + 2, 1);
                    multiply(d, a_hi + 2, b_lo + 2, 1);
                    multiply(d, a_hi, b_hi, 1);
                    multiply(d, a_hi + 2, b_hi + 2, 1);
                    commit_products();
                    wait_all_but_one();
                    if (chunk > 0 && lane < 2) arrive_at(&empty[before], lane);
                    if (chunk == kLead && threadIdx.x == 128) arrive_here(lead);
                    __syncwarp();
                    before = stage;
                    if (++stage == kStages) {
                        stage = 0;
                        parity ^= 1;
                    }
                }
                wait_all(d);
                if (lane < 2) arrive_at(&empty[before], lane);
                __syncwarp();
                if constexpr (kFolds > 1) {
                    if (fold + 1 < kFolds) {
#pragma unroll
                        for (int i = 0; i < 32; ++i) {
                            store_l2(mine + i * (kGroups * 128), d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]);
                        }
                    }
                }
            }

            if constexpr (kFolds > 1) {
#pragma unroll
                for (int i = 0; i < 32; i += 8) {
                    float4 t[8];
#pragma unroll
                    for (int j = 0; j < 8; ++j) t[j] = load_l2(mine + (i + j) * (kGroups * 128));
#pragma unroll
                    for (int j = 0; j < 8; ++j) {
                        d[4 * (i + j)] += t[j].x;
                        d[4 * (i + j) + 1] += t[j].y;
                        d[4 * (i + j) + 2] += t[j].z;
                        d[4 * (i + j) + 3] += t[j].w;
                    }
                }
            }

            const int row_block = m_tile * kGroups + group;
            // Two columns' terms: scale, bias, scale, bias.
            const float4* terms = reinterpret_cast<const float4*>(column_terms + n_tile * kWide + 2 * q);
            if constexpr (kFirst) {
                const float scale0 = load_l2(row_scale + row_block * 64 + row0);
                const float scale1 = load_l2(row_scale + row_block * 64 + row0 + 8);
                uint8_t* to = hidden + (static_cast<int64_t>(row_block) * (kN / 32) + n_tile * (kWide / 32)) * 8192 +
                              row0 * 64 + ((q ^ ((row0 >> 1) & 3)) << 4);
#pragma unroll
                for (int c = 0; c < kWide / 32; ++c) {
                    uint32_t hi[2][4], lo[2][4];
#pragma unroll
                    for (int jj = 0; jj < 4; ++jj) {
                        const int j = 4 * c + jj;
                        const float4 t = __ldg(terms + 4 * j);
#pragma unroll
                        for (int i = 0; i < 2; ++i) {
                            const float rs = i == 0 ? scale0 : scale1;
                            // exp(-v); the scales of rows are powers of two, so rs * t.x rounds nothing.
                            const float e0 = fast_exp2(fmaf(d[4 * j + 2 * i], rs * t.x, t.y));
                            const float e1 = fast_exp2(fmaf(d[4 * j + 2 * i + 1], rs * t.z, t.w));
                            const float s0 = kHiddenScale * fast_reciprocal(1.0f + e0);
                            const float s1 = kHiddenScale * fast_reciprocal(1.0f + e1);
                            split_pair(s0, s1, hi[i][jj], lo[i][jj]);
                        }
                    }
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        uint8_t* at = to + c * 8192 + i * 512;
                        *reinterpret_cast<uint4*>(at) = make_uint4(hi[i][0], hi[i][1], hi[i][2], hi[i][3]);
                        *reinterpret_cast<uint4*>(at + 4096) = make_uint4(lo[i][0], lo[i][1], lo[i][2], lo[i][3]);
                    }
                }
            } else {
#pragma unroll
                for (int j = 0; j < kWide / 8; ++j) {
                    const float4 t = __ldg(terms + 4 * j);
                    d[4 * j] = fmaf(d[4 * j], t.x, t.y);
                    d[4 * j + 1] = fmaf(d[4 * j + 1], t.z, t.w);
                    d[4 * j + 2] = fmaf(d[4 * j + 2], t.x, t.y);
                    d[4 * j + 3] = fmaf(d[4 * j + 3], t.z, t.w);
                }
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float top = fmaxf(d[2 * i], d[2 * i + 1]);
#pragma unroll
                    for (int j = 1; j < kWide / 8; ++j) {
                        top = fmaxf(top, fmaxf(d[4 * j + 2 * i], d[4 * j + 2 * i + 1]));
                    }
                    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
                    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
                    float even = 0.0f, odd = 0.0f;
#pragma unroll
                    for (int j = 0; j < kWide / 8; ++j) {
                        even += fast_exp2((d[4 * j + 2 * i] - top) * kLog2E);
                        odd += fast_exp2((d[4 * j + 2 * i + 1] - top) * kLog2E);
                    }
                    float total = even + odd;
                    total += __shfl_xor_sync(0xffffffffu, total, 1);
                    total += __shfl_xor_sync(0xffffffffu, total, 2);
                    if (q == 0) {
                        partial[(row_block * 64 + row0 + 8 * i) * kParts + n_tile] = make_float2(top, total);
                    }
                }
            }
        }
    }
    __syncwarp();
    cluster_barrier();  // no block ends while the other still arrives at its barriers
}

__global__ void __launch_bounds__(128)
join_kernel(const float2* __restrict__ partial, float* __restrict__ out) {
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= kM) return;
    const float4* from = reinterpret_cast<const float4*>(partial + static_cast<int64_t>(row) * kParts);
    float4 p[kParts / 2];
#pragma unroll
    for (int i = 0; i < kParts / 2; ++i) p[i] = from[i];
    float top = p[0].x;
#pragma unroll
    for (int i = 0; i < kParts / 2; ++i) top = fmaxf(top, fmaxf(p[i].x, p[i].z));
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < kParts / 2; ++i) total += p[i].y * expf(p[i].x - top) + p[i].w * expf(p[i].z - top);
    out[row] = top + logf(total);
}

// ----------------------------------------------------------------------------------------------------------- launch

constexpr int64_t kBytesX = static_cast<int64_t>(kM) * kIn * 4;
constexpr int64_t kBytesW1 = static_cast<int64_t>(kHidden) * kIn * 4;
constexpr int64_t kBytesW2 = static_cast<int64_t>(kOut) * kHidden * 4;
constexpr int64_t kBytesH = static_cast<int64_t>(kM) * kHidden * 4;
constexpr int64_t kBytesScaleX = kM * 4;
constexpr int64_t kBytesTerms1 = kHidden * 8;
constexpr int64_t kBytesTerms2 = kOut * 8;
constexpr int64_t kBytesPartial = static_cast<int64_t>(kM) * kParts * 8;
constexpr int64_t kBytesFolded = static_cast<int64_t>(BLOCKS) * kGroups * 64 * kWide * 4;
constexpr int64_t kBytesReady = kM / 256 * 4;

extern "C" int64_t scratch_bytes() {
    return kBytesX + kBytesW1 + kBytesW2 + kBytesH + kBytesScaleX + kBytesTerms1 + kBytesTerms2 + kBytesPartial +
           kBytesFolded + kBytesReady;
}

extern "C" int run_model(const float* x, const float* w1, const float* b1, const float* w2, const float* b2,
                         uint8_t* scratch, float* out, void* stream_pointer) {
    cudaStream_t stream = static_cast<cudaStream_t>(stream_pointer);
    uint8_t* at = scratch;
    uint8_t* xs = at;
    at += kBytesX;
    uint8_t* w1s = at;
    at += kBytesW1;
    uint8_t* w2s = at;
    at += kBytesW2;
    uint8_t* hs = at;
    at += kBytesH;
    float* x_scale = reinterpret_cast<float*>(at);
    at += kBytesScaleX;
    float2* w1_terms = reinterpret_cast<float2*>(at);
    at += kBytesTerms1;
    float2* w2_terms = reinterpret_cast<float2*>(at);
    at += kBytesTerms2;
    float2* partial = reinterpret_cast<float2*>(at);
    at += kBytesPartial;
    float4* folded = reinterpret_cast<float4*>(at);
    at += kBytesFolded;
    uint32_t* ready = reinterpret_cast<uint32_t*>(at);

    auto first = product_kernel<kIn, kHidden, true, 1>;
    auto second = product_kernel<kHidden, kOut, false, FOLDS>;
    static bool prepared = false;
    if (!prepared) {
        cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(first),
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaFuncSetAttribute(reinterpret_cast<const void*>(second),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
        if (error != cudaSuccess) return static_cast<int>(error);
        prepared = true;
    }

    Later later;
    later.x = x;
    later.w2 = w2;
    later.b2 = b2;
    later.xs = xs;
    later.w2s = w2s;
    later.x_scale = x_scale;
    later.w2_terms = w2_terms;
    later.ready = ready;

    split_first_kernel<<<(kHidden + kWaveRows) / 8, 256, 0, stream>>>(x, w1, b1, xs, w1s, x_scale, w1_terms, ready);
    first<<<BLOCKS, kThreads, kShared, stream>>>(xs, w1s, x_scale, w1_terms, hs, nullptr, nullptr, later);
    second<<<BLOCKS, kThreads, kShared, stream>>>(hs, w2s, nullptr, w2_terms, nullptr, partial, folded, later);
    join_kernel<<<kM / 128, 128, 0, stream>>>(partial, out);
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="linear_sigmoid_linear_logsumexp",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
run_model = library.run_model
run_model.argtypes = [ctypes.c_void_p] * 8
run_model.restype = ctypes.c_int
library.scratch_bytes.argtypes = []
library.scratch_bytes.restype = ctypes.c_int64
SCRATCH_BYTES = int(library.scratch_bytes())


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.linear1 = nn.Linear(input_size, hidden_size)
        self.linear2 = nn.Linear(hidden_size, output_size)
        self._scratch = None

    def forward(self, x):
        x = x.contiguous()
        w1 = self.linear1.weight.contiguous()
        b1 = self.linear1.bias
        w2 = self.linear2.weight.contiguous()
        b2 = self.linear2.bias
        if tuple(x.shape) != (16384, 2048) or tuple(w1.shape) != (4096, 2048) or tuple(w2.shape) != (1024, 4096):
            raise RuntimeError("shapes other than those this was written for")
        scratch = self._scratch
        if scratch is None or scratch.device != x.device:
            scratch = torch.empty(SCRATCH_BYTES, dtype=torch.uint8, device=x.device)
            self._scratch = scratch
        out = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = run_model(
            x.data_ptr(),
            w1.data_ptr(),
            b1.data_ptr(),
            w2.data_ptr(),
            b2.data_ptr(),
            scratch.data_ptr(),
            out.data_ptr(),
            stream,
        )
        if error:
            raise RuntimeError(f"run_model: CUDA error {error}")
        return out
