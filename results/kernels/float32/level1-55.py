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

constexpr int kTile = 176;                            // output pixels of a tile
constexpr int kSums = kTile / 2;                      // sums a thread
constexpr int kLines = kTile + 2;                     // input pixels of a row of a strip
constexpr int kItems = kLines * (kIn / 8);            // 16-byte items of a piece of a row
constexpr int kPieceBytes = kItems * 16;
constexpr int kRowBytes = 2 * kPieceBytes;            // hi, lo
constexpr int kSlots = 4;
constexpr int kAcross = 6;                            // strips of an image
constexpr int kStrips = kImages * kAcross;
constexpr int kStageBytes = 8192;                     // 128 couts x 16 channels, hi and lo
constexpr int kStages = 6;
constexpr int kSteps = 36;                            // stages of a tile: 9 taps x 4
constexpr int kBlocks = 132;
constexpr int kTilesPerBlock = (kStrips * kOutHeight + kBlocks - 1) / kBlocks;
constexpr int kThreads = 384;
constexpr int kConverters = 96;
constexpr int kBatch = 3;                             // items that a converting thread has in flight
constexpr int kRounds = (kItems + kConverters * kBatch - 1) / (kConverters * kBatch);
constexpr int kSharedBytes = kSlots * kRowBytes + kStages * kStageBytes + (2 * kStages + 2 * kSlots) * 8;
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
__device__ __forceinline__ void wait_products(float (&d)[N]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
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
        "{\n.reg .pred p;\nsetp.ne.b32 p, %90, 0;\nwgmma.mma_async.sync.aligned.m64n176k16.f32.f16.f16 "
        "{@REGISTERS@}, %88, %89, p, 1, 1, 0, 0;\n}"
        : @OUTPUTS@
        : "l"(a), "l"(b), "r"(add));
}

__device__ __forceinline__ uint32_t bits(__half2 h) { return *reinterpret_cast<const uint32_t*>(&h); }

