// Bulk copies into every block of a cluster, and barriers that other blocks arrive at.
#include <cooperative_groups.h>

#include "check.cuh"
#include "asynchronous.cuh"

constexpr int kTile = 1024, kStages = 2, kWarps = 2, kBlocks = 2;
constexpr uint32_t kBytes = kTile * 4;

// snippet: begin multicast
// One copy for all blocks of a cluster that `mask` names (bit r: rank r): the bytes land at the same place of each,
// and count at the barrier at that place of each. So of a tile that all want, each block loads its share for all:
// each expects all bytes at its own full[s], and may load only when all blocks have done with the stage: empty[s] is
// started with the warps of all blocks, and each warp that has done arrives at every block's.
__device__ __forceinline__ void load_for_all(void* to, const void* from, uint32_t bytes, uint64_t* barrier, int mask) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
        "%4;" ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)),
        "h"(static_cast<uint16_t>(mask)) : "memory");
}
__device__ __forceinline__ void arrive_at(uint64_t* barrier, int rank) {  // the one that block `rank` has at that place
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(barrier)), "r"(rank)
        : "memory");
}
// The kernel has __cluster_dims__(2, 1, 1); cooperative_groups::this_cluster().sync() after the barriers are started,
// and again before any block ends.
// snippet: end

__global__ __cluster_dims__(kBlocks, 1, 1) void shared_by_all(const float* from, float* out, int tiles) {
    __shared__ alignas(128) float stage[kStages][kTile];
    __shared__ uint64_t full[kStages], empty[kStages];
    auto cluster = cooperative_groups::this_cluster();
    const int rank = cluster.block_rank(), lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) start(&full[s], 1), start(&empty[s], kWarps * kBlocks);
        show_started();
    }
    cluster.sync();
    const int cluster_number = blockIdx.x / kBlocks;
    const float* mine = from + cluster_number * tiles * kTile;
    float* to = out + static_cast<int64_t>(blockIdx.x) * tiles * kTile;
    for (int i = 0; i < tiles; ++i) {
        const int s = i % kStages, parity = i / kStages % 2;
        if (threadIdx.x >= kWarps * 32) {
            if (lane == 0) {
                wait(&empty[s], parity ^ 1);
                arrive_and_expect(&full[s], kBytes);
                const int share = rank * (kTile / kBlocks);
                load_for_all(&stage[s][share], mine + i * kTile + share, kBytes / kBlocks, &full[s],
                             (1 << kBlocks) - 1);
            }
            __syncwarp();
        } else {
            wait(&full[s], parity);
            for (int at = threadIdx.x; at < kTile; at += kWarps * 32) to[i * kTile + at] = stage[s][at] + rank;
            __syncwarp();
            if (lane < kBlocks) arrive_at(&empty[s], lane);
            __syncwarp();
        }
    }
    cluster.sync();
}

int main(int count, char**) {
    if (count > 1) return verdict();  // nothing here goes without a device
    constexpr int kClusters = 4, kTiles = 9, kAll = kClusters * kTiles * kTile;
    float *from = both_see<float>(kAll), *out = both_see<float>(kAll * kBlocks);
    for (int i = 0; i < kAll; ++i) from[i] = i;
    shared_by_all<<<kClusters * kBlocks, (kWarps + 1) * 32>>>(from, out, kTiles);
    finish();
    for (int block = 0; block < kClusters * kBlocks; ++block)
        for (int i = 0; i < kTiles * kTile; ++i) {
            const float found = out[block * kTiles * kTile + i];
            const float right = block / kBlocks * kTiles * kTile + i + block % kBlocks;
            expect(found == right, "block %d has %g at %d, not %g", block, found, i, right);
        }
    return verdict();
}
