import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>

// tune: LAG in (1, 2)
constexpr int LAG = 2;  // groups between accumulating and normalising
// tune: LOAD_HINT in (0, 1)
constexpr int LOAD_HINT = 1;  // loads evict-first in L2
// tune: STORE_HINT in (0, 1)
constexpr int STORE_HINT = 1;  // streaming stores

constexpr int kBlocks = 132;
constexpr int kWorkers = 8;                      // warps that move data
constexpr int kPublisher = kWorkers;             // and two that exchange sums
constexpr int kCollector = kWorkers + 1;
constexpr int kThreads = (kWorkers + 2) * 32;
constexpr int kChunk = 1024;                     // floats
constexpr int kVectors = kChunk / 4;             // float4 a chunk
constexpr int kPerLane = kVectors / 32;          // float4 a lane: 8
constexpr uint32_t kChunkBytes = kChunk * 4;
constexpr int kGroup = 8 * 512 * 512;            // floats
constexpr int kChunks = kGroup / kChunk;         // 2048
constexpr int kChunksPerChannel = 512 * 512 / kChunk;  // 256
constexpr int kUnits = kBlocks * kWorkers;       // 1056
constexpr int kGroupsPerSample = 8;
constexpr int kChannels = 64;
constexpr int kStages = 7;                       // of a worker: first and second chunks
constexpr int kSecond = LAG + 3;                 // stages for second chunks
constexpr int kFirst = kStages - kSecond;        // stages for first chunks
constexpr int kKept = LAG + 1;                   // first chunks in registers
constexpr int kSlots = 4;                        // sums and statistics in shared memory
constexpr int kSets = 8;                         // sets of records in device memory
constexpr int kRecords = (kBlocks + 31) / 32;    // records a lane collects
constexpr int kRingBytes = kWorkers * kStages * kChunkBytes;

static_assert(kChunks > kUnits && kChunks <= 2 * kUnits, "a worker has one or two chunks of a group");
static_assert(kFirst >= 1, "first chunks need a stage");
static_assert(kSlots >= LAG + 2, "slots are free when used again");
static_assert(kSets >= 2 * (LAG + 1), "records are free when used again");

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void init_barrier(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void arrive_and_expect(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void wait_for(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}
__device__ __forceinline__ uint64_t evict_first_policy() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier,
                                          uint64_t policy) {
    if (LOAD_HINT) {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
            ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy) : "memory");
    } else {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
    }
}

// A double in 16 bytes; each 8-byte word carries its tag and so shows by itself that it has arrived.
__device__ __forceinline__ void store_tagged(uint4* to, double value, uint32_t tag) {
    const uint32_t low = static_cast<uint32_t>(__double2loint(value));
    const uint32_t high = static_cast<uint32_t>(__double2hiint(value));
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(low), "r"(tag), "r"(high), "r"(tag)
                 : "memory");
}
__device__ __forceinline__ uint4 load_tagged(const uint4* from) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}
__device__ __forceinline__ double tagged_value(const uint4& v) {
    return __hiloint2double(static_cast<int>(v.z), static_cast<int>(v.x));
}

// Adds the mean of a lane's 32 values to `sum`, their squares to `square`.
__device__ __forceinline__ void accumulate(const float4 (&v)[kPerLane], double& sum, double& square) {
    float part[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) part[i] = (v[i].x + v[i].y) + (v[i].z + v[i].w);
#pragma unroll
    for (int width = kPerLane / 2; width > 0; width /= 2) {
#pragma unroll
        for (int i = 0; i < width; ++i) part[i] += part[i + width];
    }
    const float centre = part[0] * (1.0f / (4 * kPerLane));
    float q0 = 0.0f, q1 = 0.0f, q2 = 0.0f, q3 = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
        const float d0 = v[i].x - centre, d1 = v[i].y - centre, d2 = v[i].z - centre, d3 = v[i].w - centre;
        q0 = fmaf(d0, d0, q0);
        q1 = fmaf(d1, d1, q1);
        q2 = fmaf(d2, d2, q2);
        q3 = fmaf(d3, d3, q3);
    }
    const double c = static_cast<double>(centre);
    // sum (v - c)^2 = sum v^2 - 2 c sum v + n c^2, with sum v = n c up to rounding of c
    sum += c;
    square = fma(c * (4.0 * kPerLane), c, square + static_cast<double>((q0 + q1) + (q2 + q3)));
}

