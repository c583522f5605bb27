# ruff: noqa: E501 - programs in one column read better than wrapped ones
"""Right kernels in C++."""

from tests.honest.honest import Honest
from tests.hostile.cheats.problems import CUSTOM_ONLY


def built(name: str, source: str, arguments: str, includes: str = "", flags: str = "'-O2'") -> str:
    """Top-level code that compiles a C function `run` and gives it as RUN; p is a pointer and n a number."""
    types = ", ".join({"p": "ctypes.c_void_p", "n": "ctypes.c_long"}[letter] for letter in arguments)
    return f"""
SOURCE = r'''
{includes}
extern "C" void run({source}
'''
PATH = load_inline(name="{name}", cpp_sources=[SOURCE], extra_cflags=[{flags}], extra_ldflags=["-fopenmp"],
                   no_implicit_headers=True, is_python_module=False)
RUN = ctypes.CDLL(PATH).run
RUN.argtypes = [{types}]
"""


RUNNING_SUM = """const float* x, const float* w, const float* b, float* y, long rows, long n) {
    for (long r = 0; r < rows; ++r) {
        %s sum = 0;
        for (long c = 0; c < n; ++c) { sum += x[r * n + c] * w[c] + b[c]; y[r * n + c] = sum; }
    }
}"""
CALL_RUNNING_SUM = """
y = torch.empty_like(x)
RUN(x.data_ptr(), self.weight.data_ptr(), self.bias.data_ptr(), y.data_ptr(), *x.shape)
return y
"""
PRODUCT = """const float* a, const float* b, float* y, long n) {
    #pragma omp parallel for
    for (long i = 0; i < n; ++i)
        for (long j = 0; j < n; ++j) {
            float sum = 0;
            for (long k = 0; k < n; ++k) sum += a[i * n + k] * b[k * n + j];
            y[i * n + j] = sum;
        }
}"""
CALL_PRODUCT = "y = torch.empty_like(a); RUN(a.data_ptr(), b.data_ptr(), y.data_ptr(), a.shape[0]); return y"
METHOD = f"""
def matmul(self, a, b):
    {CALL_PRODUCT}

def __init__(self):
    super().__init__()
"""
KERNELS = f"""
class Kernels:
    def mm(self, a, b):
        {CALL_PRODUCT}

KERNELS = Kernels()
"""
SOFTMAX = """const float* x, float* y, long rows, long n) {
    for (long r = 0; r < rows; ++r) {
        const float* in = x + r * n; float* out = y + r * n;
        float top = -INFINITY, sum = 0;
        for (long c = 0; c < n; ++c) {  // one pass: the sum is scaled down whenever a larger value comes
            float before = top;
            top = in[c] > top ? in[c] : top;
            sum = sum * expf(before - top) + expf(in[c] - top);
        }
        for (long c = 0; c < n; ++c) out[c] = expf(in[c] - top) / sum;
    }
}"""
POOLED = """const float* x, float* y, long n) {
    static std::vector<std::thread>* crew = nullptr;
    std::vector<std::thread> now;
    for (long part = 0; part < 4; ++part)
        now.emplace_back([=] { for (long i = part; i < n; i += 4) y[i] = x[i] > 0 ? x[i] : 0; });
    for (auto& thread : now) thread.join();
    (void) crew;
}"""
WAITING = """const float* x, float* y, long n) {
    static std::mutex lock; static std::condition_variable wake, done;
    static const float* from; static float* to; static long count; static int turn = 0, finished = 0;
    static bool started = false;
    std::unique_lock<std::mutex> held(lock);
    if (!started) {
        started = true;
        std::thread([] {
            int seen = 0;
            for (;;) {
                std::unique_lock<std::mutex> mine(lock);
                wake.wait(mine, [&] { return turn != seen; });
                seen = turn;
                for (long i = 0; i < count; ++i) to[i] = from[i] > 0 ? from[i] : 0;
                finished = seen; done.notify_one();
            }
        }).detach();
    }
    from = x; to = y; count = n; ++turn; wake.notify_one();
    done.wait(held, [] { return finished == turn; });
}"""
CALL_EACH = "y = torch.empty_like(x); RUN(x.data_ptr(), y.data_ptr(), x.numel()); return y"
THREADS = "#include <condition_variable>\n#include <mutex>\n#include <thread>\n#include <vector>"
LIBRARY = """
SOURCE = '''
#include <torch/extension.h>
torch::Tensor scaled(torch::Tensor x, torch::Tensor weight, double epsilon) {
    auto y = torch::empty_like(x);
    const float *in = x.data_ptr<float>(), *w = weight.data_ptr<float>();
    float* out = y.data_ptr<float>();
    long n = x.size(-1), rows = x.numel() / n;
    at::parallel_for(0, rows, 1, [&](long begin, long end) {
        for (long r = begin; r < end; ++r) {
            double sum = 0;
            for (long c = 0; c < n; ++c) sum += double(in[r * n + c]) * in[r * n + c];
            float factor = 1 / std::sqrt(sum / n + epsilon);
            for (long c = 0; c < n; ++c) out[r * n + c] = in[r * n + c] * factor * w[c];
        }
    });
    return y;
}
'''
OWN = load_inline(name="rows", cpp_sources=[SOURCE], functions=["scaled"], extra_cflags=["-O2"])
"""

