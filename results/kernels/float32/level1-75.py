import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>

constexpr int kBatch = 16;
constexpr int kInChannels = 32;
constexpr int kOutChannels = 64;
constexpr int kGroups = 4;
constexpr int kIc = 8;        // input channels of a group
constexpr int kOc = 16;       // output channels of a group
constexpr int kH = 128;
constexpr int kW = 256;
constexpr int kHOut = 257;
constexpr int kWOut = 766;
constexpr int kTaps = 15;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTilesPerWarp = kW / 8 / kWarps;

constexpr int kPitch = 264;                   // floats between channels of a row in the ring; 8 modulo 32
constexpr int kRingRow = kIc * kPitch;        // floats
constexpr int kStageRow = 2 * kWOut;          // two output rows of a channel
constexpr int kStage = kOc * kStageRow;       // floats
constexpr int kStageRowBytes = kStageRow * 4; // 6128, a multiple of 16
constexpr int kSharedFloats = 2 * kStage + 4 * kRingRow;
constexpr int kSharedBytes = kSharedFloats * 4;
constexpr int kSteps = kGroups * kBatch * kH;

static_assert(kStageRowBytes % 16 == 0, "bulk stores");
static_assert(kSharedBytes <= 232448, "shared memory");

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void copy_16(void* to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

__device__ __forceinline__ void bulk_store(void* to, const void* from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
                 "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void show_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// x = high + low to about 2^-23, both with the mantissa of TF32.
__device__ __forceinline__ void split(float x, uint32_t& high, uint32_t& low) {
    high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    const float rest = x - __uint_as_float(high);
    low = (__float_as_uint(rest) + 0x1000u) & 0xffffe000u;
}

// D (16 x 8) += A (16 x 8) B (8 x 8)
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Input row `ih` of the 8 channels from `plane` on into its slot of the ring; zeros where it is out of range.
__device__ __forceinline__ void fetch_row(float* ring, const float* plane, int ih) {
    const bool inside = ih >= 0 && ih < kH;
    float* slot = ring + (ih & 3) * kRingRow;
#pragma unroll
    for (int i = 0; i < kIc * kW / 4 / kThreads; ++i) {
        const int chunk = threadIdx.x + i * kThreads;
        const int channel = chunk / (kW / 4);
        const int column = chunk % (kW / 4) * 4;
        const float* from = inside ? plane + (channel * kH + ih) * kW + column : plane;
        copy_16(slot + channel * kPitch + column, from, inside ? 16 : 0);
    }
}

__global__ void __launch_bounds__(kThreads, 1)
conv_transpose_kernel(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out) {
    extern __shared__ __align__(128) float memory[];
    float* const stages = memory;
    float* const ring = memory + 2 * kStage;

    const int tid = threadIdx.x;
    const int warp = tid / 32;
    const int lane = tid % 32;
    const int quad = lane / 4;   // row of A and D, column of B
    const int four = lane % 4;   // k of A and B, pair of columns of D

    const int begin = static_cast<int>(static_cast<int64_t>(blockIdx.x) * kSteps / gridDim.x);
    const int end = static_cast<int>(static_cast<int64_t>(blockIdx.x + 1) * kSteps / gridDim.x);

    uint32_t high[kTaps][4];
    uint32_t low[kTaps][4];
    int weights_of = -1;
    bool first = true;
    int buffer = 0;

    // Where this thread's results begin in a stage. Even channels: zero row, data row; odd ones: data row, zero row.
    // Channels quad and quad + 8 have the same parity.
    const int place = quad * kStageRow + ((quad & 1) ? 0 : kWOut) + 6 * four;

    for (int step = begin; step < end;) {
        const int image_of_group = step / kH;
        const int g = image_of_group / kBatch;
        const int n = image_of_group % kBatch;
        const int r_begin = step % kH;
        const int r_end = min(kH, r_begin + (end - step));
        step += r_end - r_begin;

        const float* plane = x + static_cast<int64_t>(n * kInChannels + g * kIc) * (kH * kW);
        float* out_planes = out + static_cast<int64_t>(n * kOutChannels + g * kOc) * (kHOut * kWOut);

        // All threads have left the ring: a barrier stands behind each step's products.
        if (g != weights_of) {
            weights_of = g;
            const float* from = weight + g * (kIc * kOc * kTaps);
            for (int i = tid; i < kIc * kOc * kTaps; i += kThreads) ring[i] = from[i];
            __syncthreads();
#pragma unroll
            for (int t = 0; t < kTaps; ++t) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int oc = quad + (i & 1) * 8;
                    const int ic = four + (i >> 1) * 4;
                    split(ring[(ic * kOc + oc) * kTaps + t], high[t][i], low[t][i]);
                }
            }
            __syncthreads();
        }

        fetch_row(ring, plane, r_begin - 1);
        fetch_row(ring, plane, r_begin);
        fetch_row(ring, plane, r_begin + 1);
        commit_copies();

        if (first) {
            first = false;
            float4* all = reinterpret_cast<float4*>(stages);
            for (int i = tid; i < 2 * kStage / 4; i += kThreads) all[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }

        for (int r = r_begin; r < r_end; ++r) {
            wait_copies();
            // The stores of the step before the last have read this stage.
            if (lane == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
            __syncthreads();

            if (r + 1 < r_end) fetch_row(ring, plane, r + 2);
            commit_copies();

            float* stage = stages + buffer * kStage;

#pragma unroll 1
            for (int t = 0; t < kTilesPerWarp; ++t) {
                const int q0 = (t * kWarps + warp) * 8;
                float big[3][4];
                float small[3][4];
#pragma unroll
                for (int s = 0; s < 3; ++s) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        big[s][i] = 0.0f;
                        small[s][i] = 0.0f;
                    }
                }
#pragma unroll
                for (int kh = 0; kh < 3; ++kh) {
                    const float* row = ring + ((r + 1 - kh) & 3) * kRingRow + four * kPitch + q0 + quad;
                    uint32_t h0, h1, l0, l1;
                    // iw = q: kw = 2, 3, 4 to s = 0, 1, 2
                    split(row[0], h0, l0);
                    split(row[4 * kPitch], h1, l1);
#pragma unroll
                    for (int s = 0; s < 3; ++s) multiply(big[s], high[kh * 5 + 2 + s], h0, h1);
#pragma unroll
                    for (int s = 0; s < 3; ++s) multiply(small[s], low[kh * 5 + 2 + s], h0, h1);
#pragma unroll
                    for (int s = 0; s < 3; ++s) multiply(small[s], high[kh * 5 + 2 + s], l0, l1);
                    // iw = q + 1: kw = 0, 1 to s = 1, 2; what column 256 holds reaches only q = 255, not stored
                    split(row[1], h0, l0);
                    split(row[4 * kPitch + 1], h1, l1);
#pragma unroll
                    for (int s = 1; s < 3; ++s) multiply(big[s], high[kh * 5 + s - 1], h0, h1);
#pragma unroll
                    for (int s = 1; s < 3; ++s) multiply(small[s], low[kh * 5 + s - 1], h0, h1);
#pragma unroll
                    for (int s = 1; s < 3; ++s) multiply(small[s], high[kh * 5 + s - 1], l0, l1);
                }
#pragma unroll
                for (int s = 0; s < 3; ++s) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) big[s][i] += small[s][i];
                }
                // This thread has q0 + 2 * four and the next q: six neighbouring columns.
                const bool last = q0 + 2 * four + 1 == kW - 1;  // q = 255 has s = 0 only
                float* to = stage + place + 3 * q0;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float2* pairs = reinterpret_cast<float2*>(to + half * 8 * kStageRow);
                    const int i = 2 * half;
                    pairs[0] = make_float2(big[0][i], big[1][i]);
                    pairs[1] = make_float2(big[2][i], big[0][i + 1]);
                    if (!last) pairs[2] = make_float2(big[1][i + 1], big[2][i + 1]);
                }
            }

            show_stores();
            __syncthreads();

            if (lane == 0) {
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const int oc = warp * 2 + j;
                    float* to = out_planes + (static_cast<int64_t>(oc) * kHOut + 2 * r + j) * kWOut;
                    bulk_store(to, stage + oc * kStageRow, kStageRowBytes);
                }
                commit_stores();
            }
            __syncwarp();

            // The zero row that is left over: the last of even channels, the first of odd ones.
            if (r == kH - 1) {
                float2* to = reinterpret_cast<float2*>(
                    out_planes + (static_cast<int64_t>(warp * 2) * kHOut + (kHOut - 1)) * kWOut);
                for (int i = lane; i < kWOut / 2; i += 32) to[i] = make_float2(0.0f, 0.0f);
            }
            if (r == 0) {
                float2* to = reinterpret_cast<float2*>(
                    out_planes + static_cast<int64_t>(warp * 2 + 1) * kHOut * kWOut);
                for (int i = lane; i < kWOut / 2; i += 32) to[i] = make_float2(0.0f, 0.0f);
            }
            buffer ^= 1;
        }
    }
    if (lane == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    __syncthreads();
}

