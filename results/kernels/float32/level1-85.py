import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>

constexpr int kHeight = 128;
constexpr int kWidth = 256;
constexpr int kOutHeight = 126;
constexpr int kOutWidth = 250;
constexpr int kKernelH = 3;
constexpr int kKernelW = 7;
constexpr int kThreads = 128;
constexpr int kPairs = kOutWidth / 2;  // 125 threads have two output columns each

// tune: ROWS in (4, 8)
constexpr int ROWS = 8;
// tune: STAGES in (3, 4, 6)
constexpr int STAGES = 4;
// tune: OUTS in (2, 3)
constexpr int OUTS = 3;

constexpr int kTiles = kHeight / ROWS;
constexpr int kTileFloats = ROWS * kWidth;
constexpr uint32_t kTileBytes = kTileFloats * 4;
constexpr int kOutFloats = ROWS * kOutWidth;
constexpr uint32_t kOutBytes = kOutFloats * 4;
constexpr int kSharedBytes = STAGES * kTileBytes + OUTS * kOutBytes + STAGES * 8;

static_assert(kHeight % ROWS == 0 && ROWS % 2 == 0 && ROWS > 2, "tiles of whole, even numbers of rows");
static_assert(STAGES <= kTiles, "the ring is no longer than the plane");
static_assert(OUTS >= 2, "at least two output buffers");
static_assert(kOutBytes % 16 == 0 && kTileBytes % 16 == 0, "bulk copies move multiples of 16 bytes");

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void start(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void show_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
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
__device__ __forceinline__ void bulk_store(void* to, const void* from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
                 "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void show_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// One block a plane, from top to bottom.
__global__ void __launch_bounds__(kThreads, 4)
depthwise_3x7_kernel(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out,
                     int channels) {
    extern __shared__ __align__(128) unsigned char memory[];
    float* tiles = reinterpret_cast<float*>(memory);
    float* results = reinterpret_cast<float*>(memory + STAGES * kTileBytes);
    uint64_t* full = reinterpret_cast<uint64_t*>(memory + STAGES * kTileBytes + OUTS * kOutBytes);

    const int thread = threadIdx.x;
    const int64_t plane = blockIdx.x;
    const float* plane_in = x + plane * (kHeight * kWidth);
    float* plane_out = out + plane * (kOutHeight * kOutWidth);

    if (thread == 0) {
        for (int s = 0; s < STAGES; ++s) start(&full[s], 1);
        show_started();
        for (int s = 0; s < STAGES; ++s) {
            arrive_and_expect(&full[s], kTileBytes);
            bulk_load(tiles + s * kTileFloats, plane_in + s * kTileFloats, kTileBytes, &full[s]);
        }
    }

    float w[kKernelH][kKernelW];
    const float* channel_weight = weight + (blockIdx.x % channels) * (kKernelH * kKernelW);
#pragma unroll
    for (int i = 0; i < kKernelH; ++i) {
#pragma unroll
        for (int j = 0; j < kKernelW; ++j) w[i][j] = __ldg(channel_weight + i * kKernelW + j);
    }
    __syncthreads();  // the barriers are there for all

    const int pair = thread < kPairs ? thread : kPairs - 1;
    const bool active = thread < kPairs;

    // Partial sums: `first` of the output row that the next input row finishes, `second` of the one after it.
    float first0 = 0.0f, first1 = 0.0f, second0 = 0.0f, second1 = 0.0f;

    int slot = 0, buffer = 0;
    uint32_t parity = 0;
#pragma unroll 1
    for (int tile = 0; tile < kTiles; ++tile) {
        wait(&full[slot], parity);
        const float2* in = reinterpret_cast<const float2*>(tiles + slot * kTileFloats) + pair;
        float2* result = reinterpret_cast<float2*>(results + buffer * kOutFloats) + pair;

#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            float v[8];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const float2 two = in[r * (kWidth / 2) + k];
                v[2 * k] = two.x;
                v[2 * k + 1] = two.y;
            }
            float third0 = 0.0f, third1 = 0.0f;
#pragma unroll
            for (int j = 0; j < kKernelW; ++j) {
                first0 = fmaf(v[j], w[2][j], first0);
                first1 = fmaf(v[j + 1], w[2][j], first1);
                second0 = fmaf(v[j], w[1][j], second0);
                second1 = fmaf(v[j + 1], w[1][j], second1);
                third0 = fmaf(v[j], w[0][j], third0);
                third1 = fmaf(v[j + 1], w[0][j], third1);
            }
            // Output row tile * ROWS + r - 2; rows -2 and -1 of the first tile are never sent.
            if (active) result[r * kPairs] = make_float2(first0, first1);
            first0 = second0;
            first1 = second1;
            second0 = third0;
            second1 = third1;
        }

        show_stores();
        if (thread == 0) wait_stores_read<OUTS - 2>();  // the buffer of the next tile is free
        __syncthreads();  // the input tile is used up, the output buffer complete
        if (thread == 0) {
            const int next = tile + STAGES;
            if (next < kTiles) {
                arrive_and_expect(&full[slot], kTileBytes);
                bulk_load(tiles + slot * kTileFloats, plane_in + next * kTileFloats, kTileBytes, &full[slot]);
            }
            const float* from = results + buffer * kOutFloats;
            if (tile == 0) {
                bulk_store(plane_out, from + 2 * kOutWidth, kOutBytes - 2 * kOutWidth * 4);
            } else {
                bulk_store(plane_out + (tile * ROWS - 2) * kOutWidth, from, kOutBytes);
            }
            commit_stores();
        }
        if (++slot == STAGES) {
            slot = 0;
            parity ^= 1;
        }
        if (++buffer == OUTS) buffer = 0;
    }
    if (thread == 0) wait_stores_read<0>();  // shared memory must last until it has been read
}

