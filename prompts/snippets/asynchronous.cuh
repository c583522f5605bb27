#pragma once
#include <cstdint>

// snippet: begin shared_address
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
// snippet: end

// snippet: begin mbarrier
// An mbarrier is a uint64_t in shared memory. One thread starts all of them and then calls show_started(); a barrier
// of the block (of the cluster, where other blocks use them) comes before any other use.
__device__ __forceinline__ void start(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void show_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// A phase ends when all have arrived and all bytes that were announced are there; then the next begins by itself.
__device__ __forceinline__ void arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void arrive_and_expect(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
// Until the phase of this parity is over: 0 for the first, 1 for the second, 0 for the third. Parity 1 of a barrier
// just started counts as over.
__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}
// snippet: end

// snippet: begin cp_async
// 16 bytes a thread (cp.async.ca: 4 or 8 too), both addresses multiples of that; of fewer `bytes` the rest becomes
// zero, so that edges need no branch (with 0 from any valid address).
__device__ __forceinline__ void copy_16(void* to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_copies() {  // of the thread's own groups; a barrier for those of the others
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// Stages: fetch kStages - 1 tiles, each its own group; then for each tile: wait_copies<kStages - 2>(),
// __syncthreads(), fetch tile + kStages - 1 into the stage that the tile before used, commit_copies() even where none
// is left, use it.
// snippet: end