// One block a cout. Halves of `packed`: [tap * 4 + ci / 16][piece][ci % 16 / 8][cout][ci % 8].
__global__ void pack_kernel(const float* __restrict__ weight, __half* __restrict__ packed,
                            float* __restrict__ inverse, unsigned* __restrict__ peaks) {
    constexpr int kEach = 3, kPackThreads = 192;
    const int cout = blockIdx.x, tid = threadIdx.x;
    if (cout == 0 && tid < kImages) peaks[tid] = 0;
    float v[kEach];
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        v[i] = weight[cout * (kIn * 9) + i * kPackThreads + tid];
        largest = fmaxf(largest, fabsf(v[i]));
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
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int at = i * kPackThreads + tid;
        const int ci = at / 9, tap = at - ci * 9;
        const float scaled = v[i] * scale;
        const __half hi = __float2half_rn(scaled);
        const __half lo = __float2half_rn(scaled - __half2float(hi));
        const int place = (tap * 4 + ci / 16) * 4096 + ci % 16 / 8 * 1024 + cout * 8 + ci % 8;
        packed[place] = hi;
        packed[place + 2048] = lo;
    }
}

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
conv_kernel(const float* __restrict__ x, const __half* __restrict__ packed, const float* __restrict__ inverse,
            float* __restrict__ out, unsigned* __restrict__ peaks) {
    extern __shared__ __align__(1024) unsigned char memory[];
    unsigned char* rows = memory;
    unsigned char* stages = memory + kSlots * kRowBytes;
    uint64_t* full = reinterpret_cast<uint64_t*>(stages + kStages * kStageBytes);
    uint64_t* empty = full + kStages;
    uint64_t* row_full = empty + kStages;
    uint64_t* row_empty = row_full + kSlots;

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < kStages; ++i) {
            start(&full[i], 1);
            start(&empty[i], 16);  // 8 consumer warps of each of two blocks
        }
        for (int i = 0; i < kSlots; ++i) {
            start(&row_full[i], kConverters);
            start(&row_empty[i], 8);
        }
        show_started();
    }
    cluster_meet();

    const int first = blockIdx.x * kTilesPerBlock;

    if (threadIdx.x < 128) {
        give_up_registers<72>();
        if (warp == 3) {
            // Weights: rank 0 loads the hi pieces, rank 1 the lo pieces, for both blocks.
            if (lane == 0) {
                const int part = (blockIdx.x & 1) * (kStageBytes / 2);
                const unsigned char* from = reinterpret_cast<const unsigned char*>(packed) + part;
                int stage = 0;
                uint32_t parity = 1;
#pragma unroll 1
                for (int tile = 0; tile < kTilesPerBlock; ++tile) {
#pragma unroll 1
                    for (int step = 0; step < kSteps; ++step) {
                        wait(&empty[stage], parity);
                        arrive_and_expect(&full[stage], kStageBytes);
                        load_for_all(stages + stage * kStageBytes + part, from + step * kStageBytes, kStageBytes / 2,
                                     &full[stage], 3);
                        if (++stage == kStages) {
                            stage = 0;
                            parity ^= 1;
                        }
                    }
                }
            }
            __syncwarp();
        } else {
            // Input rows: fp32 to two fp16 pieces.
            const int tid = threadIdx.x;
            int q = 0;
            unsigned peak = 0;
            int image = 0;
#pragma unroll 1
            for (int tile = 0; tile < kTilesPerBlock; ++tile) {
                const int t = first + tile;
                const int strip = t / kOutHeight;
                const int row = t - strip * kOutHeight;
                const bool fresh = tile == 0 || row == 0;
                if (fresh && tile != 0) {
                    const unsigned all = __reduce_max_sync(0xffffffffu, peak);
                    if (lane == 0) atomicMax(&peaks[image], all);
                    peak = 0;
                }
                const int inside_strip = min(strip, kStrips - 1);
                image = inside_strip / kAcross;
                const int x0 = (inside_strip - image * kAcross) * kTile;
                const float* base = x + static_cast<int64_t>(image) * kIn * kPlane + x0;
#pragma unroll 1
                for (int r = fresh ? row : row + 2; r <= row + 2; ++r, ++q) {
                    const int slot = q & 3;
                    wait(&row_empty[slot], ((q >> 2) & 1) ^ 1);
                    unsigned char* to = rows + slot * kRowBytes;
                    const float* line = base + r * kWidth;
#pragma unroll 1
                    for (int round = 0; round < kRounds; ++round) {
                        float v[kBatch][8];
#pragma unroll
                        for (int j = 0; j < kBatch; ++j) {
                            const int item = (round * kBatch + j) * kConverters + tid;
                            const int chunk = item / kLines;
                            const int p = item - chunk * kLines;
                            const bool inside = item < kItems && x0 + p < kWidth;
                            const float* from = line + chunk * 8 * kPlane + p;
#pragma unroll
                            for (int c = 0; c < 8; ++c) v[j][c] = inside ? __ldg(from + c * kPlane) : 0.0f;
                        }
#pragma unroll
                        for (int j = 0; j < kBatch; ++j) {
                            const int item = (round * kBatch + j) * kConverters + tid;
                            uint32_t hi[4], lo[4];
#pragma unroll
                            for (int c = 0; c < 4; ++c) {
                                const float u0 = v[j][2 * c], u1 = v[j][2 * c + 1];
                                peak = max(peak, __float_as_uint(u0) & 0x7fffffffu);
                                peak = max(peak, __float_as_uint(u1) & 0x7fffffffu);
                                const float s0 = u0 * kScale, s1 = u1 * kScale;
                                const __half2 h = __floats2half2_rn(s0, s1);
                                const float2 back = __half22float2(h);
                                const __half2 l = __floats2half2_rn(s0 - back.x, s1 - back.y);
                                hi[c] = bits(h);
                                lo[c] = bits(l);
                            }
                            if (item < kItems) {
                                *reinterpret_cast<uint4*>(to + item * 16) = make_uint4(hi[0], hi[1], hi[2], hi[3]);
                                *reinterpret_cast<uint4*>(to + kPieceBytes + item * 16) =
                                    make_uint4(lo[0], lo[1], lo[2], lo[3]);
                            }
                        }
                    }
                    show_stores();
                    arrive(&row_full[slot]);
                }
            }
            const unsigned all = __reduce_max_sync(0xffffffffu, peak);
            if (lane == 0) atomicMax(&peaks[image], all);
        }
    } else {
        take_registers<216>();
        const int group = threadIdx.x / 128 - 1;
        const int cout = group * 64 + (warp & 3) * 16 + lane / 4;
        const float inverse_0 = inverse[cout], inverse_1 = inverse[cout + 8];
        const uint32_t a_base = (descriptor_start(stages) + group * 64) | (128u << 16);
        const uint32_t b_base = descriptor_start(rows) | (static_cast<uint32_t>(kLines) << 16);
        float sum[kSums], d[kSums];
#pragma unroll
        for (int i = 0; i < kSums; ++i) d[i] = 0.0f;
        int q = 0, stage = 0;
        uint32_t parity = 0;
#pragma unroll 1
        for (int tile = 0; tile < kTilesPerBlock; ++tile) {
            const int t = first + tile;
            const int strip = t / kOutHeight;
            const int row = t - strip * kOutHeight;
            const bool leaves = row == kOutHeight - 1;  // the next tile begins another strip
#pragma unroll
            for (int i = 0; i < kSums; ++i) sum[i] = 0.0f;
#pragma unroll 1
            for (int ky = 0; ky < 3; ++ky) {
                const int slot = (q + ky) & 3;
                wait(&row_full[slot], ((q + ky) >> 2) & 1);
#pragma unroll 1
                for (int kx = 0; kx < 3; ++kx) {
                    const uint32_t b_hi = b_base + slot * (kRowBytes / 16) + kx;
                    const uint32_t b_lo = b_hi + kPieceBytes / 16;
                    int before = 0;
#pragma unroll
                    for (int k = 0; k < 4; ++k) {
                        wait(&full[stage], parity);
                        const uint32_t a_hi = a_base + stage * (kStageBytes / 16);
                        const uint32_t a_lo = a_hi + kStageBytes / 32;
                        begin_products();
                        multiply(d, descriptor(a_lo), descriptor(b_hi + k * 2 * kLines), k > 0);
                        multiply(d, descriptor(a_hi), descriptor(b_lo + k * 2 * kLines), 1);
                        multiply(d, descriptor(a_hi), descriptor(b_hi + k * 2 * kLines), 1);
                        commit_products();
                        if (k > 0) {
                            wait_groups<1>();
                            if (lane < 2) arrive_at(&empty[before], lane);
                        }
                        before = stage;
                        if (++stage == kStages) {
                            stage = 0;
                            parity ^= 1;
                        }
                    }
                    wait_products(d);
                    if (lane < 2) arrive_at(&empty[before], lane);
#pragma unroll
                    for (int i = 0; i < kSums; ++i) sum[i] += d[i];
                }
                if ((ky == 0 || leaves) && lane == 0) arrive(&row_empty[slot]);
            }
            q += leaves ? 3 : 1;

            if (strip < kStrips) {
                const int image = strip / kAcross;
                const int column = (strip - image * kAcross) * kTile + lane % 4 * 2;
                float* to = out + (static_cast<int64_t>(image * kOut + cout) * kOutHeight + row) * kOutWidth + column;
                float* to_8 = to + 8 * kOutPlane;
#pragma unroll
                for (int j = 0; j < kTile / 8; ++j) {
                    if (column + 8 * j < kOutWidth) {
                        __stcs(reinterpret_cast<float2*>(to + 8 * j),
                               make_float2(sum[4 * j] * inverse_0, sum[4 * j + 1] * inverse_0));
                        __stcs(reinterpret_cast<float2*>(to_8 + 8 * j),
                               make_float2(sum[4 * j + 2] * inverse_1, sum[4 * j + 3] * inverse_1));
                    }
                }
            }
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
    if (peak == 0 || (peak >= __float_as_uint(4.0e-4f) && peak <= __float_as_uint(2040.0f))) return;
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

SOURCE = SOURCE.replace("@REGISTERS@", ", ".join(f"%{i}" for i in range(88)))
SOURCE = SOURCE.replace("@OUTPUTS@", ", ".join(f'"+f"(d[{i}])' for i in range(88)))

library = ctypes.CDLL(
    load_inline(
        name="conv3x3_split_fp16_n176_masked",
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
                torch.empty(36 * 4096, dtype=torch.float16, device=x.device),
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
