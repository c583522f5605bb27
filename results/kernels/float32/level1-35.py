import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdint>
#include <cuda_runtime.h>

// tune: KEEP in (2, 3, 4)
constexpr int KEEP = 3;  // chunks of each group that a warp keeps in registers

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kStages = 7;                       // stages of a warp's ring
constexpr int kTeam = 44;                        // blocks that share a group
constexpr int kTeams = 3;
constexpr int kChunk = 1024;                     // floats
constexpr int kVectors = kChunk / 4;             // float4 a chunk
constexpr int kPerLane = kVectors / 32;          // float4 a lane
constexpr uint32_t kChunkBytes = kChunk * 4;
constexpr int kGroup = 8 * 512 * 512;            // floats
constexpr int kChunks = kGroup / kChunk;         // 2048
constexpr int kChunksPerChannel = 512 * 512 / kChunk;
constexpr int kUnits = kTeam * kWarps;           // 352
constexpr int kMaxCount = (kChunks + kUnits - 1) / kUnits;  // 6
constexpr int kGroupsPerSample = 8;
constexpr int kChannels = 64;
constexpr int kRingBytes = kWarps * kStages * kChunkBytes;

static_assert(kMaxCount <= kStages, "a group must fit into the ring");
static_assert(2 * (kChunks / kUnits) >= kStages, "a refill reaches at most two groups ahead");
static_assert(KEEP <= kChunks / kUnits, "each warp has the chunks that it keeps");

struct __align__(32) Record {
    double sum;
    double square;
    uint32_t tag;
    uint32_t unused[3];
};

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
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void publish(Record* record, double sum, double square, uint32_t tag) {
    asm volatile("st.relaxed.gpu.global.f64 [%0], %1;" ::"l"(&record->sum), "d"(sum) : "memory");
    asm volatile("st.relaxed.gpu.global.f64 [%0], %1;" ::"l"(&record->square), "d"(square) : "memory");
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(&record->tag), "r"(tag) : "memory");
}
__device__ __forceinline__ void collect(const Record* record, uint32_t tag, double& sum, double& square) {
    uint32_t seen;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(&record->tag) : "memory");
    } while (seen != tag);
    double s, q;
    asm volatile("ld.relaxed.gpu.global.f64 %0, [%1];" : "=d"(s) : "l"(&record->sum) : "memory");
    asm volatile("ld.relaxed.gpu.global.f64 %0, [%1];" : "=d"(q) : "l"(&record->square) : "memory");
    sum += s;
    square += q;
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
        __stcs(to + i * 32, y);
    }
}

__global__ void __launch_bounds__(kThreads, 1)
group_norm_kernel(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                  float* __restrict__ out, Record* records, uint32_t tag_base, double eps, int groups) {
    extern __shared__ __align__(128) unsigned char ring_memory[];
    __shared__ uint64_t all_barriers[kWarps * kStages];
    __shared__ double2 warp_sums[kWarps];
    __shared__ float4 stats;
    __shared__ float gamma[kChannels];
    __shared__ float beta[kChannels];

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int team = blockIdx.x % kTeams;
    const int rank = blockIdx.x / kTeams;
    const int unit = warp * kTeam + rank;
    const int count = (kChunks - unit + kUnits - 1) / kUnits;  // chunks of this warp in each group
    const int iterations = (groups - team + kTeams - 1) / kTeams;

    float4* ring = reinterpret_cast<float4*>(ring_memory) + warp * kStages * kVectors;
    uint64_t* barriers = all_barriers + warp * kStages;

    auto request = [&](int it, int j, int stage) {  // by lane 0
        if (it < iterations) {
            const float* from = x + static_cast<int64_t>(team + it * kTeams) * kGroup +
                                static_cast<int64_t>(unit + j * kUnits) * kChunk;
            arrive_and_expect(&barriers[stage], kChunkBytes);
            bulk_load(ring + stage * kVectors, from, kChunkBytes, &barriers[stage]);
        }
    };
    auto refill = [&](int it, int j, int stage) {  // by lane 0: the chunk that is kStages further on
        int next_it = it + 1;
        int next_j = j + kStages - count;
        if (next_j >= count) {
            next_j -= count;
            ++next_it;
        }
        request(next_it, next_j, stage);
    };

    if (lane == 0) {
        for (int s = 0; s < kStages; ++s) start(&barriers[s], 1);
        show_started();
    }
    for (int c = threadIdx.x; c < kChannels; c += kThreads) {
        gamma[c] = weight[c];
        beta[c] = bias[c];
    }
    __syncthreads();
    if (lane == 0) {
        int it = 0, j = 0;
        for (int s = 0; s < kStages; ++s) {
            request(it, j, s);
            if (++j == count) {
                j = 0;
                ++it;
            }
        }
    }
    __syncwarp();

    int first_stage = 0;        // stage of chunk 0 of this group
    uint32_t first_parity = 0;  // and its parity

    for (int it = 0; it < iterations; ++it) {
        const int group = team + it * kTeams;
        double sum = 0.0, square = 0.0;
        float4 kept[KEEP][kPerLane];

#pragma unroll
        for (int j = 0; j < KEEP; ++j) {
            int stage = first_stage + j;
            uint32_t parity = first_parity;
            if (stage >= kStages) {
                stage -= kStages;
                parity ^= 1;
            }
            wait(&barriers[stage], parity);
            const float4* from = ring + stage * kVectors + lane;
#pragma unroll
            for (int i = 0; i < kPerLane; ++i) kept[j][i] = from[i * 32];
            accumulate(kept[j], sum, square);
            __syncwarp();
            if (lane == 0) refill(it, j, stage);
        }
#pragma unroll
        for (int j = KEEP; j < kMaxCount; ++j) {
            if (j < count) {
                int stage = first_stage + j;
                uint32_t parity = first_parity;
                if (stage >= kStages) {
                    stage -= kStages;
                    parity ^= 1;
                }
                wait(&barriers[stage], parity);
                const float4* from = ring + stage * kVectors + lane;
                float4 v[kPerLane];
#pragma unroll
                for (int i = 0; i < kPerLane; ++i) v[i] = from[i * 32];
                accumulate(v, sum, square);
            }
        }

        __syncwarp();
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            square += __shfl_xor_sync(0xffffffffu, square, offset);
        }
        if (lane == 0) warp_sums[warp] = make_double2(sum, square);
        __syncthreads();
        if (warp == 0) {
            double s = 0.0, q = 0.0;
            if (lane < kWarps) {
                const double2 part = warp_sums[lane];
                s = part.x;
                q = part.y;
            }
#pragma unroll
            for (int offset = kWarps / 2; offset > 0; offset /= 2) {
                s += __shfl_xor_sync(0xffffffffu, s, offset);
                q += __shfl_xor_sync(0xffffffffu, q, offset);
            }
            Record* slots = records + ((it & 1) * kTeams + team) * kTeam;
            const uint32_t tag = tag_base + static_cast<uint32_t>(it);
            if (lane == 0) publish(slots + rank, s, q, tag);
            __syncwarp();
            s = 0.0;
            q = 0.0;
            for (int r = lane; r < kTeam; r += 32) collect(slots + r, tag, s, q);
            __syncwarp();
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
                stats = make_float4(high, low, rstd, 0.0f);
            }
        }
        __syncthreads();

        const float4 of_group = stats;
        const int first_channel = group % kGroupsPerSample * (kChannels / kGroupsPerSample);
        float4* to = reinterpret_cast<float4*>(out + static_cast<int64_t>(group) * kGroup) + lane;

