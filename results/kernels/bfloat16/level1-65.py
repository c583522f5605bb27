import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_bf16.h>

namespace {

constexpr int kBatch = 8;
constexpr int kChannels = 64;   // in and out
constexpr int kH = 512;
constexpr int kW = 512;
constexpr int kOutH = 514;
constexpr int kOutW = 518;
constexpr int kTaps = 21;

constexpr int kConsumers = 3;                  // warpgroups; each owns every third output row
constexpr int kTile = 176;                     // output columns of a tile
constexpr int kLastTile = 168;                 // of the third tile of a row, which needs 166
constexpr int kTiles = 3;

constexpr int kLines = kTile + 8;              // 184
constexpr int kPairs = kLines / 2;             // 92
constexpr int kItems = 4 * kPairs;             // 368 of a stage
constexpr int kPanel = kLines * 16;            // bytes of 8 channels
constexpr int kStageBytes = kPanel * 4;        // 32 channels of one input row
constexpr int kStages = 4;                     // two input rows
static_assert((kStages & (kStages - 1)) == 0, "ring");
constexpr int kTapBytes = kChannels * kChannels * 2;
constexpr int kWeightBytes = kTaps * kTapBytes;
constexpr int kStagingOffset = kWeightBytes + kStages * kStageBytes;
constexpr int kStagingBytes = 1024;            // of one consumer warp
constexpr int kBarrierOffset = kStagingOffset + 4 * kConsumers * kStagingBytes;
constexpr int kSharedBytes = kBarrierOffset + 128;
constexpr int kThreads = 128 * (kConsumers + 1);
constexpr int kAcc = kTile / 2;                // 88 floats a thread
// tune: kFirst in (1, 2, 3)
constexpr int kFirst = 2;                      // taps of a stage before the previous stage is handed back

constexpr int kCost = kTile / 8;               // of a row of tile 0 or 1
constexpr int kLastCost = kLastTile / 8;       // of tile 2
constexpr int kImageCost = kOutH * (2 * kCost + kLastCost);

static_assert(kSharedBytes <= 232448, "shared memory");
static_assert(2 * kTile + kLastTile >= kOutW, "columns");

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void bar_start(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void bar_show_started() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Predicated, so that the warp stays together.
__device__ __forceinline__ void bar_arrive_if(uint64_t* barrier, int yes) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(
            shared_address(barrier)), "r"(yes) : "memory");
}
__device__ __forceinline__ void bar_arrive_and_expect(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void bar_wait(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void show_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Leaves the accumulators alone: the last group is still at work on them.
__device__ __forceinline__ void wait_all_but_last() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void wait_products(float (&d)[N]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define ACC4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])

// D (64 x N) = A (64 x 16) B (16 x N) + (add ? D : 0), both K-major in shared memory.
template <int kN>
__device__ __forceinline__ void multiply(float (&d)[kAcc], uint64_t a, uint64_t b, int add) {
    if constexpr (kN == 176) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %90, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n176k16.f32.bf16.bf16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
            "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
            "%80, %81, %82, %83, %84, %85, %86, %87}, "
            "%88, %89, p, 1, 1, 0, 0;\n}"
            : ACC4(0), ACC4(4), ACC4(8), ACC4(12), ACC4(16), ACC4(20), ACC4(24), ACC4(28), ACC4(32), ACC4(36),
              ACC4(40), ACC4(44), ACC4(48), ACC4(52), ACC4(56), ACC4(60), ACC4(64), ACC4(68), ACC4(72), ACC4(76),
              ACC4(80), ACC4(84)
            : "l"(a), "l"(b), "r"(add));
    } else {
        static_assert(kN == 168, "columns of a product");
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %86, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n168k16.f32.bf16.bf16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
            "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
            "%80, %81, %82, %83}, "
            "%84, %85, p, 1, 1, 0, 0;\n}"
            : ACC4(0), ACC4(4), ACC4(8), ACC4(12), ACC4(16), ACC4(20), ACC4(24), ACC4(28), ACC4(32), ACC4(36),
              ACC4(40), ACC4(44), ACC4(48), ACC4(52), ACC4(56), ACC4(60), ACC4(64), ACC4(68), ACC4(72), ACC4(76),
              ACC4(80)
            : "l"(a), "l"(b), "r"(add));
    }
}

