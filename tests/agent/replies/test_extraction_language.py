import pytest

from tests.agent.replies.test_extraction import FINAL, REFERENCE, extracted, fenced

LANGUAGES = {
    "C++ handed to load_inline": ("cpp", FINAL),
    "CUDA handed to load_inline": ("cuda", FINAL.replace("cpp_sources=SOURCE", "cpp_sources='', cuda_sources=SOURCE")),
    "CUDA as the third argument": (
        "cuda",
        FINAL.replace('load_inline(name="relu_final", cpp_sources=SOURCE', "load_inline('relu', '', SOURCE"),
    ),
    "CUDA handed over as C++": (
        "cuda",
        FINAL.replace("torch::Tensor relu", "__global__ void f() {}\ntorch::Tensor relu"),
    ),
    "no CUDA sources": ("cpp", FINAL.replace("functions=", "cuda_sources=[], functions=")),
    "a module name before the loader": (
        "cpp",
        FINAL.replace(
            "from torch.utils.cpp_extension import load_inline", "from torch.utils import cpp_extension"
        ).replace("load_inline(", "cpp_extension.load_inline("),
    ),
    "a C++ file": (
        "cpp",
        FINAL.replace("import load_inline", "import load").replace("load_inline(", 'load(sources=["a.cpp"], '),
    ),
    "a CUDA file": (
        "cuda",
        FINAL.replace("import load_inline", "import load").replace("load_inline(", 'load(sources=["a.cu"], '),
    ),
    "CUDA with headers of CuTe": (
        "cutlass",
        FINAL.replace("torch::Tensor relu", "#include <cute/tensor.hpp>\n__global__ void f() {}\ntorch::Tensor relu"),
    ),
    "CUDA that only speaks of CUTLASS": (
        "cuda",
        FINAL.replace("torch::Tensor relu", "// as cutlass/gemm\n__global__ void f() {}\ntorch::Tensor relu"),
    ),
    "Triton": ("triton", "import torch\nimport triton\n@triton.jit\ndef k(x):\n    pass\nclass ModelNew: pass"),
    "Triton, imported by name": (
        "triton",
        "import torch\nfrom triton import jit\n@jit\ndef k(x):\n    pass\nclass ModelNew: pass",
    ),
    "TileLang": (
        "tilelang",
        "import torch\nimport tilelang.language as T\n@T.prim_func\ndef k(x):\n    pass\nclass ModelNew: pass",
    ),
    "TileLang, compiled by a call": (
        "tilelang",
        "import torch\nfrom tilelang import compile\nk = compile(f)\nclass ModelNew: pass",
    ),
    "Helion": ("helion", "import torch\nimport helion\n@helion.kernel()\ndef k(x):\n    pass\nclass ModelNew: pass"),
    "CuTe's Python language": (
        "cute",
        "import torch\nimport cutlass.cute as cute\n@cute.kernel\ndef k(x):\n    pass\nclass ModelNew: pass",
    ),
    "plain PyTorch": ("python", REFERENCE.replace("Model", "ModelNew")),
    "a torch.load is no loader": (
        "python",
        REFERENCE.replace("Model", "ModelNew") + "\nweights = torch.load('w.pt')\n",
    ),
}


@pytest.mark.parametrize("case", LANGUAGES)
def test_the_language_is_told_from_the_source(case: str) -> None:
    language, source = LANGUAGES[case]
    assert extracted(fenced(source)).language == language
