import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

constexpr int kBatch = 8;
constexpr int kIn = 64;
constexpr int kOut = 128;
constexpr int kHeight = 512;
constexpr int kWidth = 1024;
constexpr int kOutHeight = kHeight - 2;
constexpr int kOutWidth = kWidth - 2;
constexpr int kPlane = kHeight * kWidth;
constexpr int kOutPlane = kOutHeight * kOutWidth;
constexpr int kPixels = 256;                         // of a tile
constexpr int kStrips = kWidth / kPixels;            // of an image
constexpr int kTiles = kBatch * kStrips * kOutHeight;  // for one half of the out channels
constexpr int kHalf = 64;                            // out channels of a block

constexpr int kLines = 259;                          // pixels of a row in shared memory: 258 and one against conflicts
constexpr int kRowBytes = kLines * kIn * 2;
constexpr int kSlots = 3;
constexpr int kTapBytes = kHalf * kIn * 2;
constexpr int kStagePitch = 36;                      // words


constexpr int kRawPitch = (kPixels + 8) * 2;         // bytes from channel to channel in the raw row
constexpr int kRawCopy = kPixels * 2;                // of which a copy fills these
constexpr int kRawEight = 8 * kRawPitch + 16;        // of 8 channels, and 16 against conflicts
constexpr int kRawBytes = 8 * kRawEight;

constexpr int kRingAt = 9 * kTapBytes;
constexpr int kRawAt = kRingAt + kSlots * kRowBytes;
constexpr int kStageAt = kRawAt + kRawBytes;
constexpr int kBarriersAt = kStageAt + 8 * 16 * kStagePitch * 4;
constexpr int kScratchAt = kBarriersAt + 64;         // a word for each thread of the producer
constexpr int kSharedBytes = kScratchAt + 128 * 4 + 1024;

static_assert(kTapBytes % 1024 == 0, "swizzled tiles");
static_assert(kRawAt % 16 == 0 && kRawPitch % 16 == 0 && kRawEight % 16 == 0, "bulk copies");
static_assert(kRawEight / 16 % 2 == 1, "bank conflicts");
static_assert(kStageAt % 16 == 0, "stage");
static_assert(kBarriersAt % 8 == 0 && (2 * kSlots + 1) * 8 <= 64, "barriers");
static_assert(kSharedBytes <= 232448, "shared memory");

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
__device__ __forceinline__ void arrive_and_expect(uint64_t* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}
// Global to shared memory, a multiple of 16 bytes, counted by the barrier.
__device__ __forceinline__ void copy(uint32_t to, const void* from, int bytes, uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

template <int S>
__host__ __device__ constexpr uint32_t place(int lines, int line, int byte) {
    const uint32_t at = byte / S * lines * S + line * S + byte % S;
    return at ^ (at >> 3 & (S - 16));
}
template <int S>
__device__ __forceinline__ uint64_t describe(uint32_t start, uint32_t leading, uint32_t stride) {  // all in bytes
    constexpr uint64_t kMode = S == 128 ? 1 : S == 64 ? 2 : S == 32 ? 3 : 0;
    return (start & 0x3ffff) >> 4 | uint64_t(leading >> 4) << 16 | uint64_t(stride >> 4) << 32 | kMode << 62;
}

// D (64 x 256) += A (64 x 16) B (16 x 256), both K-major in shared memory.
__device__ __forceinline__ void multiply(float (&d)[128], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{@REGISTERS@}, %128, %129, p, 1, 1, 0, 0;\n}"
        : @SUMS@
        : "l"(a), "l"(b), "r"(add));
}

__device__ __forceinline__ void show_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_all_but_one() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
__device__ __forceinline__ void wait_products(float (&d)[128]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(d[i])::"memory");  // no use of d moves up
}

template <int kCount>
__device__ __forceinline__ void give_up_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
__device__ __forceinline__ void meet(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ void meet_without_waiting(int name, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

__device__ __forceinline__ uint32_t pair(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
}
__device__ __forceinline__ void read_16(uint32_t (&v)[4], uint32_t from) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(from) : "memory");
}
// Shared memory that nobody reads: the value must be there before what follows in program order is issued.
__device__ __forceinline__ void need(uint32_t to, uint32_t value) {
    asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t load_4(const __nv_bfloat16* from) {
    uint32_t v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(__cvta_generic_to_global(from)) : "memory");
    return v;
}

