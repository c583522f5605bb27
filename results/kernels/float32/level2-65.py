import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>

constexpr int kChannels = 8;
constexpr int kSide = 384;            // height and width of the input
constexpr int kOut = 64;              // output channels
constexpr int kPooled = 95;           // pooled height and width
constexpr int kTaps = 9;
constexpr int kSteps = 48;            // pooled rows of stream 0; stream 1 has one fewer and idles in step 0
constexpr int kGroups = kSteps + 1;   // loads of a stream: two rows to begin with, then four a step
constexpr int kGroupRows = 4;
constexpr int kSlots = 2;             // ring slots of a stream, four input rows of all channels each
constexpr int kChannelFloats = kGroupRows * kSide;
constexpr int kSlotFloats = 12352;    // 8 channels and the padding between them
constexpr int kSlotBytes = kSlotFloats * 4;
constexpr int kRowBytes = kSide * 4;
constexpr int kConsumers = 384;
constexpr int kThreads = 512;
constexpr int kWeights = kOut * kChannels * kTaps;
constexpr int kWeightsEach = kWeights / kConsumers;
static_assert(kWeightsEach * kConsumers == kWeights, "weights of a thread");
static_assert(7 * kChannelFloats + 4 + 16 + 32 + kChannelFloats + 2 <= kSlotFloats, "slot");

// Weights as fp16 pieces, a panel a tap: high pieces of taps 0 to 8, low piece of tap 8, low pieces of taps 0 to 7.
constexpr int kPanelBytes = kOut * 16;
constexpr int kMixedLowPanel = kTaps;
constexpr int kLowPanel = kTaps + 1;
constexpr int kWeightBytes = 2 * kTaps * kPanelBytes;
constexpr float kWeightScale = 256.0f;
constexpr int kRingAt = kWeightBytes;
constexpr int kBiasAt = kRingAt + 2 * kSlots * kSlotBytes;
constexpr int kPartialAt = kBiasAt + kOut * 4;
constexpr int kBarrierAt = kPartialAt + 64;
constexpr int kSharedBytes = kBarrierAt + 4 * kSlots * 8;
static_assert(kSharedBytes <= 232448, "shared memory");

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
__device__ __forceinline__ void arrive_and_expect(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void wait_for(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}
// Data that is read once: it is the first to leave the L2 cache.
__device__ __forceinline__ uint64_t read_once_policy() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier,
                                          uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy) : "memory");
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

__device__ __forceinline__ uint32_t pack_halves(float lower, float upper) {
    uint32_t y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(upper), "f"(lower));
    return y;
}
// Two values, each as the sum of two fp16 pieces: the high pieces in one register, the low pieces in another.
__device__ __forceinline__ void split(float lower, float upper, uint32_t& high, uint32_t& low) {
    high = pack_halves(lower, upper);
    float a, b;
    asm("{\n.reg .b16 l, u;\nmov.b32 {l, u}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, u;\n}"
        : "=f"(a), "=f"(b)
        : "r"(high));
    low = pack_halves(lower - a, upper - b);
}
__device__ __forceinline__ float sigmoid_of_exponent(float t) {  // 1 / (1 + 2^t)
    float e, y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(t));
    e += 1.0f;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(e));
    return y;
}

// Where channel c begins in a slot, in floats.
__device__ __forceinline__ int channel_offset(int c) {
    return c * kChannelFloats + (c & 1) * 4 + (c & 2) * 8 + (c >> 2) * 32;
}

// K-major B without swizzle: panels of 16 bytes of k, 64 lines of 16 bytes each.
__device__ __forceinline__ uint64_t describe(uint32_t start) {
    constexpr uint32_t kLeading = kPanelBytes;
    constexpr uint32_t kStride = 8 * 16;
    return uint64_t((start & 0x3ffff) >> 4) | uint64_t(kLeading >> 4) << 16 | uint64_t(kStride >> 4) << 32;
}

// D (64 x 64) += A (64 x 16, registers) B (16 x 64, shared memory), fp16 with fp32 sums.
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

