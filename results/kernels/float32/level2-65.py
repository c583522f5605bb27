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
constexpr int kSteps = 48;            // pairs of pooled rows; the last pair has one row only
constexpr int kFills = kPooled + 1;   // fill 0: input rows 0 and 1; fill j: input rows 4 j - 2 to 4 j + 1
constexpr int kSlots = 4;             // ring slots, four input rows of all channels each
constexpr int kSlotRows = 4;
constexpr int kChannelFloats = kSlotRows * kSide;
constexpr int kSlotFloats = kChannels * kChannelFloats + 64;
constexpr int kSlotBytes = kSlotFloats * 4;
constexpr int kRowBytes = kSide * 4;
constexpr int kConsumers = 384;
constexpr int kConsumerWarps = kConsumers / 32;
constexpr int kThreads = 512;
static_assert(kSlots == 4, "slots and parities are taken from the bits of the fill's number");
static_assert(kConsumerWarps * 8 >= kPooled, "a warp has 8 pixels");

// Weights as fp16 pieces, a panel a tap: high pieces of taps 0 to 8, low piece of tap 8, low pieces of taps 0 to 7.
constexpr int kPanelBytes = kOut * 16;
constexpr int kMixedLowPanel = kTaps;
constexpr int kLowPanel = kTaps + 1;
constexpr int kWeightBytes = 2 * kTaps * kPanelBytes;
constexpr int kWeightLoads = kOut * kChannels * kTaps / kConsumers;
static_assert(kWeightLoads * kConsumers == kOut * kChannels * kTaps, "weights divide evenly");
constexpr float kWeightScale = 256.0f;
constexpr int kRingAt = kWeightBytes;
constexpr int kBiasAt = kRingAt + kSlots * kSlotBytes;
constexpr int kPartialAt = kBiasAt + kOut * 4;
constexpr int kBarrierAt = kPartialAt + 64;
constexpr int kSharedBytes = kBarrierAt + 2 * kSlots * 8;
static_assert(kSharedBytes <= 232448, "shared memory");
static_assert(kRingAt % 128 == 0 && kSlotBytes % 128 == 0 && kBarrierAt % 8 == 0, "alignment");

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
__device__ __forceinline__ uint64_t evict_first_policy() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier,
                                          uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)),
        "l"(policy) : "memory");
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

// Where channel c begins in a slot, in floats: channels 0 to 3 lie 8 banks apart, channel c + 4 in the banks of c.
__device__ __forceinline__ int channel_offset(int c) {
    return c * kChannelFloats + (c & 3) * 8 + (c >> 2) * 32;
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

// Sums of 4 neighbours in one input row, for channels q and q + 4 (half): h[half * 3 + kx].
__device__ __forceinline__ void row_sums(const float* at, float (&h)[6]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float* from = at + half * (4 * kChannelFloats + 32);
        const float4 a = *reinterpret_cast<const float4*>(from);
        const float2 b = *reinterpret_cast<const float2*>(from + 4);
        const float m = a.z + a.w;
        const float p = a.y + m;
        h[half * 3 + 0] = a.x + p;
        h[half * 3 + 1] = p + b.x;
        h[half * 3 + 2] = m + (b.x + b.y);
    }
}

