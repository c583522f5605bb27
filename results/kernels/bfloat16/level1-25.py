import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_bf16.h>

// ---------------------------------------------------------------- arithmetic

// x / (1 + exp(-x)); exp overflows to Inf for very negative x, whose reciprocal is 0.
__device__ __forceinline__ float swish(float x) {
    float e, r;
    const float t = x * -1.4426950408889634f;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(t));
    const float d = 1.0f + e;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    return x * r;
}

// Two bf16 values in one word, the first in the low half.
__device__ __forceinline__ uint32_t swish_pair(uint32_t w) {
    const float low = swish(__uint_as_float(w << 16));
    const float high = swish(__uint_as_float(w & 0xffff0000u));
    const __nv_bfloat162 packed = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&packed);
}

__device__ __forceinline__ uint4 swish_vector(uint4 v) {
    v.x = swish_pair(v.x);
    v.y = swish_pair(v.y);
    v.z = swish_pair(v.z);
    v.w = swish_pair(v.w);
    return v;
}

// ---------------------------------------------------------------- simple kernels

template <bool STREAM>
__device__ __forceinline__ uint4 load_vector(const uint4* from) {
    if constexpr (STREAM) {
        return __ldcs(from);
    } else {
        return *from;
    }
}

template <bool STREAM>
__device__ __forceinline__ void store_vector(uint4* to, uint4 v) {
    if constexpr (STREAM) {
        __stcs(to, v);
    } else {
        *to = v;
    }
}

template <int THREADS, int UNROLL, bool STREAM_IN, bool STREAM_OUT>
__global__ void __launch_bounds__(THREADS, (UNROLL == 1 ? 2048 / THREADS : 1))
    swish_simple(const uint4* __restrict__ x, uint4* __restrict__ out, int64_t vectors) {
    const int64_t first = static_cast<int64_t>(blockIdx.x) * (THREADS * UNROLL) + threadIdx.x;
    uint4 v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (first + u * THREADS < vectors) v[u] = load_vector<STREAM_IN>(x + first + u * THREADS);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (first + u * THREADS < vectors) {
            store_vector<STREAM_OUT>(out + first + u * THREADS, swish_vector(v[u]));
        }
    }
}

// Up to 7 elements after the last whole vector.
__global__ void swish_tail(const __nv_bfloat16* __restrict__ x, __nv_bfloat16* __restrict__ out, int64_t from,
                           int64_t n) {
    const int64_t i = from + threadIdx.x;
    if (i < n) out[i] = __float2bfloat16_rn(swish(__bfloat162float(x[i])));
}

// ---------------------------------------------------------------- bulk copies and barriers

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void barrier_init(uint32_t bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.b32 %0, 1, 0, p;\n"
            "}\n"
            : "=r"(done)
            : "r"(bar), "r"(parity)
            : "memory");
    } while (done == 0);
}

__device__ __forceinline__ uint64_t policy_evict_first() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

template <bool HINT>
__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t bar,
                                          uint64_t policy) {
    if constexpr (HINT) {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
            "%4;" ::"r"(to),
            "l"(from), "r"(bytes), "r"(bar), "l"(policy)
            : "memory");
    } else {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         to),
                     "l"(from), "r"(bytes), "r"(bar)
                     : "memory");
    }
}

