import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

TEMPLATE = r"""
#include <cstdint>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

// tune: ORDERED in (0, 1)
constexpr int ORDERED = 1;

constexpr int kImages = 8, kChannels = 64, kOut = 64, kSide = 512;
constexpr int kTapsH = 3, kTapsW = 7, kTaps = kTapsH * kTapsW;
constexpr int kPitch = kSide + kTapsW - 1;              // 518, the width of the output and pitch of flat positions
constexpr int kRows = kSide + kTapsH - 1;               // 514
constexpr int kPlane = kPitch * kRows;                  // 266252
constexpr int kInPlane = kSide * kSide;
constexpr int kN = 176;                                 // positions of a warpgroup
constexpr int kRegs = kN / 2;
constexpr int kTile = 2 * kN;                           // positions of a block's tile
constexpr int kUsed = kTile + kTapsW - 1;               // 358 lines of a window
constexpr int kLines = 360;
constexpr int kTilesPerImage = (kPlane + kTile - 1) / kTile;
constexpr int kTiles = kTilesPerImage * kImages;
constexpr int kGroup = 16;                              // input channels of a stage
constexpr int kSteps = kChannels / kGroup * kTapsH;     // 12 stages for a tile
constexpr int kStages = 4;
constexpr int kWeightPiece = 2 * kOut * 16;             // bytes: 2 panels of 64 lines
constexpr int kWeightBytes = kTapsW * 2 * kWeightPiece; // 28672 for a stage
constexpr int kPanelBytes = kLines * 16;
constexpr int kPieceBytes = 2 * kPanelBytes;            // 11520
constexpr int kWindowBytes = 2 * kPieceBytes;           // 23040
constexpr int kSharedBytes = kStages * (kWeightBytes + kWindowBytes);

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
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void meet(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ void meet_without_waiting(int name, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
template <int kCount>
__device__ __forceinline__ void give_up_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// K-major, no swizzle: panels of 16 bytes, `lines` lines each.
__device__ __forceinline__ uint64_t describe(uint32_t begin, int lines) {
    return static_cast<uint64_t>((begin & 0x3ffff) >> 4) | static_cast<uint64_t>(lines) << 16 |
           static_cast<uint64_t>(128 >> 4) << 32;
}

// D (64 x 176) (+)= A (64 x 16) B (16 x 176)
__device__ __forceinline__ void multiply(float (&d)[kRegs], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %@ADD@, 0;\nwgmma.mma_async.sync.aligned.m64n@N@k16.f32.f16.f16 "
        "{@LIST@}, %@A@, %@B@, p, 1, 1, 0, 0;\n}"
        : @OPERANDS@
        : "l"(a), "l"(b), "r"(add));
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

// Of the bits of a largest magnitude: a power of two that brings it to [2^14, 2^15), and the inverse.
__device__ __forceinline__ void scales(uint32_t bits, float& scale, float& inverse) {
    const uint32_t exponent = max(bits >> 23, 40u);
    scale = __uint_as_float((268u - exponent) << 23);
    inverse = __uint_as_float((exponent - 14u) << 23);
}

// A block for each output channel: both fp16 pieces of its weights, as the stages take them.
__global__ void __launch_bounds__(256) pack_weights_kernel(const float* __restrict__ weight,
                                                           __half* __restrict__ packed,
                                                           float* __restrict__ inverses) {
    constexpr int kElements = kChannels * kTaps;
    constexpr int kEach = (kElements + 255) / 256;
    __shared__ uint32_t partial[8];
    const int o = blockIdx.x;
    float v[kEach];
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int e = threadIdx.x + i * 256;
        v[i] = 0.0f;
        if (e < kElements) v[i] = weight[(e / kTaps * kOut + o) * kTaps + e % kTaps];
        largest = fmaxf(largest, fabsf(v[i]));
    }
    uint32_t bits = __reduce_max_sync(0xffffffffu, __float_as_uint(largest));
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = bits;
    __syncthreads();
    bits = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) bits = max(bits, partial[i]);
    float scale, inverse;
    scales(bits, scale, inverse);
    if (threadIdx.x == 0) inverses[o] = inverse;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int e = threadIdx.x + i * 256;
        if (e < kElements) {
            const int c = e / kTaps, tap = e % kTaps;
            const int step = c / kGroup * kTapsH + tap / kTapsW;
            const int kw = tap % kTapsW;
            const int panel = c % kGroup / 8;
            const float scaled = v[i] * scale;
            const __half high = __float2half_rn(scaled);
            const __half low = __float2half_rn(scaled - __half2float(high));
            // [step][kw][piece][panel][o][8]
            const int at = (((step * kTapsW + kw) * 2 * 2 + panel) * kOut + o) * 8 + c % 8;
            packed[at] = high;
            packed[at + 2 * kOut * 8] = low;
        }
    }
}

__global__ void __launch_bounds__(384, 1) transposed_kernel(const float* __restrict__ x,
                                                            const unsigned char* __restrict__ packed,
                                                            const float* __restrict__ inverses,
                                                            float* __restrict__ out) {
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ uint64_t full[kStages];
    __shared__ uint64_t empty[kStages];
    __shared__ float window_inverse[kStages];
    __shared__ uint32_t partial[2][4];
    unsigned char* weights = memory;
    unsigned char* windows = memory + kStages * kWeightBytes;

    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) {
            start(&full[s], 1 + 4);  // the weights' announcement and the four producer warps
            start(&empty[s], 8);     // the eight consumer warps
        }
        show_started();
    }
    __syncthreads();

    const int role = threadIdx.x / 128;
    const int t = threadIdx.x % 128;

    if (role == 0) {
        give_up_registers<88>();
        int it = 0;
        for (int tile = blockIdx.x; tile < kTiles; tile += gridDim.x) {
            const int image = tile / kTilesPerImage;
            const int p0 = (tile - image * kTilesPerImage) * kTile;
#pragma unroll 1
            for (int step = 0; step < kSteps; ++step, ++it) {
                const int s = it % kStages, parity = it / kStages % 2;
                const int group = step / kTapsH, kh = step - group * kTapsH;
                const float* source = x + static_cast<int64_t>(image * kChannels + group * kGroup) * kInPlane;
                const int q0 = p0 - kh * kPitch - (kTapsW - 1) + t;

                float v[3][kGroup];
#pragma unroll
                for (int j = 0; j < 3; ++j) {
                    const int q = q0 + 128 * j;
                    const uint32_t positive = q < 0 ? 0u : static_cast<uint32_t>(q);
                    const int row = static_cast<int>(positive / kPitch);
                    const int column = static_cast<int>(positive) - row * kPitch;
                    const bool inside = q >= 0 && row < kSide && column < kSide && t + 128 * j < kUsed;
                    const float* at = source + (inside ? row * kSide + column : 0);
#pragma unroll
                    for (int c = 0; c < kGroup; ++c) {
                        v[j][c] = 0.0f;
                        if (inside) v[j][c] = __ldg(at + c * kInPlane);
                    }
                }

                wait(&empty[s], parity ^ 1);
                if (t == 0) {
                    arrive_and_expect(&full[s], kWeightBytes);
                    bulk_load(weights + s * kWeightBytes, packed + step * kWeightBytes, kWeightBytes, &full[s]);
                }
                __syncwarp();

                float largest = 0.0f;
#pragma unroll
                for (int j = 0; j < 3; ++j) {
#pragma unroll
                    for (int c = 0; c < kGroup; ++c) largest = fmaxf(largest, fabsf(v[j][c]));
                }
                uint32_t bits = __reduce_max_sync(0xffffffffu, __float_as_uint(largest));
                if (t % 32 == 0) partial[it % 2][t / 32] = bits;
                meet(3, 128);
                bits = max(max(partial[it % 2][0], partial[it % 2][1]), max(partial[it % 2][2], partial[it % 2][3]));
                float scale, inverse;
                scales(bits, scale, inverse);
                if (t == 0) window_inverse[s] = inverse;

                unsigned char* window = windows + s * kWindowBytes + t * 16;
#pragma unroll
                for (int j = 0; j < 3; ++j) {
                    if (t + 128 * j < kUsed) {
#pragma unroll
                        for (int panel = 0; panel < 2; ++panel) {
                            uint32_t high[4], low[4];
#pragma unroll
                            for (int i = 0; i < 4; ++i) {
                                const float a = v[j][panel * 8 + 2 * i] * scale;
                                const float b = v[j][panel * 8 + 2 * i + 1] * scale;
                                const __half2 h = __floats2half2_rn(a, b);
                                const float2 back = __half22float2(h);
                                const __half2 l = __floats2half2_rn(a - back.x, b - back.y);
                                high[i] = *reinterpret_cast<const uint32_t*>(&h);
                                low[i] = *reinterpret_cast<const uint32_t*>(&l);
                            }
                            unsigned char* to = window + panel * kPanelBytes + j * 128 * 16;
                            *reinterpret_cast<uint4*>(to) = make_uint4(high[0], high[1], high[2], high[3]);
                            *reinterpret_cast<uint4*>(to + kPieceBytes) = make_uint4(low[0], low[1], low[2], low[3]);
                        }
                    }
                }
                show_stores();
                __syncwarp();
                if (t % 32 == 0) arrive(&full[s]);
            }
        }
    } else {
        take_registers<208>();
        const int wg = role - 1;
        const int row = t / 32 * 16 + t % 32 / 4;
        const float inverse_0 = inverses[row];
        const float inverse_1 = inverses[row + 8];
        const uint64_t a_begin = describe(shared_address(weights), kOut);
        const uint64_t b_begin = describe(shared_address(windows) + wg * kN * 16, kLines);

        if (ORDERED && wg == 1) meet_without_waiting(1, 256);
        int it = 0;
        for (int tile = blockIdx.x; tile < kTiles; tile += gridDim.x) {
            const bool last_tile = tile + static_cast<int>(gridDim.x) >= kTiles;
            float sum[kRegs];
#pragma unroll
            for (int i = 0; i < kRegs; ++i) sum[i] = 0.0f;

#pragma unroll 1
            for (int step = 0; step < kSteps; ++step, ++it) {
                const int s = it % kStages, parity = it / kStages % 2;
                float d[kRegs];
                wait(&full[s], parity);
                const float inverse = window_inverse[s];
                const uint64_t a = a_begin + static_cast<uint32_t>(s * (kWeightBytes / 16));
                const uint64_t b = b_begin + static_cast<uint32_t>(s * (kWindowBytes / 16));
                if (ORDERED) meet(1 + wg, 256);
                begin_products();
#pragma unroll
                for (int kw = 0; kw < kTapsW; ++kw) {
                    const uint64_t a_high = a + kw * 2 * (kWeightPiece / 16);
                    const uint64_t a_low = a_high + kWeightPiece / 16;
                    const uint64_t b_high = b + (kTapsW - 1 - kw);
                    const uint64_t b_low = b_high + kPieceBytes / 16;
                    multiply(d, a_high, b_low, kw == 0 ? 0 : 1);
                    multiply(d, a_low, b_high, 1);
                }
#pragma unroll
                for (int kw = 0; kw < kTapsW; ++kw) {
                    multiply(d, a + kw * 2 * (kWeightPiece / 16), b + (kTapsW - 1 - kw), 1);
                }
                commit_products();
                if (ORDERED && !(wg == 1 && last_tile && step == kSteps - 1)) meet_without_waiting(2 - wg, 256);
                wait_products<0>(d);
                if (t % 32 == 0) arrive(&empty[s]);
#pragma unroll
                for (int i = 0; i < kRegs; ++i) sum[i] = fmaf(d[i], inverse, sum[i]);
            }

            const int image = tile / kTilesPerImage;
            const int p = (tile - image * kTilesPerImage) * kTile + wg * kN + t % 4 * 2;
            float* to = out + static_cast<int64_t>(image * kOut + row) * kPlane + p;
            float* to_8 = to + 8 * kPlane;
#pragma unroll
            for (int j = 0; j < kN / 8; ++j) {
                if (p + 8 * j < kPlane) {  // p and kPlane are even: the pair is in or out together
                    *reinterpret_cast<float2*>(to + 8 * j) =
                        make_float2(sum[4 * j] * inverse_0, sum[4 * j + 1] * inverse_0);
                    *reinterpret_cast<float2*>(to_8 + 8 * j) =
                        make_float2(sum[4 * j + 2] * inverse_1, sum[4 * j + 3] * inverse_1);
                }
            }
        }
    }
}

extern "C" int transposed_convolution(const float* x, const float* weight, void* packed, float* inverses, float* out,
                                      void* stream) {
    static int processors = 0;
    if (processors == 0) {
        int device = 0;
        cudaError_t error = cudaGetDevice(&device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaFuncSetAttribute(transposed_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        int count = 0;
        error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
        if (error != cudaSuccess) return static_cast<int>(error);
        processors = count;
    }
    cudaStream_t queue = static_cast<cudaStream_t>(stream);
    pack_weights_kernel<<<kOut, 256, 0, queue>>>(weight, static_cast<__half*>(packed), inverses);
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return static_cast<int>(error);
    const int blocks = processors < kTiles ? processors : kTiles;
    transposed_kernel<<<blocks, 384, kSharedBytes, queue>>>(x, static_cast<const unsigned char*>(packed), inverses,
                                                            out);
    return static_cast<int>(cudaGetLastError());
}
"""

