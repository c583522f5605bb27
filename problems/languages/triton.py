from kernelwright.problems.languages.language import Example, Language

# Behind those that are built on it: their sources may import Triton too.
LANGUAGE = Language(
    name="triton",
    words="Triton",
    device="cuda",
    order=80,
    examples=(Example("triton", torch="2.0"),),
    imports="torch and triton",
    compiled_by="calling",
    module="triton",
    marks=frozenset({"jit", "autotune"}),
    decorators=(frozenset({"jit"}), frozenset({"autotune"}), frozenset({"heuristics"})),
    needs_python_header=True,
    kernelbench="triton",
    flashinfer="triton",
)
