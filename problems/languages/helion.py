import re

from kernelwright.problems.languages.language import Example, Language, Package

# KernelBench has no backend for Helion, whose kernels become Triton's.
LANGUAGE = Language(
    name="helion",
    words="Helion",
    device="cuda",
    order=50,
    examples=(Example("helion", torch="2.9"),),
    imports="torch and helion",
    compiled_by="calling",
    module="helion",
    marks=frozenset({"kernel", "jit"}),
    decorators=(frozenset({"helion", "kernel"}),),
    compiled_loops=frozenset({"hl", "tile"}),
    package=Package(
        distribution="helion",
        module="helion",
        requirement="kernelwright[helion]",
        used=re.compile(r"\bhelion\b"),
        torch_since=("1.5", "2.12"),
    ),
    needs_python_header=True,
    environment=(
        ("HELION_CACHE_DIR", "{kept}/helion"),
        ("HELION_AUTOTUNE_EFFORT", "none"),  # a search for a configuration takes minutes, and would be timed
    ),
    kernelbench="triton",
)
