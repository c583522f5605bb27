import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SIZE = 4096
SPLIT = 22  # units of 128 along k; longer tiles are halved
SLOTS = 64


def triangular_items():
    items = []
    slot = 0
    for j in range(SIZE // 256):
        for i in range(2 * j, SIZE // 128):
            begin, end = 4 * j, 2 * (i + 1)
            units = i + 1 - 2 * j
            if units > SPLIT:
                middle = begin + 2 * ((units + 1) // 2)
                items.append((i | j << 8, begin, middle, slot | 2 << 8 | 0 << 16))
                items.append((i | j << 8, middle, end, slot | 2 << 8 | 1 << 16))
                slot += 2
            else:
                items.append((i | j << 8, begin, end, 1 << 8))
    assert slot <= SLOTS
    items.sort(key=lambda item: item[1] - item[2])
    return items


def full_items():
    tiles = [(i, j) for j in range(SIZE // 256) for i in range(2 * j, SIZE // 128)]
    whole = len(tiles) - 8
    items = [(i | j << 8, 0, 64, 1 << 8) for i, j in tiles[:whole]]
    for index, (i, j) in enumerate(tiles[whole:]):
        for part in range(8):
            items.append((i | j << 8, 8 * part, 8 * part + 8, index * 8 | 8 << 8 | part << 16))
    return items


ITEMS_0 = triangular_items()
ITEMS_1 = full_items()

SOURCE = r"""
#include <cstdint>
#include <cuda.h>
#include <cuda_runtime.h>
#include <cuda_bf16.h>

constexpr int kSize = 4096;
constexpr int kBlocks = 132;
constexpr int kThreads = 384;
constexpr int kStages = 4;
constexpr int kBytesA = 128 * 64 * 2;
constexpr int kBytesB = 64 * 256 * 2;
constexpr int kBytesStage = kBytesA + kBytesB;
constexpr int kPitch = 144;                 // bytes: 64 values of 16 bits and 16 bytes more
constexpr int kBytesWarp = 16 * kPitch;
constexpr int kOffsetStaging = kStages * kBytesStage;
constexpr int kOffsetBarriers = kOffsetStaging + 8 * kBytesWarp;
constexpr int kShared = kOffsetBarriers + 256 + 1024;

// The scratch of integers: two tickets, counters of the split tiles, flags of the checking warps.
constexpr int kCounters = 16;
constexpr int kFlags = 256;

constexpr int kCount0 = @COUNT0@;
constexpr int kCount1 = @COUNT1@;
// x: row block | column block << 8; y, z: steps of 64 along k; w: first slot | parts << 8 | part << 16
__device__ const int4 kItems[kCount0 + kCount1] = {@ITEMS@};

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void bar_start(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void show_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
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
__device__ __forceinline__ void tensor_load(uint32_t to, const CUtensorMap* map, int x, int y, uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
        ::"r"(to), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y) : "memory");
}
// 128-byte swizzle; all in bytes
__device__ __forceinline__ uint64_t describe(uint32_t start, uint32_t leading, uint32_t stride) {
    return static_cast<uint64_t>((start & 0x3ffff) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
           static_cast<uint64_t>(stride >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_all_but_one() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
__device__ __forceinline__ void wait_all(float (&d)[128]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// D (64 x 256) += A (64 x 16, K-major) B (16 x 256, MN-major)
__device__ __forceinline__ void multiply(float (&d)[128], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{@REGISTERS@}, %128, %129, p, 1, 1, 0, 1;\n}"
        : @OPERANDS@
        : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void meet(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ uint32_t pair(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
}

// Mode 0: k within the triangles; also checks that A and B are zero above, and clears the output there.
// Mode 1: only if they are not: all of k.
template <int kMode>
__global__ void __launch_bounds__(kThreads, 1)
    tril_product(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                 const __nv_bfloat16* __restrict__ matrix_a, const __nv_bfloat16* __restrict__ matrix_b,
                 __nv_bfloat16* __restrict__ out, float4* scratch, int* state) {
    extern __shared__ unsigned char shared_raw[];
    const int thread = threadIdx.x;
    const int lane = thread % 32;

    if (kMode == 0) {
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
        if (blockIdx.x == 0 && thread == 0) state[1] = 0;
    } else {
        asm volatile("griddepcontrol.wait;" ::: "memory");
        int any = 0;
        for (int f = thread; f < static_cast<int>(gridDim.x) * 3; f += kThreads) any |= __ldcg(state + kFlags + f);
        any = __syncthreads_or(any);
        if (blockIdx.x == 0 && thread == 0) state[0] = 0;
        if (!any) return;
    }

    unsigned char* shared =
        shared_raw + ((1024u - (shared_address(shared_raw) & 1023u)) & 1023u);
    const uint32_t tiles = shared_address(shared);
    uint64_t* full = reinterpret_cast<uint64_t*>(shared + kOffsetBarriers);
    uint64_t* empty = full + kStages;
    uint64_t* item_full = empty + kStages;
    uint64_t* item_empty = item_full + 2;
    int4* item_ring = reinterpret_cast<int4*>(shared + kOffsetBarriers + 128);
    int* last_ring = reinterpret_cast<int*>(shared + kOffsetBarriers + 192);

    if (thread == 0) {
        for (int s = 0; s < kStages; ++s) {
            bar_start(&full[s], 1);
            bar_start(&empty[s], 8);
        }
        for (int s = 0; s < 2; ++s) {
            bar_start(&item_full[s], 1);
            bar_start(&item_empty[s], 8);
        }
        show_started();
    }
    __syncthreads();

    constexpr int kCount = kMode == 0 ? kCount0 : kCount1;
    const int4* items = kItems + (kMode == 0 ? 0 : kCount0);

    if (thread < 128) {
        const int warp = thread / 32;
        if (warp == 0) {
            if (lane == 0) {
                int index = blockIdx.x;
                int stage = 0;
                uint32_t parity = 0;
                for (int n = 0;; ++n) {
                    const int q = n & 1;
                    int4 item = make_int4(-1, 0, 0, 0);
                    if (index < kCount) item = items[index];
                    bar_wait(&item_empty[q], ((n >> 1) & 1) ^ 1);
                    item_ring[q] = item;
                    bar_arrive(&item_full[q]);
                    if (item.x < 0) break;
                    const int next = static_cast<int>(gridDim.x) + atomicAdd(state + kMode, 1);
                    const int row = (item.x & 255) * 128;
                    const int column = (item.x >> 8) * 256;
                    for (int k = item.y; k < item.z; ++k) {
                        bar_wait(&empty[stage], parity ^ 1);
                        bar_arrive_and_expect(&full[stage], kBytesStage);
                        const uint32_t to = tiles + stage * kBytesStage;
                        tensor_load(to, &map_a, k * 64, row, &full[stage]);
#pragma unroll
                        for (int p = 0; p < 4; ++p)
                            tensor_load(to + kBytesA + p * 8192, &map_b, column + p * 64, k * 64, &full[stage]);
                        if (++stage == kStages) {
                            stage = 0;
                            parity ^= 1;
                        }
                    }
                    index = next;
                }
            }
        } else if (kMode == 0) {
            const int checker = blockIdx.x * 3 + warp - 1;
            uint32_t bits = 0;
            constexpr int kChunks = 32 * 31 / 2 * 8;  // 16 rows of a 128 x 128 block each
            for (int chunk = checker; chunk < kChunks; chunk += gridDim.x * 3) {
                int block_row = chunk >> 3;
                int block_column = 1;
                while (block_row >= block_column) {
                    block_row -= block_column;
                    ++block_column;
                }
                const int row = block_row * 128 + (chunk & 7) * 16 + lane / 16;
                const int column = block_column * 128 + lane % 16 * 8;
                const int64_t at = static_cast<int64_t>(row) * kSize + column;
                uint4 a[8], b[8];
#pragma unroll
                for (int r = 0; r < 8; ++r)
                    a[r] = __ldcs(reinterpret_cast<const uint4*>(matrix_a + at + r * 2 * kSize));
#pragma unroll
                for (int r = 0; r < 8; ++r)
                    b[r] = __ldcs(reinterpret_cast<const uint4*>(matrix_b + at + r * 2 * kSize));
#pragma unroll
                for (int r = 0; r < 8; ++r)
                    *reinterpret_cast<uint4*>(out + at + r * 2 * kSize) = make_uint4(0u, 0u, 0u, 0u);
#pragma unroll
                for (int r = 0; r < 8; ++r)
                    bits |= a[r].x | a[r].y | a[r].z | a[r].w | b[r].x | b[r].y | b[r].z | b[r].w;
            }
            const int any = __any_sync(0xffffffffu, (bits & 0x7fff7fffu) != 0);
            if (lane == 0) state[kFlags + checker] = any;
        }
    } else {
        const int group = thread / 128 - 1;  // of two: rows 64 * group
        const int t = thread % 128;
        const int warp = t / 32;
        unsigned char* staging = shared + kOffsetStaging + (group * 4 + warp) * kBytesWarp;
        int stage = 0;
        uint32_t parity = 0;
        for (int n = 0;; ++n) {
            const int ring = n & 1;
            bar_wait(&item_full[ring], (n >> 1) & 1);
            const int4 item = item_ring[ring];
            __syncwarp();
            if (lane == 0) bar_arrive(&item_empty[ring]);
            if (item.x < 0) break;

            float d[128];
            int previous = -1;
            for (int k = item.y; k < item.z; ++k) {
                bar_wait(&full[stage], parity);
                const uint32_t tile_a = tiles + stage * kBytesStage + group * 8192;
                const uint32_t tile_b = tiles + stage * kBytesStage + kBytesA;
                begin_products();
#pragma unroll
                for (int kk = 0; kk < 4; ++kk)
                    multiply(d, describe(tile_a + kk * 32, 16, 1024), describe(tile_b + kk * 2048, 8192, 1024),
                             kk > 0 || k > item.y);
                commit_products();
                wait_all_but_one();
                if (previous >= 0 && lane == 0) bar_arrive(&empty[previous]);
                previous = stage;
                if (++stage == kStages) {
                    stage = 0;
                    parity ^= 1;
                }
            }
            wait_all(d);
            if (lane == 0) bar_arrive(&empty[previous]);

            const int parts = item.w >> 8 & 255;
            if (parts > 1) {
                const int slot = item.w & 255;
                const int part = item.w >> 16;
                float4* own = scratch + static_cast<int64_t>((slot + part) * 2 + group) * 4096 + t;
#pragma unroll
                for (int q = 0; q < 32; ++q)
                    __stcg(own + q * 128, make_float4(d[4 * q], d[4 * q + 1], d[4 * q + 2], d[4 * q + 3]));
                __threadfence();
                meet(1 + group, 128);
                if (t == 0) {
                    int* counter = state + kCounters + slot * 2 + group;
                    const int before = atomicAdd(counter, 1);
                    const int last = before == parts - 1;
                    if (last) *counter = 0;
                    last_ring[group] = last;
                    __threadfence();
                }
                meet(1 + group, 128);
                if (!last_ring[group]) continue;
                if (parts == 2) {
                    const float4* other = scratch + static_cast<int64_t>((slot + 1 - part) * 2 + group) * 4096 + t;
#pragma unroll
                    for (int q = 0; q < 32; ++q) {
                        const float4 v = __ldcg(other + q * 128);
                        d[4 * q] += v.x;
                        d[4 * q + 1] += v.y;
                        d[4 * q + 2] += v.z;
                        d[4 * q + 3] += v.w;
                    }
                } else {
#pragma unroll
                    for (int q = 0; q < 128; ++q) d[q] = 0.0f;
                    for (int s = 0; s < parts; ++s) {
                        const float4* from = scratch + static_cast<int64_t>((slot + s) * 2 + group) * 4096 + t;
#pragma unroll
                        for (int q = 0; q < 32; ++q) {
                            const float4 v = __ldcg(from + q * 128);
                            d[4 * q] += v.x;
                            d[4 * q + 1] += v.y;
                            d[4 * q + 2] += v.z;
                            d[4 * q + 3] += v.w;
                        }
                    }
                }
            }

            const int block_row = item.x & 255;
            const int block_column = item.x >> 8;
            const int first_row = block_row * 128 + group * 64 + warp * 16;
            const int first_column = block_column * 256;
            const bool diagonal = block_row < 2 * block_column + 2;
            const int limit_0 = diagonal ? first_row + lane / 4 : kSize;
            const int limit_1 = limit_0 + 8;
#pragma unroll
            for (int q = 0; q < 4; ++q) {
                __syncwarp();
#pragma unroll
                for (int jj = 0; jj < 8; ++jj) {
                    const int j = q * 8 + jj;
                    const int column = first_column + 8 * j + lane % 4 * 2;
                    const float v0 = column <= limit_0 ? d[4 * j] : 0.0f;
                    const float v1 = column + 1 <= limit_0 ? d[4 * j + 1] : 0.0f;
                    const float v2 = column <= limit_1 ? d[4 * j + 2] : 0.0f;
                    const float v3 = column + 1 <= limit_1 ? d[4 * j + 3] : 0.0f;
                    unsigned char* to = staging + lane / 4 * kPitch + jj * 16 + lane % 4 * 4;
                    *reinterpret_cast<uint32_t*>(to) = pair(v0, v1);
                    *reinterpret_cast<uint32_t*>(to + 8 * kPitch) = pair(v2, v3);
                }
                __syncwarp();
#pragma unroll
                for (int p = 0; p < 4; ++p) {
                    const int r = p * 4 + lane / 8;
                    const uint4 v = *reinterpret_cast<const uint4*>(staging + r * kPitch + lane % 8 * 16);
                    *reinterpret_cast<uint4*>(out + static_cast<int64_t>(first_row + r) * kSize + first_column +
                                              q * 64 + lane % 8 * 8) = v;
                }
            }
        }
    }
}

typedef CUresult (*Encode)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                           const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static Encode find_encode() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found) !=
        cudaSuccess)
        return nullptr;
#else
    if (cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found) != cudaSuccess)
        return nullptr;
#endif
    return found == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(function) : nullptr;
}

static bool make_map(Encode encode, CUtensorMap* map, const void* matrix, int box_columns, int box_rows) {
    const cuuint64_t extents[2] = {kSize, kSize};
    const cuuint64_t pitches[1] = {kSize * 2};
    const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_rows)};
    const cuuint32_t steps[2] = {1, 1};
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(matrix), extents, pitches, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

extern "C" int tril_matmul(const void* a, const void* b, void* out, void* scratch, void* state, void* stream) {
    static Encode encode = nullptr;
    if (encode == nullptr) {
        encode = find_encode();
        if (encode == nullptr) return 10001;
        cudaError_t error = cudaFuncSetAttribute(tril_product<0>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
        if (error == cudaSuccess)
            error = cudaFuncSetAttribute(tril_product<1>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
        if (error != cudaSuccess) {
            encode = nullptr;
            return static_cast<int>(error);
        }
    }
    CUtensorMap map_a, map_b;
    if (!make_map(encode, &map_a, a, 64, 128) || !make_map(encode, &map_b, b, 64, 64)) return 10002;

    const __nv_bfloat16* matrix_a = static_cast<const __nv_bfloat16*>(a);
    const __nv_bfloat16* matrix_b = static_cast<const __nv_bfloat16*>(b);
    __nv_bfloat16* result = static_cast<__nv_bfloat16*>(out);
    float4* sums = static_cast<float4*>(scratch);
    int* integers = static_cast<int*>(state);

    tril_product<0><<<kBlocks, kThreads, kShared, static_cast<cudaStream_t>(stream)>>>(
        map_a, map_b, matrix_a, matrix_b, result, sums, integers);
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return static_cast<int>(error);

    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(kBlocks);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kShared;
    config.stream = static_cast<cudaStream_t>(stream);
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[0].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = attribute;
    config.numAttrs = 1;
    error = cudaLaunchKernelEx(&config, tril_product<1>, map_a, map_b, matrix_a, matrix_b, result, sums, integers);
    if (error != cudaSuccess) return static_cast<int>(error);
    return static_cast<int>(cudaGetLastError());
}
"""

SOURCE = (
    SOURCE.replace("@COUNT0@", str(len(ITEMS_0)))
    .replace("@COUNT1@", str(len(ITEMS_1)))
    .replace("@ITEMS@", ",\n".join("{%d, %d, %d, %d}" % item for item in ITEMS_0 + ITEMS_1))
    .replace("@REGISTERS@", ", ".join("%%%d" % i for i in range(128)))
    .replace("@OPERANDS@", ", ".join('"+f"(d[%d])' % i for i in range(128)))
)

library = ctypes.CDLL(
    load_inline(
        name="tril_matmul_bf16",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
tril_matmul = library.tril_matmul
tril_matmul.argtypes = [ctypes.c_void_p] * 6
tril_matmul.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self._scratch = None
        self._state = None

    def forward(self, A, B):
        if A.dtype != torch.bfloat16 or A.shape != (SIZE, SIZE) or B.shape != (SIZE, SIZE) or B.dtype != A.dtype:
            return torch.tril(torch.matmul(A, B))
        A = A.contiguous()
        B = B.contiguous()
        if self._state is None or self._state.device != A.device:
            self._scratch = torch.empty(SLOTS * 128 * 256, dtype=torch.float32, device=A.device)
            self._state = torch.zeros(1024, dtype=torch.int32, device=A.device)
        out = torch.empty_like(A)
        stream = torch.cuda.current_stream().cuda_stream
        error = tril_matmul(
            A.data_ptr(), B.data_ptr(), out.data_ptr(), self._scratch.data_ptr(), self._state.data_ptr(), stream
        )
        if error:
            raise RuntimeError(f"tril_matmul: CUDA error {error}")
        return out