// One block an image.
__global__ void __launch_bounds__(kThreads, 1)
conv_pool_sigmoid_sum_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                             const float* __restrict__ bias, float* __restrict__ out) {
    extern __shared__ __align__(128) unsigned char memory[];
    float* const ring = reinterpret_cast<float*>(memory + kRingAt);
    float* const shared_bias = reinterpret_cast<float*>(memory + kBiasAt);
    float* const partial = reinterpret_cast<float*>(memory + kPartialAt);
    uint64_t* const full = reinterpret_cast<uint64_t*>(memory + kBarrierAt);
    uint64_t* const empty = full + kSlots;

    const int thread = threadIdx.x;
    const int warp = thread / 32;
    const int lane = thread % 32;
    const bool producer = warp == kConsumerWarps;
    constexpr float kLog2E = 1.4426950408889634f;

    // The producer: eight lanes, a channel each, copy four rows at a time, 6144 contiguous bytes.
    auto fill = [&](int j, uint64_t policy) {
        const int slot = j & (kSlots - 1);
        const int row = j == 0 ? 0 : 4 * j - 2;
        const uint32_t bytes = static_cast<uint32_t>((j == 0 ? 2 : 4) * kRowBytes);
        const int c = lane & (kChannels - 1);
        if (lane == 0) arrive_and_expect(&full[slot], kChannels * bytes);
        __syncwarp();
        if (lane < kChannels) {
            const float* const from =
                x + (static_cast<int64_t>(blockIdx.x) * kChannels + c) * (kSide * kSide) + row * kSide;
            bulk_load(ring + slot * kSlotFloats + channel_offset(c), from, bytes, &full[slot], policy);
        }
        __syncwarp();
    };

    if (producer) {
        if (lane == 0) {
            for (int i = 0; i < kSlots; ++i) {
                start_barrier(&full[i], 1);
                start_barrier(&empty[i], kConsumerWarps);
            }
            show_started();
            show_stores();
        }
        __syncwarp();
        const uint64_t policy = evict_first_policy();
        for (int j = 0; j < kSlots; ++j) fill(j, policy);
    }
    __syncthreads();

    if (warp >= kConsumerWarps) {
        give_up_registers<32>();
        if (producer) {
            const uint64_t policy = evict_first_policy();
#pragma unroll 1
            for (int j = kSlots; j < kFills; ++j) {
                wait_for(&empty[j & (kSlots - 1)], static_cast<uint32_t>((j / kSlots) & 1) ^ 1u);
                fill(j, policy);
            }
        }
    } else {
        take_registers<160>();

        // Weights times 256, split into two fp16 pieces. In a tap's panel channel c is column 2 (c % 4) + c / 4, so
        // that a thread's pair of columns is the channels q and q + 4.
        float w[kWeightLoads];
#pragma unroll
        for (int k = 0; k < kWeightLoads; ++k) w[k] = weight[thread + k * kConsumers];
#pragma unroll
        for (int k = 0; k < kWeightLoads; ++k) {
            const int i = thread + k * kConsumers;
            const int n = i / (kChannels * kTaps);
            const int rest = i % (kChannels * kTaps);
            const int c = rest / kTaps;
            const int tap = rest % kTaps;
            uint32_t high, low;
            split(w[k] * kWeightScale, 0.0f, high, low);
            const int at = n * 16 + (2 * (c & 3) + (c >> 2)) * 2;
            const int low_panel = tap == kTaps - 1 ? kMixedLowPanel : kLowPanel + tap;
            *reinterpret_cast<uint16_t*>(memory + tap * kPanelBytes + at) = static_cast<uint16_t>(high & 0xffffu);
            *reinterpret_cast<uint16_t*>(memory + low_panel * kPanelBytes + at) =
                static_cast<uint16_t>(low & 0xffffu);
        }
        if (thread < kOut) shared_bias[thread] = bias == nullptr ? 0.0f : -bias[thread] * kLog2E;
        show_stores();
        meet(1, kConsumers);

        const uint64_t high_b = describe(shared_address(memory));
        const uint64_t low_b = describe(shared_address(memory + kLowPanel * kPanelBytes));
        constexpr int kPairStep = 2 * kPanelBytes / 16;  // from a pair of taps to the next, in a descriptor's units

        // A warp's 16 rows of A: 8 pixels of the step's first pooled row, then the same pixels of its second.
        const int g = lane / 4;
        const int q = lane % 4;
        const int pixel = warp * 8 + g;
        const float* const mine = ring + channel_offset(q) + 4 * pixel;
        constexpr float kScale = -kLog2E / (16.0f * kWeightScale);

        float bias_even[8], bias_odd[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float2 b = *reinterpret_cast<const float2*>(shared_bias + 8 * j + 2 * q);
            bias_even[j] = b.x;
            bias_odd[j] = b.y;
        }

        float d[32];
#pragma unroll
        for (int i = 0; i < 32; ++i) d[i] = 0.0f;
        float total = 0.0f;

        // The two rows that the next pooled row shares with the one before it.
        float r0[6], r1[6];
        wait_for(&full[0], 0u);
        row_sums(mine, r0);
        row_sums(mine + kSide, r1);
        __syncwarp();
        if (lane == 0) arrive(&empty[0]);

#pragma unroll 1
        for (int step = 0; step < kSteps; ++step) {
            const bool both = step + 1 < kSteps;  // the last step has no second pooled row
            // Taps in pairs; the ninth stands alone: its two small products share an instruction.
            uint32_t high[4][4], low[4][4], mixed[4], last[4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int j = 2 * step + 1 + i;
                const int slot = j & (kSlots - 1);
                const bool fresh = i == 0 || both;  // else: old values, whose results are dropped
                if (fresh) wait_for(&full[slot], static_cast<uint32_t>((j / kSlots) & 1));
                __syncwarp();
                const float* const from = mine + slot * kSlotFloats;
                float m[6], r[6], e0[6], e1[6];
                row_sums(from, m);
                row_sums(from + kSide, r);
                row_sums(from + 2 * kSide, e0);
                row_sums(from + 3 * kSide, e1);
                __syncwarp();
                if (fresh && lane == 0) arrive(&empty[slot]);

                float s[3][6];
#pragma unroll
                for (int k = 0; k < 6; ++k) {
                    const float middle = m[k] + r[k];
                    const float upper = r1[k] + middle;
                    s[0][k] = r0[k] + upper;
                    s[1][k] = upper + e0[k];
                    s[2][k] = middle + (e0[k] + e1[k]);
                    r0[k] = e0[k];
                    r1[k] = e1[k];
                }
#pragma unroll
                for (int tap = 0; tap < 8; ++tap) {
                    split(s[tap / 3][tap % 3], s[tap / 3][3 + tap % 3], high[tap / 2][(tap % 2) * 2 + i],
                          low[tap / 2][(tap % 2) * 2 + i]);
                }
                split(s[2][2], s[2][5], last[i], mixed[i]);
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
                first += sigmoid_of_exponent(fmaf(d[4 * j + 0], kScale, bias_even[j]));
                second += sigmoid_of_exponent(fmaf(d[4 * j + 2], kScale, bias_even[j]));
                first += sigmoid_of_exponent(fmaf(d[4 * j + 1], kScale, bias_odd[j]));
                second += sigmoid_of_exponent(fmaf(d[4 * j + 3], kScale, bias_odd[j]));
            }
            total += first;
            total += both ? second : 0.0f;
        }

        if (pixel >= kPooled) total = 0.0f;
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(0xffffffffu, total, offset);
        if (lane == 0) partial[warp] = total;
        meet(1, kConsumers);
        if (thread == 0) {
            float sum = 0.0f;
            for (int i = 0; i < kConsumerWarps; ++i) sum += partial[i];
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