static int configure() {
    cudaError_t error = cudaFuncSetAttribute(depthwise_3x7_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             kSharedBytes);
    if (error != cudaSuccess) return static_cast<int>(error);
    error = cudaFuncSetAttribute(depthwise_3x7_kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
    return static_cast<int>(error);
}

extern "C" int depthwise_3x7(const float* x, const float* weight, float* out, int64_t planes, int64_t channels,
                             void* stream) {
    if (planes == 0) return 0;
    static const int configured = configure();
    if (configured) return configured;
    depthwise_3x7_kernel<<<static_cast<unsigned>(planes), kThreads, kSharedBytes,
                           static_cast<cudaStream_t>(stream)>>>(x, weight, out, static_cast<int>(channels));
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="depthwise_3x7_bulk",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
depthwise_3x7 = library.depthwise_3x7
depthwise_3x7.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2 + [ctypes.c_void_p]
depthwise_3x7.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size_h: int,
        kernel_size_w: int,
        stride_h: int = 1,
        stride_w: int = 1,
        padding_h: int = 0,
        padding_w: int = 0,
        dilation_h: int = 1,
        dilation_w: int = 1,
        groups: int = 1,
        bias: bool = False,
    ):
        super().__init__()
        self.conv2d = nn.Conv2d(
            in_channels,
            in_channels,
            (kernel_size_h, kernel_size_w),
            stride=(stride_h, stride_w),
            padding=(padding_h, padding_w),
            dilation=(dilation_h, dilation_w),
            groups=in_channels,
            bias=bias,
        )
        self.channels = in_channels
        self.special = (
            (kernel_size_h, kernel_size_w) == (3, 7)
            and (stride_h, stride_w) == (1, 1)
            and (padding_h, padding_w) == (0, 0)
            and (dilation_h, dilation_w) == (1, 1)
            and not bias
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.conv2d.weight
        if (
            not self.special
            or x.dim() != 4
            or x.shape[1] != self.channels
            or x.shape[2] != 128
            or x.shape[3] != 256
            or x.dtype != torch.float32
            or weight.dtype != torch.float32
            or not x.is_cuda
        ):
            return self.conv2d(x)
        x = x.contiguous()
        if x.data_ptr() % 16:
            x = x.clone()
        weight = weight.contiguous()
        batch = x.shape[0]
        out = torch.empty((batch, self.channels, 126, 250), dtype=torch.float32, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = depthwise_3x7(
            x.data_ptr(), weight.data_ptr(), out.data_ptr(), batch * self.channels, self.channels, stream
        )
        if error:
            raise RuntimeError(f"depthwise_3x7: CUDA error {error}")
        return out