// Upper half of a descriptor: distance of 8 lines, 128 bytes; no swizzle.
__device__ __forceinline__ uint64_t descriptor(uint32_t low) {
    return (static_cast<uint64_t>(128 >> 4) << 32) | low;
}

// The products of the taps kFrom to kTo - 1 of one kernel row and 32 channels, as one group.
// `a`, `b`: lower halves of the descriptors.
template <int kN, int kFrom, int kTo>
__device__ __forceinline__ void products(float (&d)[kAcc], uint32_t a, uint32_t b, int add) {
    begin_products();
#pragma unroll
    for (int kw = kFrom; kw < kTo; ++kw) {
#pragma unroll
        for (int ks = 0; ks < 2; ++ks) {
            multiply<kN>(d, descriptor(a + kw * (kTapBytes / 16) + ks * (2 * kChannels)),
                         descriptor(b - kw + ks * (2 * kPanel / 16)), kw == kFrom && ks == 0 ? add : 1);
        }
    }
    commit_products();
}

// All products of one output row: `chunks` stages, from kernel row `kh` downwards. The products stay under way from
// stage to stage; only the end waits for all of them.
template <int kN>
__device__ __forceinline__ void row_products(float (&d)[kAcc], uint32_t a_low, uint32_t b_low, int kh, int chunks,
                                             uint64_t* full, uint64_t* empty, uint64_t* weights_full, int& stage,
                                             uint32_t& parity, int leader) {
    uint32_t a = a_low + kh * (7 * kTapBytes / 16);
    bar_wait(&weights_full[kh], 0);
    bar_wait(&full[stage], parity);
    products<kN, 0, 7>(d, a, b_low + stage * (kStageBytes / 16), 0);   // overwrites the sums
#pragma unroll 1
    for (int c = 1; c < chunks; ++c) {
        const int before = stage;
        stage = (stage + 1) & (kStages - 1);
        if (stage == 0) parity ^= 1;
        if (c & 1) {
            a += 4 * kChannels;   // the other 32 channels
        } else {
            a -= 4 * kChannels + 7 * kTapBytes / 16;   // the next input row
            --kh;
            bar_wait(&weights_full[kh], 0);
        }
        bar_wait(&full[stage], parity);
        const uint32_t b = b_low + stage * (kStageBytes / 16);
        products<kN, 0, kFirst>(d, a, b, 1);
        wait_all_but_last();   // the stage before is done with
        bar_arrive_if(&empty[before], leader);
        products<kN, kFirst, 7>(d, a, b, 1);
    }
    wait_products(d);
    bar_arrive_if(&empty[stage], leader);
    stage = (stage + 1) & (kStages - 1);
    if (stage == 0) parity ^= 1;
}

// Writes 16 channels and up to 176 columns of one output row, through 1 KB of the warp's own.
__device__ __forceinline__ void store_row(const float (&d)[kAcc], uint32_t* staging, __nv_bfloat16* to, int columns,
                                          int lane) {
    const int line = lane >> 2;
    const int quarter = lane & 3;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int part = 0; part < 3; ++part) {
            __syncwarp();
#pragma unroll
            for (int jj = 0; jj < 8; ++jj) {
                const int j = part * 8 + jj;
                if (j < kTile / 8) {
                    const __nv_bfloat162 two = __floats2bfloat162_rn(d[4 * j + 2 * half], d[4 * j + 2 * half + 1]);
                    staging[line * 32 + ((jj * 4 + quarter) ^ (line * 4))] =
                        *reinterpret_cast<const uint32_t*>(&two);
                }
            }
            __syncwarp();
            if (part * 64 + lane * 2 < columns) {
#pragma unroll
                for (int k = 0; k < 8; ++k) {
                    const uint32_t value = staging[k * 32 + (lane ^ (k * 4))];
                    *reinterpret_cast<uint32_t*>(to + (half * 8 + k) * (kOutH * kOutW) + part * 64 + lane * 2) = value;
                }
            }
        }
    }
    __syncwarp();
}

