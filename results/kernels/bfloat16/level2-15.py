import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_bf16.h>

constexpr int kBatch = 16;
constexpr int kOut = 32;
constexpr int kOD = 31;
constexpr int kPlane = 63 * 63;
constexpr int kVolume = kOD * kPlane;

constexpr int kThreads = 256;
constexpr int kRowBytes = 34 * 32;            // positions -1 .. 32 of a row of x, 16 channels each
constexpr int kSlabRows = 17;
constexpr int kSliceBytes = kSlabRows * kRowBytes;
constexpr int kSlabBytes = 2 * kSliceBytes;   // 36992
constexpr int kPitch = 1040;                  // staged bytes of a channel: (7 + 504) * 2, an odd multiple of 16
constexpr int kStageBytes = kOut * kPitch;    // 33280
constexpr int kMainShared = kSlabBytes + 2 * kStageBytes;
constexpr int kStatsShared = kSlabBytes;

constexpr int kOddBlocks = kBatch * 15 * 2;
constexpr int kEvenBlocks = kBatch * 16 * 2;
constexpr int kPartials = kOD * 2;            // blocks for each n

struct Params {
    const uint16_t* x;
    const uint16_t* weight;
    const __nv_bfloat16* gamma;
    uint16_t* out;
    uint4* packed;      // [tap][channel parity][lane]
    float* sums;        // [n][channel][sum, sum of squares]
    float* partial;     // [n][62][channel][2]
    unsigned* counter;  // [n]
    float eps;
};

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_next_kernel_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void load_b(uint32_t (&b)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void show_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void bulk_store(void* to, const void* from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(to),
                 "r"(shared_address(from)), "r"(bytes) : "memory");
}
template <int kPending>
__device__ __forceinline__ void wait_stored() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Byte of channels half * 8 .. half * 8 + 7 of a position within its row.
__device__ __forceinline__ int place(int position, int half) {
    return position * 32 + ((half ^ ((position >> 2) & 1)) << 4);
}

__global__ void pack_kernel(Params p) {
    let_next_kernel_start();
    const int tap = blockIdx.x;
    const int tid = threadIdx.x;
    const int parity = tid >> 7, lane = (tid >> 2) & 31, reg = tid & 3;
    const int row = lane / 4 + (reg & 1) * 8;
    const int k = (lane % 4) * 2 + (reg >> 1) * 8;
    const int c = 2 * row + parity;
    const uint32_t low = p.weight[k * 864 + c * 27 + tap];
    const uint32_t high = p.weight[(k + 1) * 864 + c * 27 + tap];
    reinterpret_cast<uint32_t*>(p.packed)[((tap * 2 + parity) * 32 + lane) * 4 + reg] = low | (high << 16);
}

// Rows h0 .. h0 + 16 of kSlices slices from d0 on, as [slice][row][position + 1][channel].
template <int kSlices>
__device__ __forceinline__ void load_slab(char* slab, const uint16_t* __restrict__ x, int n, int d0, int h0) {
    constexpr int kRows = kSlices * kSlabRows;
    constexpr int kRounds = (kRows + 7) / 8;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int pair = lane & 15, half = lane >> 4;
    uint32_t v[kRounds][8];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        const int row = warp + 8 * i;
        const int slice = row >= kSlabRows ? 1 : 0;
        const int h = h0 + row - slice * kSlabRows;
        const bool valid = row < kRows && h < 32;
        const uint32_t* from =
            reinterpret_cast<const uint32_t*>(x + (((n * 16 + half * 8) * 16 + d0 + slice) * 32 + h) * 32) + pair;
#pragma unroll
        for (int j = 0; j < 8; ++j) v[i][j] = valid ? __ldg(from + j * 8192) : 0u;
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        const int row = warp + 8 * i;
        if (row < kRows) {
            char* to = slab + row * kRowBytes;
            uint4 first, second;
            first.x = __byte_perm(v[i][0], v[i][1], 0x5410);
            first.y = __byte_perm(v[i][2], v[i][3], 0x5410);
            first.z = __byte_perm(v[i][4], v[i][5], 0x5410);
            first.w = __byte_perm(v[i][6], v[i][7], 0x5410);
            second.x = __byte_perm(v[i][0], v[i][1], 0x7632);
            second.y = __byte_perm(v[i][2], v[i][3], 0x7632);
            second.z = __byte_perm(v[i][4], v[i][5], 0x7632);
            second.w = __byte_perm(v[i][6], v[i][7], 0x7632);
            *reinterpret_cast<uint4*>(to + place(2 * pair + 1, half)) = first;
            *reinterpret_cast<uint4*>(to + place(2 * pair + 2, half)) = second;
            if (lane < 4)  // positions -1 and 32
                *reinterpret_cast<uint4*>(to + (lane >> 1 ? 33 * 32 : 0) + (lane & 1) * 16) = make_uint4(0, 0, 0, 0);
        }
    }
}