#pragma unroll
        for (int j = KEEP; j < kMaxCount; ++j) {  // first what still occupies stages
            if (j < count) {
                int stage = first_stage + j;
                if (stage >= kStages) stage -= kStages;
                const float4* from = ring + stage * kVectors + lane;
                float4 v[kPerLane];
#pragma unroll
                for (int i = 0; i < kPerLane; ++i) v[i] = from[i * 32];
                __syncwarp();
                if (lane == 0) refill(it, j, stage);
                const int chunk = unit + j * kUnits;
                const int channel = first_channel + chunk / kChunksPerChannel;
                const float a = of_group.z * gamma[channel];
                const float b = fmaf(-of_group.y, a, beta[channel]);
                normalise(v, of_group.x, a, b, to + static_cast<int64_t>(chunk) * kVectors);
            }
        }
#pragma unroll
        for (int j = 0; j < KEEP; ++j) {
            const int chunk = unit + j * kUnits;
            const int channel = first_channel + chunk / kChunksPerChannel;
            const float a = of_group.z * gamma[channel];
            const float b = fmaf(-of_group.y, a, beta[channel]);
            normalise(kept[j], of_group.x, a, b, to + static_cast<int64_t>(chunk) * kVectors);
        }

        first_stage += count;
        if (first_stage >= kStages) {
            first_stage -= kStages;
            first_parity ^= 1;
        }
    }
}

extern "C" int group_norm(const float* x, const float* weight, const float* bias, float* out, void* records,
                          int64_t tag_base, double eps, int64_t groups, void* stream) {
    if (groups == 0) return 0;
    cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(&group_norm_kernel),
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, kRingBytes);
    if (error != cudaSuccess) return static_cast<int>(error);
    Record* slots = static_cast<Record*>(records);
    uint32_t tag = static_cast<uint32_t>(tag_base);
    int group_count = static_cast<int>(groups);
    void* arguments[] = {&x, &weight, &bias, &out, &slots, &tag, &eps, &group_count};
    error = cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(&group_norm_kernel), dim3(kTeam * kTeams),
                                        dim3(kThreads), arguments, static_cast<size_t>(kRingBytes),
                                        static_cast<cudaStream_t>(stream));
    if (error != cudaSuccess) return static_cast<int>(error);
    return static_cast<int>(cudaGetLastError());
}
"""

library = ctypes.CDLL(
    load_inline(
        name="group_norm_teams",
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

RECORD_WORDS = 2 * 3 * 44 * 8  # two sets, three teams, 44 blocks, 32 bytes each
TAGS_PER_CALL = 512  # more than a team has groups


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
            and x.shape[0] * 8 <= 3 * TAGS_PER_CALL
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