extern "C" int conv_transpose(const float* x, const float* weight, float* out, void* stream) {
    static int blocks = 0;
    if (blocks == 0) {
        int device = 0;
        int count = 0;
        cudaError_t error = cudaGetDevice(&device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaFuncSetAttribute(conv_transpose_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        blocks = count;
    }
    conv_transpose_kernel<<<blocks, kThreads, kSharedBytes, static_cast<cudaStream_t>(stream)>>>(x, weight, out);
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="conv_transpose2d_grouped_rows",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
conv_transpose = library.conv_transpose
conv_transpose.argtypes = [ctypes.c_void_p] * 4
conv_transpose.restype = ctypes.c_int


def _pair(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: tuple, stride: tuple = (1, 1),
                 padding: tuple = (0, 0), dilation: tuple = (1, 1), groups: int = 1, bias: bool = False):
        super(ModelNew, self).__init__()
        self.conv_transpose2d = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride=stride,
                                                   padding=padding, dilation=dilation, groups=groups, bias=bias)
        self.special = (
            in_channels == 32 and out_channels == 64 and groups == 4 and not bias
            and _pair(kernel_size) == (3, 5) and _pair(stride) == (2, 3)
            and _pair(padding) == (1, 2) and _pair(dilation) == (2, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.special or x.shape != (16, 32, 128, 256) or x.dtype != torch.float32:
            return self.conv_transpose2d(x)
        x = x.contiguous()
        weight = self.conv_transpose2d.weight.contiguous()
        out = torch.empty((16, 64, 257, 766), dtype=torch.float32, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = conv_transpose(x.data_ptr(), weight.data_ptr(), out.data_ptr(), stream)
        if error:
            raise RuntimeError(f"conv_transpose: CUDA error {error}")
        return out