COMPILED = [
    Honest("a plain running sum", "weighted", CALL_RUNNING_SUM, built("plain", RUNNING_SUM % "float", "ppppnn")),
    Honest(
        "a running sum in double precision", "weighted", CALL_RUNNING_SUM,
        built("wide", RUNNING_SUM % "double", "ppppnn"),
    ),
    Honest("OpenMP", "product", CALL_PRODUCT, built("openmp", PRODUCT, "pppn", flags="'-O2', '-fopenmp'")),
    Honest(
        "arithmetic that the compiler may reorder", "product", CALL_PRODUCT,
        built("fast", PRODUCT, "pppn", flags="'-O3', '-ffast-math', '-march=native'"),
    ),
    Honest(
        "softmax in one pass", "softmax", "y = torch.empty_like(x); RUN(x.data_ptr(), y.data_ptr(), *x.shape); return y",
        built("online", SOFTMAX, "ppnn", "#include <cmath>"),
    ),
    Honest("threads of its own in every call", "positive", CALL_EACH, built("crew", POOLED, "ppn", THREADS)),
    Honest("a thread that waits between calls", "positive", CALL_EACH, built("waits", WAITING, "ppn", THREADS)),
    Honest("an extension module with a thread pool of the framework", "norm",
           "return OWN.scaled(x, self.weight, self.epsilon)", LIBRARY),
    Honest(
        "an extension that is built in the first call", "positive",
        """
        global RUN
        if RUN is None:
            path = load_inline(name="lazily", cpp_sources=[SOURCE], no_implicit_headers=True, is_python_module=False)
            RUN = ctypes.CDLL(path).run
            RUN.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
        y = torch.empty_like(x)
        RUN(x.data_ptr(), y.data_ptr(), x.numel())
        return y
        """,
        """
        RUN = None
        SOURCE = 'extern "C" void run(const float* x, float* y, long n)'
        SOURCE += '{ for (long i = 0; i < n; ++i) y[i] = x[i] > 0 ? x[i] : 0; }'
        """,
    ),
    Honest("a method of its own that is called like an operator", CUSTOM_ONLY, "return self.matmul(a, b)",
           built("method", PRODUCT, "pppn"), init=METHOD),
    Honest("a product in a thread pool that lives on", CUSTOM_ONLY,
           """
           y = torch.empty_like(a)
           def product(): RUN(a.data_ptr(), b.data_ptr(), y.data_ptr(), a.shape[0])
           self.pool.submit(product).result()
           return y
           """,
           built("pooled", PRODUCT, "pppn") + "from concurrent.futures import ThreadPoolExecutor\n",
           constructor="self.pool = ThreadPoolExecutor(1)"),
    Honest("an object of its own with a method that is called like an operator", CUSTOM_ONLY, "return KERNELS.mm(a, b)",
           built("helper", PRODUCT, "pppn") + KERNELS),
]  # fmt: skip
