import pytest

from sandbox.authenticity import read_authenticity

LAYER = "class ModelNew:\n  def __init__(self): self.conv = nn.Conv2d(1, 1, 1)\n"
KERNEL = "library = ctypes.CDLL(load_inline(name='x', cpp_sources=['']))\n"
CASES = {
    "an own kernel": (KERNEL + "class ModelNew: pass", "custom"),
    "an own function named like an operator": (
        KERNEL + "class ModelNew:\n  def f(s, x): return library.softmax(x)",
        "custom",
    ),
    "a bare function named like an operator": (KERNEL + "class ModelNew:\n  def f(s, x): return softmax(x)", "custom"),
    "a layer that only holds weights": (KERNEL + LAYER, "custom"),
    "a layer that is called": (KERNEL + LAYER + "  def f(self, x): return self.conv(x)", "mixed"),
    "a decoy beside the operator": (KERNEL + "class ModelNew:\n  def f(s, x): return torch.cumsum(x, 1)", "mixed"),
    "a product by the operator @": ("class ModelNew:\n  def f(s, x): return x @ x", "library_only"),
    "a library call in C++": ("S = 'at::matmul(a, b)'\nload_inline(S)\nclass ModelNew: pass", "mixed"),
    "a triton kernel": ("@triton.jit\ndef k(): pass\nclass ModelNew: pass", "custom"),
    "plain arithmetic": ("class ModelNew:\n  def f(s, x): return x * 2", "unknown"),
    "text that is no Python": ("class ModelNew(:", "unknown"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_label_follows_the_source(name):
    source, label = CASES[name]
    assert read_authenticity(source).label == label