__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
}

// The outputs of one row that a thread holds, of two channels, to the staged segment.
__device__ __forceinline__ void put(char* at, bool odd_base, const float (&e)[4], const float (&o)[4],
                                    const float (&scale)[2], const float (&shift)[2], bool first, bool last) {
    const uint32_t order = odd_base ? 0x1032u : 0x3210u;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const uint32_t w0 = __byte_perm(
            pack_pair(fmaf(e[2 * h], scale[h], shift[h]), fmaf(o[2 * h], scale[h], shift[h])), 0u, order);
        const uint32_t w1 = __byte_perm(
            pack_pair(fmaf(e[2 * h + 1], scale[h], shift[h]), fmaf(o[2 * h + 1], scale[h], shift[h])), 0u, order);
        char* to = at + h * 16 * kPitch;
        if (first && odd_base)
            *reinterpret_cast<uint16_t*>(to + 2) = static_cast<uint16_t>(w0 >> 16);
        else
            *reinterpret_cast<uint32_t*>(to) = w0;
        if (last && !odd_base)
            *reinterpret_cast<uint16_t*>(to + 4) = static_cast<uint16_t>(w1 & 0xffffu);
        else
            *reinterpret_cast<uint32_t*>(to + 4) = w1;
    }
}

__device__ __forceinline__ void tally(bool odd_base, float (&e)[4], float (&o)[4], float (&sum)[2], float (&square)[2],
                                      bool first, bool last) {
    if (first && odd_base) {
        o[0] = 0.0f;
        o[2] = 0.0f;
    }
    if (last && !odd_base) {
        o[1] = 0.0f;
        o[3] = 0.0f;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        sum[h] += (e[2 * h] + e[2 * h + 1]) + (o[2 * h] + o[2 * h + 1]);
        float s = e[2 * h] * e[2 * h];
        s = fmaf(e[2 * h + 1], e[2 * h + 1], s);
        s = fmaf(o[2 * h], o[2 * h], s);
        s = fmaf(o[2 * h + 1], o[2 * h + 1], s);
        square[h] += s;
    }
}

