import re

from kernelwright.problems.languages.language import Example, Language, Package

LANGUAGE = Language(
    name="cute",
    words="CuTe's Python language (CUTLASS 4)",
    device="cuda",
    order=60,
    examples=(Example("cute", torch="2.4"),),
    imports="torch, cuda.bindings and cutlass",
    compiled_by="asking",
    module="cute",
    marks=frozenset({"kernel", "jit"}),
    decorators=(frozenset({"cute", "kernel"}), frozenset({"jit"})),
    package=Package(
        distribution="nvidia-cutlass-dsl",
        module="cutlass",
        requirement="kernelwright[cute]",
        used=re.compile(r"^\s*(?:from|import) cutlass\b", re.MULTILINE),
    ),
    environment=(("CUTE_DSL_CACHE_DIR", "{kept}/cute"),),
    kernelbench="cute",
)