__device__ __forceinline__ void normalise(const float4 (&v)[kPerLane], float mean, float a, float b, float4* to) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
        float4 y;
        y.x = fmaf(v[i].x - mean, a, b);
        y.y = fmaf(v[i].y - mean, a, b);
        y.z = fmaf(v[i].z - mean, a, b);
        y.w = fmaf(v[i].w - mean, a, b);
        if (STORE_HINT) {
            __stcs(to + i * 32, y);
        } else {
            to[i * 32] = y;
        }
    }
}

__global__ void __launch_bounds__(kThreads, 1)
group_norm_kernel(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                  float* __restrict__ out, uint4* records, uint32_t tag_base, double eps, int groups) {
    extern __shared__ __align__(128) unsigned char ring_memory[];
    __shared__ __align__(8) uint64_t all_barriers[kWorkers * kStages];
    __shared__ __align__(8) uint64_t sums_ready[kSlots];
    __shared__ __align__(8) uint64_t stats_ready[kSlots];
    __shared__ double2 warp_sums[kSlots][kWorkers];
    __shared__ float4 stats[kSlots];
    __shared__ float gamma[kChannels];
    __shared__ float beta[kChannels];

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int rank = blockIdx.x;

    if (threadIdx.x == 0) {
        for (int s = 0; s < kWorkers * kStages; ++s) init_barrier(&all_barriers[s], 1);
        for (int s = 0; s < kSlots; ++s) {
            init_barrier(&sums_ready[s], kWorkers);
            init_barrier(&stats_ready[s], 1);
        }
        show_barriers();
    }
    for (int c = threadIdx.x; c < kChannels; c += kThreads) {
        gamma[c] = weight[c];
        beta[c] = bias[c];
    }
    __syncthreads();  // the last barrier of the whole block

    if (warp == kPublisher) {
        for (int g = 0; g < groups; ++g) {
            const int slot = g % kSlots;
            wait_for(&sums_ready[slot], static_cast<uint32_t>(g / kSlots) & 1u);
            double s = 0.0, q = 0.0;
            if (lane < kWorkers) {
                const double2 part = warp_sums[slot][lane];
                s = part.x;
                q = part.y;
            }
            __syncwarp();
#pragma unroll
            for (int offset = kWorkers / 2; offset > 0; offset /= 2) {
                s += __shfl_xor_sync(0xffffffffu, s, offset);
                q += __shfl_xor_sync(0xffffffffu, q, offset);
            }
            if (lane == 0) {
                const uint32_t tag = tag_base + static_cast<uint32_t>(g);
                uint4* record = records + ((g % kSets) * kBlocks + rank) * 2;
                store_tagged(record, s, tag);
                store_tagged(record + 1, q, tag);
            }
            __syncwarp();
        }
        return;
    }

    if (warp == kCollector) {
        for (int g = 0; g < groups; ++g) {
            const int slot = g % kSlots;
            // No use in asking before this block's own sums are there.
            wait_for(&sums_ready[slot], static_cast<uint32_t>(g / kSlots) & 1u);
            __syncwarp();
            const uint32_t tag = tag_base + static_cast<uint32_t>(g);
            const uint4* set = records + (g % kSets) * kBlocks * 2;
            uint4 first[kRecords], second[kRecords];
            bool have[kRecords];
#pragma unroll
            for (int k = 0; k < kRecords; ++k) {
                have[k] = lane + 32 * k >= kBlocks;
                first[k] = make_uint4(0u, 0u, 0u, 0u);
                second[k] = make_uint4(0u, 0u, 0u, 0u);
            }
            while (true) {
#pragma unroll
                for (int k = 0; k < kRecords; ++k) {
                    if (!have[k]) {
                        first[k] = load_tagged(set + (lane + 32 * k) * 2);
                        second[k] = load_tagged(set + (lane + 32 * k) * 2 + 1);
                    }
                }
                bool complete = true;
#pragma unroll
                for (int k = 0; k < kRecords; ++k) {
                    if (!have[k]) {
                        have[k] = first[k].y == tag && first[k].w == tag && second[k].y == tag && second[k].w == tag;
                    }
                    complete = complete && have[k];
                }
                if (__all_sync(0xffffffffu, complete)) break;
                __nanosleep(40);
            }
            double s = 0.0, q = 0.0;
#pragma unroll
            for (int k = 0; k < kRecords; ++k) {
                s += tagged_value(first[k]);
                q += tagged_value(second[k]);
            }
#pragma unroll
            for (int offset = 16; offset > 0; offset /= 2) {
                s += __shfl_xor_sync(0xffffffffu, s, offset);
                q += __shfl_xor_sync(0xffffffffu, q, offset);
            }
            if (lane == 0) {
                const double mean = s * (4.0 * kPerLane / kGroup);
                double variance = q * (1.0 / kGroup) - mean * mean;
                if (variance < 0.0) variance = 0.0;
                const float high = static_cast<float>(mean);
                const float low = static_cast<float>(mean - static_cast<double>(high));
                const float rstd = static_cast<float>(1.0 / sqrt(variance + eps));
                stats[slot] = make_float4(high, low, rstd, 0.0f);
                arrive(&stats_ready[slot]);
            }
            __syncwarp();
        }
        return;
    }

    // A worker.
    const int unit = warp * kBlocks + rank;       // its first chunk of each group
    const bool has_second = unit + kUnits < kChunks;
    float4* first_ring = reinterpret_cast<float4*>(ring_memory) + warp * kStages * kVectors;
    float4* second_ring = first_ring + kFirst * kVectors;
    uint64_t* first_barriers = all_barriers + warp * kStages;
    uint64_t* second_barriers = first_barriers + kFirst;
    const uint64_t policy = evict_first_policy();

    auto request_first = [&](int g, int stage) {  // by lane 0
        if (g < groups) {
            const float* from = x + static_cast<int64_t>(g) * kGroup + static_cast<int64_t>(unit) * kChunk;
            arrive_and_expect(&first_barriers[stage], kChunkBytes);
            bulk_load(first_ring + stage * kVectors, from, kChunkBytes, &first_barriers[stage], policy);
        }
    };
    auto request_second = [&](int g, int stage) {  // by lane 0, where there is a second chunk
        if (g < groups) {
            const float* from = x + static_cast<int64_t>(g) * kGroup + static_cast<int64_t>(unit + kUnits) * kChunk;
            arrive_and_expect(&second_barriers[stage], kChunkBytes);
            bulk_load(second_ring + stage * kVectors, from, kChunkBytes, &second_barriers[stage], policy);
        }
    };

    if (lane == 0) {
        for (int g = 0; g < kSecond; ++g) {
            if (g < kFirst) request_first(g, g);
            if (has_second) request_second(g, g);
        }
    }
    __syncwarp();

    const int first_channel = unit / kChunksPerChannel;              // within the group
    const int second_channel = (unit + kUnits) / kChunksPerChannel;  // used only where has_second

    float4 kept[kKept][kPerLane];
    int first_stage = 0, second_stage = 0;  // stages of group g
    uint32_t first_parity = 0, second_parity = 0;

    for (int base = 0; base < groups + LAG; base += kKept) {
#pragma unroll
        for (int s = 0; s < kKept; ++s) {
            const int g = base + s;

            if (g < groups) {  // accumulate group g
                double sum = 0.0, square = 0.0;
                wait_for(&first_barriers[first_stage], first_parity);
                {
                    const float4* from = first_ring + first_stage * kVectors + lane;
#pragma unroll
                    for (int i = 0; i < kPerLane; ++i) kept[s][i] = from[i * 32];
                }
                accumulate(kept[s], sum, square);
                __syncwarp();
                if (lane == 0) request_first(g + kFirst, first_stage);
                __syncwarp();
                if (has_second) {
                    wait_for(&second_barriers[second_stage], second_parity);
                    const float4* from = second_ring + second_stage * kVectors + lane;
                    float4 v[kPerLane];
#pragma unroll
                    for (int i = 0; i < kPerLane; ++i) v[i] = from[i * 32];
                    accumulate(v, sum, square);
                }
                __syncwarp();
#pragma unroll
                for (int offset = 16; offset > 0; offset /= 2) {
                    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
                    square += __shfl_xor_sync(0xffffffffu, square, offset);
                }
                if (lane == 0) {
                    warp_sums[g % kSlots][warp] = make_double2(sum, square);
                    arrive(&sums_ready[g % kSlots]);
                }
                __syncwarp();
            }

            const int old = g - LAG;
            if (old >= 0 && old < groups) {  // normalise group g - LAG
                wait_for(&stats_ready[old % kSlots], static_cast<uint32_t>(old / kSlots) & 1u);
                const float4 of_group = stats[old % kSlots];
                const int channels = old % kGroupsPerSample * (kChannels / kGroupsPerSample);
                float4* to = reinterpret_cast<float4*>(out + static_cast<int64_t>(old) * kGroup) + lane;
                if (has_second) {  // first what still occupies a stage
                    int stage = second_stage + (kSecond - LAG);
                    if (stage >= kSecond) stage -= kSecond;
                    const float4* from = second_ring + stage * kVectors + lane;
                    float4 v[kPerLane];
#pragma unroll
                    for (int i = 0; i < kPerLane; ++i) v[i] = from[i * 32];
                    __syncwarp();
                    if (lane == 0) request_second(old + kSecond, stage);
                    __syncwarp();
                    const int channel = channels + second_channel;
                    const float a = of_group.z * gamma[channel];
                    const float b = fmaf(-of_group.y, a, beta[channel]);
                    normalise(v, of_group.x, a, b, to + static_cast<int64_t>(unit + kUnits) * kVectors);
                }
                const int channel = channels + first_channel;
                const float a = of_group.z * gamma[channel];
                const float b = fmaf(-of_group.y, a, beta[channel]);
                normalise(kept[(s + 1) % kKept], of_group.x, a, b, to + static_cast<int64_t>(unit) * kVectors);
            }

            if (++first_stage == kFirst) {
                first_stage = 0;
                first_parity ^= 1u;
            }
            if (++second_stage == kSecond) {
                second_stage = 0;
                second_parity ^= 1u;
            }
        }
    }
}