__device__ __forceinline__ void bulk_store(void* to, uint32_t from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Tickets of the kernels that hand out tiles dynamically; the last block of a launch sets both back to 0.
__device__ unsigned int g_ticket = 0;
__device__ unsigned int g_finished = 0;

// WARPS consumer warps and one producer warp.
template <int TILE, int STAGES, int WARPS, bool BULK_OUT, bool STREAM_OUT, bool HINT, bool DYNAMIC>
__global__ void __launch_bounds__(WARPS * 32 + 32)
    swish_bulk(const unsigned char* __restrict__ x, unsigned char* __restrict__ out, int tiles) {
    constexpr int CONSUMERS = WARPS * 32;
    constexpr int PER = TILE / 16 / CONSUMERS;
    static_assert(PER * 16 * CONSUMERS == TILE, "tile must be a multiple of the consumers' vectors");
    static_assert(STAGES >= 2, "the ring needs two stages");

    extern __shared__ __align__(128) unsigned char ring[];
    __shared__ __align__(8) uint64_t full_bars[STAGES];
    __shared__ __align__(8) uint64_t empty_bars[STAGES];
    __shared__ volatile int tile_of[STAGES];

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const uint32_t full = shared_address(full_bars);
    const uint32_t empty = shared_address(empty_bars);
    const uint32_t base = shared_address(ring);

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, BULK_OUT ? 1 : WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();

    int stage = 0;
    uint32_t phase = 0;

    if (warp == WARPS) {
        if (lane == 0) {
            const uint64_t policy = HINT ? policy_evict_first() : 0;
            const int step = static_cast<int>(gridDim.x);
            int tile = static_cast<int>(blockIdx.x);
            int issued = 0;
            while (true) {
                barrier_wait(empty + 8 * stage, phase ^ 1u);
                if (tile >= tiles) {
                    tile_of[stage] = -1;
                    barrier_arrive(full + 8 * stage);
                    break;
                }
                tile_of[stage] = tile;
                barrier_expect(full + 8 * stage, TILE);
                bulk_load<HINT>(base + stage * TILE, x + static_cast<int64_t>(tile) * TILE, TILE, full + 8 * stage,
                                policy);
                ++issued;
                if (!DYNAMIC || issued < STAGES) {
                    tile += step;
                } else {
                    tile = STAGES * step + static_cast<int>(atomicAdd(&g_ticket, 1u));
                }
                if (++stage == STAGES) {
                    stage = 0;
                    phase ^= 1u;
                }
            }
            if (DYNAMIC) {
                __threadfence();
                if (atomicAdd(&g_finished, 1u) == gridDim.x - 1) {
                    atomicExch(&g_ticket, 0u);
                    atomicExch(&g_finished, 0u);
                }
            }
        }
    } else {
        int previous = -1;
        while (true) {
            barrier_wait(full + 8 * stage, phase);
            const int tile = tile_of[stage];
            if (tile < 0) break;
            uint4* slot = reinterpret_cast<uint4*>(ring + stage * TILE) + threadIdx.x;
            if constexpr (BULK_OUT) {
#pragma unroll
                for (int u = 0; u < PER; ++u) slot[u * CONSUMERS] = swish_vector(slot[u * CONSUMERS]);
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
                if (threadIdx.x == 0) {
                    bulk_store(out + static_cast<int64_t>(tile) * TILE, base + stage * TILE, TILE);
                    // All but the newest store have read their stage.
                    asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
                    if (previous >= 0) barrier_arrive(empty + 8 * previous);
                    previous = stage;
                }
            } else {
                uint4 v[PER];
#pragma unroll
                for (int u = 0; u < PER; ++u) v[u] = slot[u * CONSUMERS];
                __syncwarp();
                if (lane == 0) barrier_arrive(empty + 8 * stage);
                uint4* to = reinterpret_cast<uint4*>(out + static_cast<int64_t>(tile) * TILE) + threadIdx.x;
#pragma unroll
                for (int u = 0; u < PER; ++u) store_vector<STREAM_OUT>(to + u * CONSUMERS, swish_vector(v[u]));
            }
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1u;
            }
        }
        if constexpr (BULK_OUT) {
            if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        }
    }
}

// ---------------------------------------------------------------- launchers

template <int THREADS, int UNROLL, bool STREAM_IN, bool STREAM_OUT>
static int launch_simple(const void* x, void* out, int64_t n, cudaStream_t stream) {
    const int64_t vectors = n / 8;
    const int64_t tile = static_cast<int64_t>(THREADS) * UNROLL;
    const int64_t blocks = (vectors + tile - 1) / tile;
    if (blocks > 0) {
        swish_simple<THREADS, UNROLL, STREAM_IN, STREAM_OUT><<<static_cast<unsigned>(blocks), THREADS, 0, stream>>>(
            static_cast<const uint4*>(x), static_cast<uint4*>(out), vectors);
    }
    if (n % 8 != 0) {
        swish_tail<<<1, 32, 0, stream>>>(static_cast<const __nv_bfloat16*>(x), static_cast<__nv_bfloat16*>(out),
                                         vectors * 8, n);
    }
    return static_cast<int>(cudaGetLastError());
}

