import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_fp16.h>

constexpr int kSide = 256;                    // input height and width
constexpr int kOutSide = 254;                 // output height and width
constexpr int kIn = 16;                       // input channels
constexpr int kOut = 64;                      // output channels
constexpr int kPlane = kSide * kSide;
constexpr int kWeights = kOut * kIn * 9;
constexpr int kSlots = 8;                     // ring of input rows
constexpr int kPanelBytes = kSide * 16;       // 8 channels of every pixel of a row
constexpr int kPieceBytes = 2 * kPanelBytes;  // 16 channels
constexpr int kSlotBytes = 2 * kPieceBytes;   // high and low piece
constexpr int kDynamic = kSlots * kSlotBytes + 128;
constexpr int kThreads = 384;

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
__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}
__device__ __forceinline__ void meet(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ void meet_without_waiting(int name, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
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
__device__ __forceinline__ float min_nan(float a, float b) {
    float m;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}
__device__ __forceinline__ float power_of_two(int e) { return __int_as_float((e + 127) << 23); }  // -126 <= e <= 127

// Lines of 16 bytes, two panels: leading = distance of the panels, stride = 8 lines, no swizzle.
__device__ __forceinline__ uint64_t describe(uint32_t address) {
    return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(kPanelBytes >> 4) << 16 |
           static_cast<uint64_t>(128 >> 4) << 32;
}

// D (64 x 128) += A (64 x 16, registers) B (16 x 128, shared memory)
__device__ __forceinline__ void multiply(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63}, "
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

// Two values in pieces, the first in the lower half.
__device__ __forceinline__ void split_pair(float low, float high, uint32_t& big, uint32_t& small) {
    const __half2 h = __floats2half2_rn(low, high);
    const float2 f = __half22float2(h);
    const __half2 l = __floats2half2_rn(low - f.x, high - f.y);
    big = *reinterpret_cast<const uint32_t*>(&h);
    small = *reinterpret_cast<const uint32_t*>(&l);
}

__global__ void __launch_bounds__(kThreads, 1)
conv_min_tanh_kernel(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                     float* __restrict__ out, int total) {
    extern __shared__ __align__(1024) unsigned char ring[];
    __shared__ __align__(8) uint64_t full[kSlots];
    __shared__ __align__(8) uint64_t empty[kSlots];
    __shared__ int slot_exponent[kSlots];
    __shared__ uint32_t row_max[2][4];
    __shared__ uint32_t weight_max[kThreads / 32];
    __shared__ __align__(16) float reduced[2][2][4][128];  // warpgroup, parity, warp, column

    const int lane = threadIdx.x % 32;
    const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);
    const int t = threadIdx.x % 128;
    const int warp = t / 32;

    if (threadIdx.x == 0) {
        for (int i = 0; i < kSlots; ++i) {
            start(&full[i], 4);
            start(&empty[i], 8);
        }
        show_started();
    }
    {
        uint32_t m = 0;
        for (int i = threadIdx.x; i < kWeights; i += kThreads) {
            m = max(m, __float_as_uint(__ldg(weight + i)) & 0x7fffffffu);
        }
        m = __reduce_max_sync(0xffffffffu, m);
        if (lane == 0) weight_max[threadIdx.x / 32] = m;
    }
    __syncthreads();

    const int first = static_cast<int>(static_cast<int64_t>(blockIdx.x) * total / gridDim.x);
    const int last = static_cast<int>(static_cast<int64_t>(blockIdx.x + 1) * total / gridDim.x);

    if (group == 0) {
        // Producers: rows of x, scaled and split, into the ring.
        give_up_registers<104>();
        int seq = 0;
        int e = 0;
        for (int row = first; row < last;) {
            const int n = row / kOutSide;
            const int y = row - n * kOutSide;
            const int count = min(kOutSide - y, last - row);
            const float* source = x + static_cast<int64_t>(n) * kIn * kPlane + y * kSide + t;
            for (int k = 0; k < count + 2; ++k) {
                float v[2][kIn];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
#pragma unroll
                    for (int c = 0; c < kIn; ++c) v[h][c] = __ldg(source + c * kPlane + h * 128);
                }
                source += kSide;
                uint32_t m = 0;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
#pragma unroll
                    for (int c = 0; c < kIn; ++c) m = max(m, __float_as_uint(v[h][c]) & 0x7fffffffu);
                }
                m = __reduce_max_sync(0xffffffffu, m);
                if (lane == 0) row_max[seq & 1][warp] = m;
                meet(1, 128);
                m = max(max(row_max[seq & 1][0], row_max[seq & 1][1]), max(row_max[seq & 1][2], row_max[seq & 1][3]));
                if (m != 0) {
                    const int exponent = static_cast<int>(m >> 23);
                    const int scaled = exponent - 127 + e;
                    if (k == 0 || scaled < 4 || scaled > 14) e = max(min(138 - exponent, 40), -116);
                }
                const float scale = power_of_two(e);
                const int slot = seq % kSlots;
                wait(&empty[slot], ((seq / kSlots) & 1) ^ 1);
                unsigned char* base = ring + slot * kSlotBytes;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
#pragma unroll
                    for (int p = 0; p < 2; ++p) {
                        uint32_t big[4], small[4];
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            split_pair(v[h][8 * p + 2 * i] * scale, v[h][8 * p + 2 * i + 1] * scale, big[i], small[i]);
                        }
                        unsigned char* to = base + p * kPanelBytes + (h * 128 + t) * 16;
                        *reinterpret_cast<uint4*>(to) = make_uint4(big[0], big[1], big[2], big[3]);
                        *reinterpret_cast<uint4*>(to + kPieceBytes) =
                            make_uint4(small[0], small[1], small[2], small[3]);
                    }
                }
                if (t == 0) slot_exponent[slot] = e;
                show_stores();
                __syncwarp();
                if (lane == 0) arrive(&full[slot]);
                ++seq;
            }
            row += count;
        }
    } else {
        // Consumers: left half of each row (wg 0), right half (wg 1).
        take_registers<200>();
        const int wg = group - 1;

        uint32_t wm = 0;
#pragma unroll
        for (int i = 0; i < kThreads / 32; ++i) wm = max(wm, weight_max[i]);
        const int ew = wm == 0 ? 0 : max(min(138 - static_cast<int>(wm >> 23), 60), -116);
        const float weight_scale = power_of_two(ew);
        const float weight_unscale = power_of_two(-ew);

        const int channel = warp * 16 + lane / 4;
        uint32_t w_big[9][4], w_small[9][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float* from = weight + (channel + (i & 1) * 8) * (kIn * 9) + (lane % 4 * 2 + (i >> 1) * 8) * 9;
#pragma unroll
            for (int tap = 0; tap < 9; ++tap) {
                split_pair(__ldg(from + tap) * weight_scale, __ldg(from + 9 + tap) * weight_scale, w_big[tap][i],
                           w_small[tap][i]);
            }
        }
        const float bias_0 = __ldg(bias + channel) * weight_scale;
        const float bias_1 = __ldg(bias + channel + 8) * weight_scale;

        float d[64];
#pragma unroll
        for (int i = 0; i < 64; ++i) d[i] = 0.0f;

        const uint32_t window = shared_address(ring) + wg * 128 * 16;
        const int column = wg * 128 + t;
        int seq = 0;
        int parity = 0;
        if (wg == 1) meet_without_waiting(2, 256);  // the first turn is warpgroup 0's

        for (int row = first; row < last;) {
            const int y = row % kOutSide;
            const int count = min(kOutSide - y, last - row);
            wait(&full[seq % kSlots], (seq / kSlots) & 1);
            wait(&full[(seq + 1) % kSlots], ((seq + 1) / kSlots) & 1);
            for (int k = 0; k < count; ++k) {
                const int s0 = seq % kSlots, s1 = (seq + 1) % kSlots, s2 = (seq + 2) % kSlots;
                wait(&full[s2], ((seq + 2) / kSlots) & 1);
                const int e0 = slot_exponent[s0], e1 = slot_exponent[s1], e2 = slot_exponent[s2];
                uint64_t b[3];
                b[0] = describe(window + s0 * kSlotBytes);
                b[1] = describe(window + s1 * kSlotBytes);
                b[2] = describe(window + s2 * kSlotBytes);

                meet(2 + wg, 256);  // this warpgroup's turn
                if (e0 == e1 && e1 == e2) {
                    begin_products();
#pragma unroll
                    for (int tap = 0; tap < 9; ++tap) {
                        multiply(d, w_small[tap], b[tap / 3] + tap % 3, tap > 0 ? 1 : 0);
                    }
#pragma unroll
                    for (int tap = 0; tap < 9; ++tap) {
                        multiply(d, w_big[tap], b[tap / 3] + (kPieceBytes >> 4) + tap % 3, 1);
                    }
#pragma unroll
                    for (int tap = 0; tap < 9; ++tap) multiply(d, w_big[tap], b[tap / 3] + tap % 3, 1);
                    commit_products();
                    meet_without_waiting(3 - wg, 256);
                    wait_products<0>(d);
                } else {
                    // Rows of different scale: the sums so far are brought to the next row's.
#pragma unroll
                    for (int r = 0; r < 3; ++r) {
                        if (r > 0) {
                            const int change = r == 1 ? e1 - e0 : e2 - e1;
                            const int half = change / 2;
                            const float factor_0 = power_of_two(half), factor_1 = power_of_two(change - half);
#pragma unroll
                            for (int i = 0; i < 64; ++i) d[i] = d[i] * factor_0 * factor_1;
                        }
                        begin_products();
#pragma unroll
                        for (int s = 0; s < 3; ++s) multiply(d, w_small[3 * r + s], b[r] + s, r + s > 0 ? 1 : 0);
#pragma unroll
                        for (int s = 0; s < 3; ++s) multiply(d, w_big[3 * r + s], b[r] + (kPieceBytes >> 4) + s, 1);
#pragma unroll
                        for (int s = 0; s < 3; ++s) multiply(d, w_big[3 * r + s], b[r] + s, 1);
                        commit_products();
                        wait_products<0>(d);
                    }
                    meet_without_waiting(3 - wg, 256);
                }
                __syncwarp();
                if (lane == 0) arrive(&empty[s0]);

                // Minimum over the channels.
                const float scale = power_of_two(e2);
                const float add_0 = bias_0 * scale, add_1 = bias_1 * scale;
                float v[32];
#pragma unroll
                for (int j = 0; j < 16; ++j) {
#pragma unroll
                    for (int i = 0; i < 2; ++i) v[2 * j + i] = min_nan(d[4 * j + i] + add_0, d[4 * j + 2 + i] + add_1);
                }
                {
                    const bool upper = (lane & 16) != 0;
#pragma unroll
                    for (int q = 0; q < 16; ++q) {
                        const float keep = upper ? v[q + 16] : v[q];
                        const float send = upper ? v[q] : v[q + 16];
                        v[q] = min_nan(keep, __shfl_xor_sync(0xffffffffu, send, 16));
                    }
                }
                {
                    const bool upper = (lane & 8) != 0;
#pragma unroll
                    for (int q = 0; q < 8; ++q) {
                        const float keep = upper ? v[q + 8] : v[q];
                        const float send = upper ? v[q] : v[q + 8];
                        v[q] = min_nan(keep, __shfl_xor_sync(0xffffffffu, send, 8));
                    }
                }
                {
                    const bool upper = (lane & 4) != 0;
#pragma unroll
                    for (int q = 0; q < 4; ++q) {
                        const float keep = upper ? v[q + 4] : v[q];
                        const float send = upper ? v[q] : v[q + 4];
                        v[q] = min_nan(keep, __shfl_xor_sync(0xffffffffu, send, 4));
                    }
                }
                float* mine = &reduced[wg][parity][warp][16 * (lane / 4) + lane % 4 * 2];
                *reinterpret_cast<float2*>(mine) = make_float2(v[0], v[1]);
                *reinterpret_cast<float2*>(mine + 8) = make_float2(v[2], v[3]);
                meet(4 + wg, 128);
                const float low = min_nan(min_nan(reduced[wg][parity][0][t], reduced[wg][parity][1][t]),
                                          min_nan(reduced[wg][parity][2][t], reduced[wg][parity][3][t]));
                const float value = low * weight_unscale * power_of_two(-e2);
                if (column < kOutSide) {
                    out[static_cast<int64_t>(row + k) * kOutSide + column] = tanhf(tanhf(value));
                }
                __syncwarp();
                parity ^= 1;
                ++seq;
            }
            __syncwarp();
            if (lane == 0) {
                arrive(&empty[seq % kSlots]);
                arrive(&empty[(seq + 1) % kSlots]);
            }
            seq += 2;
            row += count;
        }
        if (wg == 0) meet(2, 256);  // takes the last turn that warpgroup 1 gave away
    }
}

