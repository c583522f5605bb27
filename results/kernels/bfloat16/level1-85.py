import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_bf16.h>

constexpr int kBatch = 32, kChannels = 128, kHeight = 128, kWidth = 256;
constexpr int kOutHeight = 126, kOutWidth = 250;
constexpr int kKernelH = 3, kKernelW = 7;

constexpr int kThreads = 256;
// tune: STAGES in (4, 5, 8)
constexpr int STAGES = 4;
// tune: BUFFERS in (2, 3)
constexpr int BUFFERS = 3;
constexpr int READ_ONCE = 1;

constexpr int kTileRows = 32;                                  // output rows of a tile
constexpr int kParts = 4;                                      // tiles of an image
constexpr int kImages = kBatch * kChannels;
constexpr int kTiles = kImages * kParts;
constexpr int kRowBytes = kWidth * 2;                          // 512
constexpr int kGroupBytes = 4 * kRowBytes;                     // 2048: four rows
constexpr int kGroupPitch = kGroupBytes + 16;                  // 2064
constexpr int kStageBytes = 8 * kGroupPitch;                   // 16512: 32 rows
constexpr int kOutRowBytes = kOutWidth * 2;                    // 500
constexpr int kBufferBytes = 16128;                            // at least 32 * 500 + 120
constexpr int kSharedBytes = STAGES * kStageBytes + BUFFERS * kBufferBytes;
constexpr int kFit = 233472 / (kSharedBytes + 1024 + 128);
constexpr int kBlocksPerSM = kFit < 1 ? 1 : (kFit > 2 ? 2 : kFit);
constexpr int kMultiprocessors = 132;
constexpr int kFixed = (STAGES + kParts - 1) / kParts;         // images of each block that are not drawn
static_assert(kStageBytes % 128 == 0 && kBufferBytes % 128 == 0, "alignment");
static_assert(kBufferBytes >= kTileRows * kOutRowBytes + 120, "staging");
static_assert(kParts * kTileRows == kHeight, "tiles");
static_assert(STAGES >= 3, "the next stage is read as well, and tile numbers need a barrier in between");
static_assert(BUFFERS >= 2, "the next buffer is written while the last is stored");
static_assert(kFixed * kMultiprocessors * kBlocksPerSM <= kImages, "each block's first images exist");

// The draws of this launch so far. It is 0 between launches: the last draw of a launch wraps it.
__device__ unsigned int drawn;

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
// The L2 priority of the input: every byte is read once.
__device__ __forceinline__ uint64_t input_policy() {
    uint64_t policy;
    if (READ_ONCE) {
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    } else {
        asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    }
    return policy;
}
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier,
                                          uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy) : "memory");
}
__device__ __forceinline__ void bulk_store(void* to, const void* from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
                 "r"(bytes) : "memory");
}
__device__ __forceinline__ void show_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// By lane 0 of a warp: the next number, 0 to limit, into ticket, which is needed only much later.
__device__ __forceinline__ void draw(unsigned int& ticket, unsigned int limit, int lane) {
    asm volatile(
        "{\n.reg .pred mine;\nsetp.eq.s32 mine, %3, 0;\n@mine atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;\n}"
        : "+r"(ticket) : "l"(__cvta_generic_to_global(&drawn)), "r"(limit), "r"(lane) : "memory");
}

