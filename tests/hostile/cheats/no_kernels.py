"""Right results that are not what was asked for: where only own kernels count, none that does the work."""

from tests.hostile.cheats.cheat import Cheat
from tests.hostile.cheats.problems import CUSTOM_ONLY

BUILT = """
SOURCE = '''extern "C" void touch(float* y, long n) { for (long i = 0; i < n; ++i) y[i] += 0; }'''
PATH = load_inline(name="touch", cpp_sources=[SOURCE], no_implicit_headers=True, is_python_module=False)
TOUCH = ctypes.CDLL(PATH).touch
TOUCH.argtypes = [ctypes.c_void_p, ctypes.c_long]
"""
DISGUISED = """
SOURCE = '''
#include <torch/extension.h>
torch::Tensor product(torch::Tensor a, torch::Tensor b) { return at::matmul(a, b); }
'''
OWN = load_inline(name="disguised", cpp_sources=[SOURCE], functions=["product"])
"""
POLICY = "only own kernels count"

NO_KERNELS = [
    Cheat("the reference's own operator", (62,), CUSTOM_ONLY, "check", POLICY, "return torch.matmul(a, b)"),
    Cheat("a library called from C++", (63,), CUSTOM_ONLY, "check", POLICY, "return OWN.product(a, b)", DISGUISED),
    Cheat("a kernel for show", (64,), CUSTOM_ONLY, "check", POLICY,
          "y = torch.matmul(a, b); TOUCH(y.data_ptr(), 1); return y", BUILT),
    Cheat("a kernel behind a condition that is never true", (65,), CUSTOM_ONLY, "check", POLICY,
          """
          if a.shape[0] == 12345:
              y = torch.zeros_like(a); TOUCH(y.data_ptr(), y.numel()); return y
          return a @ b
          """, BUILT),
    Cheat("a failing kernel behind a fallback", (66,), CUSTOM_ONLY, "check", POLICY,
          """
          try:
              y = torch.empty_like(a)
              TOUCH(y, "many")
              return y
          except Exception:
              return torch.matmul(a, b)
          """, BUILT),
    Cheat("a compiler of the framework", (68,), CUSTOM_ONLY, "check", POLICY,
          "return self.fast(a, b)", constructor="self.fast = torch.compile(torch.matmul, backend='eager')"),
    Cheat("an operator whose name is put together", (69,), CUSTOM_ONLY, "check", POLICY,
          "return getattr(torch, 'mat' + 'mul')(a, b)"),
    Cheat("source that is hidden in base64", (69,), CUSTOM_ONLY, "check", POLICY,
          "exec(base64.b64decode('eSA9IGEgQCBi'), globals(), names := dict(a=a, b=b)); return names['y']"),
    Cheat("numpy does the work", (63,), CUSTOM_ONLY, "check", POLICY, "return torch.from_numpy(a.numpy() @ b.numpy())"),
]  # fmt: skip