extern "C" int conv_min_tanh(const float* x, const float* weight, const float* bias, float* out, int64_t batch,
                             void* stream) {
    if (batch == 0) return 0;
    static int multiprocessors = 0;
    if (multiprocessors == 0) {
        int device = 0;
        cudaError_t error = cudaGetDevice(&device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaFuncSetAttribute(conv_min_tanh_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kDynamic);
        if (error != cudaSuccess) return static_cast<int>(error);
        int found = 0;
        error = cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device);
        if (error != cudaSuccess) return static_cast<int>(error);
        multiprocessors = found;
    }
    const int total = static_cast<int>(batch) * kOutSide;
    const int blocks = multiprocessors < total ? multiprocessors : total;
    conv_min_tanh_kernel<<<blocks, kThreads, kDynamic, static_cast<cudaStream_t>(stream)>>>(x, weight, bias, out,
                                                                                         total);
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="conv_min_tanh_tanh",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
conv_min_tanh = library.conv_min_tanh
conv_min_tanh.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64, ctypes.c_void_p]
conv_min_tanh.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        weight = self.conv.weight
        bias = self.conv.bias
        if tuple(x.shape[1:]) != (16, 256, 256) or tuple(weight.shape) != (64, 16, 3, 3):
            raise RuntimeError("conv_min_tanh: made for x of (N, 16, 256, 256) and a weight of (64, 16, 3, 3)")
        x = x.contiguous()
        weight = weight.contiguous()
        bias = bias.contiguous()
        batch = x.shape[0]
        out = torch.empty((batch, 1, 254, 254), dtype=x.dtype, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = conv_min_tanh(x.data_ptr(), weight.data_ptr(), bias.data_ptr(), out.data_ptr(), batch, stream)
        if error:
            raise RuntimeError(f"conv_min_tanh: CUDA error {error}")
        return out