// Tiles are counted strip by strip: tile = strip * kOutHeight + output row; strip = image * kStrips + place in the row.
// A block takes the tiles [begin, end) for one half of the out channels. A segment is what lies in one strip.
__global__ void __launch_bounds__(384, 1)
conv_kernel(const __nv_bfloat16* __restrict__ x, const __nv_bfloat16* __restrict__ weight,
            __nv_bfloat16* __restrict__ out) {
    extern __shared__ __align__(1024) uint8_t raw[];
    uint8_t* memory = raw + (1024 - shared_address(raw) % 1024) % 1024;
    uint8_t* ring = memory + kRingAt;
    uint64_t* full = reinterpret_cast<uint64_t*>(memory + kBarriersAt);
    uint64_t* empty = full + kSlots;
    uint64_t* fetched = empty + kSlots;

    const int lane = threadIdx.x % 32;
    const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);

    const int pairs = gridDim.x / 2;
    const int team = blockIdx.x / 2;
    const int half = blockIdx.x % 2;
    const int begin = static_cast<int>(static_cast<int64_t>(kTiles) * team / pairs);
    const int end = static_cast<int>(static_cast<int64_t>(kTiles) * (team + 1) / pairs);

    if (threadIdx.x == 0) {
        for (int s = 0; s < kSlots; ++s) {
            start(&full[s], 4);   // the producer's warps
            start(&empty[s], 8);  // the consumers' warps
        }
        start(fetched, 4);        // the producer's warps, and the bytes that they expect
        show_started();
    }
    __syncthreads();

    if (group == 2) {
        give_up_registers<120>();
        const int t = threadIdx.x - 256;
        const int eight = lane % 8;                       // which 8 channels
        const int pixel = t / 32 * 64 + lane / 8 * 8;     // first of 8 pixels, and 32 further on of another 8
        const uint32_t raw_row = shared_address(memory + kRawAt);
        const uint32_t read_from = raw_row + eight * kRawEight + pixel * 2;
        const uint32_t scratch = shared_address(memory + kScratchAt) + t * 4;
        const int channel = t / 32 * 16 + lane % 16;      // which lanes 0 to 15 fetch
        const uint32_t fetch_to = raw_row + channel / 8 * kRawEight + channel % 8 * kRawPitch;
        uint32_t data[2][8][4];
        int tile = begin, row = 0, row_end = 0;
        bool has_side = false;                            // pixels 256 and 257 of channel t, from the next strip
        uint32_t next_side = 0;                           // those of the row that is being fetched
        const __nv_bfloat16* from = nullptr;
        const __nv_bfloat16* side_from = nullptr;

        auto open = [&]() {
            const int strip = tile / kOutHeight;
            row = tile % kOutHeight;
            const int count = min(end - tile, kOutHeight - row);
            row_end = row + count + 2;
            tile += count;
            const __nv_bfloat16* corner =
                x + static_cast<int64_t>(strip / kStrips) * kIn * kPlane + strip % kStrips * kPixels;
            from = corner + static_cast<int64_t>(channel) * kPlane;
            side_from = corner + static_cast<int64_t>(t % 64) * kPlane + kPixels;
            has_side = t < 64 && strip % kStrips != kStrips - 1;
        };
        auto fetch = [&]() {
            if (lane == 0) arrive_and_expect(fetched, 16 * kRawCopy);
            __syncwarp();
            if (lane < 16) copy(fetch_to, from + row * kWidth, kRawCopy, fetched);
            __syncwarp();
            next_side = 0;
            if (has_side) next_side = load_4(side_from + row * kWidth);
            __syncwarp();
        };

        if (begin < end) {
            open();
            fetch();
            for (int fill = 0;; ++fill) {
                const uint32_t side = next_side;
                wait(fetched, fill % 2);
                __syncwarp();
                uint32_t all = 0;
#pragma unroll
                for (int j = 0; j < 2; ++j) {
#pragma unroll
                    for (int i = 0; i < 8; ++i) read_16(data[j][i], read_from + i * kRawPitch + j * 64);
                }
#pragma unroll
                for (int j = 0; j < 2; ++j) {
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
#pragma unroll
                        for (int k = 0; k < 4; ++k) all ^= data[j][i][k];
                    }
                }
                need(scratch, all);  // every word read has come
                show_stores();       // and the copy to come, by the other proxy, is ordered behind the reads

                // All have read the raw row: the next one may come.
                bool more = true;
                ++row;
                if (row == row_end) {
                    if (tile == end) {
                        more = false;
                    } else {
                        open();
                    }
                }
                meet(4, 128);
                if (more) fetch();

                const int slot = fill % kSlots;
                wait(&empty[slot], (fill / kSlots % 2) ^ 1);
                uint8_t* to = ring + slot * kRowBytes;
                uint8_t* mine = to + eight * (kLines * 16) + pixel * 16;
#pragma unroll
                for (int j = 0; j < 2; ++j) {
#pragma unroll
                    for (int w = 0; w < 4; ++w) {
                        uint4 even, odd;
                        even.x = __byte_perm(data[j][0][w], data[j][1][w], 0x5410);
                        even.y = __byte_perm(data[j][2][w], data[j][3][w], 0x5410);
                        even.z = __byte_perm(data[j][4][w], data[j][5][w], 0x5410);
                        even.w = __byte_perm(data[j][6][w], data[j][7][w], 0x5410);
                        odd.x = __byte_perm(data[j][0][w], data[j][1][w], 0x7632);
                        odd.y = __byte_perm(data[j][2][w], data[j][3][w], 0x7632);
                        odd.z = __byte_perm(data[j][4][w], data[j][5][w], 0x7632);
                        odd.w = __byte_perm(data[j][6][w], data[j][7][w], 0x7632);
                        *reinterpret_cast<uint4*>(mine + (j * 32 + 2 * w) * 16) = even;
                        *reinterpret_cast<uint4*>(mine + (j * 32 + 2 * w + 1) * 16) = odd;
                    }
                }
                if (t < 64) {  // pixels 256 and 257 of channel t
                    uint8_t* edge = to + t / 8 * (kLines * 16) + kPixels * 16 + t % 8 * 2;
                    *reinterpret_cast<uint16_t*>(edge) = static_cast<uint16_t>(side & 0xffff);
                    *reinterpret_cast<uint16_t*>(edge + 16) = static_cast<uint16_t>(side >> 16);
                }
                show_stores();
                __syncwarp();
                if (lane == 0) arrive(&full[slot]);
                if (!more) break;
            }
        }
    } else {
        take_registers<192>();
        const int t = threadIdx.x;  // 0 to 255
        const int warp = t % 128 / 32;

        // Weights: for each tap 64 lines (out channels) of 128 bytes (channels), swizzled.
#pragma unroll 1
        for (int item = t; item < kHalf * 8; item += 256) {
            const int eight = item % 8, line = item / 8;
            const uint4* source =
                reinterpret_cast<const uint4*>(weight + (half * kHalf + line) * (kIn * 9) + eight * 72);
            uint32_t r[36];
#pragma unroll
            for (int i = 0; i < 9; ++i) {
                const uint4 v = __ldg(source + i);
                r[4 * i] = v.x;
                r[4 * i + 1] = v.y;
                r[4 * i + 2] = v.z;
                r[4 * i + 3] = v.w;
            }
#pragma unroll
            for (int tap = 0; tap < 9; ++tap) {
                uint32_t v[4];
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    const int e = 18 * k + tap;  // channel 2 * k; channel 2 * k + 1 lies 9 further on
                    v[k] = __byte_perm(r[e / 2], r[(e + 9) / 2], tap % 2 == 0 ? 0x7610 : 0x5432);
                }
                *reinterpret_cast<uint4*>(memory + tap * kTapBytes + place<128>(kHalf, line, eight * 16)) =
                    make_uint4(v[0], v[1], v[2], v[3]);
            }
        }
        show_stores();
        meet(3, 256);

        const uint64_t a_base = describe<128>(shared_address(memory), kHalf * 16, 1024);
        const uint32_t ring_address = shared_address(ring);
        uint32_t* stage = reinterpret_cast<uint32_t*>(memory + kStageAt) + (group * 4 + warp) * 16 * kStagePitch;
        const int stage_to = lane / 4 * kStagePitch + lane % 4;
        const int total = end - begin;

        float d[128];
