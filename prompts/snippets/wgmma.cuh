#pragma once
#include "asynchronous.cuh"

// snippet: begin wgmma_layouts
// Operands in shared memory lie in panels of S bytes (128, 64, 32, or 16: no swizzle), all lines of a panel one after
// the other, a panel at a multiple of 8 * S. K-major: a line is a row of A or a column of B, along k. MN-major (16
// bits only): a line is one k, along m or n, as B (k, n) has it. Element `byte` of line `line`:
template <int S>
__host__ __device__ constexpr uint32_t place(int lines, int line, int byte) {
    const uint32_t at = byte / S * lines * S + line * S + byte % S;
    return at ^ (at >> 3 & (S - 16));  // the swizzle: bits 4, 5, 6 (S = 128) by bits 7, 8, 9
}
template <int S>
__device__ __forceinline__ uint64_t describe(uint32_t start, uint32_t leading, uint32_t stride) {  // all in bytes
    constexpr uint64_t kMode = S == 128 ? 1 : S == 64 ? 2 : S == 32 ? 3 : 0;
    return (start & 0x3ffff) >> 4 | uint64_t(leading >> 4) << 16 | uint64_t(stride >> 4) << 32 | kMode << 62;
}
// The descriptor of one instruction, whose k is 32 bytes: from byte `byte` of K-major lines, from line `line` of
// MN-major ones. Without swizzle `tile` is any multiple of 16, so that a window may begin at any K-major line.
template <int S>
__device__ __forceinline__ uint64_t k_major(uint32_t tile, int lines, int byte) {
    return describe<S>(tile + byte / S * lines * S + byte % S, lines * 16, 8 * S);
}
template <int S>
__device__ __forceinline__ uint64_t mn_major(uint32_t tile, int lines, int line) {
    const int panel = lines * S, eight = 8 * S;
    return describe<S>(tile + line * S, S == 16 ? eight : panel, S == 16 ? panel : eight);
}
// snippet: end

// snippet: begin wgmma_order
// 128 threads, warps 4w to 4w + 3, run all of this together. It needs
// extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"].
__device__ __forceinline__ void show_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending, int N>
__device__ __forceinline__ void wait_products(float (&d)[N]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");  // no use of d moves up
}
// Plain stores to operands (or copy_16 and its wait), show_stores() by whoever stored, a barrier; begin_products()
// (after every write to d or to A in registers), instructions, commit_products(); wait_products<0>(d) before d, A in
// registers or a tile is touched.
// snippet: end