_N = 176
_R = _N // 2
SOURCE = (
    TEMPLATE.replace("@LIST@", ", ".join(f"%{i}" for i in range(_R)))
    .replace("@OPERANDS@", ", ".join(f'"+f"(d[{i}])' for i in range(_R)))
    .replace("@ADD@", str(_R + 2))
    .replace("@A@", str(_R))
    .replace("@B@", str(_R + 1))
    .replace("@N@", str(_N))
)

library = ctypes.CDLL(
    load_inline(
        name="transposed_convolution_3x7_split_fp16",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
transposed_convolution = library.transposed_convolution
transposed_convolution.argtypes = [ctypes.c_void_p] * 6
transposed_convolution.restype = ctypes.c_int


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
        if (
            (in_channels, out_channels) != (64, 64)
            or tuple(kernel_size) != (3, 7)
            or self.conv_transpose2d.stride != (1, 1)
            or self.conv_transpose2d.padding != (0, 0)
            or self.conv_transpose2d.output_padding != (0, 0)
            or groups != 1
            or bias
        ):
            raise ValueError("specialised for 64 channels, a 3 x 7 kernel, stride 1, no padding, no bias")
        self._packed = None
        self._inverses = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape != (8, 64, 512, 512) or x.dtype != torch.float32:
            raise ValueError("specialised for float32 inputs of shape (8, 64, 512, 512)")
        x = x.contiguous()
        weight = self.conv_transpose2d.weight.detach().contiguous()
        if self._packed is None or self._packed.device != x.device:
            self._packed = torch.empty(12 * 28672, dtype=torch.uint8, device=x.device)
            self._inverses = torch.empty(64, dtype=torch.float32, device=x.device)
        out = torch.empty((8, 64, 514, 518), dtype=torch.float32, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = transposed_convolution(
            x.data_ptr(),
            weight.data_ptr(),
            self._packed.data_ptr(),
            self._inverses.data_ptr(),
            out.data_ptr(),
            stream,
        )
        if error:
            raise RuntimeError(f"transposed_convolution: CUDA error {error}")
        return out