__device__ __forceinline__ void load_4(uint32_t* a, uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_2(uint32_t* a, uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(a[0]), "=r"(a[1]) : "r"(address) : "memory");
}
__device__ __forceinline__ void multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                         uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// One weight, if column is 0 to 6; otherwise to stays what it is, which is 0.
__device__ __forceinline__ void load_tap(unsigned short& to, uint64_t from, int column) {
    asm volatile("{\n.reg .pred inside;\nsetp.lt.u32 inside, %2, 7;\n@inside ld.global.nc.u16 %0, [%1];\n}"
                 : "+h"(to) : "l"(from), "r"(column));
}
// The taps of a channel that this thread needs; they are used only a tile later.
__device__ __forceinline__ void load_taps(unsigned short (&taps)[kKernelH][4], uint64_t weight, int channel,
                                          int tap) {
    const int64_t first = static_cast<int64_t>(channel * (kKernelH * kKernelW) + tap) * 2;
    const uint64_t from = weight + static_cast<uint64_t>(first);
#pragma unroll
    for (int kh = 0; kh < kKernelH; ++kh) {
        load_tap(taps[kh][0], from + (kh * kKernelW + 0) * 2, tap);
        load_tap(taps[kh][1], from + (kh * kKernelW + 1) * 2, tap + 1);
        load_tap(taps[kh][2], from + (kh * kKernelW + 8) * 2, tap + 8);
        load_tap(taps[kh][3], from + (kh * kKernelW + 9) * 2, tap + 9);
    }
}
__device__ __forceinline__ uint32_t pair(unsigned short low, unsigned short high) {
    uint32_t both;
    asm("mov.b32 %0, {%1, %2};" : "=r"(both) : "h"(low), "h"(high));
    return both;
}

// By the whole of one warp: the 32 input rows of a tile into a stage, four rows at a pitch of kGroupPitch.
__device__ __forceinline__ void fetch(const char* x, int tile, char* stage, uint64_t* full, int lane,
                                      uint64_t policy) {
    const char* from = x + static_cast<int64_t>(tile) * (kTileRows * kRowBytes);
    if (lane == 0) arrive_and_expect(full, kTileRows * kRowBytes);
    __syncwarp();
    if (lane < 8) bulk_load(stage + lane * kGroupPitch, from + lane * kGroupBytes, kGroupBytes, full, policy);
    __syncwarp();
}

__global__ void __launch_bounds__(kThreads, kBlocksPerSM)
depthwise_kernel(const char* __restrict__ x, const unsigned short* __restrict__ weight, char* __restrict__ out) {
    extern __shared__ __align__(128) char shared[];
    __shared__ uint64_t full[STAGES];
    __shared__ int tile_of[STAGES];  // the tile in each stage; kTiles or more: no more tiles
    char* const stages = shared;
    char* const buffers = shared + STAGES * kStageBytes;

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int step = gridDim.x;

    // A block takes whole images, the tiles of each in order. The first kFixed images of each block are fixed, the
    // others drawn. Each block draws until it gets one number past the last image, so that a launch makes limit + 1
    // draws and the counter is then 0 again.
    const int first_drawn = kFixed * step;
    const unsigned int limit = static_cast<unsigned int>(kImages - first_drawn + step - 1);
    unsigned int ticket = 0;
    // The tile that was fetched last; of use in warp 0 only.
    int newest = (static_cast<int>(blockIdx.x) + ((STAGES - 1) / kParts) * step) * kParts + (STAGES - 1) % kParts;
    const uint64_t policy = input_policy();

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            start(&full[s], 1);
            tile_of[s] = (static_cast<int>(blockIdx.x) + (s / kParts) * step) * kParts + s % kParts;
        }
        show_started();
    }
    __syncthreads();
    if (warp == 0) {
        for (int s = 0; s < STAGES; ++s) {
            const int tile = (static_cast<int>(blockIdx.x) + (s / kParts) * step) * kParts + s % kParts;
            fetch(x, tile, stages + s * kStageBytes, &full[s], lane, policy);
        }
    }
    if (warp == 0) draw(ticket, limit, lane);

    // Of ldmatrix: matrices 0 to 3 are rows 4 m + 0..3, matrices 4 and 5 rows 4 (m + 1) + 0..1. The latter are in
    // the next stage where m is 7.
    const uint32_t stages_at = shared_address(stages);
    const int m = lane % 8;
    const uint32_t first_at = m * kGroupPitch + (lane / 8) * kRowBytes + warp * 64;
    const uint32_t second_at = (m == 7 ? 0 : (m + 1) * kGroupPitch) + ((lane / 8) & 1) * kRowBytes + warp * 64;

    const int g = lane / 4, t = lane % 4;
    const int tap = 2 * t - g;  // of b[0]'s lower half: k - n
    const int column = warp * 32 + 2 * t;  // of the first of the warp's four chunks
    const int place = (4 * g) * kOutRowBytes + column * 2;

    // The taps of the image at hand; from the start of its last tile on those of the next image.
    const uint64_t weight_at = static_cast<uint64_t>(__cvta_generic_to_global(weight));
    unsigned short taps[kKernelH][4];