// One half of an output plane, all channels. kSlices: 1 where od is even, 2 where it is odd.
template <bool kStats, int kSlices>
__device__ __forceinline__ void work(const Params& p, int n, int od, int half, char* shared) {
    __shared__ float shared_scale[kOut];
    __shared__ float shared_shift[kOut];

    const int tid = threadIdx.x;
    const int warp = tid / 32, lane = tid % 32;
    const int parity = warp & 1, tile = warp >> 1;
    const int g = lane / 4, q = lane % 4;
    char* slab = shared;
    char* stage = shared + kSlabBytes;

    load_slab<kSlices>(slab, p.x, n, od >> 1, half * 16);

    if (kStats) {
        wait_for_kernel_before();  // the packed weights
        let_next_kernel_start();
    }

    // Parity of the first element's address, of even rows and of odd rows.
    const bool odd_base0 = ((parity + od) & 1) != 0;
    const bool odd_base1 = !odd_base0;

    // [slice][kh][0: even w, centre; 1: odd w, centre; 2: odd w, other]
    uint32_t a[kSlices][3][3][4];
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
        const int kd = kSlices == 1 ? 1 : (s == 0 ? 2 : 0);
#pragma unroll
        for (int kh = 0; kh < 3; ++kh) {
            const bool odd_base = kh == 1 ? odd_base0 : odd_base1;
#pragma unroll
            for (int role = 0; role < 3; ++role) {
                int kw = 1;
                if (role == 1) kw = odd_base ? 0 : 2;
                if (role == 2) kw = odd_base ? 2 : 0;
                const uint4 v = p.packed[((kd * 9 + kh * 3 + kw) * 2 + parity) * 32 + lane];
                a[s][kh][role][0] = v.x;
                a[s][kh][role][1] = v.y;
                a[s][kh][role][2] = v.z;
                a[s][kh][role][3] = v.w;
            }
        }
    }

    float scale[2] = {1.0f, 1.0f}, shift[2] = {0.0f, 0.0f};
    float sum[2] = {0.0f, 0.0f}, square[2] = {0.0f, 0.0f};
    if (!kStats) {
        wait_for_kernel_before();  // the sums
        if (tid < kOut) {
            double total = 0.0, total_square = 0.0;
            float own = 0.0f;
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                const float2 v = __ldcg(reinterpret_cast<const float2*>(p.sums) + i * kOut + tid);
                total += static_cast<double>(v.x);
                total_square += static_cast<double>(v.y);
                if (i == n) own = v.x;
            }
            constexpr double kInverse = 1.0 / (static_cast<double>(kBatch) * kVolume);
            const double mean = total * kInverse;
            double variance = total_square * kInverse - mean * mean;
            if (variance < 0.0) variance = 0.0;
            const float factor = __bfloat162float(p.gamma[tid]) / sqrtf(static_cast<float>(variance) + p.eps);
            shared_scale[tid] = factor;
            shared_shift[tid] = -factor * (own / static_cast<float>(kVolume));
        }
    }
    __syncthreads();

    const int c0 = 2 * g + parity;  // the other channel is c0 + 16
    if (!kStats) {
        scale[0] = shared_scale[c0];
        scale[1] = shared_scale[c0 + 16];
        shift[0] = shared_shift[c0];
        shift[1] = shared_shift[c0 + 16];
    }
    const bool first = tile == 0 && q == 0;
    const bool last = tile == 3 && q == 3;

    // Lane addresses of the B operands: matrices 0, 1 are the centre, 2, 3 the other.
    const int matrix = lane >> 3;
    const int centre = 8 * tile + (lane & 7) + 1;
    const int position0 = centre + (matrix >= 2 ? (odd_base0 ? -1 : 1) : 0);
    const int position1 = centre + (matrix >= 2 ? (odd_base1 ? -1 : 1) : 0);
    uint32_t address0 = shared_address(slab) + place(position0, matrix & 1);
    uint32_t address1 = shared_address(slab) + place(position1, matrix & 1);

    // 16 channels further and 8 rows further the address is the same modulo 8 elements.
    const int own_shift = (((n * kOut + c0) * kOD + od) * kPlane) & 7;
    const int offset0 = c0 * kPitch + (own_shift - (odd_base0 ? 1 : 0) + 16 * tile + 4 * q) * 2;
    const int offset1 = c0 * kPitch + (own_shift + 63 - (odd_base1 ? 1 : 0) + 16 * tile + 4 * q) * 2;

    uint32_t before[kSlices][4];
#pragma unroll
    for (int s = 0; s < kSlices; ++s) load_b(before[s], address1 + s * kSliceBytes);

