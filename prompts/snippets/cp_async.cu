// cp.async: 16 bytes a thread from memory into shared memory, past the registers.
#include "check.cuh"
#include "asynchronous.cuh"

template <int kBytes>
__device__ void copy_few(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from), "n"(kBytes)
                 : "memory");
}

constexpr int kTile = 512, kStages = 3, kThreads = kTile / 4;

__device__ void fetch(float (*stage)[kTile], const float* from, int tile, int count) {
    const int at = tile * kTile + threadIdx.x * 4, bytes = max(0, min(16, (count - at) * 4));
    copy_16(&stage[tile % kStages][threadIdx.x * 4], from + (bytes ? at : 0), bytes);
}

__global__ void through_stages(const float* from, float* out, int count, int tiles) {
    __shared__ alignas(16) float stage[kStages][kTile];
    for (int tile = 0; tile < kStages - 1; ++tile) fetch(stage, from, tile, count), commit_copies();
    for (int tile = 0; tile < tiles; ++tile) {
        wait_copies<kStages - 2>();
        __syncthreads();
        if (tile + kStages - 1 < tiles) fetch(stage, from, tile + kStages - 1, count);
        commit_copies();
        for (int i = threadIdx.x; i < kTile; i += kThreads)  // what another thread fetched
            out[tile * kTile + i] = stage[tile % kStages][kTile - 1 - i] + 1;
    }
}

__global__ void by_fours_and_eights(const float* from, float* out) {
    __shared__ alignas(16) float stage[3 * kThreads];
    copy_few<8>(&stage[2 * threadIdx.x], from + 2 + 2 * threadIdx.x);
    copy_few<4>(&stage[2 * kThreads + threadIdx.x], from + 2 + 2 * kThreads + threadIdx.x);
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    for (int i = threadIdx.x; i < 3 * kThreads; i += kThreads) out[i] = stage[i];
}

int main(int argc, char**) {
    if (argc > 1) return verdict();  // nothing here goes without a device
    constexpr int kTiles = 7, kCount = kTiles * kTile - 13;  // the last 16 bytes that hold any hold three floats
    float *from = both_see<float>(kCount), *out = both_see<float>(kTiles * kTile);
    for (int i = 0; i < kCount; ++i) from[i] = i;
    through_stages<<<1, kThreads>>>(from, out, kCount, kTiles);
    finish();
    for (int i = 0; i < kTiles * kTile; ++i) {
        const int at = i / kTile * kTile + kTile - 1 - i % kTile;
        expect(out[i] == (at < kCount ? at : 0) + 1, "out[%d] is %g; from %d of %d", i, out[i], at, kCount);
    }
    by_fours_and_eights<<<1, kThreads>>>(from, out);
    finish();
    for (int i = 0; i < 3 * kThreads; ++i) expect(out[i] == i + 2, "by 4 and 8 bytes out[%d] is %g", i, out[i]);
    return verdict();
}
