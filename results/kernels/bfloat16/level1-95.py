import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_bf16.h>

constexpr int WARPS = 16;
constexpr int STAGES = 3;                          // buffers of each warp
constexpr int THREADS = WARPS * 32;
constexpr int COLUMNS = 4096;
constexpr int ROW_BYTES = COLUMNS * 2;             // 8192
constexpr int PARTS = 2;                           // chunks of a row
constexpr int CHUNK_COLUMNS = COLUMNS / PARTS;     // 2048
constexpr int CHUNK_BYTES = ROW_BYTES / PARTS;     // 4096
constexpr int VECTORS = CHUNK_BYTES / 16 / 32;     // 8 vectors of 16 bytes a lane
constexpr int SHARED_BYTES = WARPS * STAGES * CHUNK_BYTES;  // 196608
constexpr int MAX_BLOCKS = THREADS;                // one thread of the last block for each block's word

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void start_barrier(uint64_t* barrier, int arrivals) {
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
__device__ __forceinline__ void wait_full(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}
// Lines that are read once and are the first to leave the L2.
__device__ __forceinline__ uint64_t evict_first_policy() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier,
                                          uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
        ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy) : "memory");
}
__device__ __forceinline__ unsigned long long load_word(const unsigned long long* from) {
    unsigned long long word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
    return word;
}
__device__ __forceinline__ void store_word(unsigned long long* to, unsigned long long word) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
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
// Floats in the order of signed integers; its own inverse.
__device__ __forceinline__ int ordered(int bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

__global__ void __launch_bounds__(THREADS, 1)
cross_entropy_kernel(const unsigned char* __restrict__ x, const long long* __restrict__ targets,
                     __nv_bfloat16* __restrict__ out, unsigned long long* slots, int rows) {
    extern __shared__ __align__(128) unsigned char buffers[];
    __shared__ __align__(8) uint64_t barriers[WARPS * STAGES];
    __shared__ float warp_sum[WARPS];
    __shared__ int warp_count[WARPS];
    __shared__ float final_sum[WARPS];
    __shared__ int final_count[WARPS];

    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    unsigned char* ring = buffers + warp * STAGES * CHUNK_BYTES;
    uint64_t* full = barriers + warp * STAGES;

    // Rows of this warp: first, first + step, ...; each is PARTS chunks, numbered through.
    const int grid = static_cast<int>(gridDim.x);
    const int step = grid * WARPS;
    const int first = static_cast<int>(blockIdx.x) + warp * grid;
    const int my_rows = first < rows ? (rows - first + step - 1) / step : 0;
    const int chunks = my_rows * PARTS;
    const unsigned char* base = x + static_cast<int64_t>(first) * ROW_BYTES;
    const int64_t stride = static_cast<int64_t>(step) * ROW_BYTES;
    const uint64_t policy = evict_first_policy();

    if (lane == 0) {
        for (int i = 0; i < STAGES; ++i) start_barrier(&full[i], 1);
        show_started();
        for (int q = 0; q < STAGES; ++q) {
            if (q < chunks) {
                arrive_and_expect(&full[q], CHUNK_BYTES);
                bulk_load(ring + q * CHUNK_BYTES, base + (q / PARTS) * stride + (q % PARTS) * CHUNK_BYTES,
                          CHUNK_BYTES, &full[q], policy);
            }
        }
    }
    __syncwarp();

    constexpr float LOG2E = 1.4426950408889634f;
    float total = 0.0f;
    int count = 0;
    int s = 0;
    uint32_t parity = 0;
    long long next_target = my_rows > 0 ? targets[first] : 0;

#pragma unroll 1
    for (int k = 0; k < my_rows; ++k) {
        const long long target = next_target;
        if (k + 1 < my_rows) next_target = targets[first + (k + 1) * step];
        const bool valid = target >= 0 && target < COLUMNS;
        const int column = valid ? static_cast<int>(target) : 0;

        float m = __uint_as_float(0xff800000u);   // of this lane; minus infinity
        float sum = 0.0f;                         // of this lane, relative to m
        float chosen = 0.0f;

#pragma unroll 1
        for (int part = 0; part < PARTS; ++part) {
            unsigned char* stage = ring + s * CHUNK_BYTES;
            wait_full(&full[s], parity);

            uint4 v[VECTORS];
            const uint4* vectors = reinterpret_cast<const uint4*>(stage);
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) v[i] = vectors[i * 32 + lane];
            if (column / CHUNK_COLUMNS == part) {
                const unsigned short bits = reinterpret_cast<const unsigned short*>(stage)[column % CHUNK_COLUMNS];
                chosen = __uint_as_float(static_cast<uint32_t>(bits) << 16);
            }

            uint32_t m0 = v[0].x, m1 = v[0].y, m2 = v[0].z, m3 = v[0].w;
#pragma unroll
            for (int i = 1; i < VECTORS; ++i) {
                m0 = max2(m0, v[i].x);
                m1 = max2(m1, v[i].y);
                m2 = max2(m2, v[i].z);
                m3 = max2(m3, v[i].w);
            }
            m0 = max2(max2(m0, m1), max2(m2, m3));
            const float new_m = fmaxf(m, fmaxf(low_half(m0), high_half(m0)));

            // All lanes hold their part of the chunk: the buffer takes the chunk that comes STAGES later.
            __syncwarp();
            if (lane == 0) {
                const int q = k * PARTS + part + STAGES;
                if (q < chunks) {
                    arrive_and_expect(&full[s], CHUNK_BYTES);
                    bulk_load(stage, base + (q / PARTS) * stride + (q % PARTS) * CHUNK_BYTES, CHUNK_BYTES,
                              &full[s], policy);
                }
            }
            __syncwarp();

            const float shift = -(new_m * LOG2E);
            float s0 = sum * exp2_fast((m - new_m) * LOG2E);   // 0 in the first part
            float s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
            m = new_m;
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
            sum = (s0 + s1) + (s2 + s3);

            if (++s == STAGES) {
                s = 0;
                parity ^= 1;
            }
        }

        // Merge the lanes.
        const float row_m = __int_as_float(ordered(__reduce_max_sync(0xffffffffu, ordered(__float_as_int(m)))));
        sum *= exp2_fast((m - row_m) * LOG2E);
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);

        if (valid) {
            total += logf(sum) + (row_m - chosen);
            count += 1;
        }
    }

    if (lane == 0) {
        warp_sum[warp] = total;
        warp_count[warp] = count;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        float block_sum = 0.0f;
        int block_count = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            block_sum += warp_sum[w];
            block_count += warp_count[w];
        }
        // Sum and count + 1 in one word, which is never 0 then: it is its own flag.
        const unsigned long long word = (static_cast<unsigned long long>(static_cast<uint32_t>(block_count + 1)) << 32) |
                                        static_cast<unsigned long long>(__float_as_uint(block_sum));
        store_word(&slots[blockIdx.x], word);
    }
    if (static_cast<int>(blockIdx.x) != grid - 1) return;

    // The last block: one thread waits for each block's word and clears it for the next call.
    float all_sum = 0.0f;
    int all_count = 0;
    if (static_cast<int>(threadIdx.x) < grid) {
        unsigned long long word = load_word(&slots[threadIdx.x]);
        while (word == 0ull) word = load_word(&slots[threadIdx.x]);
        store_word(&slots[threadIdx.x], 0ull);
        all_sum = __uint_as_float(static_cast<uint32_t>(word & 0xffffffffull));
        all_count = static_cast<int>(static_cast<uint32_t>(word >> 32)) - 1;
    }
    __syncwarp();
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        all_sum += __shfl_xor_sync(0xffffffffu, all_sum, offset);
        all_count += __shfl_xor_sync(0xffffffffu, all_count, offset);
    }
    if (lane == 0) {
        final_sum[warp] = all_sum;
        final_count[warp] = all_count;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        float result = 0.0f;
        int number = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            result += final_sum[w];
            number += final_count[w];
        }
        *out = __float2bfloat16_rn(result / static_cast<float>(number));
    }
}

// scratch: MAX_BLOCKS words of 8 bytes, zero before the first call; every call leaves them zero.
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
    cross_entropy_kernel<<<blocks_of_device, THREADS, SHARED_BYTES, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const unsigned char*>(x), static_cast<const long long*>(targets),
        static_cast<__nv_bfloat16*>(out), static_cast<unsigned long long*>(scratch), static_cast<int>(rows));
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="cross_entropy_rows_4096_evict_first",
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
            # One word of 8 bytes for each block (at most 512); the kernel clears them itself.
            scratch = torch.zeros(512, dtype=torch.int64, device=x.device)
            self._scratch = scratch
        out = x.new_empty(())
        stream = torch.cuda.current_stream().cuda_stream
        error = cross_entropy(x.data_ptr(), t.data_ptr(), out.data_ptr(), scratch.data_ptr(), rows, stream)
        if error:
            raise RuntimeError(f"cross_entropy: CUDA error {error}")
        return out
