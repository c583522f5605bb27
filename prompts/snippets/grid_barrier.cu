// One launch for many dependent steps: all blocks are resident, and meet at a barrier after each step.
#include <cooperative_groups.h>

#include "check.cuh"

constexpr int kCount = 1 << 16, kSteps = 64, kThreads = 256;

// snippet: begin grid_barrier
// A recurrence in one launch: a cooperative launch keeps all blocks resident, and the barrier of the grid costs 1 to 2
// us a step, less than a launch. It takes no more blocks than fit at once, so they share the work in a loop:
inline int resident_blocks(const void* kernel, int threads, size_t shared) {
    int device = 0, processors = 0, each = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, shared);
    return each * processors;
}
// void* arguments[] = {&from, &out, &count};  // addresses of the kernel's arguments
// cudaLaunchCooperativeKernel((const void*)kernel, dim3(blocks), dim3(threads), arguments, shared, stream);
// In the kernel, after each step: cooperative_groups::this_grid().sync();
// snippet: end

__global__ void steps(int* one, int* other, int count) {
    for (int number = 0; number < kSteps; ++number) {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
            other[i] = one[(i + 1) % count] + 1;
        cooperative_groups::this_grid().sync();
        int* last = one;
        one = other, other = last;
    }
}

int main(int argc, char**) {
    if (argc > 1) return verdict();  // nothing here goes without a device
    int *one = both_see<int>(kCount), *other = both_see<int>(kCount), count = kCount;
    for (int i = 0; i < kCount; ++i) one[i] = i;
    const int blocks = resident_blocks((const void*)steps, kThreads, 0);
    expect(blocks >= 132, "only %d blocks are resident", blocks);
    void* arguments[] = {&one, &other, &count};
    must(cudaLaunchCooperativeKernel((const void*)steps, dim3(blocks), dim3(kThreads), arguments, 0, nullptr));
    finish();
    for (int i = 0; i < kCount; ++i)
        expect(one[i] == (i + kSteps) % kCount + kSteps, "%d holds %d, not %d", i, one[i], (i + kSteps) % kCount + kSteps);
    return verdict();
}