// Sums of 4 neighbours in one input row, for channels q and q + 4 (half) and two neighbouring pixels:
// h[(half * 2 + pixel) * 3 + kx].
__device__ __forceinline__ void row_sums(const float* at, float (&h)[12]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float* from = at + half * (4 * kChannelFloats + 32);
        const float4 a = *reinterpret_cast<const float4*>(from);
        const float4 b = *reinterpret_cast<const float4*>(from + 4);
        const float2 c = *reinterpret_cast<const float2*>(from + 8);
        const float m = a.z + a.w;
        const float p = a.y + m;
        const float s45 = b.x + b.y;
        const float s67 = b.z + b.w;
        h[half * 6 + 0] = a.x + p;
        h[half * 6 + 1] = p + b.x;
        h[half * 6 + 2] = m + s45;
        h[half * 6 + 3] = s45 + s67;
        h[half * 6 + 4] = (b.y + s67) + c.x;
        h[half * 6 + 5] = s67 + (c.x + c.y);
    }
}

// One block an image. Stream 0 takes pooled rows 0 to 47 downwards, stream 1 rows 94 to 48 upwards; they end beside
// each other, where they read the same two input rows at the same time.
__global__ void __launch_bounds__(kThreads, 1)
conv_pool_sigmoid_sum_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                             const float* __restrict__ bias, float* __restrict__ out) {
    extern __shared__ __align__(128) unsigned char memory[];
    float* const ring = reinterpret_cast<float*>(memory + kRingAt);
    float* const shared_bias = reinterpret_cast<float*>(memory + kBiasAt);
    float* const partial = reinterpret_cast<float*>(memory + kPartialAt);
    uint64_t* const barriers = reinterpret_cast<uint64_t*>(memory + kBarrierAt);

    const int thread = threadIdx.x;
    const int warp = thread / 32;
    const int lane = thread % 32;
    constexpr float kLog2E = 1.4426950408889634f;

    if (thread == 0) {
        for (int i = 0; i < 2 * kSlots; ++i) {
            start_barrier(&barriers[i], 1);               // full
            start_barrier(&barriers[2 * kSlots + i], 6);  // empty: the six warps of the stream
        }
        show_started();
    }
    __syncthreads();

    if (warp >= kConsumers / 32) {
        give_up_registers<32>();
        const int stream = warp - kConsumers / 32;
        if (stream < 2) {
            uint64_t* const full = barriers + stream * kSlots;
            uint64_t* const empty = barriers + 2 * kSlots + stream * kSlots;
            float* const to = ring + stream * kSlots * kSlotFloats + channel_offset(lane & 7);
            const float* const from =
                x + (static_cast<int64_t>(blockIdx.x) * kChannels + (lane & 7)) * (kSide * kSide);
            const uint64_t policy = read_once_policy();
            int slot = 0;
            uint32_t phase = 0;
#pragma unroll 1
            for (int group = 0; group < kGroups; ++group) {
                // Stream 0: rows 0 and 1, then 4 rows a step. Stream 1: nothing, in step 0 the two rows below its
                // first pooled row, then 4 rows a step.
                int row, rows;
                if (stream == 0) {
                    row = group == 0 ? 0 : kGroupRows * group - 2;
                    rows = group == 0 ? 2 : kGroupRows;
                } else {
                    row = group < 2 ? kGroupRows * kPooled : kGroupRows * (kPooled + 1 - group);
                    rows = group == 0 ? 0 : (group == 1 ? 2 : kGroupRows);
                }
                wait_for(&empty[slot], phase ^ 1);
                if (lane == 0) {
                    if (rows > 0) {
                        arrive_and_expect(&full[slot], static_cast<uint32_t>(kChannels * kRowBytes * rows));
                    } else {
                        arrive(&full[slot]);
                    }
                }
                __syncwarp();
                if (rows > 0 && lane < kChannels) {
                    bulk_load(to + slot * kSlotFloats, from + row * kSide, static_cast<uint32_t>(kRowBytes * rows),
                              &full[slot], policy);
                }
                __syncwarp();
                if (++slot == kSlots) {
                    slot = 0;
                    phase ^= 1;
                }
            }
        }
    } else {
        take_registers<160>();

        // Weights times 256, split into two fp16 pieces. In a tap's panel channel c is column 2 (c % 4) + c / 4, so
        // that a thread's pair of columns is the channels q and q + 4.
        {
            float mine[kWeightsEach];
#pragma unroll
            for (int j = 0; j < kWeightsEach; ++j) mine[j] = weight[thread + j * kConsumers];
            if (thread < kOut) shared_bias[thread] = bias == nullptr ? 0.0f : -bias[thread] * kLog2E;
#pragma unroll
            for (int j = 0; j < kWeightsEach; ++j) {
                const int i = thread + j * kConsumers;
                const int n = i / (kChannels * kTaps);
                const int rest = i % (kChannels * kTaps);
                const int c = rest / kTaps;
                const int tap = rest % kTaps;
                uint32_t high, low;
                split(mine[j] * kWeightScale, 0.0f, high, low);
                const int at = n * 16 + (2 * (c & 3) + (c >> 2)) * 2;
                const int low_panel = tap == kTaps - 1 ? kMixedLowPanel : kLowPanel + tap;
                *reinterpret_cast<uint16_t*>(memory + tap * kPanelBytes + at) = static_cast<uint16_t>(high & 0xffffu);
                *reinterpret_cast<uint16_t*>(memory + low_panel * kPanelBytes + at) =
                    static_cast<uint16_t>(low & 0xffffu);
            }
        }
        show_stores();
        meet(1, kConsumers);

        const uint64_t high_b = describe(shared_address(memory));
        const uint64_t low_b = describe(shared_address(memory + kLowPanel * kPanelBytes));
        constexpr int kPairStep = 2 * kPanelBytes / 16;  // from a pair of taps to the next, in a descriptor's units

        const int stream = warp / 6;
        const bool upwards = stream == 1;
        const int g = lane / 4;
        const int q = lane % 4;
        const int pixel = (warp % 6) * 16 + 2 * g;  // and pixel + 1
        const bool second_valid = pixel + 1 < kPooled;
        uint64_t* const full = barriers + stream * kSlots;
        uint64_t* const empty = barriers + 2 * kSlots + stream * kSlots;
        const float* const mine = ring + stream * kSlots * kSlotFloats + channel_offset(q) + 4 * pixel;
        const float* const my_bias = shared_bias + 2 * q;
        const int row_step = upwards ? -kSide : kSide;
        const int first_row = upwards ? (kGroupRows - 1) * kSide : 0;
        constexpr float kScale = -kLog2E / (16.0f * kWeightScale);

        int slot = 0;
        uint32_t phase = 0;
        auto release = [&]() {
            __syncwarp();
            if (lane == 0) arrive(&empty[slot]);
            if (++slot == kSlots) {
                slot = 0;
                phase ^= 1;
            }
        };

        float d[32];
#pragma unroll
        for (int i = 0; i < 32; ++i) d[i] = 0.0f;
        float total = 0.0f;

        // The two rows that a step shares with the one before it. What stream 1 finds here goes into its idle step
        // alone, whose results are dropped.
        float r0[12], r1[12];
        wait_for(&full[slot], phase);
        row_sums(mine, r0);
        row_sums(mine + kSide, r1);
        release();

#pragma unroll 1
        for (int step = 0; step < kSteps; ++step) {
            float s[3][12];
            {
                const float* const at = mine + slot * kSlotFloats + first_row;
                float m[12], p[12], r[12];
                wait_for(&full[slot], phase);
                row_sums(at, m);
                row_sums(at + row_step, r);
#pragma unroll
                for (int i = 0; i < 12; ++i) {
                    m[i] += r[i];
                    p[i] = r1[i] + m[i];
                    s[0][i] = r0[i] + p[i];
                }
                row_sums(at + 2 * row_step, r0);
#pragma unroll
                for (int i = 0; i < 12; ++i) s[1][i] = p[i] + r0[i];
                row_sums(at + 3 * row_step, r1);
                release();
#pragma unroll
                for (int i = 0; i < 12; ++i) s[2][i] = m[i] + (r0[i] + r1[i]);
            }
            // Upwards the rows came in reverse: the sums of the first and the last kernel row change places.
#pragma unroll
            for (int i = 0; i < 12; ++i) {
                const float a = s[0][i];
                const float b = s[2][i];
                s[0][i] = upwards ? b : a;
                s[2][i] = upwards ? a : b;
            }

            // Taps in pairs; the ninth stands alone: its two small products share an instruction.
            uint32_t high[4][4], low[4][4], mixed[4], last[4];
#pragma unroll
            for (int tap = 0; tap < 8; ++tap) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    split(s[tap / 3][i * 3 + tap % 3], s[tap / 3][(2 + i) * 3 + tap % 3],
                          high[tap / 2][(tap % 2) * 2 + i], low[tap / 2][(tap % 2) * 2 + i]);
                }
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                split(s[2][i * 3 + 2], s[2][(2 + i) * 3 + 2], last[i], mixed[i]);
                mixed[2 + i] = last[i];
                last[2 + i] = 0u;
            }

            __syncwarp();
            begin_products();
#pragma unroll
            for (int pair = 0; pair < 4; ++pair) {
                multiply(d, low[pair], high_b + pair * kPairStep, pair > 0 ? 1 : 0);
                multiply(d, high[pair], low_b + pair * kPairStep, 1);
            }
            multiply(d, mixed, high_b + 4 * kPairStep, 1);  // low * high + high * low
#pragma unroll
            for (int pair = 0; pair < 4; ++pair) {
                multiply(d, high[pair], high_b + pair * kPairStep, 1);
            }
            multiply(d, last, high_b + 4 * kPairStep, 1);   // high * high + 0
            commit_products();
            wait_products<0>(d);

            float first = 0.0f, second = 0.0f;
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const float2 b = *reinterpret_cast<const float2*>(my_bias + 8 * j);
                first += sigmoid_of_exponent(fmaf(d[4 * j + 0], kScale, b.x));
                second += sigmoid_of_exponent(fmaf(d[4 * j + 2], kScale, b.x));
                first += sigmoid_of_exponent(fmaf(d[4 * j + 1], kScale, b.y));
                second += sigmoid_of_exponent(fmaf(d[4 * j + 3], kScale, b.y));
            }
            const bool valid = !upwards || step > 0;
            total += valid ? first : 0.0f;
            total += valid && second_valid ? second : 0.0f;
        }