#pragma unroll 1
    for (int chunk = 0; chunk < 4; ++chunk) {
        char* buffer = stage + (chunk & 1) * kStageBytes;
        const bool cut = half == 1 && chunk == 3;  // there is no row 63
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            {
                float e[4] = {0.0f, 0.0f, 0.0f, 0.0f}, o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
                for (int s = 0; s < kSlices; ++s) {
                    uint32_t b[4];
                    load_b(b, address0 + s * kSliceBytes + j * kRowBytes);
                    multiply(o, a[s][1][1], b[0], b[1]);
                    multiply(e, a[s][1][0], b[0], b[1]);
                    multiply(o, a[s][1][2], b[2], b[3]);
                }
                if (kStats)
                    tally(odd_base0, e, o, sum, square, first, last);
                else
                    put(buffer + offset0 + j * 252, odd_base0, e, o, scale, shift, first, last);
            }
            if (j < 3 || !cut) {
                float e[4] = {0.0f, 0.0f, 0.0f, 0.0f}, o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                uint32_t after[kSlices][4];
#pragma unroll
                for (int s = 0; s < kSlices; ++s)
                    load_b(after[s], address1 + s * kSliceBytes + (j + 1) * kRowBytes);
#pragma unroll
                for (int s = 0; s < kSlices; ++s) {
                    multiply(o, a[s][2][1], before[s][0], before[s][1]);
                    multiply(e, a[s][2][0], before[s][0], before[s][1]);
                    multiply(o, a[s][2][2], before[s][2], before[s][3]);
                }
#pragma unroll
                for (int s = 0; s < kSlices; ++s) {
                    multiply(o, a[s][0][1], after[s][0], after[s][1]);
                    multiply(e, a[s][0][0], after[s][0], after[s][1]);
                    multiply(o, a[s][0][2], after[s][2], after[s][3]);
                }
#pragma unroll
                for (int s = 0; s < kSlices; ++s) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) before[s][i] = after[s][i];
                }
                if (kStats)
                    tally(odd_base1, e, o, sum, square, first, last);
                else
                    put(buffer + offset1 + j * 252, odd_base1, e, o, scale, shift, first, last);
            }
        }
        address0 += 4 * kRowBytes;
        address1 += 4 * kRowBytes;

        if (!kStats) {
            show_stores();
            __syncthreads();
            if (lane < 4) {
                const int c = warp * 4 + lane;
                const int from = ((n * kOut + c) * kOD + od) * kPlane + (half * 32 + chunk * 8) * 63;
                const int skew = from & 7;
                const int length = cut ? 441 : 504;
                const int start = chunk == 0 && skew != 0 ? 8 : 0;
                const int end = (skew + length) & ~7;
                char* region = buffer + c * kPitch;
                char* to = reinterpret_cast<char*>(p.out + (from - skew));
                bulk_store(to + start * 2, region + start * 2, static_cast<uint32_t>((end - start) * 2));
                if (start != 0) {
                    int i = skew;
                    if (i & 1) {
                        *reinterpret_cast<uint16_t*>(to + i * 2) = *reinterpret_cast<const uint16_t*>(region + i * 2);
                        i += 1;
                    }
                    if (i & 2) {
                        *reinterpret_cast<uint32_t*>(to + i * 2) = *reinterpret_cast<const uint32_t*>(region + i * 2);
                        i += 2;
                    }
                    if (i & 4)
                        *reinterpret_cast<uint2*>(to + i * 2) = *reinterpret_cast<const uint2*>(region + i * 2);
                }
                if (chunk == 3) {
                    const int rest = (skew + length) & 7;
                    int i = end;
                    if (rest & 4) {
                        *reinterpret_cast<uint2*>(to + i * 2) = *reinterpret_cast<const uint2*>(region + i * 2);
                        i += 4;
                    }
                    if (rest & 2) {
                        *reinterpret_cast<uint32_t*>(to + i * 2) = *reinterpret_cast<const uint32_t*>(region + i * 2);
                        i += 2;
                    }
                    if (rest & 1)
                        *reinterpret_cast<uint16_t*>(to + i * 2) = *reinterpret_cast<const uint16_t*>(region + i * 2);
                    wait_stored<0>();
                } else {
                    // The other buffer is free when the chunk before has been read; the last elements move on to it.
                    wait_stored<1>();
                    char* next = stage + ((chunk + 1) & 1) * kStageBytes + c * kPitch;
                    *reinterpret_cast<uint4*>(next) = *reinterpret_cast<const uint4*>(region + 1008);
                }
            }
            __syncthreads();
        }
    }

    if (kStats) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int offset = 1; offset <= 2; offset *= 2) {
                sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], offset);
                square[h] += __shfl_xor_sync(0xffffffffu, square[h], offset);
            }
        }
        __syncthreads();  // the slab is no longer read
        float* of_warps = reinterpret_cast<float*>(shared);           // [warp][row][2], 1024 bytes
        int* is_last = reinterpret_cast<int*>(shared + 2048);
        double* of_groups = reinterpret_cast<double*>(shared + 4096);  // [4][64]
        if (q == 0) {
            of_warps[(warp * 16 + g) * 2] = sum[0];
            of_warps[(warp * 16 + g) * 2 + 1] = square[0];
            of_warps[(warp * 16 + g + 8) * 2] = sum[1];
            of_warps[(warp * 16 + g + 8) * 2 + 1] = square[1];
        }
        __syncthreads();
        float* partial = p.partial + n * kPartials * 64;
        if (tid < 64) {
            const int c = tid >> 1, which = tid & 1;
            float v = 0.0f;
#pragma unroll
            for (int t = 0; t < 4; ++t) v += of_warps[(((c & 1) + 2 * t) * 16 + (c >> 1)) * 2 + which];
            partial[(od * 2 + half) * 64 + tid] = v;
            __threadfence();
        }
        __syncthreads();
        if (tid == 0) *is_last = atomicAdd(p.counter + n, 1u) == static_cast<unsigned>(kPartials - 1) ? 1 : 0;
        __syncthreads();
        if (*is_last) {
            __threadfence();
            const int which = tid & 63, group = tid >> 6;
            double v = 0.0;
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const int index = group + 4 * i;
                if (index < kPartials) v += static_cast<double>(__ldcg(partial + index * 64 + which));
            }
            of_groups[group * 64 + which] = v;
            __syncthreads();
            if (tid < 64)
                p.sums[n * 64 + tid] = static_cast<float>((of_groups[tid] + of_groups[64 + tid]) +
                                                          (of_groups[128 + tid] + of_groups[192 + tid]));
            if (tid == 0) p.counter[n] = 0u;
        }
    }
}