// packed[tap][ci / 8][co][ci % 8]
__global__ void pack_weights_kernel(const uint16_t* __restrict__ weight, uint4* __restrict__ packed) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= kTaps * 8 * kChannels) return;
    const int tap = i % kTaps;
    const int co = i / kTaps % kChannels;
    const int oct = i / (kTaps * kChannels);
    uint32_t v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = weight[((oct * 8 + j) * kChannels + co) * kTaps + tap];
    uint4 q;
    q.x = v[0] | v[1] << 16;
    q.y = v[2] | v[3] << 16;
    q.z = v[4] | v[5] << 16;
    q.w = v[6] | v[7] << 16;
    packed[(tap * 8 + oct) * kChannels + co] = q;
}

// First row of a block's share, counted as (image * 3 + tile) * 514 + row; shares are equal by cost.
__device__ __forceinline__ int first_unit(int block, int blocks) {
    const int at = static_cast<int>(static_cast<int64_t>(block) * (kBatch * kImageCost) / blocks);
    const int image = at / kImageCost;
    const int rest = at - image * kImageCost;
    const int tile = rest / (kOutH * kCost);
    const int within = rest - tile * (kOutH * kCost);
    const int row = tile == 2 ? within / kLastCost : within / kCost;
    return (image * kTiles + tile) * kOutH + row;
}