extern "C" int group_norm(const float* x, const float* weight, const float* bias, float* out, void* records,
                          int64_t tag_base, double eps, int64_t groups, void* stream) {
    if (groups == 0) return 0;
    cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(&group_norm_kernel),
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, kRingBytes);
    if (error != cudaSuccess) return static_cast<int>(error);
    uint4* slots = static_cast<uint4*>(records);
    uint32_t tag = static_cast<uint32_t>(tag_base);
    int group_count = static_cast<int>(groups);
    void* arguments[] = {&x, &weight, &bias, &out, &slots, &tag, &eps, &group_count};
    error = cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(&group_norm_kernel), dim3(kBlocks),
                                        dim3(kThreads), arguments, static_cast<size_t>(kRingBytes),
                                        static_cast<cudaStream_t>(stream));
    if (error != cudaSuccess) return static_cast<int>(error);
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="group_norm_pipelined",
        cpp_sources=[""],
        cuda_sources=[SOURCE],
        extra_cuda_cflags=["-O3"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
group_norm = library.group_norm
group_norm.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64, ctypes.c_double, ctypes.c_int64, ctypes.c_void_p]
group_norm.restype = ctypes.c_int

RECORD_WORDS = 8 * 132 * 8  # eight sets, 132 blocks, 32 bytes each
TAGS_PER_CALL = 1024  # at least the groups of a call