#pragma unroll
    for (int kh = 0; kh < kKernelH; ++kh)
#pragma unroll
        for (int q = 0; q < 4; ++q) taps[kh][q] = 0;
    load_taps(taps, weight_at, static_cast<int>(blockIdx.x) % kChannels, tap);

    int s = 0, buffer = 0;
    uint32_t parity = 0;
    while (true) {
        const int tile = tile_of[s];
        if (tile >= kTiles) break;  // for all threads alike
        const int image = tile / kParts, part = tile % kParts;
        const bool last = part == kParts - 1;
        const int offset = image * (kOutHeight * kOutRowBytes) + part * (kTileRows * kOutRowBytes);  // below 2^28
        const int shift = offset & 127;
        const int head = shift & 8;  // bytes before the first multiple of 16
        const int following = s + 1 == STAGES ? 0 : s + 1;
        const uint32_t following_parity = following == 0 ? parity ^ 1u : parity;

        uint32_t b[kKernelH][2];  // the Toeplitz matrix of each kernel row
#pragma unroll
        for (int kh = 0; kh < kKernelH; ++kh) {
            b[kh][0] = pair(taps[kh][0], taps[kh][1]);
            b[kh][1] = pair(taps[kh][2], taps[kh][3]);
        }
        if (last) {  // the next tile begins another image, if there is one
            const int next_tile = tile_of[following];
            if (next_tile < kTiles) load_taps(taps, weight_at, (next_tile / kParts) % kChannels, tap);
        }

        wait(&full[s], parity);
        if (!last) wait(&full[following], following_parity);
        __syncwarp();

        uint32_t a[5][6];
        const uint32_t stage_at = stages_at + s * kStageBytes;
        // Of an image's last tile the two rows after the stage do not exist, and the output rows of them are not
        // stored: any rows will do.
        const uint32_t after_at = last ? stage_at : stages_at + following * kStageBytes;
        const uint32_t four_at = stage_at + first_at;
        const uint32_t two_at = (m == 7 ? after_at : stage_at) + second_at;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            load_4(&a[c][0], four_at + c * 16);
            load_2(&a[c][4], two_at + c * 16);
        }
        if (warp != 7) {
            load_4(&a[4][0], four_at + 64);
            load_2(&a[4][4], two_at + 64);
        } else {  // columns 256 to 263
#pragma unroll
            for (int q = 0; q < 6; ++q) a[4][q] = 0;
        }

        float d[4][2][4];
#pragma unroll
        for (int c = 0; c < 4; ++c)
#pragma unroll
            for (int p = 0; p < 2; ++p)
#pragma unroll
                for (int i = 0; i < 4; ++i) d[c][p][i] = 0.0f;
#pragma unroll
        for (int kh = 0; kh < kKernelH; ++kh)
#pragma unroll
            for (int c = 0; c < 4; ++c)
