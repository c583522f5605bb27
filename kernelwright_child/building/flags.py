"""What of a compiler's command line decides over a precompiled header. Standard library only, imports next to nothing.

The compiler itself refuses a precompiled header that does not fit. This says which one may fit, so that the right one
is looked for, and which flags are harmless enough for us to compile a header with them outside the jail.
"""

from __future__ import annotations

import hashlib
import os
import re

NAME_MACRO = "-DTORCH_EXTENSION_NAME="
WITH_VALUE = ("-o", "-MF", "-MT", "-MQ", "-I", "-isystem", "-iquote", "-L", "-include", "-imacros", "-x", "-D", "-U")
"""Flags whose value may be the next word."""
IGNORED = re.compile(
    r"-c|-MM?D|-W(?!p,|a,|l,)[\w=+-]*|-L.*|-l.*|-v|-pipe|-fdiagnostics-[\w=-]+"
    r"|-[DU](?!TORCH_API_INCLUDE_EXTENSION_H$|NDEBUG$).*"
)
"""They change nothing in a header: warnings, the linker's, dependency files; and the candidate's own macros.

The compiler refuses a precompiled header that mentions one of the latter."""
HARMLESS = re.compile(
    r"-O[0-3sgz]?|-Ofast|-g[0-3]?|-pthread|-ansi|-std=(?:c|gnu)\+\+\w{2}"
    r"|-m(?:arch|tune|cpu)=[\w.+-]+|-m(?:no-)?(?:sse|avx|fma|f16c|bmi|popcnt|amx|vaes|gfni|adx)[\w.-]*"
    r"|-mprefer-vector-width=\d+|-f(?:no-)?(?:PIC|pic|PIE|pie|openmp|openmp-simd|fast-math|math-errno|exceptions|rtti"
    r"|unroll-loops|unroll-all-loops|tree-vectorize|tree-slp-vectorize|finite-math-only|associative-math"
    r"|reciprocal-math|signed-zeros|trapping-math|rounding-math|unsafe-math-optimizations|strict-aliasing|strict-overflow"
    r"|wrapv|omit-frame-pointer|inline|inline-functions|inline-small-functions|common|permissive|peel-loops"
    r"|stack-protector|strong-eval-order|split-loops|ipa-cp|gcse|plt|semantic-interposition)"
    r"|-fvisibility=\w+|-ffp-contract=\w+|-fvect-cost-model=\w+|-fopenmp-simd"
    r"|-DTORCH_API_INCLUDE_EXTENSION_H|-DNDEBUG"
)
"""No file, no program and no plugin can be named by them."""
SHADOWING = ("torch", "ATen", "c10", "caffe2", "pybind11", "torch_stable")
MAX_FLAGS, MAX_LENGTH = 24, 64
FIRST = re.compile(r"\A(?:\s|//[^\n]*\n|/\*(?:[^*]|\*(?!/))*+\*/)*+#\s*include\s*[<\"]torch/extension\.h[>\"]")
HEADERS = ("lean", "narrow", "whole")
"""The precompiled ones, the quickest first."""
WHOLE = re.compile(
    r"torch/(?:all|torch)\.h|torch::(?:nn|optim|data|jit|serialize|autograd::Function)\b"
    r"|namespace\s+(?:torch|at|c10|pybind11|py)\b(?!\s*=)|<torch/csrc/api|CustomClassHolder|torch/custom_class"
)

BINDING = re.compile(
    r"\nPYBIND11_MODULE\(TORCH_EXTENSION_NAME, m\) \{\n"
    r"(?:m\.def\(\"[\w:]+\", torch::wrap_pybind_function\([\w:]+\), \"[^\n]*\"\);\n)+\}\s*\Z"
)
"""What `load_inline` writes for its `functions`."""
PYTHON = re.compile(r"pybind11|PYBIND11|\bpy::|\bTHP|torch/(?:csrc|python)|kernelwright|KERNELWRIGHT")
"""Names of what binds to Python, which the lean header has not, or has otherwise."""


def relevant(words: list[str], known_folders: tuple[str, ...] = ()) -> list[str] | None:
    """The flags that a header has to be compiled with, in an order of their own; None where none can be prepared.

    `known_folders` are torch's and Python's own include folders; any other must not hold headers of their names.
    """
    found: list[str] = []
    todo = iter(words)
    for word in todo:
        if word in WITH_VALUE:
            value = next(todo, "")
            if word in ("-I", "-isystem", "-iquote") and not _is_harmless_folder(value, known_folders):
                return None
            if word in ("-include", "-imacros", "-x"):
                return None
            if word + value == "-DNDEBUG":
                found.append(word + value)
        elif word.startswith("-I"):
            if not _is_harmless_folder(word[2:], known_folders):
                return None
        elif word.startswith("@"):
            return None  # a file with more flags
        elif word.startswith("-") and not word.startswith(NAME_MACRO) and not IGNORED.fullmatch(word):
            found.append(word)
    return found if is_harmless(found) else None


def is_harmless(flags: list[str]) -> bool:
    """Whether a header may be compiled with these outside the jail: bounded in number, each of a known kind."""
    fits = len(flags) <= MAX_FLAGS and all(len(flag) <= MAX_LENGTH for flag in flags)
    return fits and all(HARMLESS.fullmatch(flag) for flag in flags)


def digest(flags: list[str]) -> str:
    """The name of the header for these flags. Their kinds are sorted, since only within a kind does order matter."""
    kinds = ("-O", "-std", "-m", "-f", "-D", "-U")
    ordered = sorted(
        dict.fromkeys(flags), key=lambda flag: next((i for i, kind in enumerate(kinds) if flag.startswith(kind)), 99)
    )
    return hashlib.sha256("\0".join(ordered).encode()).hexdigest()[:20]


def starts_with_extension_h(text: str) -> bool:
    """Whether nothing stands before the include of torch/extension.h: else no precompiled header can be taken."""
    return FIRST.match(text) is not None


def header_for(text: str) -> str:
    """The quickest of `HEADERS` that a source may do with."""
    if needs_whole_header(text):
        return "whole"
    binding = BINDING.search(text)
    return "lean" if binding and not PYTHON.search(text[: binding.start()]) else "narrow"


def needs_whole_header(text: str) -> bool:
    """Whether a source names something that only the whole header has, or opens a namespace that it could clash with.

    A hint that saves a failed attempt, except for the latter: such a source might compile only with the narrow one.
    """
    return WHOLE.search(text) is not None


def _is_harmless_folder(path: str, known: tuple[str, ...]) -> bool:
    real = os.path.realpath(path)
    return real in known or not any(os.path.exists(os.path.join(real, name)) for name in SHADOWING)  # noqa: PTH110, PTH118
