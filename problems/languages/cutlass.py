import re

from kernelwright.problems.languages.language import Example, Language, Package

LANGUAGE = Language(
    name="cutlass",
    words="CUDA C++ with the headers of CUTLASS and CuTe",
    device="cuda",
    order=30,
    examples=(Example("cutlass", torch="2.8"),),
    is_cuda=True,
    include=re.compile(r"#\s*include\s*[<\"](?:cute|cutlass)/"),
    package=Package(
        distribution="nvidia-cutlass",
        module="cutlass_library",
        requirement="kernelwright[cutlass]",
        used=re.compile(r"[<\"](?:cute|cutlass)/"),
        headers=("source/include", "cute/tensor.hpp"),
    ),
    needs_nvcc=True,
    kernelbench="cuda",
)