template <bool kStats>
__global__ void __launch_bounds__(kThreads, 2) conv_kernel(const Params p) {
    extern __shared__ __align__(128) char shared[];
    int index = blockIdx.x;
    if (index < kOddBlocks) {
        const int half = index & 1;
        index >>= 1;
        work<kStats, 2>(p, index / 15, 2 * (index % 15) + 1, half, shared);
    } else {
        index -= kOddBlocks;
        const int half = index & 1;
        index >>= 1;
        work<kStats, 1>(p, index / 16, 2 * (index % 16), half, shared);
    }
}

extern "C" int conv_norm(const void* x, const void* weight, const void* gamma, void* out, void* scratch, float eps,
                         void* stream) {
    static bool prepared = false;
    if (!prepared) {
        cudaError_t error =
            cudaFuncSetAttribute(conv_kernel<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMainShared);
        if (error != cudaSuccess) return static_cast<int>(error);
        error = cudaFuncSetAttribute(conv_kernel<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, kStatsShared);
        if (error != cudaSuccess) return static_cast<int>(error);
        cudaFuncSetAttribute(conv_kernel<false>, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
        cudaFuncSetAttribute(conv_kernel<true>, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
        prepared = true;
    }
    char* base = static_cast<char*>(scratch);
    Params p;
    p.x = static_cast<const uint16_t*>(x);
    p.weight = static_cast<const uint16_t*>(weight);
    p.gamma = static_cast<const __nv_bfloat16*>(gamma);
    p.out = static_cast<uint16_t*>(out);
    p.packed = reinterpret_cast<uint4*>(base);
    p.sums = reinterpret_cast<float*>(base + 27648);
    p.partial = reinterpret_cast<float*>(base + 31744);
    p.counter = reinterpret_cast<unsigned*>(base + 285696);
    p.eps = eps;

    cudaStream_t on = static_cast<cudaStream_t>(stream);
    pack_kernel<<<27, kThreads, 0, on>>>(p);
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return static_cast<int>(error);

    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[0].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(kOddBlocks + kEvenBlocks);
    config.blockDim = dim3(kThreads);
    config.stream = on;
    config.attrs = attribute;
    config.numAttrs = 1;

    config.dynamicSmemBytes = kStatsShared;
    error = cudaLaunchKernelEx(&config, conv_kernel<true>, p);
    if (error != cudaSuccess) return static_cast<int>(error);
    config.dynamicSmemBytes = kMainShared;
    error = cudaLaunchKernelEx(&config, conv_kernel<false>, p);
    if (error != cudaSuccess) return static_cast<int>(error);
    return static_cast<int>(cudaGetLastError());
}
"""

SCRATCH_BYTES = 285696 + 64

library = ctypes.CDLL(
    load_inline(
        name="conv_transpose3d_norm_subtract",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
conv_norm = library.conv_norm
conv_norm.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_float, ctypes.c_void_p]
conv_norm.restype = ctypes.c_int


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride, padding, bias=True):
        super().__init__()
        # They hold the parameters. The convolution's bias and the normalization's bias cancel in the subtraction.
        self.conv_transpose = nn.ConvTranspose3d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, bias=bias
        )
        self.batch_norm = nn.BatchNorm3d(out_channels)
        if (in_channels, out_channels, kernel_size, stride, padding) != (16, 32, 3, 2, 1):
            raise ValueError("specialised for 16 to 32 channels, kernel 3, stride 2, padding 1")
        self.scratch = None

    def forward(self, x):
        if x.shape != (16, 16, 16, 32, 32) or x.dtype != torch.bfloat16:
            raise ValueError("specialised for bfloat16 of shape (16, 16, 16, 32, 32)")
        x = x.contiguous()
        weight = self.conv_transpose.weight.contiguous()
        gamma = self.batch_norm.weight
        scratch = self.scratch
        if scratch is None or scratch.device != x.device:
            scratch = torch.zeros(SCRATCH_BYTES, dtype=torch.uint8, device=x.device)
            self.scratch = scratch
        out = torch.empty((16, 32, 31, 63, 63), dtype=torch.bfloat16, device=x.device)
        stream = torch.cuda.current_stream().cuda_stream
        error = conv_norm(
            x.data_ptr(),
            weight.data_ptr(),
            gamma.data_ptr(),
            out.data_ptr(),
            scratch.data_ptr(),
            self.batch_norm.eps,
            stream,
        )
        if error:
            raise RuntimeError(f"conv_norm: CUDA error {error}")
        return out
