import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_bf16.h>

// tune: WARPS in (8, 12, 14)
constexpr int WARPS = 12;
constexpr int STAGES = 28 / WARPS;             // row buffers of each warp
constexpr int THREADS = WARPS * 32;
constexpr int COLUMNS = 4096;
constexpr int ROW_BYTES = COLUMNS * 2;         // 8192
constexpr int VECTORS = ROW_BYTES / 16 / 32;   // 16 vectors of 16 bytes a lane
constexpr int SHARED_BYTES = WARPS * STAGES * ROW_BYTES;
constexpr int MAX_BLOCKS = 400;                // what the scratch buffer has room for

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void start(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void show_started() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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

__device__ __forceinline__ uint32_t max2(uint32_t a, uint32_t b) {
    uint32_t m;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
    return m;
}
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float low_half(uint32_t w) { return __uint_as_float(w << 16); }
__device__ __forceinline__ float high_half(uint32_t w) { return __uint_as_float(w & 0xffff0000u); }

__global__ void __launch_bounds__(THREADS, 1)
cross_entropy_kernel(const unsigned char* __restrict__ x, const long long* __restrict__ targets,
                     __nv_bfloat16* __restrict__ out, float2* partial, unsigned int* ticket, int rows) {
    extern __shared__ __align__(128) unsigned char buffers[];
    __shared__ __align__(8) uint64_t barriers[WARPS * STAGES];
    __shared__ float warp_sum[WARPS];
    __shared__ int warp_count[WARPS];

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    unsigned char* ring = buffers + warp * STAGES * ROW_BYTES;
    uint64_t* full = barriers + warp * STAGES;

    const int grid = static_cast<int>(gridDim.x);
    const int step = grid * WARPS;
    int row = static_cast<int>(blockIdx.x) + warp * grid;

    if (lane == 0) {
        for (int s = 0; s < STAGES; ++s) start(&full[s], 1);
        show_started();
        for (int s = 0; s < STAGES; ++s) {
            const int r = row + s * step;
            if (r < rows) {
                arrive_and_expect(&full[s], ROW_BYTES);
                bulk_load(ring + s * ROW_BYTES, x + static_cast<int64_t>(r) * ROW_BYTES, ROW_BYTES, &full[s]);
            }
        }
    }
    __syncwarp();

    constexpr float LOG2E = 1.4426950408889634f;
    float total = 0.0f;
    int count = 0;
    int s = 0;
    uint32_t parity = 0;
    long long next_target = row < rows ? targets[row] : 0;

    for (; row < rows; row += step) {
        const long long target = next_target;
        if (row + step < rows) next_target = targets[row + step];

        unsigned char* stage = ring + s * ROW_BYTES;
        wait(&full[s], parity);

        uint4 v[VECTORS];
        const uint4* vectors = reinterpret_cast<const uint4*>(stage);
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) v[i] = vectors[i * 32 + lane];

        const bool valid = target >= 0 && target < COLUMNS;
        const int column = valid ? static_cast<int>(target) : 0;
        const float chosen =
            __uint_as_float(static_cast<uint32_t>(reinterpret_cast<const unsigned short*>(stage)[column]) << 16);

        uint32_t m0 = v[0].x, m1 = v[0].y, m2 = v[0].z, m3 = v[0].w;
#pragma unroll
        for (int i = 1; i < VECTORS; ++i) {
            m0 = max2(m0, v[i].x);
            m1 = max2(m1, v[i].y);
            m2 = max2(m2, v[i].z);
            m3 = max2(m3, v[i].w);
        }
        m0 = max2(max2(m0, m1), max2(m2, m3));
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) m0 = max2(m0, __shfl_xor_sync(0xffffffffu, m0, offset));
        const float m = fmaxf(low_half(m0), high_half(m0));

        // All lanes hold their part of the row: the buffer takes the row that comes STAGES steps later.
        __syncwarp();
        if (lane == 0) {
            const int r = row + STAGES * step;
            if (r < rows) {
                arrive_and_expect(&full[s], ROW_BYTES);
                bulk_load(stage, x + static_cast<int64_t>(r) * ROW_BYTES, ROW_BYTES, &full[s]);
            }
        }
        __syncwarp();

        const float shift = -(m * LOG2E);
        float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            s0 += exp2_fast(fmaf(low_half(v[i].x), LOG2E, shift));
            s1 += exp2_fast(fmaf(high_half(v[i].x), LOG2E, shift));
            s2 += exp2_fast(fmaf(low_half(v[i].y), LOG2E, shift));
            s3 += exp2_fast(fmaf(high_half(v[i].y), LOG2E, shift));
            s0 += exp2_fast(fmaf(low_half(v[i].z), LOG2E, shift));
            s1 += exp2_fast(fmaf(high_half(v[i].z), LOG2E, shift));
            s2 += exp2_fast(fmaf(low_half(v[i].w), LOG2E, shift));
            s3 += exp2_fast(fmaf(high_half(v[i].w), LOG2E, shift));
        }
        float sum = (s0 + s1) + (s2 + s3);
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);

        if (valid) {
            total += logf(sum) + (m - chosen);
            count += 1;
        }

        if (++s == STAGES) {
            s = 0;
            parity ^= 1;
        }
    }

    if (lane == 0) {
        warp_sum[warp] = total;
        warp_count[warp] = count;
    }
    __syncthreads();
    if (warp != 0) return;

    unsigned int mine = 0;
    if (lane == 0) {
        float block_sum = 0.0f;
        int block_count = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            block_sum += warp_sum[w];
            block_count += warp_count[w];
        }
        __stcg(&partial[blockIdx.x], make_float2(block_sum, static_cast<float>(block_count)));
        __threadfence();
        mine = atomicAdd(ticket, 1u);
    }
    mine = __shfl_sync(0xffffffffu, mine, 0);
    if (mine != static_cast<unsigned int>(grid - 1)) return;

    // The last block: all partial sums are there; add them in a fixed order.
    __threadfence();
    float all_sum = 0.0f, all_count = 0.0f;
    for (int b = lane; b < grid; b += 32) {
        const float2 p = __ldcg(&partial[b]);
        all_sum += p.x;
        all_count += p.y;
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        all_sum += __shfl_xor_sync(0xffffffffu, all_sum, offset);
        all_count += __shfl_xor_sync(0xffffffffu, all_count, offset);
    }
    if (lane == 0) {
        *out = __float2bfloat16_rn(all_sum / all_count);
        *ticket = 0u;
    }
}

