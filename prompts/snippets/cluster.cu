// Blocks of a cluster read each other's shared memory: a row that no multiprocessor can hold is held by several.
#include <cooperative_groups.h>

#include "check.cuh"

constexpr int kBlocks = 8, kThreads = 256;

// snippet: begin cluster
// Up to 8 blocks share their shared memory (cooperative_groups.h): what no multiprocessor can hold, eight can. Each
// sums its part of a row; then all read all partial sums in the same order. The last sync() keeps a block from ending
// while others read of it.
__device__ float sum_of_cluster(float of_block) {
    __shared__ float partial;
    auto cluster = cooperative_groups::this_cluster();
    if (threadIdx.x == 0) partial = of_block;
    cluster.sync();
    float sum = 0;
    for (int rank = 0; rank < kBlocks; ++rank) sum += *cluster.map_shared_rank(&partial, rank);
    cluster.sync();
    return sum;
}
// The kernel: __global__ void __cluster_dims__(8, 1, 1) name(...), its grid a multiple of 8 blocks.
// snippet: end

__global__ void __cluster_dims__(kBlocks, 1, 1) centred(const float* from, float* out, int count) {
    __shared__ float of_warp[kThreads / 32];
    const int row = blockIdx.x / kBlocks, part = count / kBlocks;
    const float* mine = from + static_cast<int64_t>(row) * count + blockIdx.x % kBlocks * part;
    float sum = 0;
    for (int i = threadIdx.x; i < part; i += kThreads) sum += mine[i];
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < kThreads / 32; ++i) sum += of_warp[i];
    const float mean = sum_of_cluster(sum) / count;
    for (int i = threadIdx.x; i < part; i += kThreads) out[mine - from + i] = mine[i] - mean;
}

int main(int argc, char**) {
    if (argc > 1) return verdict();  // nothing here goes without a device
    constexpr int kRows = 5, kCount = 1 << 16;
    Draw draw;
    float *from = both_see<float>(kRows * kCount), *out = both_see<float>(kRows * kCount);
    for (int i = 0; i < kRows * kCount; ++i) from[i] = draw.whole() + i / kCount;  // sums stay exact
    centred<<<kRows * kBlocks, kThreads>>>(from, out, kCount);
    finish();
    for (int row = 0; row < kRows; ++row) {
        double sum = 0;
        for (int i = 0; i < kCount; ++i) sum += from[row * kCount + i];
        const float mean = static_cast<float>(sum) / kCount;
        for (int i = 0; i < kCount; ++i) {
            const float found = out[row * kCount + i], right = from[row * kCount + i] - mean;
            expect(found == right, "row %d has %g at %d, not %g", row, found, i, right);
        }
    }
    return verdict();
}
