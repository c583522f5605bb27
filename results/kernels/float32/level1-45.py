import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>

constexpr int kHeight = 2048;
constexpr int kWidth = 2048;
constexpr int kWindow = 11;
constexpr int kOut = 186;  // 2048 / 11, for both directions
constexpr int kConsumerWarps = 6;  // 192 threads for 186 outputs
constexpr int kThreads = 32 * (kConsumerWarps + 1);
constexpr uint32_t kRowBytes = kWidth * sizeof(float);
// Stages of one input row (8 KB) each; the launcher puts as many blocks on a multiprocessor as fit.
// tune: STAGES in (8, 13, 27)
constexpr int STAGES = 13;
constexpr int kSharedBytes = STAGES * kWidth * static_cast<int>(sizeof(float));

// Zero between launches: each launch draws exactly `bands` numbers and the last one wraps.
__device__ unsigned int band_counter = 0;

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

__global__ void __launch_bounds__(kThreads) avg_pool_kernel(const float* __restrict__ x, float* __restrict__ out,
                                                            unsigned int bands) {
    extern __shared__ __align__(128) float ring[];
    __shared__ uint64_t full[STAGES];
    __shared__ uint64_t empty[STAGES];
    __shared__ int ids[STAGES];  // the band whose first row lies in the stage

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            start(&full[i], 1);
            start(&empty[i], kConsumerWarps);
        }
        show_started();
    }
    __syncthreads();

    if (warp == kConsumerWarps) {
        if (lane == 0) {
            int s = 0;
            uint32_t parity = 1;  // the first time round the stages are free
            unsigned int band = blockIdx.x;
            while (band < bands) {
                const unsigned int next = gridDim.x + atomicInc(&band_counter, bands - 1u);
                const unsigned int plane = band / kOut;
                const unsigned int row = band - plane * kOut;
                const float* from = x + static_cast<int64_t>(plane) * (kHeight * kWidth) +
                                    static_cast<int64_t>(row) * (kWindow * kWidth);
                for (int r = 0; r < kWindow; ++r) {
                    wait(&empty[s], parity);
                    if (r == 0) ids[s] = static_cast<int>(band);
                    arrive_and_expect(&full[s], kRowBytes);
                    bulk_load(ring + s * kWidth, from + r * kWidth, kRowBytes, &full[s]);
                    if (++s == STAGES) {
                        s = 0;
                        parity ^= 1u;
                    }
                }
                band = next;
            }
            wait(&empty[s], parity);
            ids[s] = -1;
            arrive(&full[s]);
        }
    } else {
        const int o = static_cast<int>(threadIdx.x);
        const int column = (o < kOut ? o : kOut - 1) * kWindow;
        int s = 0;
        uint32_t parity = 0;
        for (;;) {
            float total = 0.0f;
            int band = -1;
#pragma unroll
            for (int r = 0; r < kWindow; ++r) {
                wait(&full[s], parity);
                if (r == 0) {
                    band = ids[s];
                    if (band < 0) return;
                }
                const float* p = ring + s * kWidth + column;
                float v[kWindow];
#pragma unroll
                for (int c = 0; c < kWindow; ++c) v[c] = p[c];
                const float sum = (((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]))) +
                                  ((v[8] + v[9]) + v[10]);
                total += sum;
                __syncwarp();
                if (lane == 0) arrive(&empty[s]);
                if (++s == STAGES) {
                    s = 0;
                    parity ^= 1u;
                }
            }
            if (o < kOut) out[static_cast<int64_t>(band) * kOut + o] = total / 121.0f;
        }
    }
}

extern "C" int avg_pool_11(const float* x, float* out, int64_t bands, void* stream) {
    if (bands == 0) return 0;
    static int most_blocks = 0;
    if (most_blocks == 0) {
        cudaError_t error =
            cudaFuncSetAttribute(avg_pool_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        int device = 0, multiprocessors = 0, per_multiprocessor = 0;
        error = cudaGetDevice(&device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, avg_pool_kernel, kThreads,
                                                              kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        if (per_multiprocessor < 1) per_multiprocessor = 1;
        most_blocks = multiprocessors * per_multiprocessor;
    }
    const int64_t blocks = bands < most_blocks ? bands : most_blocks;
    avg_pool_kernel<<<static_cast<unsigned>(blocks), kThreads, kSharedBytes, static_cast<cudaStream_t>(stream)>>>(
        x, out, static_cast<unsigned int>(bands));
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="avg_pool_11_ring",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
avg_pool_11 = library.avg_pool_11
avg_pool_11.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
avg_pool_11.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self, kernel_size: int, stride: int = None, padding: int = 0):
        super().__init__()
        # Used only for arguments or shapes other than those that the kernel is made for.
        self.avg_pool = nn.AvgPool2d(kernel_size=kernel_size, stride=stride, padding=padding)
        self.special = kernel_size == 11 and stride in (None, 11) and padding == 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not (self.special and x.dim() == 4 and x.dtype == torch.float32 and x.is_cuda):
            return self.avg_pool(x)
        batch, channels, height, width = x.shape
        if height != 2048 or width != 2048:
            return self.avg_pool(x)
        x = x.contiguous()
        if x.data_ptr() % 16:
            x = x.clone()
        out = torch.empty((batch, channels, 186, 186), dtype=x.dtype, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = avg_pool_11(x.data_ptr(), out.data_ptr(), batch * channels * 186, stream)
        if error:
            raise RuntimeError(f"avg_pool_11: CUDA error {error}")
        return out