#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(0xffffffffu, total, offset);
        if (lane == 0) partial[warp] = total;
        meet(1, kConsumers);
        if (thread == 0) {
            float sum = 0.0f;
            for (int i = 0; i < kConsumers / 32; ++i) sum += partial[i];
            out[blockIdx.x] = sum;
        }
    }
}

extern "C" int conv_pool_sigmoid_sum(const float* x, const float* weight, const float* bias, float* out,
                                     int64_t images, void* stream) {
    if (images == 0) return 0;
    static bool prepared = false;
    if (!prepared) {
        const cudaError_t error = cudaFuncSetAttribute(
            conv_pool_sigmoid_sum_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        prepared = true;
    }
    conv_pool_sigmoid_sum_kernel<<<static_cast<unsigned>(images), kThreads, kSharedBytes,
                                   static_cast<cudaStream_t>(stream)>>>(x, weight, bias, out);
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="conv_pool_sigmoid_sum",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
conv_pool_sigmoid_sum = library.conv_pool_sigmoid_sum
conv_pool_sigmoid_sum.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64, ctypes.c_void_p]
conv_pool_sigmoid_sum.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, pool_kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.avg_pool = nn.AvgPool2d(pool_kernel_size)
        self.special = (in_channels, out_channels, kernel_size, pool_kernel_size) == (8, 64, 3, 4)

    def forward(self, x):
        if not self.special or x.shape[1:] != (8, 384, 384) or x.dtype != torch.float32:
            return torch.sigmoid(self.avg_pool(self.conv(x))).sum(dim=[1, 2, 3])
        x = x.contiguous()
        weight = self.conv.weight.contiguous()
        bias = self.conv.bias
        images = x.shape[0]
        out = torch.empty(images, dtype=torch.float32, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = conv_pool_sigmoid_sum(
            x.data_ptr(), weight.data_ptr(), bias.data_ptr(), out.data_ptr(), images, stream
        )
        if error:
            raise RuntimeError(f"conv_pool_sigmoid_sum: CUDA error {error}")
        return out
