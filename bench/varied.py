"""Twenty-eight C++ answers with flags, headers and ways of their own, as models write them. No two are built alike."""

ANSWER = '''
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
{includes}
{code}
"""
module = load_inline(name="answer_{number}", cpp_sources=SOURCE, {functions}extra_cflags={flags}, extra_ldflags={link})

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.run(x)
'''
LOOP = """torch::Tensor run(torch::Tensor x) {{
    TORCH_CHECK(x.dtype() == torch::kFloat32, "float32 only");
    x = x.contiguous();
    auto out = torch::empty_like(x);
    const float* a = x.data_ptr<float>();
    float* b = out.data_ptr<float>();
    const int64_t n = x.numel();
    {before}for (int64_t i = 0; i < n; ++i) {{ {body} }}
    return out;
}}
"""
OPENMP = "#pragma omp parallel for\n    "
BINDS_ITSELF = 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run, "as asked", py::arg("x")); }\n'


def loop(body: str, before: str = "") -> str:
    """A function over all elements."""
    return LOOP.format(body=body, before=before)


DISPATCHED = """torch::Tensor run(torch::Tensor x) {
    auto out = torch::zeros_like(x);
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "run", [&] {
        for (int64_t i = 0; i < x.numel(); ++i) out.data_ptr<scalar_t>()[i] = x.data_ptr<scalar_t>()[i] * scalar_t(2);
    });
    return out;
}
"""
PARALLEL = """torch::Tensor run(torch::Tensor x) {
    auto out = at::empty(x.sizes(), x.options());
    const float* a = x.data_ptr<float>();
    float* b = out.data_ptr<float>();
    at::parallel_for(0, x.numel(), 4096, [&](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; ++i) b[i] = a[i] > 0 ? a[i] : 0.0f;
    });
    return out;
}
"""
ACCESSED = """torch::Tensor run(torch::Tensor x) {
    torch::NoGradGuard no_grad;
    auto flat = x.reshape({-1});
    auto out = torch::full({flat.size(0)}, 1.0, x.options());
    auto a = flat.accessor<float, 1>(), b = out.accessor<float, 1>();
    for (int64_t i = 0; i < flat.size(0); ++i) b[i] += a[i];
    return out.view(x.sizes());
}
"""
OPERATORS = "torch::Tensor run(torch::Tensor x) { return torch::softmax(x, -1).mul(2).sum(-1, true) + at::relu(x); }\n"
SEVERAL = "std::vector<torch::Tensor> run(torch::Tensor x) { return {x.clone(), torch::cat({x, x}, 0)}; }\n"
MODULE = "torch::Tensor run(torch::Tensor x) { return torch::nn::functional::gelu(x); }\n"
USING = "using namespace torch;\nTensor run(Tensor x) { return relu(x); }\n"
VECTORS = """torch::Tensor run(torch::Tensor x) {
    auto out = x.clone();
    float* b = out.data_ptr<float>();
    for (int64_t i = 0; i + 8 <= out.numel(); i += 8)
        _mm256_storeu_ps(b + i, _mm256_max_ps(_mm256_loadu_ps(b + i), _mm256_setzero_ps()));
    return out;
}
"""
TANH, LEAKY = "b[i] = std::tanh(a[i]);", "b[i] = a[i] > 0 ? a[i] : 0.01f * a[i];"
SWISH, CLIP = "b[i] = a[i] / (1.0f + std::exp(-a[i]));", "b[i] = std::min(std::max(a[i], -1.0f), 1.0f);"
ERF, MISH = "b[i] = 0.5f * a[i] * (1.0f + std::erf(a[i]));", "b[i] = a[i] * std::tanh(std::log1p(std::exp(a[i])));"
ROWS: list[tuple[str, str, str]] = [
    ("", "", loop(LEAKY)),
    ("-O1", "cmath", loop(TANH)),
    ("-O2", "cmath vector", loop(SWISH)),
    ("-O3", "algorithm cmath", loop(CLIP)),
    ("-Ofast", "cmath", loop(ERF)),
    ("-O3 -march=native", "cmath immintrin.h", VECTORS),
    ("-O3 -fopenmp", "cmath omp.h", loop(SWISH, OPENMP)),
    ("-O3 -march=native -fopenmp", "cmath omp.h", loop(MISH, OPENMP)),
    ("-O3 -ffast-math", "cmath", loop(MISH)),
    ("-O3 -ffast-math -march=native -fopenmp", "cmath limits", loop(ERF, OPENMP)),
    ("-O2 -funroll-loops", "algorithm", loop(CLIP)),
    ("-O3 -std=c++17", "cmath", loop(TANH)),
    ("-O2 -mavx2 -mfma", "immintrin.h", VECTORS),
    ("-O3 -mavx2", "immintrin.h algorithm", VECTORS.replace("clone", "contiguous().clone")),
    ("-O3 -DNDEBUG", "ATen/Parallel.h", PARALLEL),
    ("-O2 -Wall", "ATen/ATen.h", PARALLEL.replace("4096", "1024")),
    ("-O2 -fno-math-errno", "cmath", loop(ERF)),
    ("-O3 -fno-trapping-math", "cmath", loop(SWISH)),
    ("-g -O1", "vector", ACCESSED),
    ("-O3 -funroll-loops -ffast-math", "vector numeric", ACCESSED.replace("+= a", "-= a")),
    ("-O2 -march=native", "ATen/Dispatch.h", DISPATCHED),
    ("-O3 -march=native -ffast-math", "", OPERATORS),
    ("-O1 -fopenmp", "vector tuple", SEVERAL),
    ("-O2 -std=c++20", "", loop(LEAKY) + BINDS_ITSELF),
    ("-O3 -fPIC", "pybind11/pybind11.h", OPERATORS + BINDS_ITSELF),
    ("-O3 -fvisibility=hidden", "torch/torch.h", MODULE),
    ("-O2 -fopenmp -march=native", "iostream", USING),
    ("-Os", "torch/torch.h", loop(LEAKY)),
]


def answer(number: int) -> str:
    """The candidate of a row."""
    flags, includes, code = ROWS[number]
    return ANSWER.format(
        number=number,
        flags=flags.split(),
        link=["-fopenmp"] if "-fopenmp" in flags else [],
        includes="\n".join(f"#include <{name}>" for name in includes.split()),
        code=code,
        functions="" if BINDS_ITSELF in code else 'functions=["run"], ',
    )