__global__ void __launch_bounds__(kThreads, 1)
conv_kernel(const __nv_bfloat16* __restrict__ x, const unsigned char* __restrict__ packed,
            __nv_bfloat16* __restrict__ out) {
    extern __shared__ __align__(1024) unsigned char shared[];
    unsigned char* weights = shared;
    unsigned char* stages = shared + kWeightBytes;
    uint64_t* barriers = reinterpret_cast<uint64_t*>(shared + kBarrierOffset);
    uint64_t* full = barriers;
    uint64_t* empty = barriers + kStages;
    uint64_t* weights_full = barriers + 2 * kStages;

    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) {
            bar_start(&full[s], 4);
            bar_start(&empty[s], 4 * kConsumers);
        }
        for (int kh = 0; kh < 3; ++kh) bar_start(&weights_full[kh], 1);
        bar_show_started();
    }
    __syncthreads();

    int unit = first_unit(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
    const int last = first_unit(static_cast<int>(blockIdx.x) + 1, static_cast<int>(gridDim.x));
    int slot = 0;   // input row in the ring: stages 2 slot and 2 slot + 1
    uint32_t parity = 0;

    if (threadIdx.x < 128) {
        // Producer: transposes input rows into the ring.
        const int tid = static_cast<int>(threadIdx.x);
        int item_from[3], item_column[3], item_to[3], item_odd[3];
#pragma unroll
        for (int k = 0; k < 3; ++k) {
            const int i = tid + 128 * k;
            const int oct = i / kPairs;
            const int pair = i - oct * kPairs;
            item_column[k] = 2 * pair - 8;
            item_from[k] = oct * 8 * (kH * kW) + item_column[k];
            item_odd[k] = pair >> 2 & 1;
            item_to[k] = oct * kPanel + pair * 32;
        }
#pragma unroll 1
        while (unit < last) {
            const int strip = unit / kOutH;
            const int r0 = unit - strip * kOutH;
            const int r1 = min(kOutH, r0 + last - unit);
            unit += r1 - r0;
            const int n = strip / kTiles;
            const int tile = strip - n * kTiles;
            const int first_row = max(r0 - 2, 0);
            const int end_row = min(r1, kH);
            bool inside[3];
#pragma unroll
            for (int k = 0; k < 3; ++k) {
                inside[k] = tid + 128 * k < kItems &&
                            static_cast<unsigned>(item_column[k] + tile * kTile) < static_cast<unsigned>(kW);
            }
#pragma unroll 1
            for (int ih = first_row; ih < end_row; ++ih) {
#pragma unroll 1
                for (int chunk = 0; chunk < 2; ++chunk) {
                    // All loads first: they are under way while the stage is awaited.
                    const int base = ((n * kChannels + chunk * 32) * kH + ih) * kW + tile * kTile;
                    uint32_t v[3][8];
#pragma unroll
                    for (int k = 0; k < 3; ++k) {
                        if (inside[k]) {
                            const uint32_t* from = reinterpret_cast<const uint32_t*>(x + (base + item_from[k]));
#pragma unroll
                            for (int j = 0; j < 8; ++j) v[k][j] = __ldg(from + j * (kH * kW / 2));
                        } else {
#pragma unroll
                            for (int j = 0; j < 8; ++j) v[k][j] = 0;
                        }
                    }
                    const int s = 2 * slot + chunk;
                    bar_wait(&empty[s], parity ^ 1);
                    unsigned char* stage = stages + s * kStageBytes;
#pragma unroll
                    for (int k = 0; k < 3; ++k) {
                        if (tid + 128 * k < kItems) {
                            // `odd` lanes write their odd pixel first: no bank conflicts.
                            const int odd = item_odd[k];
                            const uint32_t select_first = odd ? 0x7632u : 0x5410u;
                            const uint32_t select_second = odd ? 0x5410u : 0x7632u;
                            unsigned char* to = stage + item_to[k];
                            uint4 q;
                            q.x = __byte_perm(v[k][0], v[k][1], select_first);
                            q.y = __byte_perm(v[k][2], v[k][3], select_first);
                            q.z = __byte_perm(v[k][4], v[k][5], select_first);
                            q.w = __byte_perm(v[k][6], v[k][7], select_first);
                            *reinterpret_cast<uint4*>(to + odd * 16) = q;
                            q.x = __byte_perm(v[k][0], v[k][1], select_second);
                            q.y = __byte_perm(v[k][2], v[k][3], select_second);
                            q.z = __byte_perm(v[k][4], v[k][5], select_second);
                            q.w = __byte_perm(v[k][6], v[k][7], select_second);
                            *reinterpret_cast<uint4*>(to + (16 - odd * 16)) = q;
                        }
                    }
                    show_stores();
                    __syncwarp();
                    bar_arrive_if(&full[s], tid % 32 == 0);
                }
                slot ^= 1;
                if (slot == 0) parity ^= 1;
            }
        }
    } else {
        // Consumers: warpgroup g makes the output rows r0 + g, r0 + g + 3, ...
        if (threadIdx.x == 128) {
            asm volatile("griddepcontrol.wait;" ::: "memory");
            for (int kh = 2; kh >= 0; --kh) {
                bar_arrive_and_expect(&weights_full[kh], 7 * kTapBytes);
                for (int tap = kh * 7; tap < kh * 7 + 7; ++tap)
                    bulk_load(weights + tap * kTapBytes, packed + tap * kTapBytes, kTapBytes, &weights_full[kh]);
            }
        }
        __syncwarp();
        const int lane = static_cast<int>(threadIdx.x) & 31;
        const int leader = lane == 0;
        const int all_warps = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0) - 4;   // 0 to 11
        const int group = all_warps >> 2;
        const int warp = all_warps & 3;
        uint32_t* staging = reinterpret_cast<uint32_t*>(shared + kStagingOffset + all_warps * kStagingBytes);
        const uint32_t a_low =
            (shared_address(weights) & 0x3ffff) >> 4 | static_cast<uint32_t>(kChannels * 16 >> 4) << 16;
        const uint32_t b_low =
            ((shared_address(stages) + 8 * 16) & 0x3ffff) >> 4 | static_cast<uint32_t>(kPanel >> 4) << 16;

        int stage = 0;   // of the ring
        float acc[kAcc];
#pragma unroll
        for (int i = 0; i < kAcc; ++i) acc[i] = 0.0f;

#pragma unroll 1
        while (unit < last) {
            const int strip = unit / kOutH;
            const int r0 = unit - strip * kOutH;
            const int r1 = min(kOutH, r0 + last - unit);
            unit += r1 - r0;
            const int n = strip / kTiles;
            const int tile = strip - n * kTiles;
            const int first_row = max(r0 - 2, 0);
            const int end_row = min(r1, kH);
            const int columns = min(kTile, kOutW - tile * kTile);
            __nv_bfloat16* const image =
                out + static_cast<int64_t>(n * kChannels + warp * 16) * (kOutH * kOutW) + tile * kTile;
            int r = r0 + group;
            int ih = first_row;
#pragma unroll 1
            while (ih < end_row) {
                const int kh = r - ih;
                if (kh <= 2 && r < r1) {
                    // ih is the first input row of output row r; the last one is r or the end of the image.
                    const int rows = min(r, kH - 1) - ih + 1;
                    if (tile == 2) {
                        row_products<kLastTile>(acc, a_low, b_low, kh, 2 * rows, full, empty, weights_full, stage,
                                                parity, leader);
                    } else {
                        row_products<kTile>(acc, a_low, b_low, kh, 2 * rows, full, empty, weights_full, stage, parity,
                                            leader);
                    }
                    store_row(acc, staging, image + r * kOutW, columns, lane);
                    ih += rows;
                    r += 3;
                } else {
                    // No use for this row: hand it back.
#pragma unroll 1
                    for (int chunk = 0; chunk < 2; ++chunk) {
                        bar_wait(&full[stage], parity);
                        __syncwarp();
                        bar_arrive_if(&empty[stage], leader);
                        stage = (stage + 1) & (kStages - 1);
                        if (stage == 0) parity ^= 1;
                    }
                    ++ih;
                }
            }
        }
    }
}

}  // namespace

