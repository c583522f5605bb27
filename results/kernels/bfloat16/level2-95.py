import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

constexpr int kM = 1024;
constexpr int kN = 8192;
constexpr int kK = 8192;
constexpr int kTileM = 128;
constexpr int kTileN = 256;
constexpr int kTileK = 64;   // 128 bytes: one swizzled panel
constexpr int kStages = 4;
constexpr int kSteps = kK / kTileK;                   // 128
constexpr int kBlocks = 128;                          // 64 clusters of two
constexpr int kClusters = kBlocks / 2;
constexpr int kMPairs = kM / (2 * kTileM);            // 4
constexpr int kTilesN = kN / kTileN;                  // 32
constexpr int kWaves = kMPairs * kTilesN / kClusters; // 2
constexpr int kTilesNPerWave = kTilesN / kWaves;      // 16
constexpr int kThreads = 384;

constexpr uint32_t kBytesA = kTileM * kTileK * 2;     // 16384
constexpr uint32_t kBytesB = kTileN * kTileK * 2;     // 32768
constexpr uint32_t kBytesHalfB = kBytesB / 2;
constexpr uint32_t kBytesStage = kBytesA + kBytesB;   // 49152
constexpr uint32_t kBytesOut = 2048;                  // 16 x 64 outputs of a warp
constexpr uint32_t kOffsetOut = kStages * kBytesStage;
constexpr uint32_t kOffsetAddend = kOffsetOut + 8 * 2 * kBytesOut;
constexpr uint32_t kOffsetBarriers = kOffsetAddend + kWaves * kTileN * 4;
constexpr uint32_t kSharedBytes = kOffsetBarriers + 2 * kStages * 8;
static_assert(kSharedBytes <= 232448, "shared memory");
static_assert(kWaves * kClusters == kMPairs * kTilesN, "tiles");

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void start(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void show_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive_and_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ uint32_t address_at(uint32_t address, uint32_t rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
__device__ __forceinline__ void arrive_there(uint32_t barrier) {  // an address in the cluster
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

__device__ __forceinline__ void tensor_load(uint32_t to, const CUtensorMap* map, int x, int y, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
            to), "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void tensor_load_for_both(uint32_t to, const CUtensorMap* map, int x, int y,
                                                     uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%4, %5}], [%2], %3;" ::"r"(to), "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier),
        "h"(static_cast<uint16_t>(3)), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void tensor_store(const CUtensorMap* map, int x, int y, uint32_t from) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\n"
        "cp.async.bulk.commit_group;" ::"l"(reinterpret_cast<uint64_t>(map)), "r"(from), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}