// scratch: 4096 bytes, zero before the first call; the ticket, then from byte 128 on one float2 for each block.
extern "C" int cross_entropy(const void* x, const void* targets, void* out, void* scratch, int64_t rows,
                             void* stream) {
    static int blocks_of_device = 0;
    if (blocks_of_device == 0) {
        int device = 0, count = 0;
        cudaError_t error = cudaGetDevice(&device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaFuncSetAttribute(cross_entropy_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
        if (error != cudaSuccess) return static_cast<int>(error);
        blocks_of_device = count < MAX_BLOCKS ? count : MAX_BLOCKS;
    }
    if (reinterpret_cast<uintptr_t>(x) % 16 != 0) return static_cast<int>(cudaErrorMisalignedAddress);
    unsigned char* base = static_cast<unsigned char*>(scratch);
    cross_entropy_kernel<<<blocks_of_device, THREADS, SHARED_BYTES, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const unsigned char*>(x), static_cast<const long long*>(targets),
        static_cast<__nv_bfloat16*>(out), reinterpret_cast<float2*>(base + 128),
        reinterpret_cast<unsigned int*>(base), static_cast<int>(rows));
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="cross_entropy_rows_4096",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
cross_entropy = library.cross_entropy
cross_entropy.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64, ctypes.c_void_p]
cross_entropy.restype = ctypes.c_int

COLUMNS = 4096


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self._scratch = None

    def forward(self, predictions, targets):
        rows, columns = predictions.shape
        if columns != COLUMNS or predictions.dtype is not torch.bfloat16 or targets.dtype is not torch.int64:
            raise RuntimeError("cross_entropy: written for bfloat16 rows of 4096 classes and int64 targets")
        x = predictions.contiguous()
        t = targets.contiguous()
        scratch = self._scratch
        if scratch is None:
            # The ticket and the blocks' partial sums (4096 bytes); the kernel resets the ticket itself.
            scratch = torch.zeros(1024, dtype=torch.int32, device=x.device)
            self._scratch = scratch
        out = x.new_empty(())
        stream = torch.cuda.current_stream().cuda_stream
        error = cross_entropy(x.data_ptr(), t.data_ptr(), out.data_ptr(), scratch.data_ptr(), rows, stream)
        if error:
            raise RuntimeError(f"cross_entropy: CUDA error {error}")
        return out
