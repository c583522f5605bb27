"""Extensions of many kinds, as language models write them, right and wrong ones."""

from typing import NamedTuple


class Case(NamedTuple):
    """How one extension is built and what is asked of it.

    `build` is an expression for what `load_inline` or `load` gives, over `load_inline`, `load`, `SOURCE` and `write`
    (a text into a file; its path). `ask` is an expression for tensors, numbers and texts, over `m`, `torch` and `x`.
    """

    name: str
    source: str
    ask: str = "m.run(x)"
    build: str = 'load_inline("ext", SOURCE, functions=["run"])'
    wrong: bool = False
    """Whether it must fail, the stock way and ours."""


def inline(*options: str, functions: str = '["run"]') -> str:
    """The call of `load_inline` with these options, written out."""
    return "load_inline(" + ", ".join(['"ext"', "SOURCE", f"functions={functions}", *options]) + ")"


def flags(*words: str, link: tuple[str, ...] = ()) -> str:
    """The options for these compiler and linker flags."""
    linking = f", extra_ldflags={list(link)!r}" if link else ""
    return f"extra_cflags={list(words)!r}{linking}"


OPENMP = ("-fopenmp",)
ADD_ONE = "torch::Tensor run(torch::Tensor x) { return x + 1; }"
LOOP = """
torch::Tensor run(torch::Tensor x) {
    x = x.contiguous();
    auto out = torch::empty_like(x);
    const float* in = x.data_ptr<float>();
    float* to = out.data_ptr<float>();
    const int64_t n = x.numel();
    for (int64_t i = 0; i < n; ++i) to[i] = in[i] > 0 ? in[i] : 0.5f * in[i];
    return out;
}
"""
OPENMP_LOOP = """
#include <cmath>
void kernel(const float* __restrict in, float* __restrict out, int64_t n) {
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; ++i) out[i] = std::sqrt(std::fabs(in[i])) * 2.0f;
}
torch::Tensor run(torch::Tensor x) {
    auto y = x.contiguous();
    auto out = torch::empty_like(y);
    kernel(y.data_ptr<float>(), out.data_ptr<float>(), y.numel());
    return out;
}
"""
OWN_MODULE = """
#include <torch/extension.h>
torch::Tensor run(const torch::Tensor& x, double scale) { return x * scale; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.doc() = "of its own";
    m.def("run", &run, "scales", py::arg("x"), py::arg("scale") = 2.0);
    m.attr("answer") = 42;
}
"""
ARGUMENTS = """
torch::Tensor one(torch::Tensor x) { return x + 1; }
torch::Tensor same(torch::Tensor x) { return x; }
int64_t count() { return 7; }
void clear(at::Tensor x) { TORCH_CHECK(x.dim() == 1, "one dimension is wanted, not ", x.dim()); x.zero_(); }
torch::Tensor& kept(torch::Tensor& x) { static torch::Tensor first = x; return first; }
std::vector<at::Tensor> many(const at::Tensor& x, int64_t times, double by, bool too, std::optional<at::Tensor> more) {
    std::vector<at::Tensor> found;
    for (int64_t i = 0; i < times; ++i) found.push_back(x * by);
    if (more.has_value()) found.push_back(*more);
    if (too) found.push_back(x);
    return found;
}
std::tuple<at::Tensor, int, std::string> mixed(
    at::Tensor& x, std::vector<int64_t> shape, std::string text, float by, std::vector<at::Tensor> others) {
    return {x.reshape(shape) * by, int(others.size()), text + "!"};
}
"""
ASKED = """[
    m.one(x), m.same(x) is x, m.count(), m.kept(x) is x, m.kept(x + 1) is x, m.kept(x + 2),
    m.many(x, 2, 1.5, True, None), m.many(x, 1, 3, 0, x), m.clear(x[0].clone()),
    m.many(x, torch.tensor(2), torch.tensor(1.5), torch.tensor(True), None), m.one(torch.nn.Parameter(x)).requires_grad,
    m.mixed(x, [8, 4], "a", 2, [x]), m.mixed(x, torch.Size([32]), b"b", 2, (x, x)),
    *[failing(call) for call in (
        lambda: m.clear(x), lambda: m.one(None), lambda: m.one(), lambda: m.one(3, 4), lambda: m.one(x=3),
        lambda: m.many(1, 2.5, 1.5, True, None), lambda: m.many(1, 2**70, 1.5, True, None), lambda: m.count(1),
        lambda: m.mixed(x, [7], "a", 2, []))],
    *[getattr(m, name).__doc__ for name in ("one", "same", "count", "clear", "many", "mixed")],
]"""

