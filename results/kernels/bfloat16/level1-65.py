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

constexpr int kTile = 176;                     // output columns of a tile
constexpr int kTiles = 3;
constexpr int kConsumers = 3;                  // warpgroups; each takes every third output row
constexpr int kStrips = kBatch * kTiles;
constexpr int kUnits = kStrips * kOutH;        // row tiles

constexpr int kLines = kTile + 8;              // 184
constexpr int kPairs = kLines / 2;             // 92
constexpr int kRounds = (kPairs + 31) / 32;    // 3
constexpr int kPanel = kLines * 16;            // bytes of 8 channels
constexpr int kStageBytes = kPanel * 4;        // 32 channels
constexpr int kStages = 5;
constexpr int kTapBytes = kChannels * kChannels * 2;
constexpr int kWeightBytes = kTaps * kTapBytes;
constexpr int kBarrierOffset = kWeightBytes + kStages * kStageBytes;
constexpr int kSharedBytes = kBarrierOffset + 128;
constexpr int kThreads = 128 * (kConsumers + 1);
constexpr int kAcc = kTile / 2;                // 88 floats a thread

static_assert(kSharedBytes <= 232448, "shared memory");
static_assert((2 * kStages + 1) * 8 <= 128, "barriers");

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void bar_start(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void bar_show_started() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void bar_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
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
__device__ __forceinline__ void bulk_prefetch(const void* from, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void show_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All but the latest group are done; the accumulators stay in flight.
__device__ __forceinline__ void wait_older_products() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void wait_all_products(float (&d)[N]) {
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

#define ACC4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])

// D (64 x 176) += A (64 x 16) B (16 x 176), both K-major in shared memory.
__device__ __forceinline__ void multiply(float (&d)[kAcc], uint64_t a, uint64_t b) {
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
        : ACC4(0), ACC4(4), ACC4(8), ACC4(12), ACC4(16), ACC4(20), ACC4(24), ACC4(28), ACC4(32), ACC4(36), ACC4(40),
          ACC4(44), ACC4(48), ACC4(52), ACC4(56), ACC4(60), ACC4(64), ACC4(68), ACC4(72), ACC4(76), ACC4(80), ACC4(84)
        : "l"(a), "l"(b), "r"(1));
}

// Upper half of a descriptor: distance of 8 lines, 128 bytes; no swizzle.
__device__ __forceinline__ uint64_t descriptor(uint32_t low) {
    return (static_cast<uint64_t>(128 >> 4) << 32) | low;
}

// The 14 products of one kernel row and 32 channels, as one group. `a`, `b`: lower halves of the descriptors.
__device__ __forceinline__ void products(float (&d)[kAcc], uint32_t a, uint32_t b) {
    begin_products();
#pragma unroll
    for (int kw = 0; kw < 7; ++kw) {
#pragma unroll
        for (int ks = 0; ks < 2; ++ks) {
            multiply(d, descriptor(a + kw * (kTapBytes / 16) + ks * (2 * kChannels * 16 / 16)),
                     descriptor(b - kw + ks * (2 * kPanel / 16)));
        }
    }
    commit_products();
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

__device__ __forceinline__ void prefetch_row(const __nv_bfloat16* x, int n, int ih, int tile) {
    // Tile t wants the columns from 176 t - 8 to 176 t + 175 that exist.
    if (threadIdx.x < kChannels) {
        const int begin = max(tile * kTile - 8, 0);
        const int end = min(tile * kTile + kTile, kW);
        const int64_t at = (static_cast<int64_t>(n * kChannels + threadIdx.x) * kH + ih) * kW + begin;
        bulk_prefetch(x + at, static_cast<uint32_t>((end - begin) * 2));
    }
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
        bar_start(weights_full, 1);
        bar_show_started();
    }
    __syncthreads();

    int unit = static_cast<int>(static_cast<int64_t>(blockIdx.x) * kUnits / gridDim.x);
    const int last = static_cast<int>(static_cast<int64_t>(blockIdx.x + 1) * kUnits / gridDim.x);
    int s = 0;
    uint32_t parity = 0;

    if (threadIdx.x < 128) {
        // Producer: transposes input rows into the ring. A warp takes 8 channels of a stage.
        give_up_registers<104>();
        const int oct = threadIdx.x / 32;
        const int lane = threadIdx.x % 32;
        while (unit < last) {
            const int strip = unit / kOutH;
            const int r0 = unit - strip * kOutH;
            const int r1 = min(kOutH, r0 + last - unit);
            unit += r1 - r0;
            const int n = strip / kTiles;
            const int tile = strip - n * kTiles;
            const int first_row = max(r0 - 2, 0);
            const int end_row = min(r1, kH);
            const int first_column = tile * kTile - 8 + 2 * lane;
            if (first_row < end_row) prefetch_row(x, n, first_row, tile);
#pragma unroll 1
            for (int ih = first_row; ih < end_row; ++ih) {
                if (ih + 1 < end_row) prefetch_row(x, n, ih + 1, tile);
#pragma unroll 1
                for (int chunk = 0; chunk < 2; ++chunk) {
                    const int base = ((n * kChannels + chunk * 32 + oct * 8) * kH + ih) * kW + first_column;
                    const uint32_t* from = reinterpret_cast<const uint32_t*>(x + base);
                    uint32_t v[kRounds][8];
#pragma unroll
                    for (int round = 0; round < kRounds; ++round) {
                        const bool inside =
                            lane + 32 * round < kPairs &&
                            static_cast<unsigned>(first_column + 64 * round) < static_cast<unsigned>(kW);
                        if (inside) {
#pragma unroll
                            for (int j = 0; j < 8; ++j) v[round][j] = __ldg(from + 32 * round + j * (kH * kW / 2));
                        } else {
#pragma unroll
                            for (int j = 0; j < 8; ++j) v[round][j] = 0;
                        }
                    }
                    bar_wait(&empty[s], parity ^ 1);
                    unsigned char* panel = stages + s * kStageBytes + oct * kPanel;
#pragma unroll
                    for (int round = 0; round < kRounds; ++round) {
                        const int pair = lane + 32 * round;
                        if (pair < kPairs) {
                            // `odd` lanes write their odd pixel first: no bank conflicts.
                            const int odd = pair >> 2 & 1;
                            const uint32_t select_first = odd ? 0x7632u : 0x5410u;
                            const uint32_t select_second = odd ? 0x5410u : 0x7632u;
                            unsigned char* to = panel + pair * 32;
                            uint4 q;
                            q.x = __byte_perm(v[round][0], v[round][1], select_first);
                            q.y = __byte_perm(v[round][2], v[round][3], select_first);
                            q.z = __byte_perm(v[round][4], v[round][5], select_first);
                            q.w = __byte_perm(v[round][6], v[round][7], select_first);
                            *reinterpret_cast<uint4*>(to + odd * 16) = q;
                            q.x = __byte_perm(v[round][0], v[round][1], select_second);
                            q.y = __byte_perm(v[round][2], v[round][3], select_second);
                            q.z = __byte_perm(v[round][4], v[round][5], select_second);
                            q.w = __byte_perm(v[round][6], v[round][7], select_second);
                            *reinterpret_cast<uint4*>(to + (16 - odd * 16)) = q;
                        }
                    }
                    show_stores();
                    __syncwarp();
                    if (lane == 0) bar_arrive(&full[s]);
                    if (++s == kStages) {
                        s = 0;
                        parity ^= 1;
                    }
                }
            }
        }
    } else {
        // Consumers: every third output row each, all 176 pixels of it.
        take_registers<136>();
        if (threadIdx.x == 128) {
            asm volatile("griddepcontrol.wait;" ::: "memory");
            bar_arrive_and_expect(weights_full, kWeightBytes);
            for (int tap = 0; tap < kTaps; ++tap)
                bulk_load(weights + tap * kTapBytes, packed + tap * kTapBytes, kTapBytes, weights_full);
        }
        __syncwarp();
        const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0) - 1;
        const uint32_t a_low =
            (shared_address(weights) & 0x3ffff) >> 4 | static_cast<uint32_t>(kChannels * 16 >> 4) << 16;
        const uint32_t b_low = ((shared_address(stages) + 8 * 16) & 0x3ffff) >> 4 |
                               static_cast<uint32_t>(kPanel >> 4) << 16;
        const bool leader = threadIdx.x % 32 == 0;
        bar_wait(weights_full, 0);

        // Passes over stages that this warpgroup does not need.
        auto skip = [&](int count) {
#pragma unroll 1
            for (int i = 0; i < count; ++i) {
                bar_wait(&full[s], parity);
                __syncwarp();
                if (leader) bar_arrive(&empty[s]);
                if (++s == kStages) {
                    s = 0;
                    parity ^= 1;
                }
            }
        };

        while (unit < last) {
            const int strip = unit / kOutH;
            const int r0 = unit - strip * kOutH;
            const int r1 = min(kOutH, r0 + last - unit);
            unit += r1 - r0;
            const int n = strip / kTiles;
            const int tile = strip - n * kTiles;
            const int end_row = min(r1, kH);
            int row = max(r0 - 2, 0);   // the input row that comes next in the ring
#pragma unroll 1
            for (int oh = r0 + group; oh < r1; oh += kConsumers) {
                const int from_row = max(oh - 2, 0);
                const int to_row = min(oh, kH - 1);
                skip(2 * (from_row - row));
                row = to_row + 1;

                float acc[kAcc];
#pragma unroll
                for (int i = 0; i < kAcc; ++i) acc[i] = 0.0f;

                const int steps = 2 * (to_row - from_row + 1);
                const int first_kh = oh - from_row;
                int previous = 0;
#pragma unroll 1
                for (int step = 0; step < steps; ++step) {
                    bar_wait(&full[s], parity);
                    const uint32_t a = a_low + (first_kh - (step >> 1)) * (7 * kTapBytes / 16) +
                                       (step & 1) * (4 * kChannels * 16 / 16);
                    const uint32_t b = b_low + s * (kStageBytes / 16);
                    products(acc, a, b);
                    wait_older_products();
                    __syncwarp();
                    if (step > 0 && leader) bar_arrive(&empty[previous]);
                    previous = s;
                    if (++s == kStages) {
                        s = 0;
                        parity ^= 1;
                    }
                }
                wait_all_products(acc);
                __syncwarp();
                if (leader) bar_arrive(&empty[previous]);

                const int t = threadIdx.x & 127;
                const int co = t / 32 * 16 + t % 32 / 4;
                const int ow = tile * kTile + t % 4 * 2;
                __nv_bfloat16* to = out + (static_cast<int64_t>(n * kChannels + co) * kOutH + oh) * kOutW + ow;
#pragma unroll
                for (int j = 0; j < kTile / 8; ++j) {
                    if (ow + 8 * j < kOutW) {
                        *reinterpret_cast<__nv_bfloat162*>(to + 8 * j) =
                            __floats2bfloat162_rn(acc[4 * j], acc[4 * j + 1]);
                        *reinterpret_cast<__nv_bfloat162*>(to + 8 * j + 8 * kOutH * kOutW) =
                            __floats2bfloat162_rn(acc[4 * j + 2], acc[4 * j + 3]);
                    }
                }
            }
            skip(2 * (end_row - row));
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
        name="conv_transpose_3x7_row_owners",
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