#pragma unroll
        for (int i = 0; i < 128; ++i) d[i] = 0.0f;

        int base = 0;   // which fill of the ring holds the segment's first row
        int local = 0;  // the segment's first tile, counted from `begin`
        int tile = begin;
        while (tile < end) {
            const int strip = tile / kOutHeight;
            const int y0 = tile % kOutHeight;
            const int count = min(end - tile, kOutHeight - y0);
            const int first = (group ^ local) & 1;
            if (first == 1) {  // the first row is of no use here
                wait(&full[base % kSlots], base / kSlots % 2);
                __syncwarp();
                if (lane == 0) arrive(&empty[base % kSlots]);
            }
            int next = first;  // the first row not released yet
            const int column = strip % kStrips * kPixels + lane * 2;

#pragma unroll 1
            for (int o = first; o < count; o += 2) {
                const int index = local + o;
                if (index > 0) meet(1 + group, 256);
#pragma unroll
                for (int kh = 0; kh < 3; ++kh) {
                    const int fill = base + o + kh;
                    const int slot = fill % kSlots;
                    wait(&full[slot], fill / kSlots % 2);
                    const uint64_t b_base = describe<16>(ring_address + slot * kRowBytes, kLines * 16, 128);
                    begin_products();
#pragma unroll
                    for (int kw = 0; kw < 3; ++kw) {
#pragma unroll
                        for (int s = 0; s < 4; ++s) {
                            const int tap = kh * 3 + kw;
                            multiply(d, a_base + (tap * kTapBytes + s * 32) / 16, b_base + kw + s * 2 * kLines,
                                     tap == 0 && s == 0 ? 0 : 1);
                        }
                    }
                    commit_products();
                    if (kh > 0) {  // the row before has been read
                        wait_all_but_one();
                        __syncwarp();
                        if (lane == 0) arrive(&empty[(fill - 1) % kSlots]);
                    }
                }
                if (index + 1 < total) meet_without_waiting(2 - group, 256);
                wait_products(d);
                next = o + 2;

                // 16 out channels a warp, 64 pixels at a time.
                const int channel = strip / kStrips * kOut + half * kHalf + warp * 16;
                __nv_bfloat16* to = out + static_cast<int64_t>(channel) * kOutPlane +
                                    static_cast<int64_t>(y0 + o) * kOutWidth + column;
#pragma unroll
                for (int chunk = 0; chunk < 4; ++chunk) {
                    __syncwarp();
#pragma unroll
                    for (int jj = 0; jj < 8; ++jj) {
                        const int j = chunk * 8 + jj;
                        stage[stage_to + jj * 4] = pair(d[4 * j], d[4 * j + 1]);
                        stage[stage_to + 8 * kStagePitch + jj * 4] = pair(d[4 * j + 2], d[4 * j + 3]);
                    }
                    __syncwarp();
                    uint32_t v[16];
#pragma unroll
                    for (int r = 0; r < 16; ++r) v[r] = stage[r * kStagePitch + lane];
                    if (column + chunk * 64 < kOutWidth) {
#pragma unroll
                        for (int r = 0; r < 16; ++r) {
                            *reinterpret_cast<uint32_t*>(to + static_cast<int64_t>(r) * kOutPlane + chunk * 64) = v[r];
                        }
                    }
                }
            }

            for (; next < count + 2; ++next) {  // rows without further use here
                const int fill = base + next;
                wait(&full[fill % kSlots], fill / kSlots % 2);
                __syncwarp();
                if (lane == 0) arrive(&empty[fill % kSlots]);
            }
            base += count + 2;
            local += count;
            tile += count;
        }
    }
}

