"""The light torch/extension.h of one source: what nearly all need, and the operators that this one names.

Which source gets it is decided by its words. Whatever it names that is a macro of the stock header alone, or a
namespace that it could clash with, gets the stock one. Standard library only.
"""

from __future__ import annotations

import os
import re

FIRST = re.compile(r"\A(?:\s|//[^\n]*\n|/\*(?:[^*]|\*(?!/))*+\*/)*+#\s*include\s*[<\"]torch/(extension|types)\.h[>\"]")
STOCK = re.compile(
    r"torch::(?:nn|optim|data|jit|serialize|autograd)\b|at::(?:native|_ops|jit)\b|c10::(?:List|Dict|IValue)\b"
    r"|namespace\s+(?:torch|at|c10|pybind11|py|kernelwright)\b(?!\s*(?:=|::\s*(?:literals|indexing)))"
    r"|CustomClassHolder|\b(?:KERNELWRIGHT|kernelwright)|#\s*(?:include_next|pragma\s+once)"
    r"|#\s*include\s*(?:\"(?!torch/extension\.h\"|torch/types\.h\")|[^\s<\"])"
)
"""What the light header has not, could clash with, or can not see: files of the candidate's own."""
BINDING = re.compile(
    r"\nPYBIND11_MODULE\(TORCH_EXTENSION_NAME, m\) \{\n"
    r"(?:m\.def\(\"[\w:]+\", torch::wrap_pybind_function\([\w:]+\), \"[^\n]*\"\);\n)+\}\s*\Z"
)
"""What `load_inline` writes for its `functions`."""
PYTHON = re.compile(r"pybind11|PYBIND11|\bpy::|\bTHP|torch/(?:csrc|python)|HANDLE_TH_ERRORS")
"""Names of what binds to Python."""
WORD = re.compile(r"[A-Za-z_]\w*")
NO_OPERATOR = re.compile(r"_(?:native|ops|meta|dispatch)$")
MORE = {"indexing": "ATen/TensorIndexing.h", "globalContext": "ATen/Context.h", "IValue": "ATen/core/ivalue.h"}
"""Headers by a name that only they bring."""
PYBIND = ("torch/csrc/Exceptions.h", "torch/csrc/utils/pybind.h")
MODULE = "kernelwright/module.h"
TEXT = """#ifndef KERNELWRIGHT_EXTENSION_H
#define KERNELWRIGHT_EXTENSION_H
{before}#include <kernelwright/core.h>
#define KERNELWRIGHT_INSIDE
#define AT_PER_OPERATOR_HEADERS
{operators}#undef AT_PER_OPERATOR_HEADERS
#undef KERNELWRIGHT_INSIDE
{after}#endif
"""


def glue_of(text: str) -> tuple[str, ...]:
    if _binding(text) == MODULE:
        return ("binding.o", "factories.o")
    return () if _binds_itself(text) else ("factories.o",)


def header_for(text: str, torch_include: str, whole_macros: frozenset[str]) -> str | None:
    """The light header's text for a source; None for one that gets the stock header.

    `whole_macros` are those that the stock header defines and the light one does not.
    """
    words = frozenset(WORD.findall(text))
    binds = _binds_itself(text)
    lacking = {word for word in words & whole_macros if not (binds and word.startswith(("PYBIND11", "HANDLE", "END_")))}
    if FIRST.match(text) is None or "torch/extension.h" not in text or STOCK.search(text) or lacking:
        return None
    names = sorted(word for word in words if not NO_OPERATOR.search(word))
    operators = [name for name in names if os.path.exists(f"{torch_include}/ATen/ops/{name}.h")]  # noqa: PTH110
    after = [MORE[name] for name in names if name in MORE]
    return TEXT.format(
        before="#define KERNELWRIGHT_PYBIND\n" if binds else "",
        operators=_includes([*(f"ATen/ops/{name}.h" for name in operators), *(PYBIND if binds else ())]),
        after=_includes([*after, *([MODULE] if _binding(text) else [])]),
    )


def _binds_itself(text: str) -> bool:
    return _binding(text) is None and PYTHON.search(text) is not None


def _binding(text: str) -> str | None:
    """What binds a source whose words for Python are all those that `load_inline` writes for `functions`."""
    found = BINDING.search(text)
    return MODULE if found and not PYTHON.search(text[: found.start()]) else None


def _includes(names: list[str]) -> str:
    return "".join(f"#include <{name}>\n" for name in names)
