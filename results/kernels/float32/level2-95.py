import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstddef>
#include <cstdint>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int kRows = 1024;      // of x
constexpr int kColumns = 8192;   // rows of W
constexpr int kDepth = 8192;     // k
constexpr int kTileM = 128;
constexpr int kTileN = 256;
constexpr int kChunk = 32;                              // k of a stage: lines of 64 bytes
constexpr int kChunks = kDepth / kChunk;                // 256
constexpr int kLine = 64;                               // bytes
constexpr int kPieceA = kTileM * kLine;                 // 8192
constexpr int kPieceB = kTileN * kLine;                 // 16384
constexpr int kBytesA = 2 * kPieceA;                    // 16384
constexpr int kBytesB = 2 * kPieceB;                    // 32768
constexpr int kStageBytes = kBytesA + kBytesB;          // 49152
constexpr int kStages = 4;
constexpr int kSharedBytes = kStages * kStageBytes + 1024 + 2 * kStages * 8;
constexpr int kPairsM = kRows / kTileM / 2;             // 4
constexpr int kClusterTiles = kPairsM * (kColumns / kTileN);  // 128

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
// Without cluster scope: what passes through these barriers are TMA's writes (counted by the barrier) and finished
// reads of the tensor cores, so that no fence is needed.
__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void load_for_all(void* to, const void* from, uint32_t bytes, uint64_t* barrier, int mask) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
        "%4;" ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)),
        "h"(static_cast<uint16_t>(mask)) : "memory");
}
__device__ __forceinline__ void arrive_at(uint64_t* barrier, int rank) {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(barrier)), "r"(rank)
        : "memory");
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
template <int kCount>
__device__ __forceinline__ void give_up_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending, int N>
__device__ __forceinline__ void wait_products(float (&d)[N]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// K-major lines of 64 bytes, 64-byte swizzle.
__device__ __forceinline__ uint64_t describe_lines(uint32_t address, int lines) {
    return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(lines * 16 >> 4) << 16 |
           static_cast<uint64_t>(8 * kLine >> 4) << 32 | static_cast<uint64_t>(2) << 62;
}

// D (64 x 64) += A (64 x 16, registers) B (16 x 64, shared memory).
__device__ __forceinline__ void multiply(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{@REGISTERS@}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"
        : @OPERANDS@
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

__device__ __forceinline__ void load_a(uint32_t (&a)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(address) : "memory");
}

// One quarter (64 columns) of a stage, the small products first. a[piece][step of k]; b describes the stage's B.
template <int kQuarter>
__device__ __forceinline__ void issue(float (&d)[32], const uint32_t (&a)[2][2][4], uint64_t b) {
    const uint64_t large = b + static_cast<uint64_t>(kQuarter * 64 * kLine >> 4);
    const uint64_t small = large + static_cast<uint64_t>(kPieceB >> 4);
    begin_products();
    multiply(d, a[1][0], large, 0);
    multiply(d, a[1][1], large + 2, 1);
    multiply(d, a[0][0], small, 1);
    multiply(d, a[0][1], small + 2, 1);
    multiply(d, a[0][0], large, 1);
    multiply(d, a[0][1], large + 2, 1);
    commit_products();
}

__device__ __forceinline__ void add_to(float (&sum)[32], const float (&d)[32]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) sum[i] += d[i];
}

__device__ __forceinline__ float activate(float y) {
    // Swish.
    const float z = __fdividef(y, 1.0f + __expf(-y));
    // Tanh.
    const float e = __expf(2.0f * (z > 15.0f ? 15.0f : z));
    const float t = __fdividef(e - 1.0f, e + 1.0f);
    // GELU for |t| <= 1: t / 2 * (1 + erf(t / sqrt(2))) with the series of erf.
    const float q = 0.5f * t * t;
    float p = -1.0f / 75600.0f;
    p = fmaf(p, q, 1.0f / 9360.0f);
    p = fmaf(p, q, -1.0f / 1320.0f);
    p = fmaf(p, q, 1.0f / 216.0f);
    p = fmaf(p, q, -1.0f / 42.0f);
    p = fmaf(p, q, 0.1f);
    p = fmaf(p, q, -1.0f / 3.0f);
    p = fmaf(p, q, 1.0f);
    const float g = fmaf(q * 0.79788456080286536f, p, 0.5f * t);
    return g < -1.0f ? -1.0f : (g > 1.0f ? 1.0f : g);
}

