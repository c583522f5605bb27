// A chain of small kernels: each starts while the one before it still runs (programmatic dependent launch).
#include "check.cuh"

constexpr int kCount = 1 << 16, kSteps = 50;

// snippet: begin chained
// Between dependent kernels a stream idles for some microseconds. Launched like this, a kernel's blocks start while the
// kernel before drains; what stands before its wait (index arithmetic, weights on their way) overlaps with that.
template <class... Parameters, class... Values>
void launch_early(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                  Values... values) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared, config.stream = stream;
    config.attrs = &early, config.numAttrs = 1;
    cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(values)...);
}
// Every kernel of the chain calls both before it reads or writes what another kernel of the chain does:
__device__ __forceinline__ void let_next_kernel_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void wait_for_kernels_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// snippet: end

__global__ void step(const int* from, int* out, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    let_next_kernel_start();
    wait_for_kernels_before();
    if (i < count) out[i] = from[(i + 1) % count] + 1;
}

int main(int argc, char**) {
    if (argc > 1) return verdict();  // nothing here goes without a device
    int *one = both_see<int>(kCount), *other = both_see<int>(kCount);
    for (int i = 0; i < kCount; ++i) one[i] = i;
    for (int number = 0; number < kSteps; ++number) {
        launch_early(step, kCount / 256, 256, 0, nullptr, one, other, kCount);
        int* last = one;
        one = other, other = last;
    }
    finish();
    for (int i = 0; i < kCount; ++i)
        expect(one[i] == (i + kSteps) % kCount + kSteps, "%d holds %d, not %d", i, one[i], (i + kSteps) % kCount + kSteps);
    return verdict();
}
