// Registers that one warpgroup gives up and others take.
#include "check.cuh"

// snippet: begin setmaxnreg
// __launch_bounds__(384, 1) gives 3 warpgroups 168 registers a thread (4 warpgroups: 128). What they all have stays
// the launch's: 24 + 240 + 240 = 3 * 168; with four 32 + 160 + 160 + 160 = 4 * 128. All four warps of a warpgroup
// execute it, first thing in their branch; a constant, a multiple of 8; for sm_90a. .inc waits until others have
// given up enough.
template <int kCount>
__device__ __forceinline__ void give_up_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
// snippet: end

// Each thread of the warpgroups that take holds kHeld values at a time, more than the launch would let it.
template <int kThreads, int kLess, int kMore, int kHeld>
__global__ __launch_bounds__(kThreads, 1) void uneven(const float* from, float* out, int rounds) {
    if (threadIdx.x < 128) {
        give_up_registers<kLess>();
        out[threadIdx.x] = from[threadIdx.x] + 1;
    } else {
        take_registers<kMore>();
        float held[kHeld];
#pragma unroll
        for (int i = 0; i < kHeld; ++i) held[i] = from[i] + threadIdx.x;
        for (int round = 0; round < rounds; ++round) {
            const float first = held[0];
#pragma unroll
            for (int i = 0; i + 1 < kHeld; ++i) held[i] = held[i + 1] * 2 - held[i];
            held[kHeld - 1] = first;
        }
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) sum += held[i];
        out[threadIdx.x] = sum;
    }
}

template <int kThreads, int kLess, int kMore, int kHeld, int kAtLaunch>
void check(const float* from, float* out) {
    constexpr int kRounds = 3;
    auto kernel = uneven<kThreads, kLess, kMore, kHeld>;
    cudaFuncAttributes found;
    must(cudaFuncGetAttributes(&found, kernel));
    expect(found.numRegs == kAtLaunch, "%d threads start with %d registers", kThreads, found.numRegs);
    expect(found.localSizeBytes == 0, "%d values are not held in registers", kHeld);
    static_assert(kLess + (kThreads / 128 - 1) * kMore == kThreads / 128 * kAtLaunch);
    kernel<<<4, kThreads>>>(from, out, kRounds);
    finish();
    for (int t = 0; t < kThreads; ++t) {
        float held[kHeld], right = 0;
        for (int i = 0; i < kHeld; ++i) held[i] = from[i] + t;
        for (int round = 0; round < kRounds; ++round) {
            const float first = held[0];
            for (int i = 0; i + 1 < kHeld; ++i) held[i] = held[i + 1] * 2 - held[i];
            held[kHeld - 1] = first;
        }
        for (int i = 0; i < kHeld; ++i) right += held[i];
        if (t < 128) right = from[t] + 1;
        expect(out[t] == right, "%d threads: thread %d has %g, not %g", kThreads, t, out[t], right);
    }
}

int main(int count, char**) {
    if (count > 1) return verdict();  // nothing here goes without a device
    Draw draw;
    float *from = both_see<float>(256), *out = both_see<float>(512);
    for (int i = 0; i < 256; ++i) from[i] = draw.whole();
    check<384, 24, 240, 200, 168>(from, out);
    check<512, 32, 160, 140, 128>(from, out);
    return verdict();
}
