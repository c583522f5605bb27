import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

N = 4096

SOURCE = r"""
#include <cstdint>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int kN = 4096;
constexpr int kUnits = kN / 128;                      // 128 x 128 tiles along a side
constexpr int kBlocks = kN / 64;                      // 64 x 64 blocks along a side
constexpr int kPiece = 64 * 128;                      // bytes of one piece of a block
constexpr int kBlockBytes = 2 * kPiece;               // hi, lo
constexpr int kStages = 3;
constexpr int kStageBytes = 4 * kBlockBytes;          // two blocks of A, two of B
constexpr int kTiles = kUnits * (kUnits + 1) / 2;     // output tiles on and below the diagonal
constexpr int kZeroTiles = kUnits * (kUnits - 1) / 2;
// Chunks of 64 of k after which the sum is taken out of the tensor cores' registers; divides 2.
// tune: kStretch in (1, 2)
constexpr int kStretch = 2;
constexpr int kThreads = 384;
constexpr int kSharedBytes = kStages * kStageBytes + 1024;

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void bar_start(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void bar_show_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
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

// 128-byte swizzle.
__device__ __forceinline__ uint64_t describe(uint32_t start, uint32_t leading, uint32_t stride) {
    return static_cast<uint64_t>((start & 0x3ffff) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
           static_cast<uint64_t>(stride >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}

// D (64 x 128) += A (64 x 16, K-major) B (16 x 128, MN-major); `add` 0: D = A B.
__device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{@ACC@}, %64, %65, p, 1, 1, 0, 1;\n}"
        : @BIND@
        : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_pending() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void wait_all_products(float (&d)[64]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

__device__ __forceinline__ uint32_t half_bits(__half2 h) { return *reinterpret_cast<const uint32_t*>(&h); }

// One block a row. kLeft: A, whose column k is first multiplied by column_factors[k].
// row_factors: for A what undoes the scale of the row; for B what goes into the column of A (0 for a row of zeros).
template <bool kLeft>
__global__ void __launch_bounds__(256) split_rows(const float* __restrict__ x, const float* __restrict__ column_factors,
                                                  float* __restrict__ row_factors, uint32_t* __restrict__ row_masks,
                                                  unsigned char* __restrict__ pieces) {
    __shared__ uint32_t warp_max[8];
    __shared__ uint32_t warp_mask[8];
    const int row = blockIdx.x;
    const int t = threadIdx.x;
    const int warp = t / 32;
    const float4* from = reinterpret_cast<const float4*>(x + static_cast<int64_t>(row) * kN);
    float4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = __ldcs(from + t + 256 * j);
    if (kLeft) {
        const float4* factors = reinterpret_cast<const float4*>(column_factors);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float4 f = factors[t + 256 * j];
            v[j].x *= f.x;
            v[j].y *= f.y;
            v[j].z *= f.z;
            v[j].w *= f.w;
        }
    }
    float largest = 0.0f;
    uint32_t mine = 0;  // the units of this warp that hold anything
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float m = fmaxf(fmaxf(fabsf(v[j].x), fabsf(v[j].y)), fmaxf(fabsf(v[j].z), fabsf(v[j].w)));
        largest = fmaxf(largest, m);
        if (__ballot_sync(0xffffffffu, m != 0.0f) != 0) mine |= 1u << (warp + 8 * j);
    }
    uint32_t bits = __reduce_max_sync(0xffffffffu, __float_as_uint(largest));
    if (t % 32 == 0) {
        warp_max[warp] = bits;
        warp_mask[warp] = mine;
    }
    __syncthreads();
    uint32_t row_mask = 0;
#pragma unroll
    for (int w = 0; w < 8; ++w) {
        bits = max(bits, warp_max[w]);
        row_mask |= warp_mask[w];
    }
    // The largest magnitude goes to [2^13, 2^14).
    int exponent = 140 - static_cast<int>(bits >> 23);
    exponent = min(max(exponent, -100), 100);
    if (bits == 0) exponent = 0;
    const float scale = __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23);
    if (t == 0) {
        const float inverse = __uint_as_float(static_cast<uint32_t>(127 - exponent) << 23);
        row_factors[row] = (!kLeft && bits == 0) ? 0.0f : inverse;
        row_masks[row] = row_mask;
    }
    const int line = row % 64;
    unsigned char* to_row = pieces + static_cast<int64_t>(row / 64) * kBlocks * kBlockBytes;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int unit = warp + 8 * j;
        if ((mine >> unit & 1u) != 0 || unit <= row / 128) {
            const int column = 4 * (t + 256 * j);
            const int byte = (column % 64) * 2;
            const int at = (line * 128 + byte) ^ ((line & 7) << 4);
            unsigned char* to = to_row + (column / 64) * kBlockBytes + at;
            const float a = v[j].x * scale, b = v[j].y * scale, c = v[j].z * scale, e = v[j].w * scale;
            const __half2 h0 = __floats2half2_rn(a, b);
            const __half2 h1 = __floats2half2_rn(c, e);
            const float2 f0 = __half22float2(h0);
            const float2 f1 = __half22float2(h1);
            const __half2 l0 = __floats2half2_rn(a - f0.x, b - f0.y);
            const __half2 l1 = __floats2half2_rn(c - f1.x, e - f1.y);
            *reinterpret_cast<uint2*>(to) = make_uint2(half_bits(h0), half_bits(h1));
            *reinterpret_cast<uint2*>(to + kPiece) = make_uint2(half_bits(l0), half_bits(l1));
        }
    }
}

// Block g: rows 128 g to 128 g + 127 of A; block 32 + g: those of B.
__global__ void __launch_bounds__(128) join_masks(const uint32_t* __restrict__ row_masks, uint32_t* __restrict__ tile_masks,
                                                  unsigned char* __restrict__ a_pieces,
                                                  unsigned char* __restrict__ b_pieces, int* __restrict__ counter) {
    __shared__ uint32_t warp_mask[4];
    const int which = blockIdx.x / kUnits;
    const int group = blockIdx.x % kUnits;
    const int t = threadIdx.x;
    const uint32_t mine = row_masks[which * kN + group * 128 + t];
    const uint32_t joined = __reduce_or_sync(0xffffffffu, mine);
    if (t % 32 == 0) warp_mask[t / 32] = joined;
    __syncthreads();
    const uint32_t all = warp_mask[0] | warp_mask[1] | warp_mask[2] | warp_mask[3];
    if (t == 0) tile_masks[which * kUnits + group] = all;
    if (blockIdx.x == 0 && t == 0) *counter = 0;
    // Units above the diagonal where this row had only zeros, which were not written, but other rows had values.
    const uint32_t above = group == kUnits - 1 ? 0u : 0xffffffffu << (group + 1);
    uint32_t missing = all & ~mine & above;
    const int row = group * 128 + t;
    unsigned char* line = (which == 0 ? a_pieces : b_pieces) + static_cast<int64_t>(row / 64) * kBlocks * kBlockBytes +
                          (row % 64) * 128;
    while (missing != 0) {
        const int unit = __ffs(static_cast<int>(missing)) - 1;
        missing &= missing - 1;
        for (int part = 0; part < 4; ++part) {  // two blocks, two pieces each
            uint4* to = reinterpret_cast<uint4*>(line + 2 * unit * kBlockBytes + part * kPiece);
            for (int i = 0; i < 8; ++i) to[i] = make_uint4(0, 0, 0, 0);
        }
    }
}

// The largest g with g (g + 1) / 2 <= p.
__device__ __forceinline__ int triangle_root(int p) {
    int g = static_cast<int>((sqrtf(8.0f * p + 1.0f) - 1.0f) * 0.5f);
    while ((g + 1) * (g + 2) / 2 <= p) ++g;
    while (g * (g + 1) / 2 > p) --g;
    return g;
}

__global__ void __launch_bounds__(kThreads, 1)
    multiply_tiles(const unsigned char* __restrict__ a_pieces, const unsigned char* __restrict__ b_pieces,
                   const float* __restrict__ row_factors, const uint32_t* __restrict__ tile_masks, int* counter,
                   float* __restrict__ out) {
    extern __shared__ unsigned char raw[];
    __shared__ uint64_t full[kStages];
    __shared__ uint64_t empty[kStages];
    __shared__ volatile int info[kStages];
    unsigned char* ring = raw + ((1024u - (shared_address(raw) & 1023u)) & 1023u);

    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) {
            bar_start(&full[s], 1);
            bar_start(&empty[s], 8);
        }
        bar_show_started();
    }
    __syncthreads();

    const int group = threadIdx.x / 128;
    const int lane = threadIdx.x % 32;
    if (group == 2) {
        const int warp = (threadIdx.x - 256) / 32;
        if (warp == 0) {
            // Feeds the ring.
            const uint32_t a_mask = tile_masks[lane];
            const uint32_t b_mask = tile_masks[kUnits + lane];
            int s = 0;
            uint32_t parity = 0;
            int next = 0;
            if (lane == 0) next = atomicAdd(counter, 1);
            for (;;) {
                const int p = __shfl_sync(0xffffffffu, next, 0);
                if (p >= kTiles) break;
                if (lane == 0) next = atomicAdd(counter, 1);
                const int g = triangle_root(p);  // g + 1 tiles at distance 31 - g from the diagonal
                const int bj = p - g * (g + 1) / 2;
                const int bi = bj + (kUnits - 1 - g);
                uint32_t units = __ballot_sync(0xffffffffu, (b_mask >> bj & 1u) != 0);
                units &= __shfl_sync(0xffffffffu, a_mask, bi);
                if (lane == 0) {
                    const int count = 2 * __popc(units);
                    const int word = bi | bj << 8 | count << 16;
                    if (count == 0) {
                        bar_wait(&empty[s], parity ^ 1);
                        info[s] = word;
                        bar_arrive(&full[s]);
                        if (++s == kStages) s = 0, parity ^= 1;
                    }
                    const unsigned char* a_from = a_pieces + static_cast<int64_t>(2 * bi) * kBlocks * kBlockBytes;
                    const unsigned char* b_from = b_pieces + static_cast<int64_t>(2 * bj) * kBlockBytes;
                    while (units != 0) {
                        const int unit = __ffs(static_cast<int>(units)) - 1;
                        units &= units - 1;
                        for (int part = 0; part < 2; ++part) {
                            const int64_t chunk = 2 * unit + part;
                            unsigned char* stage = ring + s * kStageBytes;
                            bar_wait(&empty[s], parity ^ 1);
                            info[s] = word;
                            bar_arrive_and_expect(&full[s], kStageBytes);
                            bulk_load(stage, a_from + chunk * kBlockBytes, kBlockBytes, &full[s]);
                            bulk_load(stage + kBlockBytes, a_from + (kBlocks + chunk) * kBlockBytes, kBlockBytes,
                                      &full[s]);
                            bulk_load(stage + 2 * kBlockBytes, b_from + chunk * kBlocks * kBlockBytes, 2 * kBlockBytes,
                                      &full[s]);
                            if (++s == kStages) s = 0, parity ^= 1;
                        }
                    }
                }
                __syncwarp();
            }
            if (lane == 0) {
                bar_wait(&empty[s], parity ^ 1);
                info[s] = -1;
                bar_arrive(&full[s]);
            }
        } else {
            // Zeros above the diagonal.
            const int t = threadIdx.x - 288;
            for (int u = blockIdx.x; u < kZeroTiles; u += gridDim.x) {
                const int g = triangle_root(u);
                const int bj = g + 1;
                const int bi = u - g * (g + 1) / 2;
                float* corner = out + static_cast<int64_t>(bi) * 128 * kN + bj * 128;
                for (int i = t; i < 128 * 32; i += 96) {
                    __stcs(reinterpret_cast<float4*>(corner + static_cast<int64_t>(i / 32) * kN) + i % 32,
                           make_float4(0.0f, 0.0f, 0.0f, 0.0f));
                }
            }
        }
    } else {
        const int t = threadIdx.x % 128;
        const uint32_t ring_at = shared_address(ring);
        float d[64];
        float sum[64];
#pragma unroll
        for (int i = 0; i < 64; ++i) d[i] = 0.0f;
        int s = 0;
        uint32_t parity = 0;
        for (;;) {
            bar_wait(&full[s], parity);
            const int word = info[s];
            if (word < 0) break;
            const int bi = word & 255;
            const int bj = word >> 8 & 255;
            const int count = word >> 16;
#pragma unroll
            for (int i = 0; i < 64; ++i) sum[i] = 0.0f;
            if (count == 0) {
                __syncwarp();
                if (lane == 0) bar_arrive(&empty[s]);
                if (++s == kStages) s = 0, parity ^= 1;
            }
            for (int first = 0; first < count; first += kStretch) {
                int previous = s;
#pragma unroll
                for (int c = 0; c < kStretch; ++c) {
                    bar_wait(&full[s], parity);
                    const uint32_t stage = ring_at + s * kStageBytes;
                    const uint64_t a_hi = describe(stage + group * kBlockBytes, 1024, 1024);
                    const uint64_t a_lo = describe(stage + group * kBlockBytes + kPiece, 1024, 1024);
                    const uint64_t b_hi = describe(stage + 2 * kBlockBytes, kBlockBytes, 1024);
                    const uint64_t b_lo = describe(stage + 2 * kBlockBytes + kPiece, kBlockBytes, 1024);
                    begin_products();
                    // A step of 16 of k: 32 bytes in A's lines, 16 lines (2048 bytes) in B; in units of 16 bytes.
#pragma unroll
                    for (int k = 0; k < 4; ++k) {
                        multiply(d, a_lo + 2 * k, b_hi + 128 * k, c > 0 || k > 0 ? 1 : 0);
                        multiply(d, a_hi + 2 * k, b_lo + 128 * k, 1);
                    }
#pragma unroll
                    for (int k = 0; k < 4; ++k) multiply(d, a_hi + 2 * k, b_hi + 128 * k, 1);
                    commit_products();
                    if (c > 0) {
                        wait_pending<1>();
                        __syncwarp();
                        if (lane == 0) bar_arrive(&empty[previous]);
                    }
                    previous = s;
                    if (++s == kStages) s = 0, parity ^= 1;
                }
                wait_all_products(d);
                __syncwarp();
                if (lane == 0) bar_arrive(&empty[previous]);
#pragma unroll
                for (int i = 0; i < 64; ++i) sum[i] += d[i];
            }
            const int row = bi * 128 + group * 64 + t / 32 * 16 + t % 32 / 4;
            const int column = bj * 128 + t % 4 * 2;
            const float factor_0 = row_factors[row];
            const float factor_1 = row_factors[row + 8];
            float* to_0 = out + static_cast<int64_t>(row) * kN + column;
            float* to_1 = to_0 + 8 * kN;
            const bool diagonal = bi == bj;
#pragma unroll
            for (int j = 0; j < 16; ++j) {
                float2 v0 = make_float2(sum[4 * j] * factor_0, sum[4 * j + 1] * factor_0);
                float2 v1 = make_float2(sum[4 * j + 2] * factor_1, sum[4 * j + 3] * factor_1);
                if (diagonal) {
                    const int at = column + 8 * j;
                    if (at > row) v0.x = 0.0f;
                    if (at + 1 > row) v0.y = 0.0f;
                    if (at > row + 8) v1.x = 0.0f;
                    if (at + 1 > row + 8) v1.y = 0.0f;
                }
                __stcs(reinterpret_cast<float2*>(to_0 + 8 * j), v0);
                __stcs(reinterpret_cast<float2*>(to_1 + 8 * j), v1);
            }
        }
    }
}

// small: row masks of A and B (2 x 4096), factors of A's rows, factors of B's rows, 64 tile masks, the counter.
extern "C" int tril_matmul(const float* a, const float* b, float* out, unsigned char* a_pieces, unsigned char* b_pieces,
                           unsigned char* small, int64_t blocks, void* stream_pointer) {
    cudaStream_t stream = static_cast<cudaStream_t>(stream_pointer);
    static bool prepared = false;
    if (!prepared) {
        const cudaError_t error =
            cudaFuncSetAttribute(multiply_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        prepared = true;
    }
    uint32_t* row_masks = reinterpret_cast<uint32_t*>(small);
    float* a_factors = reinterpret_cast<float*>(small + 2 * kN * 4);
    float* b_factors = reinterpret_cast<float*>(small + 3 * kN * 4);
    uint32_t* tile_masks = reinterpret_cast<uint32_t*>(small + 4 * kN * 4);
    int* counter = reinterpret_cast<int*>(small + 4 * kN * 4 + 256);
    split_rows<false><<<kN, 256, 0, stream>>>(b, nullptr, b_factors, row_masks + kN, b_pieces);
    split_rows<true><<<kN, 256, 0, stream>>>(a, b_factors, a_factors, row_masks, a_pieces);
    join_masks<<<2 * kUnits, 128, 0, stream>>>(row_masks, tile_masks, a_pieces, b_pieces, counter);
    multiply_tiles<<<static_cast<unsigned>(blocks), kThreads, kSharedBytes, stream>>>(a_pieces, b_pieces, a_factors,
                                                                                     tile_masks, counter, out);
    return static_cast<int>(cudaGetLastError());
}
"""