#pragma unroll
                for (int p = 0; p < 2; ++p)
                    multiply(d[c][p], a[c][2 * p + kh], a[c][2 * p + kh + 1], a[c + 1][2 * p + kh],
                             a[c + 1][2 * p + kh + 1], b[kh][0], b[kh][1]);

        char* const staged = buffers + buffer * kBufferBytes + shift;  // as far from 128 bytes as the output is
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            if (column + 8 * c < kOutWidth) {
#pragma unroll
                for (int p = 0; p < 2; ++p) {
                    char* to = staged + place + c * 16 + (2 * p) * kOutRowBytes;
                    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(d[c][p][0], d[c][p][1]);
                    *reinterpret_cast<__nv_bfloat162*>(to + kOutRowBytes) =
                        __floats2bfloat162_rn(d[c][p][2], d[c][p][3]);
                }
            }
        }
        show_stores();
        // All but the latest BUFFERS - 2 of the stores so far have read their buffers, so that after the barrier the
        // next buffer may be written.
        if (threadIdx.x == 32) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(BUFFERS - 2) : "memory");
        __syncthreads();

        if (warp == 0) {
            int next = newest + 1;
            const bool opens = next % kParts == 0;  // a new image
            if (opens) next = (first_drawn + static_cast<int>(__shfl_sync(0xffffffffu, ticket, 0))) * kParts;
            if (lane == 0) tile_of[s] = next;
            if (next < kTiles) {
                newest = next;
                fetch(x, next, stages + s * kStageBytes, &full[s], lane, policy);
                if (opens) draw(ticket, limit, lane);  // wanted kParts tiles later
            }
        } else if (threadIdx.x == 32) {
            char* to = out + offset;
            const int bytes = (last ? kOutHeight - (kParts - 1) * kTileRows : kTileRows) * kOutRowBytes;
            const int body = (bytes - head) & ~15;
            bulk_store(to + head, staged + head, body);
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            if (head) *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(staged);
            if (head + body < bytes) {
                *reinterpret_cast<uint2*>(to + head + body) = *reinterpret_cast<const uint2*>(staged + head + body);
            }
        }

        s = following;
        parity = following_parity;
        if (++buffer == BUFFERS) buffer = 0;
    }
    if (threadIdx.x == 32) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

extern "C" int depthwise_conv(const void* x, const void* weight, void* out, void* stream) {
    static bool ready = false;
    if (!ready) {
        const cudaError_t error =
            cudaFuncSetAttribute(depthwise_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
        if (error != cudaSuccess) return static_cast<int>(error);
        ready = true;
    }
    depthwise_kernel<<<kMultiprocessors * kBlocksPerSM, kThreads, kSharedBytes, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const char*>(x), static_cast<const unsigned short*>(weight), static_cast<char*>(out));
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="depthwise_conv_3x7_toeplitz_taps_ahead",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
depthwise_conv = library.depthwise_conv
depthwise_conv.argtypes = [ctypes.c_void_p] * 4
depthwise_conv.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size_h: int, kernel_size_w: int, stride_h: int = 1, stride_w: int = 1, padding_h: int = 0, padding_w: int = 0, dilation_h: int = 1, dilation_w: int = 1, groups: int = 1, bias: bool = False):
        super().__init__()
        self.conv2d = nn.Conv2d(in_channels, in_channels, (kernel_size_h, kernel_size_w), stride=(stride_h, stride_w), padding=(padding_h, padding_w), dilation=(dilation_h, dilation_w), groups=in_channels, bias=bias)
        self.fits = (
            (in_channels, kernel_size_h, kernel_size_w) == (128, 3, 7)
            and (stride_h, stride_w) == (1, 1)
            and (padding_h, padding_w) == (0, 0)
            and (dilation_h, dilation_w) == (1, 1)
            and not bias
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.conv2d.weight
        if not (
            self.fits
            and x.shape == (32, 128, 128, 256)
            and x.dtype == torch.bfloat16
            and weight.dtype == torch.bfloat16
        ):
            return self.conv2d(x)
        x = x.contiguous()
        weight = weight.contiguous()
        if x.data_ptr() % 16:
            x = x.clone()
        out = torch.empty((32, 128, 126, 250), dtype=torch.bfloat16, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = depthwise_conv(x.data_ptr(), weight.data_ptr(), out.data_ptr(), stream)
        if error:
            raise RuntimeError(f"depthwise_conv: CUDA error {error}")
        return out