// A block a row: scale by a power of two to a largest magnitude in [2^14, 2^15), split into two fp16 pieces, write them
// where the product's stages want them.
__global__ void __launch_bounds__(256) split_rows(const float* __restrict__ x, const float* __restrict__ w,
                                                  uint8_t* __restrict__ a_pieces, uint8_t* __restrict__ b_pieces,
                                                  float* __restrict__ a_undo, float* __restrict__ b_undo) {
    const bool is_w = blockIdx.x < kColumns;
    const int row = is_w ? kColumns - 1 - static_cast<int>(blockIdx.x) : static_cast<int>(blockIdx.x) - kColumns;
    const float* from = (is_w ? w : x) + static_cast<size_t>(row) * kDepth;
    uint8_t* to = is_w ? b_pieces : a_pieces;
    float* undo = is_w ? b_undo : a_undo;
    const int lines = is_w ? kTileN : kTileM;
    const int t = threadIdx.x;

    float4 v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = __ldcs(reinterpret_cast<const float4*>(from) + t + 256 * i);
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        largest = fmaxf(largest, fmaxf(fmaxf(fabsf(v[i].x), fabsf(v[i].y)), fmaxf(fabsf(v[i].z), fabsf(v[i].w))));
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    }
    __shared__ float partial[8];
    if (t % 32 == 0) partial[t / 32] = largest;
    __syncthreads();
    largest = partial[0];
#pragma unroll
    for (int i = 1; i < 8; ++i) largest = fmaxf(largest, partial[i]);

    int exponent = static_cast<int>(__float_as_uint(largest) >> 23 & 255u);
    if (exponent < 15) exponent = 15;
    const float scale = __uint_as_float(static_cast<uint32_t>(268 - exponent) << 23);
    if (t == 0) undo[row] = __uint_as_float(static_cast<uint32_t>(exponent - 14) << 23);

    const int tile = row / lines, line = row % lines;
    const size_t piece = static_cast<size_t>(lines) * kLine;
    // k = 4 * (t + 256 * i): chunk of 32 is t / 8 + 32 * i; in it 16-byte unit t % 8 / 2, half t % 2.
    const size_t inside = static_cast<size_t>(line) * kLine + (((t % 8 / 2) ^ (line / 2 % 4)) * 16) + (t % 2) * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const size_t chunk = static_cast<size_t>(tile) * kChunks + t / 8 + 32 * i;
        uint8_t* at = to + chunk * 2 * piece + inside;
        const float values[4] = {v[i].x * scale, v[i].y * scale, v[i].z * scale, v[i].w * scale};
        uint32_t high[4], low[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const __half h = __float2half_rn(values[j]);
            high[j] = __half_as_ushort(h);
            low[j] = __half_as_ushort(__float2half_rn(values[j] - __half2float(h)));
        }
        *reinterpret_cast<uint2*>(at) = make_uint2(high[0] | high[1] << 16, high[2] | high[3] << 16);
        *reinterpret_cast<uint2*>(at + piece) = make_uint2(low[0] | low[1] << 16, low[2] | low[3] << 16);
    }
}