extern "C" int conv_forward(const void* x, const void* weight, void* out, int64_t multiprocessors, void* stream) {
    const cudaError_t error =
        cudaFuncSetAttribute(conv_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    if (error != cudaSuccess) return static_cast<int>(error);
    int pairs = static_cast<int>(multiprocessors / 2);
    if (pairs < 1) pairs = 1;
    conv_kernel<<<2 * pairs, 384, kSharedBytes, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const __nv_bfloat16*>(x), static_cast<const __nv_bfloat16*>(weight),
        static_cast<__nv_bfloat16*>(out));
    return static_cast<int>(cudaGetLastError());
}
"""

SOURCE = SOURCE.replace("@REGISTERS@", ", ".join(f"%{i}" for i in range(128)))
SOURCE = SOURCE.replace("@SUMS@", ", ".join(f'"+f"(d[{i}])' for i in range(128)))

library = ctypes.CDLL(
    load_inline(
        name="conv2d_rows_wgmma_bulk_ordered",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
conv_forward = library.conv_forward
conv_forward.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64, ctypes.c_void_p]
conv_forward.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0,
                 dilation: int = 1, groups: int = 1, bias: bool = False):
        super().__init__()
        self.conv2d = nn.Conv2d(in_channels, out_channels, (kernel_size, kernel_size), stride=stride,
                                padding=padding, dilation=dilation, groups=groups, bias=bias)
        self.special = (
            in_channels == 64 and out_channels == 128 and kernel_size == 3 and stride == 1 and padding == 0
            and dilation == 1 and groups == 1 and not bias
        )
        self.multiprocessors = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.conv2d.weight
        if not (
            self.special and x.is_cuda and x.dtype == torch.bfloat16 and weight.dtype == torch.bfloat16
            and x.shape == (8, 64, 512, 1024)
        ):
            return self.conv2d(x)
        if self.multiprocessors == 0:
            self.multiprocessors = torch.cuda.get_device_properties(x.device).multi_processor_count
        x = x.contiguous()
        weight = weight.contiguous()
        out = torch.empty((8, 128, 510, 1022), dtype=x.dtype, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = conv_forward(x.data_ptr(), weight.data_ptr(), out.data_ptr(), self.multiprocessors, stream)
        if error:
            raise RuntimeError(f"conv_forward: CUDA error {error}")
        return out
