import re

from kernelwright.problems.languages.language import Example, Language, Package

LANGUAGE = Language(
    name="tilelang",
    words="TileLang",
    device="cuda",
    order=40,
    examples=(Example("tilelang", torch="2.4"),),
    imports="torch and tilelang",
    compiled_by="asking",
    module="tilelang",
    marks=frozenset({"jit", "compile", "prim_func"}),
    decorators=(frozenset({"jit"}),),
    bodies=frozenset({"prim_func"}),
    package=Package(
        distribution="tilelang",
        module="tilelang",
        requirement="kernelwright[tilelang]",
        used=re.compile(r"\btilelang\b"),
    ),
    needs_nvcc=True,
    environment=(("TILELANG_CACHE_DIR", "{kept}/tilelang"), ("TILELANG_PRINT_ON_COMPILATION", "0")),
    kernelbench="tilelang",
)