// All warps of a warpgroup: the stage is no longer needed, for both blocks' producers (lane r tells block r).
__device__ __forceinline__ void release(uint64_t* barrier) {
    __syncwarp();
    const int lane = threadIdx.x % 32;
    if (lane < 2) arrive_at(barrier, lane);
    __syncwarp();
}

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
    product(const uint8_t* __restrict__ a_pieces, const uint8_t* __restrict__ b_pieces,
            const float* __restrict__ a_undo, const float* __restrict__ b_undo, const float* __restrict__ bias,
            const float* __restrict__ added, float* __restrict__ out) {
    extern __shared__ __align__(1024) uint8_t raw[];
    uint8_t* stages = raw + ((1024u - (shared_address(raw) & 1023u)) & 1023u);
    uint64_t* full = reinterpret_cast<uint64_t*>(stages + kStages * kStageBytes);
    uint64_t* empty = full + kStages;

    const int group = threadIdx.x / 128;
    const int rank = blockIdx.x & 1;
    const int cluster = blockIdx.x >> 1;
    const int clusters = gridDim.x >> 1;

    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) {
            start(&full[s], 1);
            start(&empty[s], 16);  // 8 warps of each of both blocks
        }
        show_started();
    }
    cluster_sync();

    if (group == 0) {
        give_up_registers<24>();
        if (threadIdx.x == 0) {
            int s = 0;
            uint32_t parity = 0;
            for (int tile = cluster; tile < kClusterTiles; tile += clusters) {
                const int mt = tile % kPairsM * 2 + rank, nt = tile / kPairsM;
                const uint8_t* a = a_pieces + static_cast<size_t>(mt) * kChunks * kBytesA;
                const uint8_t* b = b_pieces + static_cast<size_t>(nt) * kChunks * kBytesB + rank * kPieceB;
                for (int chunk = 0; chunk < kChunks; ++chunk) {
                    uint8_t* stage = stages + s * kStageBytes;
                    wait(&empty[s], parity ^ 1u);
                    arrive_and_expect(&full[s], kStageBytes);
                    bulk_load(stage, a, kBytesA, &full[s]);
                    load_for_all(stage + kBytesA + rank * kPieceB, b, kPieceB, &full[s], 3);
                    a += kBytesA;
                    b += kBytesB;
                    if (++s == kStages) {
                        s = 0;
                        parity ^= 1u;
                    }
                }
            }
        }
        __syncwarp();
    } else {
        take_registers<240>();
        const int lane = threadIdx.x % 32;
        const int warp = threadIdx.x / 32 % 4;
        const int line = (group - 1) * 64 + warp * 16;
        // ldmatrix: lane l gives row l % 16, 16-byte unit 2 * step + l / 16, swizzled.
        const int my_line = line + lane % 16;
        const uint32_t turn = my_line / 2 % 4;
        const uint32_t base = shared_address(stages);
        const uint32_t a_step0 = base + my_line * kLine + ((lane / 16) ^ turn) * 16;
        const uint32_t a_step1 = base + my_line * kLine + ((2 + lane / 16) ^ turn) * 16;
        // The first warpgroup tells the second in the middle of a tile's first stage that it may start.
        const int signal = group == 1 ? 0 : -1;

        int s = 0;
        uint32_t parity = 0;
        float d0[32], d1[32];
#pragma unroll
        for (int i = 0; i < 32; ++i) d0[i] = 0.0f;

        for (int tile = cluster; tile < kClusterTiles; tile += clusters) {
            float sum[4][32];
#pragma unroll
            for (int q = 0; q < 4; ++q) {
#pragma unroll
                for (int i = 0; i < 32; ++i) sum[q][i] = 0.0f;
            }
#pragma unroll
            for (int i = 0; i < 32; ++i) d1[i] = 0.0f;

            // Half a stage apart, so that one warpgroup's products cover the other's change of stage.
            if (group == 2) asm volatile("bar.sync 1, 256;" ::: "memory");
            wait(&full[s], parity);

#pragma unroll 1
            for (int chunk = 0; chunk < kChunks; ++chunk) {
                // The stage is there: awaited before the loop or at the end of the chunk before.
                const uint32_t offset = s * kStageBytes;
                uint32_t a[2][2][4];
                load_a(a[1][0], a_step0 + offset + kPieceA);
                load_a(a[1][1], a_step1 + offset + kPieceA);
                load_a(a[0][0], a_step0 + offset);
                load_a(a[0][1], a_step1 + offset);
                const uint64_t b = describe_lines(base + offset + kBytesA, kTileN);

                issue<0>(d0, a, b);
                if (chunk > 0) release(&empty[static_cast<unsigned>(s + kStages - 1) % kStages]);
                add_to(sum[3], d1);  // of the stage before; zeros at first
                issue<1>(d1, a, b);
                wait_products<1>(d0);
                add_to(sum[0], d0);
                issue<2>(d0, a, b);
                if (chunk == signal) asm volatile("bar.arrive 1, 256;" ::: "memory");
                wait_products<1>(d1);
                add_to(sum[1], d1);
                issue<3>(d1, a, b);
                wait_products<1>(d0);
                add_to(sum[2], d0);
                if (++s == kStages) {
                    s = 0;
                    parity ^= 1u;
                }
                if (chunk + 1 < kChunks) wait(&full[s], parity);  // while the last quarter runs
                wait_products<0>(d1);
            }
            release(&empty[static_cast<unsigned>(s + kStages - 1) % kStages]);
            add_to(sum[3], d1);

            const int mt = tile % kPairsM * 2 + rank, nt = tile / kPairsM;
            const int row = mt * kTileM + line + lane / 4;
            const int column0 = nt * kTileN + lane % 4 * 2;
            const float undo0 = a_undo[row], undo1 = a_undo[row + 8];
            float* out0 = out + static_cast<size_t>(row) * kColumns + column0;
            float* out1 = out0 + static_cast<size_t>(8) * kColumns;
#pragma unroll
            for (int q = 0; q < 4; ++q) {
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    const int c = q * 64 + j * 8;
                    const float2 u = *reinterpret_cast<const float2*>(b_undo + column0 + c);
                    const float2 v = *reinterpret_cast<const float2*>(bias + column0 + c);
                    const float2 w = *reinterpret_cast<const float2*>(added + column0 + c);
                    float2 r0, r1;
                    r0.x = activate((sum[q][4 * j] * undo0 * u.x + v.x) + w.x);
                    r0.y = activate((sum[q][4 * j + 1] * undo0 * u.y + v.y) + w.y);
                    r1.x = activate((sum[q][4 * j + 2] * undo1 * u.x + v.x) + w.x);
                    r1.y = activate((sum[q][4 * j + 3] * undo1 * u.y + v.y) + w.y);
                    *reinterpret_cast<float2*>(out0 + c) = r0;
                    *reinterpret_cast<float2*>(out1 + c) = r1;
                }
            }
        }
    }
    cluster_sync();
}