class ModelNew(nn.Module):
    def __init__(self, num_features: int, num_groups: int):
        super().__init__()
        self.gn = nn.GroupNorm(num_groups=num_groups, num_channels=num_features)
        self.specialised = num_features == 64 and num_groups == 8
        self.records = None
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not (
            self.specialised
            and x.is_cuda
            and x.dtype == torch.float32
            and x.dim() == 4
            and x.shape[1:] == (64, 512, 512)
            and x.shape[0] * 8 <= TAGS_PER_CALL
        ):
            return self.gn(x)
        x = x.contiguous()
        weight = self.gn.weight
        bias = self.gn.bias
        out = torch.empty_like(x)
        if self.records is None or self.records.device != x.device:
            self.records = torch.zeros(RECORD_WORDS, dtype=torch.int32, device=x.device)
        self.calls += 1
        tag_base = (self.calls * TAGS_PER_CALL) & 0xFFFFFFFF
        stream = torch.cuda.current_stream().cuda_stream
        error = group_norm(
            x.data_ptr(),
            weight.data_ptr(),
            bias.data_ptr(),
            out.data_ptr(),
            self.records.data_ptr(),
            tag_base,
            self.gn.eps,
            x.shape[0] * 8,
            stream,
        )
        if error:
            raise RuntimeError(f"group_norm: CUDA error {error}")
        return out