SOURCE = SOURCE.replace("@ACC@", ", ".join(f"%{i}" for i in range(64)))
SOURCE = SOURCE.replace("@BIND@", ", ".join(f'"+f"(d[{i}])' for i in range(64)))

library = ctypes.CDLL(
    load_inline(
        name="tril_matmul_split_fp16",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
tril_matmul = library.tril_matmul
tril_matmul.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int64, ctypes.c_void_p]
tril_matmul.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.scratch = None

    def forward(self, A, B):
        A = A.contiguous()
        B = B.contiguous()
        if A.shape != (N, N) or B.shape != (N, N) or A.dtype != torch.float32 or B.dtype != torch.float32:
            raise RuntimeError("tril_matmul: written for float32 matrices of 4096 x 4096")
        scratch = self.scratch
        if scratch is None or scratch[0].device != A.device:
            scratch = (
                torch.empty(N * N * 4, dtype=torch.uint8, device=A.device),
                torch.empty(N * N * 4, dtype=torch.uint8, device=A.device),
                torch.empty(4 * N * 4 + 512, dtype=torch.uint8, device=A.device),
                torch.cuda.get_device_properties(A.device).multi_processor_count,
            )
            self.scratch = scratch
        a_pieces, b_pieces, small, blocks = scratch
        out = torch.empty_like(A)
        stream = torch.cuda.current_stream().cuda_stream
        error = tril_matmul(
            A.data_ptr(),
            B.data_ptr(),
            out.data_ptr(),
            a_pieces.data_ptr(),
            b_pieces.data_ptr(),
            small.data_ptr(),
            blocks,
            stream,
        )
        if error:
            raise RuntimeError(f"tril_matmul: CUDA error {error}")
        return out