template <int TILE, int STAGES, int WARPS, bool BULK_OUT, bool STREAM_OUT, bool HINT, bool DYNAMIC, int BLOCKS>
static int launch_bulk(const void* x, void* out, int64_t n, cudaStream_t stream) {
    constexpr int threads = WARPS * 32 + 32;
    constexpr int bytes = TILE * STAGES;
    auto kernel = &swish_bulk<TILE, STAGES, WARPS, BULK_OUT, STREAM_OUT, HINT, DYNAMIC>;
    static int grid = 0;
    if (grid == 0) {
        cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        int device = 0, multiprocessors = 0, resident = 0;
        error = cudaGetDevice(&device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, bytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        if (resident < 1) return static_cast<int>(cudaErrorInvalidConfiguration);
        grid = multiprocessors * (resident < BLOCKS ? resident : BLOCKS);
    }
    const int tiles = static_cast<int>(n * 2 / TILE);
    kernel<<<grid, threads, bytes, stream>>>(static_cast<const unsigned char*>(x), static_cast<unsigned char*>(out),
                                             tiles);
    return static_cast<int>(cudaGetLastError());
}

constexpr int kVariants = 16;

extern "C" int swish_variants() { return kVariants; }

extern "C" int swish_forward(const void* x, void* out, int64_t n, int variant, void* stream_pointer) {
    if (n == 0) return 0;
    const cudaStream_t stream = static_cast<cudaStream_t>(stream_pointer);
    if ((n * 2) % 16384 != 0) variant = 0;  // the bulk kernels take whole tiles only
    switch (variant) {
        // threads, vectors a thread, streaming loads, streaming stores
        case 1: return launch_simple<256, 1, false, false>(x, out, n, stream);
        case 2: return launch_simple<512, 1, false, false>(x, out, n, stream);
        case 3: return launch_simple<1024, 1, false, false>(x, out, n, stream);
        case 4: return launch_simple<256, 1, true, false>(x, out, n, stream);
        case 5: return launch_simple<256, 1, true, true>(x, out, n, stream);
        case 6: return launch_simple<512, 1, true, true>(x, out, n, stream);
        case 7: return launch_simple<256, 2, false, false>(x, out, n, stream);
        case 8: return launch_simple<256, 2, true, true>(x, out, n, stream);
        // tile, stages, warps, bulk stores, streaming stores, evict-first loads, dynamic, blocks a multiprocessor
        case 9: return launch_bulk<8192, 4, 8, false, false, true, false, 3>(x, out, n, stream);
        case 10: return launch_bulk<16384, 4, 16, false, false, true, true, 2>(x, out, n, stream);
        case 11: return launch_bulk<16384, 4, 16, false, true, true, true, 2>(x, out, n, stream);
        case 12: return launch_bulk<16384, 4, 16, true, false, true, true, 3>(x, out, n, stream);
        case 13: return launch_bulk<16384, 4, 16, false, false, false, true, 3>(x, out, n, stream);
        case 14: return launch_bulk<8192, 4, 8, true, false, true, false, 4>(x, out, n, stream);
        case 15: return launch_bulk<4096, 8, 8, false, false, true, false, 3>(x, out, n, stream);
        default: return launch_simple<128, 1, false, false>(x, out, n, stream);
    }
}
"""

library = ctypes.CDLL(
    load_inline(
        name="swish_bf16_variants",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-std=c++17"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
swish_forward = library.swish_forward
swish_forward.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p]
swish_forward.restype = ctypes.c_int
swish_variants = library.swish_variants
swish_variants.argtypes = []
swish_variants.restype = ctypes.c_int

ELEMENTS = 4096 * 393216
REPEATS = 13

_choice = None  # the variant that this process uses, once timed


def _fastest_variant() -> int:
    """Time every variant on scratch buffers; drop those that fail or differ from variant 0."""
    device = torch.device("cuda", torch.cuda.current_device())
    generator = torch.Generator(device=device)
    generator.manual_seed(1)
    x = torch.empty(ELEMENTS, dtype=torch.bfloat16, device=device)
    x.uniform_(generator=generator)
    out = torch.empty_like(x)
    expected = torch.empty_like(x)
    flush = torch.empty(64 * 1024 * 1024, dtype=torch.int32, device=device)
    stream = torch.cuda.current_stream().cuda_stream

    if swish_forward(x.data_ptr(), expected.data_ptr(), ELEMENTS, 0, stream):
        return 0
    expected_words = expected.view(torch.int64)
    out_words = out.view(torch.int64)
    good = [0]
    for variant in range(1, swish_variants()):
        same = True
        for _ in range(2):  # twice, so that the reset of the tickets is tested too
            out_words.zero_()
            if swish_forward(x.data_ptr(), out.data_ptr(), ELEMENTS, variant, stream):
                same = False
                break
            if not torch.equal(out_words, expected_words):
                same = False
                break
        if same:
            good.append(variant)

    events = {variant: [] for variant in good}
    for repeat in range(REPEATS):
        order = good if repeat % 2 == 0 else good[::-1]
        for variant in order:
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            flush.zero_()
            start.record()
            swish_forward(x.data_ptr(), out.data_ptr(), ELEMENTS, variant, stream)
            end.record()
            events[variant].append((start, end))
    torch.cuda.synchronize()

    best, best_time = 0, float("inf")
    for variant in good:
        times = sorted(start.elapsed_time(end) for start, end in events[variant])
        median = times[len(times) // 2]
        if median < best_time:
            best, best_time = variant, median
    return best


def _choose() -> int:
    global _choice
    if _choice is None:
        choice = 0
        if torch.cuda.is_available():
            try:
                with torch.no_grad():
                    choice = _fastest_variant()
            except Exception:
                choice = 0
            try:
                torch.cuda.empty_cache()
            except Exception:
                pass
        _choice = choice
    return _choice


class ModelNew(nn.Module):
    def __init__(self):
        super(ModelNew, self).__init__()
        self.variant = _choose()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.bfloat16:
            return x * torch.sigmoid(x)
        x = x.contiguous()
        if x.data_ptr() % 16:
            x = x.clone()
        out = torch.empty_like(x)
        stream = torch.cuda.current_stream().cuda_stream
        error = swish_forward(x.data_ptr(), out.data_ptr(), x.numel(), self.variant, stream)
        if error:
            raise RuntimeError(f"swish_forward: CUDA error {error}")
        return out