PLAIN = [
    Case("plain", LOOP),
    Case("optimised", LOOP, build=inline(flags("-O3"))),
    Case("optimised a little", LOOP, build=inline(flags("-O1"))),
    Case("openmp", OPENMP_LOOP, build=inline(flags("-O3", "-fopenmp", link=OPENMP))),
    Case("openmp native", OPENMP_LOOP, build=inline(flags("-O3", "-march=native", "-fopenmp", link=OPENMP))),
    Case("fast math", LOOP, build=inline(flags("-O3", "-ffast-math"))),
    Case(
        "several functions",
        "torch::Tensor one(torch::Tensor x) { return x + 1; } torch::Tensor two(torch::Tensor x) { return one(x) * 2; }"
        " double three(torch::Tensor x) { return x.sum().item<double>(); }",
        "[m.one(x), m.two(x), m.three(x)]",
        inline(functions='["one", "two", "three"]'),
    ),
    Case(
        "arguments of many kinds",
        ARGUMENTS,
        ASKED,
        inline(functions='["one", "same", "count", "clear", "kept", "many", "mixed"]'),
    ),
    Case(
        "an argument of a rare kind",
        "torch::Tensor run(torch::Tensor x, at::IntArrayRef s) { return x.view(s); }",
        "m.run(x, [32])",
    ),
    Case("functions with words", ADD_ONE, "[m.run(x), m.run.__doc__]", inline(functions='{"run": "adds one"}')),
    Case("without error handling", ADD_ONE, build=inline("with_pytorch_error_handling=False")),
    Case("own module", OWN_MODULE, "[m.run(x), m.run(x, scale=3.0), m.answer]", 'load_inline("ext", SOURCE)'),
    Case(
        "several texts",
        "",
        build='load_inline("ext", ["torch::Tensor part(torch::Tensor x) { return x.neg(); }",'
        ' "torch::Tensor run(torch::Tensor x) { return part(x).exp(); }"], functions=["run"])',
    ),
    Case("older standard", ADD_ONE, build=inline(flags("-std=c++17"))),
    Case("newer standard", ADD_ONE, build=inline(flags("-std=c++23"))),
    Case("own macro", "torch::Tensor run(torch::Tensor x) { return x * FACTOR; }", build=inline(flags("-DFACTOR=3"))),
    Case("no assertions", ADD_ONE, build=inline(flags("-O2", "-DNDEBUG"))),
    Case("unrolled", LOOP, build=inline(flags("-O2", "-funroll-loops", "-fno-math-errno"))),
    Case("strict warnings", ADD_ONE, build=inline(flags("-Wall", "-Wextra", "-Werror"))),
    Case("debugging", ADD_ONE, build=inline(flags("-g", "-O0"))),
]