extern "C" int linear_activations(const float* x, const float* w, const float* bias, const float* added,
                                  uint8_t* scratch, float* out, void* stream_pointer) {
    static int blocks = 0;
    if (blocks == 0) {
        int device = 0, count = 0;
        cudaError_t error = cudaGetDevice(&device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaFuncSetAttribute(product, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        count = count / 2 * 2;
        blocks = count < 2 * kClusterTiles ? count : 2 * kClusterTiles;
    }
    cudaStream_t stream = static_cast<cudaStream_t>(stream_pointer);
    uint8_t* a_pieces = scratch;
    uint8_t* b_pieces = a_pieces + static_cast<size_t>(kRows) * kDepth * 4;
    float* a_undo = reinterpret_cast<float*>(b_pieces + static_cast<size_t>(kColumns) * kDepth * 4);
    float* b_undo = a_undo + kRows;
    split_rows<<<kColumns + kRows, 256, 0, stream>>>(x, w, a_pieces, b_pieces, a_undo, b_undo);
    product<<<blocks, 384, kSharedBytes, stream>>>(a_pieces, b_pieces, a_undo, b_undo, bias, added, out);
    return static_cast<int>(cudaGetLastError());
}
"""

SOURCE = SOURCE.replace("@REGISTERS@", ", ".join(f"%{i}" for i in range(32)))
SOURCE = SOURCE.replace("@OPERANDS@", ", ".join(f'"+f"(d[{i}])' for i in range(32)))

library = ctypes.CDLL(
    load_inline(
        name="linear_activations_split_fp16_handover",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
linear_activations = library.linear_activations
linear_activations.argtypes = [ctypes.c_void_p] * 7
linear_activations.restype = ctypes.c_int

ROWS = 1024
COLUMNS = 8192
DEPTH = 8192
SCRATCH_BYTES = (ROWS + COLUMNS) * DEPTH * 4 + (ROWS + COLUMNS) * 4


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, add_value_shape):
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.add_value = nn.Parameter(torch.randn(add_value_shape))
        self.scratch = None

    def forward(self, x):
        x = x.contiguous()
        weight = self.matmul.weight.contiguous()
        bias = self.matmul.bias.contiguous()
        added = self.add_value.contiguous()
        if tuple(x.shape) != (ROWS, DEPTH) or tuple(weight.shape) != (COLUMNS, DEPTH):
            raise RuntimeError("linear_activations: made for x (1024, 8192) and weight (8192, 8192)")
        scratch = self.scratch
        if scratch is None or scratch.device != x.device:
            scratch = torch.empty(SCRATCH_BYTES, dtype=torch.uint8, device=x.device)
            self.scratch = scratch
        out = torch.empty((ROWS, COLUMNS), dtype=torch.float32, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = linear_activations(
            x.data_ptr(),
            weight.data_ptr(),
            bias.data_ptr(),
            added.data_ptr(),
            scratch.data_ptr(),
            out.data_ptr(),
            stream,
        )
        if error:
            raise RuntimeError(f"linear_activations: CUDA error {error}")
        return out
