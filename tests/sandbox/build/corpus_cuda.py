"""CUDA extensions as language models write them. They need nvcc to build and a device to run."""

from tests.sandbox.build.corpus import Case

DECLARED = "torch::Tensor run(torch::Tensor x);"


def cuda(*options: str) -> str:
    """The call of `load_inline` for a kernel with its host function in the CUDA source."""
    words = ['"ext"', repr(DECLARED), "cuda_sources=[SOURCE]", 'functions=["run"]', *options]
    return "load_inline(" + ", ".join(words) + ")"


LAUNCH = """
torch::Tensor run(torch::Tensor x) {
    TORCH_CHECK(x.is_cuda(), "on the device");
    x = x.contiguous();
    auto out = torch::empty_like(x);
    const int n = x.numel();
    kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), n);
    return out;
}
"""
PLAIN = (
    """
#include <torch/extension.h>
#include <cuda_runtime.h>
__global__ void kernel(const float* a, float* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) b[i] = a[i] > 0 ? a[i] : 0.25f * a[i];
}
"""
    + LAUNCH
)
CASES = [
    Case("cuda plain", PLAIN, build=cuda()),
    Case("cuda optimised", PLAIN, build=cuda('extra_cuda_cflags=["-O3", "--use_fast_math"]', 'extra_cflags=["-O3"]')),
    Case(
        "cuda stream and checks",
        """
        #include <torch/extension.h>
        #include <ATen/cuda/CUDAContext.h>
        #include <c10/cuda/CUDAException.h>
        __global__ void kernel(const float* a, float* b, int n) {
            for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) b[i] = a[i] * 3;
        }
        torch::Tensor run(torch::Tensor x) {
            auto out = torch::empty_like(x);
            kernel<<<1, 32, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), out.data_ptr<float>(),
                                                                  static_cast<int>(x.numel()));
            C10_CUDA_KERNEL_LAUNCH_CHECK();
            return out;
        }
        """,
        build=cuda(),
    ),
    Case(
        "cub",
        """
        #include <torch/extension.h>
        #include <cub/cub.cuh>
        __global__ void kernel(const float* a, float* b, int n) {
            using Reduce = cub::BlockReduce<float, 256>;
            __shared__ typename Reduce::TempStorage room;
            float sum = Reduce(room).Sum(threadIdx.x < n ? a[threadIdx.x] : 0.0f);
            if (threadIdx.x == 0) b[0] = sum;
        }
        torch::Tensor run(torch::Tensor x) {
            auto out = torch::zeros({1}, x.options());
            kernel<<<1, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.numel());
            return out;
        }
        """,
        build=cuda(),
    ),
    Case(
        "cooperative groups",
        """
        #include <torch/extension.h>
        #include <cooperative_groups.h>
        #include <cooperative_groups/reduce.h>
        namespace cg = cooperative_groups;
        __global__ void kernel(const float* a, float* b, int n) {
            auto warp = cg::tiled_partition<32>(cg::this_thread_block());
            float sum = cg::reduce(warp, a[threadIdx.x % n], cg::plus<float>());
            if (warp.thread_rank() == 0) b[0] = sum;
        }
        torch::Tensor run(torch::Tensor x) {
            auto out = torch::zeros({1}, x.options());
            kernel<<<1, 32>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.numel());
            return out;
        }
        """,
        build=cuda(),
    ),
    Case(
        "cuda half and dispatch",
        """
        #include <torch/extension.h>
        #include <cuda_fp16.h>
        template <typename T> __global__ void kernel(const T* a, T* b, int n) {
            int i = threadIdx.x;
            if (i < n) b[i] = static_cast<T>(static_cast<float>(a[i]) + 1.0f);
        }
        torch::Tensor run(torch::Tensor x) {
            auto out = torch::empty_like(x);
            AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "kernel", [&] {
                kernel<scalar_t><<<1, 64>>>(x.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), x.numel());
            });
            return out;
        }
        """,
        "[m.run(x), m.run(x.half()), m.run(x.double())]",
        cuda(),
    ),
    Case(
        "cuda binding of its own",
        PLAIN + 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }',
        build='load("ext", [write("only.cu", SOURCE)])',
    ),
    Case(
        "cuda raw pointers",
        """
        #include <cstdint>
        #include <cuda_runtime.h>
        __global__ void kernel(const float* a, float* b, int64_t n) {
            if (threadIdx.x < n) b[threadIdx.x] = -a[threadIdx.x];
        }
        extern "C" int run(const float* a, float* b, int64_t n) {
            kernel<<<1, 64>>>(a, b, n);
            return cudaGetLastError();
        }
        """,
        "negated_by_ctypes(m, x)",
        'load_inline("ext", [""], cuda_sources=[SOURCE], is_python_module=False, no_implicit_headers=True)',
    ),
    Case("cuda syntax", PLAIN.replace("b[i] =", "b[i] +* ="), build=cuda(), wrong=True),
    Case("cuda unknown name", PLAIN.replace("torch::empty_like", "torch::empty_lik"), build=cuda(), wrong=True),
]
CUDA = {case.name: case for case in CASES}