TYPES = [
    Case(
        "half types",
        """
        template <typename T> void twice(const T* in, T* out, int64_t n) {
            for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(static_cast<float>(in[i]) * 2.0f);
        }
        torch::Tensor run(torch::Tensor x) {
            auto y = x.contiguous(); auto out = torch::empty_like(y);
            AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, y.scalar_type(), "twice", [&] {
                twice<scalar_t>(y.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), y.numel());
            });
            return out;
        }
        """,
        "[m.run(x), m.run(x.half()), m.run(x.bfloat16()), m.run(x.double())]",
        inline(flags("-O3")),
    ),
    Case(
        "every type",
        """
        torch::Tensor run(torch::Tensor x) {
            auto out = torch::zeros({1}, x.options());
            AT_DISPATCH_ALL_TYPES(x.scalar_type(), "first", [&] {
                out.data_ptr<scalar_t>()[0] = x.data_ptr<scalar_t>()[0];
            });
            return out;
        }
        """,
        "[m.run(x), m.run(x.long()), m.run(x.to(torch.uint8))]",
    ),
    Case(
        "complex",
        "torch::Tensor run(torch::Tensor x) { auto z = torch::complex(x, x);"
        " c10::complex<float> f = z.data_ptr<c10::complex<float>>()[1]; return torch::abs(z) * f.real(); }",
    ),
    Case(
        "accessors",
        "torch::Tensor run(torch::Tensor x) { auto out = torch::empty({x.size(0)}); auto a = x.accessor<float, 2>();"
        " auto o = out.accessor<float, 1>(); for (int64_t i = 0; i < a.size(0); ++i) {"
        " float s = 0; for (int64_t j = 0; j < a.size(1); ++j) s += a[i][j]; o[i] = s; } return out; }",
        build=inline(flags("-O2")),
    ),
    Case(
        "optional and several results",
        "std::tuple<torch::Tensor, std::vector<torch::Tensor>> run(torch::Tensor x, std::optional<torch::Tensor> w,"
        " std::vector<int64_t> dims, bool keep) { auto y = w ? x * *w : x;"
        " return {y.sum(dims, keep), {y, y + 1}}; }",
        "[*m.run(x, None, [0], True)[1], m.run(x, x, [1], False)[0]]",
    ),
    Case(
        "python objects",
        'py::dict run(py::list l, py::object f, std::string s) { py::dict d; d["n"] = l.size(); d["f"] = f(3);'
        ' d["s"] = s + "!"; return d; }',
        "sorted(m.run([1, 2], lambda v: v * 2, 'a').items())",
    ),
    Case(
        "bound class",
        """
        struct Scaler { torch::Tensor w; explicit Scaler(torch::Tensor w_) : w(std::move(w_)) {}
                        torch::Tensor apply(const torch::Tensor& x) const { return x * w; } };
        PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
            py::class_<Scaler>(m, "Scaler").def(py::init<torch::Tensor>()).def("apply", &Scaler::apply)
                .def_readwrite("w", &Scaler::w);
        }
        """,
        "[m.Scaler(x).apply(x), m.Scaler(x).w]",
        'load_inline("ext", SOURCE)',
    ),
]

