// Bulk copies without a tensor map: a ring of stages that one thread fills, and the way back to memory.
#include "check.cuh"
#include "asynchronous.cuh"

constexpr int kTile = 1024, kStages = 4, kWarps = 4;  // floats, stages, warps that use them
constexpr uint32_t kBytes = kTile * 4;

// snippet: begin bulk_load
// Issued by one thread; both addresses and `bytes` are multiples of 16. What arrives counts at the barrier.
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
// A ring of kStages with kTile floats (kBytes) each: full[s] is started with 1 arrival, empty[s] with one for each
// warp that uses a stage.
__device__ void fetch(const float* from, int tiles, float (*stage)[kTile], uint64_t* full, uint64_t* empty) {
    for (int i = 0; i < tiles; ++i) {  // by one thread
        const int s = i % kStages, parity = i / kStages % 2;
        wait(&empty[s], parity ^ 1);  // the first time round it is over
        arrive_and_expect(&full[s], kBytes);
        bulk_load(stage[s], from + i * kTile, kBytes, &full[s]);
    }
}
template <class Use>
__device__ void use_up(int tiles, float (*stage)[kTile], uint64_t* full, uint64_t* empty, Use use) {  // by the others
    for (int i = 0; i < tiles; ++i) {
        const int s = i % kStages, parity = i / kStages % 2;
        wait(&full[s], parity);
        use(i, stage[s]);
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(&empty[s]);
    }
}
// snippet: end

// snippet: begin bulk_store
// From shared memory, aligned as above. Before it: all that wrote there call fence.proxy.async.shared::cta, then a
// barrier. After it: wait_stored() before the buffer is written again, and before the block ends.
__device__ __forceinline__ void bulk_store(void* to, const void* from, uint32_t bytes) {  // by one thread
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(to),
                 "r"(shared_address(from)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait_stored() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// snippet: end

__global__ void through_a_ring(const float* from, float* out, int tiles) {
    __shared__ alignas(128) float stage[kStages][kTile];
    __shared__ uint64_t full[kStages], empty[kStages];
    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) start(&full[s], 1), start(&empty[s], kWarps);
        show_started();
    }
    __syncthreads();
    const int64_t at = static_cast<int64_t>(blockIdx.x) * tiles * kTile;
    if (threadIdx.x >= kWarps * 32) {
        if (threadIdx.x == kWarps * 32) fetch(from + at, tiles, stage, full, empty);
        return;
    }
    use_up(tiles, stage, full, empty, [&](int tile, const float* values) {
        for (int i = threadIdx.x; i < kTile; i += kWarps * 32) out[at + tile * kTile + i] = 2 * values[i] + 1;
    });
}

__global__ void back_to_memory(float* out, int rounds) {
    __shared__ alignas(128) float buffer[kTile];
    for (int round = 0; round < rounds; ++round) {
        for (int i = threadIdx.x; i < kTile; i += blockDim.x) buffer[i] = round * kTile + i;
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0) {
            bulk_store(out + round * kTile, buffer, kBytes);
            wait_stored();
        }
        __syncthreads();
    }
}

int main(int count, char**) {
    if (count > 1) return verdict();  // nothing here goes without a device
    constexpr int kBlocks = 8, kTiles = 11, kAll = kBlocks * kTiles * kTile;
    float *from = both_see<float>(kAll), *out = both_see<float>(kAll);
    for (int i = 0; i < kAll; ++i) from[i] = i;
    through_a_ring<<<kBlocks, (kWarps + 1) * 32>>>(from, out, kTiles);
    finish();
    for (int i = 0; i < kAll; ++i) expect(out[i] == 2.0f * i + 1, "the ring gives %g at %d", out[i], i);
    back_to_memory<<<1, 256>>>(out, kTiles);
    finish();
    for (int i = 0; i < kTiles * kTile; ++i) expect(out[i] == i, "memory holds %g at %d", out[i], i);
    return verdict();
}
