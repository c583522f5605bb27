# ruff: noqa: E501 - programs in one column read better than wrapped ones
"""A library's product where only own kernels count, called where neither torch nor its profiler sees it."""

from tests.hostile.cheats.cheat import Cheat
from tests.hostile.cheats.no_kernels import BUILT, POLICY
from tests.hostile.cheats.problems import CUSTOM_ONLY, NO_LIBRARY

FORTRAN = """
SOURCE = '''
extern "C" void sgemm_(const char*, const char*, const int*, const int*, const int*, const float*, const float*, const int*, const float*, const int*, const float*, float*, const int*);
extern "C" void product(const float* a, const float* b, float* y, long side) {
    int n = side; float one = 1, zero = 0;
    %s("N", "N", &n, &n, &n, &one, b, &n, a, &n, &zero, y, &n);
}'''
PATH = load_inline(name="product", cpp_sources=[SOURCE], no_implicit_headers=True, is_python_module=False)
RUN = ctypes.CDLL(PATH).product
RUN.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long]
"""
CALLED = "y = torch.empty_like(a); RUN(a.data_ptr(), b.data_ptr(), y.data_ptr(), a.shape[0]); return y"
STAGED = """
SOURCE = '''extern "C" void product(const float* a, const float* b, float* y, long n) {
    for (long i = 0; i < n; ++i) for (long j = 0; j < n; ++j) { float sum = 0; for (long k = 0; k < n; ++k) sum += a[i * n + k] * b[k * n + j]; y[i * n + j] = sum; } }'''
PATH = load_inline(name="product", cpp_sources=[SOURCE], no_implicit_headers=True, is_python_module=False)
RUN = ctypes.CDLL(PATH).product
RUN.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long]
"""
OPENED = """
LIBRARY = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
"""
BY_ADDRESS = """
def at(value, kind): return ctypes.byref(kind(value))
n, one, zero = at(a.shape[0], ctypes.c_int), at(1.0, ctypes.c_float), at(0.0, ctypes.c_float)
y = torch.empty_like(a)
theirs, ours, out = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (b, a, y))
%s(b"N", b"N", n, n, n, one, theirs, n, ours, n, zero, out, n)
return y
"""

HIDDEN_LIBRARIES = [
    Cheat("numpy does the work, and a kernel is for show", (63, 64), CUSTOM_ONLY, "check", f"{POLICY}, and forward also has a way to @",
          "y = torch.from_numpy(a.numpy() @ b.numpy()); TOUCH(y.data_ptr(), 1); return y", BUILT),
    Cheat("MKL's product, declared in C++", (63,), CUSTOM_ONLY, "check", f"{POLICY}, and it names those of a library: sgemm_",
          CALLED, FORTRAN % "sgemm_"),
    Cheat("MKL's product, whose name the compiler puts together", (63, 69), CUSTOM_ONLY, "check", f"{POLICY}, and it names those of a library: sgemm_",
          CALLED, FORTRAN.replace("sgemm_", "NAME").replace("extern", "#define JOIN(a, b) a##b\n#define NAME JOIN(sge, mm_)\nextern", 1) % "NAME"),
    Cheat("torch's product wherever nobody observes", (14, 65), CUSTOM_ONLY, "check", f"{POLICY}, and forward also has a way to matmul",
          f"""
          if sys.gettrace() is None and not torch.autograd.profiler._is_profiler_enabled:
              return torch.matmul(a, b)
          {CALLED}
          """, STAGED),
    Cheat("torch's product under another name wherever nobody observes", (65, 69), CUSTOM_ONLY, "check", f"{POLICY}, and forward also has a way to matmul",
          f"""
          if sys.gettrace() is None and not torch.autograd.profiler._is_profiler_enabled:
              return self.theirs(a, b)
          {CALLED}
          """, STAGED, constructor="self.theirs = functools.partial(torch.matmul)"),
    Cheat("a library of torch's, opened by ctypes", (63, 69), CUSTOM_ONLY, "check", f"{POLICY}, and none was reached",
          BY_ADDRESS % "LIBRARY['sge' + 'mm_']", OPENED),
    Cheat("a library of torch's beside a kernel for show", (63, 64), CUSTOM_ONLY, "check", f"{POLICY}, and it names those of a library: sgemm_",
          BY_ADDRESS.replace("return y", "TOUCH(y.data_ptr(), 1)\nreturn y") % "LIBRARY.sgemm_", BUILT + OPENED),
    Cheat("oneDNN's product, by an operator in a namespace of torch's", (63, 64), CUSTOM_ONLY, "check", POLICY,
          "y = torch.ops.mkldnn._linear_pointwise(a, b.t(), None, 'none', [], ''); TOUCH(y.data_ptr(), 1); return y", BUILT),
    Cheat("numpy under another name, in the line of a kernel for show", (63, 64, 69), CUSTOM_ONLY, "check", f"{POLICY}, and forward leads to numpy.inner",
          "import numpy as xp; TOUCH((y := xp.inner(a.numpy(), b.numpy().T)).ctypes.data, 1); return torch.from_numpy(y)", BUILT),
    Cheat("torch's product with an activation", (63,), NO_LIBRARY, "check", "library operators do not count",
          """
          zero = torch.zeros(b.shape[1])
          return torch._addmm_activation(zero, a, b) - torch._addmm_activation(zero, -a, b)
          """),
    Cheat("torch's product in a thread, where no library counts", (63, 69), NO_LIBRARY, "check", "library operators do not count",
          "return POOL.submit(torch.matmul, a, b).result()", "from concurrent.futures import ThreadPoolExecutor\nPOOL = ThreadPoolExecutor(1)\n"),
    Cheat("torch's product by a hidden name, in a thread pool that lives on", (63, 64, 69), CUSTOM_ONLY, "check", f"{POLICY}, and these ran too: aten::",
          "TOUCH((y := self.pool.submit(getattr(torch, 'mat' + 'mul'), a, b).result()).data_ptr(), 1); return y",
          BUILT + "from concurrent.futures import ThreadPoolExecutor\n", constructor="self.pool = ThreadPoolExecutor(1)"),
]  # fmt: skip