LIBRARY = [
    Case(
        "parallel_for",
        "torch::Tensor run(torch::Tensor x) { auto out = torch::empty_like(x); auto* a = x.data_ptr<float>();"
        " auto* b = out.data_ptr<float>(); at::parallel_for(0, x.numel(), 64, [&](int64_t s, int64_t e) {"
        " for (int64_t i = s; i < e; ++i) b[i] = a[i] * a[i]; }); return out; }",
        build=inline(flags("-O3", "-fopenmp", link=OPENMP)),
    ),
    Case(
        "parallel_for with its header",
        "#include <ATen/Parallel.h>\ntorch::Tensor run(torch::Tensor x) { auto out = x.clone(); auto* b ="
        " out.data_ptr<float>(); at::parallel_for(0, x.numel(), 8, [&](int64_t s, int64_t e) {"
        " for (int64_t i = s; i < e; ++i) b[i] += 1; }); return out; }",
    ),
    Case(
        "vectors of ATen",
        "#include <ATen/cpu/vec/vec.h>\ntorch::Tensor run(torch::Tensor x) { using V = at::vec::Vectorized<float>;"
        " auto out = torch::empty_like(x); auto* a = x.data_ptr<float>(); auto* b = out.data_ptr<float>();"
        " for (int64_t i = 0; i + V::size() <= x.numel(); i += V::size())"
        " (V::loadu(a + i) * V(2.0f)).store(b + i); return out; }",
        build=inline(flags("-O3", "-march=native")),
    ),
    Case(
        "AVX",
        "#include <immintrin.h>\ntorch::Tensor run(torch::Tensor x) { auto out = torch::empty_like(x);"
        " auto* a = x.data_ptr<float>(); auto* b = out.data_ptr<float>(); for (int64_t i = 0; i + 8 <= x.numel();"
        " i += 8) _mm256_storeu_ps(b + i, _mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_set1_ps(1.5f)));"
        " return out; }",
        build=inline(flags("-O3", "-mavx2", "-mfma")),
    ),
    Case(
        "autograd function",
        """
        struct Twice : torch::autograd::Function<Twice> {
            static torch::Tensor forward(torch::autograd::AutogradContext* c, torch::Tensor x) {
                c->save_for_backward({x}); return x * x; }
            static torch::autograd::variable_list backward(torch::autograd::AutogradContext* c,
                                                            torch::autograd::variable_list g) {
                return {g[0] * c->get_saved_variables()[0] * 2}; }
        };
        torch::Tensor run(torch::Tensor x) { return Twice::apply(x); }
        """,
        "[(y := m.run(z := x.clone().requires_grad_())).detach(), y.sum().backward(), z.grad]",
    ),
    Case(
        "nn module",
        "torch::Tensor run(torch::Tensor x) { torch::nn::Linear l(x.size(1), 2); torch::NoGradGuard g;"
        " l->weight.fill_(0.5); l->bias.zero_(); return l->forward(x); }",
    ),
    Case(
        "nn functional",
        "namespace F = torch::nn::functional;\ntorch::Tensor run(torch::Tensor x) {"
        " return F::gelu(F::relu(x)) + F::softmax(x, F::SoftmaxFuncOptions(1)); }",
        build=inline(flags("-O2")),
    ),
    Case("all of torch", "#include <torch/all.h>\n" + ADD_ONE),
    Case("torch.h", "#include <torch/torch.h>\n#include <iostream>\n" + ADD_ONE),
    Case("the header again", "#include <torch/extension.h>\n#include <torch/extension.h>\n" + ADD_ONE),
    Case("the header in quotes", '#include "torch/extension.h"\n#include <vector>\n' + ADD_ONE),
    Case(
        "indexing",
        "using namespace torch::indexing;\ntorch::Tensor run(torch::Tensor x) {"
        " return x.index({Slice(1, None), Ellipsis}).clone(); }",
    ),
    Case(
        "no gradient",
        "torch::Tensor run(torch::Tensor x) { torch::NoGradGuard guard; auto o ="
        " torch::TensorOptions().dtype(torch::kFloat64); return torch::ones({2, 3}, o) * x.sum().item<double>(); }",
    ),
    Case(
        "within torch",
        "namespace torch { Tensor own(Tensor x) { return x - 1; } }\n"
        "torch::Tensor run(torch::Tensor x) { return torch::own(x); }",
    ),
    Case("using torch", "using namespace torch;\nTensor run(Tensor x) { return relu(x); }"),
    Case(
        "checked",
        'torch::Tensor run(torch::Tensor x) { TORCH_CHECK(x.dim() == 7, "seven axes, not ", x.dim()); return x; }',
        "failing(lambda: m.run(x))",
    ),
    Case(
        "standard names not included",
        'double run(torch::Tensor x) { std::unordered_map<int, std::string> seen; seen[1] = "a";'
        " std::mutex lock; std::lock_guard<std::mutex> held(lock); float v = std::abs(-1.5f);"
        " return v + std::accumulate(seen.begin(), seen.end(), 0.0, [](double a, const auto& b) {"
        " return a + b.second.size(); }); }",
    ),
    Case(
        "threads",
        "#include <thread>\ntorch::Tensor run(torch::Tensor x) { auto out = x.clone(); auto* p ="
        " out.data_ptr<float>(); std::thread t([&] { p[0] = 9; }); t.join(); return out; }",
        build=inline(flags("-O2", "-pthread")),
    ),
    Case(
        "print",
        "#include <iostream>\n#include <sstream>\nstd::string run(torch::Tensor x) {"
        " std::ostringstream o; o << x.sizes() << x.dtype(); return o.str(); }",
    ),
]

