// Barriers of some of a block's threads, with and without waiting.
#include "check.cuh"

// snippet: begin named_barriers
// Barriers 1 to 15 of a block (0 is __syncthreads), `threads` a multiple of 32: all that take part count, those that
// wait and those that only arrive. As __syncthreads does, both make what was written before visible to those that
// wait.
__device__ __forceinline__ void meet(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ void meet_without_waiting(int name, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
// Handing over a buffer: the writers wait at 14 ("empty"), write, arrive at 15 ("full"); the readers arrive at 14 once
// before all, then wait at 15, read, arrive at 14.
// snippet: end

constexpr int kWriters = 64, kReaders = 96, kAll = kWriters + kReaders, kValues = 192;

__global__ void handed_over(float* out, int rounds) {
    __shared__ float buffer[kValues];
    const int t = threadIdx.x;
    if (t < kWriters) {
        for (int round = 0; round < rounds; ++round) {
            meet(14, kAll);
            for (int i = t; i < kValues; i += kWriters) buffer[i] = round * kValues + i;
            meet_without_waiting(15, kAll);
        }
        meet(14, kAll);  // the readers' last arrival
    } else {
        meet_without_waiting(14, kAll);
        for (int round = 0; round < rounds; ++round) {
            meet(15, kAll);
            for (int i = t - kWriters; i < kValues; i += kReaders) out[round * kValues + i] = buffer[kValues - 1 - i];
            meet_without_waiting(14, kAll);
        }
    }
}

int main(int count, char**) {
    if (count > 1) return verdict();  // nothing here goes without a device
    constexpr int kRounds = 200;
    float* out = both_see<float>(kRounds * kValues);
    handed_over<<<1, kAll>>>(out, kRounds);
    finish();
    for (int i = 0; i < kRounds * kValues; ++i) {
        const int right = i / kValues * kValues + kValues - 1 - i % kValues;
        expect(out[i] == right, "out[%d] is %g, not %d", i, out[i], right);
    }
    return verdict();
}