extern "C" int conv_transpose_3x7(const void* x, const void* weight, void* packed, void* out, int64_t blocks,
                                  void* stream_pointer) {
    cudaStream_t stream = static_cast<cudaStream_t>(stream_pointer);
    static bool prepared = false;
    if (!prepared) {
        cudaError_t error = cudaFuncSetAttribute(conv_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        prepared = true;
    }
    const int items = kTaps * 8 * kChannels;
    pack_weights_kernel<<<(items + 127) / 128, 128, 0, stream>>>(static_cast<const uint16_t*>(weight),
                                                                 static_cast<uint4*>(packed));
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return static_cast<int>(error);

    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(blocks), 1, 1);
    config.blockDim = dim3(kThreads, 1, 1);
    config.dynamicSmemBytes = kSharedBytes;
    config.stream = stream;
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[0].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = attribute;
    config.numAttrs = 1;
    const __nv_bfloat16* x_typed = static_cast<const __nv_bfloat16*>(x);
    const unsigned char* packed_typed = static_cast<const unsigned char*>(packed);
    __nv_bfloat16* out_typed = static_cast<__nv_bfloat16*>(out);
    error = cudaLaunchKernelEx(&config, conv_kernel, x_typed, packed_typed, out_typed);
    if (error != cudaSuccess) return static_cast<int>(error);
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="conv_transpose_3x7_stream",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
conv_transpose_3x7 = library.conv_transpose_3x7
conv_transpose_3x7.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64, ctypes.c_void_p]
conv_transpose_3x7.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple,
        stride: int = 1,
        padding: int = 0,
        output_padding: int = 0,
        groups: int = 1,
        bias: bool = False,
    ):
        super().__init__()
        self.conv_transpose2d = nn.ConvTranspose2d(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=padding,
            output_padding=output_padding,
            groups=groups,
            bias=bias,
        )
        conv = self.conv_transpose2d
        self.special = (
            in_channels == 64
            and out_channels == 64
            and tuple(conv.kernel_size) == (3, 7)
            and tuple(conv.stride) == (1, 1)
            and tuple(conv.padding) == (0, 0)
            and tuple(conv.output_padding) == (0, 0)
            and groups == 1
            and not bias
        )
        self.packed = None
        self.blocks = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.conv_transpose2d.weight
        if (
            not self.special
            or x.dtype != torch.bfloat16
            or weight.dtype != torch.bfloat16
            or tuple(x.shape) != (8, 64, 512, 512)
        ):
            return self.conv_transpose2d(x)
        x = x.contiguous()
        weight = weight.detach().contiguous()
        if self.packed is None or self.packed.device != x.device:
            self.packed = torch.empty(21 * 64 * 64, dtype=torch.bfloat16, device=x.device)
            self.blocks = torch.cuda.get_device_properties(x.device).multi_processor_count
        out = torch.empty((8, 64, 514, 518), dtype=torch.bfloat16, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = conv_transpose_3x7(
            x.data_ptr(), weight.data_ptr(), self.packed.data_ptr(), out.data_ptr(), self.blocks, stream
        )
        if error:
            raise RuntimeError(f"conv_transpose_3x7: CUDA error {error}")
        return out