QUICK_DIALECTS = [
    Case(
        "operator library",
        "torch::Tensor run(const torch::Tensor& x) { return x * 4; }\n"
        'TORCH_LIBRARY(corpus_a, m) { m.def("run(Tensor x) -> Tensor", &run); }',
        "torch.ops.corpus_a.run(x)",
        'load_inline("ext", SOURCE, is_python_module=False)',
    ),
    Case(
        "operator library, narrow",
        "#include <torch/library.h>\n#include <ATen/ATen.h>\nat::Tensor run(const at::Tensor& x) { return x * 5; }\n"
        'TORCH_LIBRARY(corpus_b, m) { m.def("run(Tensor x) -> Tensor"); }\n'
        'TORCH_LIBRARY_IMPL(corpus_b, CPU, m) { m.impl("run", &run); }',
        "torch.ops.corpus_b.run(x)",
        'load_inline("ext", SOURCE, is_python_module=False, no_implicit_headers=True)',
    ),
    Case(
        "stable interface",
        """
        #include <torch/csrc/stable/library.h>
        #include <torch/csrc/stable/tensor.h>
        int64_t run(torch::stable::Tensor x) { return x.numel(); }
        STABLE_TORCH_LIBRARY(corpus_c, m) { m.def("run(Tensor x) -> int"); }
        STABLE_TORCH_LIBRARY_IMPL(corpus_c, CompositeExplicitAutograd, m) { m.impl("run", TORCH_BOX(&run)); }
        """,
        "torch.ops.corpus_c.run(x)",
        'load_inline("ext", SOURCE, is_python_module=False, no_implicit_headers=True)',
    ),
    Case(
        "plain C",
        '#include <cstdint>\nextern "C" float run(const float* x, int64_t n) {'
        " float s = 0; for (int64_t i = 0; i < n; ++i) s += x[i]; return s; }",
        "sum_by_ctypes(m, x)",
        'load_inline("ext", SOURCE, is_python_module=False, no_implicit_headers=True, extra_cflags=["-O3"])',
    ),
]

FILES = [
    Case(
        "two files",
        "",
        build='load("ext", [write("a.cpp", "#include <torch/extension.h>\\ntorch::Tensor part(torch::Tensor x);\\n'
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def(\\"run\\", &part); }"),'
        ' write("b.cpp", "#include <torch/torch.h>\\ntorch::Tensor part(torch::Tensor x) { return x * 7; }")])',
    ),
    Case(
        "other headers first",
        "",
        build='load("ext", [write("a.cpp", "#include <vector>\\n#include <cmath>\\n#include <torch/extension.h>\\n'
        "torch::Tensor run(torch::Tensor x) { return x.cos(); }\\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def(\\"run\\", &run); }")], extra_cflags=["-O3"])',
    ),
    Case(
        "own header",
        "",
        build='load("ext", [write("a.cpp", "// comment\\n#include <torch/extension.h>\\n#include \\"own.h\\"\\n'
        "torch::Tensor run(torch::Tensor x) { return x * FACTOR; }\\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def(\\"run\\", &run); }")],'
        ' extra_include_paths=[folder(write("inc/own.h", "#define FACTOR 11"))])',
    ),
]

WRONG = [
    Case("syntax", "torch::Tensor run(torch::Tensor x) { return x + ; }", wrong=True),
    Case("unknown name", "torch::Tensor run(torch::Tensor x) { return torch::no_such_thing(x); }", wrong=True),
    Case("wrong type", "torch::Tensor run(torch::Tensor x) { return x.data_ptr<float>(); }", wrong=True),
    Case("no such header", "#include <no/such/header.h>\n" + ADD_ONE, wrong=True),
    Case("function not defined", ADD_ONE, build=inline(functions='["walk"]'), wrong=True),
    Case(
        "declared only",
        "torch::Tensor part(torch::Tensor x);\ntorch::Tensor run(torch::Tensor x) { return part(x); }",
        wrong=True,
    ),
    Case(
        "warnings are errors",
        "torch::Tensor run(torch::Tensor x) { int unused; return x; }",
        build=inline(flags("-O2", "-Wall", "-Werror")),
        wrong=True,
    ),
    Case(
        "a name that the whole header has",
        "namespace torch { namespace nn { struct Linear { int n; }; } }\n" + ADD_ONE,
        wrong=True,
    ),
    Case("no such flag", ADD_ONE, build=inline(flags("-O3", "-fno-such-flag")), wrong=True),
    Case("no such library", ADD_ONE, build=inline('extra_ldflags=["-lno_such_library"]'), wrong=True),
]

CORPUS = {case.name: case for case in [*PLAIN, *TYPES, *LIBRARY, *QUICK_DIALECTS, *FILES, *WRONG]}