// K-major lines of 128 bytes with the 128-byte swizzle: groups of 8 lines are 1024 bytes apart.
__device__ __forceinline__ uint64_t describe(uint32_t address) {
    return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(1) << 16 |
           static_cast<uint64_t>(1024 >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void hold(float (&d)[128]) {
#pragma unroll
    for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
__device__ __forceinline__ void multiply(float (&d)[128], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {@NAMES@}, %128, %129, p, 1, 1, 0, 0;\n}"
        : @OPERANDS@
        : "l"(a), "l"(b), "r"(add));
}

__device__ __forceinline__ float fast_tanh(float v) {
    float r;
    asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

// h is half of the argument. The result lies within [-0.17, 0.842], so that the clamp to [-1, 1] changes nothing.
__device__ __forceinline__ float activate(float h) {
    const float s = fmaf(h, fast_tanh(h), h);  // y * sigmoid(y)
    const float t = fast_tanh(s);
    const float u = t * t;
    float q = fmaf(u, 1.1543469e-4f, -1.1873282e-3f);  // (Phi(t) - 1 / 2) / t on |t| <= 1
    q = fmaf(u, q, 9.9735570e-3f);
    q = fmaf(u, q, -6.6490380e-2f);
    q = fmaf(u, q, 3.9894228e-1f);
    return fmaf(0.5f, t, u * q);
}
__device__ __forceinline__ uint32_t pair(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
}

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
linear_activation_kernel(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_w,
                         const __grid_constant__ CUtensorMap map_out, const __nv_bfloat16* __restrict__ bias,
                         const __nv_bfloat16* __restrict__ add_value) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t base = shared_address(shared);
    const uint32_t full = base + kOffsetBarriers;
    const uint32_t empty = full + kStages * 8;
    float* addend = reinterpret_cast<float*>(shared + kOffsetAddend);

    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = threadIdx.x % 32;
    const uint32_t rank = cluster_rank();
    const int cluster = blockIdx.x / 2;
    const int m0 = ((cluster % kMPairs) * 2 + static_cast<int>(rank)) * kTileM;
    const int first_n = cluster / kMPairs;  // and + kTilesNPerWave in the next wave

    if (threadIdx.x == 0) {
        prefetch_map(&map_x);
        prefetch_map(&map_w);
        prefetch_map(&map_out);
        for (int s = 0; s < kStages; ++s) {
            start(full + 8 * s, 1);
            start(empty + 8 * s, 16);  // 8 warps of each of two blocks
        }
        show_started();
    }
    __syncthreads();
    cluster_sync();

    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == 0 && lane == 0) {
            int s = 0;
            uint32_t parity = 0;
            for (int wave = 0; wave < kWaves; ++wave) {
                const int n0 = (first_n + wave * kTilesNPerWave) * kTileN + static_cast<int>(rank) * (kTileN / 2);
                for (int step = 0; step < kSteps; ++step) {
                    const uint32_t stage = base + s * kBytesStage;
                    wait(empty + 8 * s, parity ^ 1);
                    arrive_and_expect(full + 8 * s, kBytesStage);
                    tensor_load(stage, &map_x, step * kTileK, m0, full + 8 * s);
                    tensor_load_for_both(stage + kBytesA + rank * kBytesHalfB, &map_w, step * kTileK, n0,
                                         full + 8 * s);
                    if (++s == kStages) {
                        s = 0;
                        parity ^= 1;
                    }
                }
            }
        }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int consumer = threadIdx.x - 128;  // 0 to 255
        const int group = (warp - 4) / 4;        // 64 rows each
        const int row0 = m0 + (warp - 4) * 16;   // of this warp's outputs

        // Half of bias + add_value, for the tiles of both waves.
        for (int wave = 0; wave < kWaves; ++wave) {
            const int n = (first_n + wave * kTilesNPerWave) * kTileN + consumer;
            addend[wave * kTileN + consumer] = 0.5f * (__bfloat162float(bias[n]) + __bfloat162float(add_value[n]));
        }
        asm volatile("bar.sync 1, 256;" ::: "memory");

        const uint64_t a_first = describe(base + group * (64 * kTileK * 2));
        const uint64_t b_first = describe(base + kBytesA);
        const uint32_t empty_there = address_at(empty, static_cast<uint32_t>(lane & 1));

        const uint32_t out_buffer = base + kOffsetOut + (warp - 4) * 2 * kBytesOut;
        const int store_row = (lane & 7) + ((lane >> 3) & 1) * 8;
        const int store_chunk = lane >> 4;

        float d[128];
        int s = 0;
        uint32_t parity = 0;
        for (int wave = 0; wave < kWaves; ++wave) {
#pragma unroll
            for (int i = 0; i < 128; ++i) d[i] = 0.0f;
            int before = 0;
#pragma unroll 1
            for (int step = 0; step < kSteps; ++step) {
                wait(full + 8 * s, parity);
                const uint64_t a = a_first + static_cast<uint64_t>(s) * (kBytesStage >> 4);
                const uint64_t b = b_first + static_cast<uint64_t>(s) * (kBytesStage >> 4);
                begin_products();
#pragma unroll
                for (int k = 0; k < 4; ++k) multiply(d, a + 2 * k, b + 2 * k, 1);  // 32 bytes of k each
                commit_products();
                wait_products<1>();  // those of the step before are done: give their stage back
                if (step > 0 && lane < 2) arrive_there(empty_there + 8 * before);
                before = s;
                if (++s == kStages) {
                    s = 0;
                    parity ^= 1;
                }
            }
            wait_products<0>();
            hold(d);
            if (lane < 2) arrive_there(empty_there + 8 * before);

            const int n0 = (first_n + wave * kTilesNPerWave) * kTileN;
            const float* half = addend + wave * kTileN + (lane & 3) * 2;
#pragma unroll
            for (int c = 0; c < 4; ++c) {  // 64 columns each
                const uint32_t buffer = out_buffer + (c & 1) * kBytesOut;
                if (lane == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
                __syncwarp();
#pragma unroll
                for (int jj = 0; jj < 8; jj += 2) {
                    const int j = c * 8 + jj;
                    const float2 h0 = *reinterpret_cast<const float2*>(half + 8 * j);
                    const float2 h1 = *reinterpret_cast<const float2*>(half + 8 * j + 8);
                    const uint32_t r0 = pair(activate(fmaf(0.5f, d[4 * j + 0], h0.x)),
                                             activate(fmaf(0.5f, d[4 * j + 1], h0.y)));
                    const uint32_t r1 = pair(activate(fmaf(0.5f, d[4 * j + 2], h0.x)),
                                             activate(fmaf(0.5f, d[4 * j + 3], h0.y)));
                    const uint32_t r2 = pair(activate(fmaf(0.5f, d[4 * j + 4], h1.x)),
                                             activate(fmaf(0.5f, d[4 * j + 5], h1.y)));
                    const uint32_t r3 = pair(activate(fmaf(0.5f, d[4 * j + 6], h1.x)),
                                             activate(fmaf(0.5f, d[4 * j + 7], h1.y)));
                    const uint32_t to =
                        buffer + store_row * 128 + (((jj + store_chunk) ^ (store_row & 7)) << 4);
                    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                                 "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
                }
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                __syncwarp();
                if (lane == 0) tensor_store(&map_out, n0 + c * 64, row0, buffer);
            }
        }
        if (lane == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        __syncwarp();
    }
    cluster_sync();  // no block ends while the other still arrives at its barriers
}

typedef CUresult (*EncodeTiled)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static EncodeTiled g_encode = nullptr;
static CUtensorMap g_maps[3];
static const void* g_at[3] = {nullptr, nullptr, nullptr};

static int describe_matrix(int which, const void* pointer, uint64_t rows, uint64_t columns, uint32_t box_rows) {
    if (g_at[which] == pointer) return 0;  // the map holds only the address and the shape
    const cuuint64_t sizes[2] = {columns, rows};
    const cuuint64_t pitches[1] = {columns * 2};
    const cuuint32_t box[2] = {64, box_rows};
    const cuuint32_t steps[2] = {1, 1};
    const CUresult result =
        g_encode(&g_maps[which], CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(pointer), sizes, pitches, box,
                 steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
        g_at[which] = nullptr;
        return 100000 + static_cast<int>(result);
    }
    g_at[which] = pointer;
    return 0;
}

extern "C" int linear_activation(const void* x, const void* weight, const void* bias, const void* add_value, void* out,
                                 void* stream) {
    if (g_encode == nullptr) {
        void* entry = nullptr;
        cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
        cudaError_t error =
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
#else
        cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found);
#endif
        if (error != cudaSuccess) return static_cast<int>(error);
        if (found != cudaDriverEntryPointSuccess || entry == nullptr) return 99999;
        error = cudaFuncSetAttribute(linear_activation_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(kSharedBytes));
        if (error != cudaSuccess) return static_cast<int>(error);
        g_encode = reinterpret_cast<EncodeTiled>(entry);
    }
    int bad = describe_matrix(0, x, kM, kK, kTileM);
    if (bad == 0) bad = describe_matrix(1, weight, kN, kK, kTileN / 2);
    if (bad == 0) bad = describe_matrix(2, out, kM, kN, 16);
    if (bad != 0) return bad;
    linear_activation_kernel<<<kBlocks, kThreads, kSharedBytes, static_cast<cudaStream_t>(stream)>>>(
        g_maps[0], g_maps[1], g_maps[2], static_cast<const __nv_bfloat16*>(bias),
        static_cast<const __nv_bfloat16*>(add_value));
    return static_cast<int>(cudaGetLastError());
}
"""

SOURCE = SOURCE.replace("@NAMES@", ", ".join(f"%{i}" for i in range(128)))
SOURCE = SOURCE.replace("@OPERANDS@", ", ".join(f'"+f"(d[{i}])' for i in range(128)))

library = ctypes.CDLL(
    load_inline(
        name="linear_swish_tanh_gelu_hardtanh",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
linear_activation = library.linear_activation
linear_activation.argtypes = [ctypes.c_void_p] * 6
linear_activation.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, add_value_shape):
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.add_value = nn.Parameter(torch.randn(add_value_shape))

    def forward(self, x):
        linear = self.matmul
        weight = linear.weight
        bias = linear.bias
        add_value = self.add_value
        if not x.is_contiguous():
            x = x.contiguous()
        if not weight.is_contiguous():
            weight = weight.contiguous()
        if x.shape != (1024, 8192) or weight.shape != (8192, 8192) or x.dtype != torch.bfloat16:
            raise RuntimeError("linear_activation: made for bfloat16, (1024, 8192) by (8192, 8192)")
        out = torch.empty((1024, 8192), dtype=torch.bfloat16, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = linear_activation(
            x.data_ptr(), weight.data_ptr(), bias.data_ptr(), add_value.data_ptr(), out.data_ptr(), stream
        )
        if error:
            raise RuntimeError(f"linear_activation: CUDA error {error}")
        return out
