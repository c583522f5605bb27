"""A solution's function as `ModelNew`: its own text stays, with a few generated lines behind it."""

import ast
import re
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from kernelwright.problems import ProblemError
from kernelwright.problems.formats.definition import Definition
from kernelwright.problems.formats.reading import Unsupported
from kernelwright.problems.record.source import parse_expression

CANDIDATE_FILE = "candidate.py"
NATIVE = {".cu", ".cpp", ".cc", ".cxx", ".c"}
HEADERS = {".h", ".hpp", ".cuh"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"[ \t]*$', re.MULTILINE)
OPTIONS = {"cflags": "extra_cflags", "cuda_cflags": "extra_cuda_cflags", "ld_flags": "extra_ldflags"}
RETURNING = """
class ModelNew(_torch.nn.Module):
    def forward(self, *inputs):
        outputs = _entry(*inputs)
        if isinstance(outputs, dict):
            outputs = tuple(outputs.values())
        if isinstance(outputs, (list, tuple)):
            return outputs[0] if len(outputs) == 1 else tuple(outputs)
        return outputs
"""
FILLING = """
class ModelNew(_torch.nn.Module):
    def forward(self, {parameters}):
        sizes = {sizes}
{computed}        device = {device}
        outputs = [{outputs}]
        _entry({parameters}, *outputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)
"""
FILES = """
import importlib as _importlib
import os as _os
import sys as _sys
import tempfile as _tempfile

_folder = _tempfile.mkdtemp()
for _path, _text in {texts!r}.items():
    _os.makedirs(_os.path.dirname(_os.path.join(_folder, _path)), exist_ok=True)
    with open(_os.path.join(_folder, _path), "w") as _file:
        _file.write(_text)
_sys.path.insert(0, _folder)
_entry = getattr(_importlib.import_module({module!r}), {symbol!r})
"""
BUILT = """
from torch.utils.cpp_extension import load_inline as _load_inline

_entry = _load_inline(
    name={name!r},
    cpp_sources={cpp!r},
    cuda_sources={cuda!r},
{options}).{symbol}
"""


class Wrapped(NamedTuple):
    """A solution's files, and which function of which of them is called."""

    name: str
    texts: dict[str, str]
    place: str
    symbol: str
    binding: str | None
    options: dict[str, Any]


def candidate_source(wrapped: Wrapped, definition: Definition | None, fills: bool) -> str:
    """The candidate; `fills` says that the function writes into outputs that it is given behind its inputs.

    Raises `ProblemError` where the definition is needed and None, `Unsupported` for what can not be wrapped.
    """
    suffix = PurePosixPath(wrapped.place).suffix
    if suffix == ".py":
        entry = _python(wrapped)
    elif suffix in NATIVE:
        entry = _native(wrapped)
    else:
        raise Unsupported(f"{wrapped.name}: an entry point in a {suffix or 'nameless'} file can not be called")
    if not fills:
        return entry + "\n" + RETURNING
    if definition is None:
        raise ProblemError(f"{wrapped.name} writes into given outputs, whose shapes its definition says; give that too")
    return entry + "\n" + _filling(definition)


def _python(wrapped: Wrapped) -> str:
    if len(wrapped.texts) == 1:
        head = wrapped.texts[wrapped.place].rstrip("\n")
        return f"{head}\n\n\nimport torch as _torch\n\n_entry = {wrapped.symbol}"
    module = wrapped.place.removesuffix(".py").replace("/", ".")
    for path in wrapped.texts:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise ProblemError(f"{wrapped.name}: the source path {path!r} leads out of its folder; correct it")
    return "import torch as _torch\n" + FILES.format(texts=wrapped.texts, module=module, symbol=wrapped.symbol)


def _native(wrapped: Wrapped) -> str:
    if wrapped.binding not in (None, "torch"):
        raise Unsupported(f"{wrapped.name}: the binding {wrapped.binding} is not known here, only torch is")
    texts = {path: _included(path, wrapped.texts) for path in wrapped.texts}
    sources = {path: text for path, text in texts.items() if PurePosixPath(path).suffix in NATIVE}
    if not any("PYBIND11_MODULE" in text for text in sources.values()):
        raise Unsupported(f"{wrapped.name}: its sources bind no Python module (PYBIND11_MODULE)")
    unread = [path for path in texts if PurePosixPath(path).suffix not in NATIVE | HEADERS]
    if unread:
        raise Unsupported(f"{wrapped.name}: the file {unread[0]} is neither C++ nor CUDA")
    cuda = [text for path, text in sources.items() if path.endswith(".cu")]
    options = "".join(f"    {OPTIONS[key]}={value!r},\n" for key, value in wrapped.options.items() if key in OPTIONS)
    return "import torch as _torch\n" + BUILT.format(
        name=re.sub(r"\W", "_", wrapped.name),
        cpp=[text for path, text in sources.items() if not path.endswith(".cu")],
        cuda=cuda or None,
        options=options,
        symbol=wrapped.symbol,
    )


def _included(path: str, texts: dict[str, str], above: tuple[str, ...] = ()) -> str:
    """The text of a file with its own headers in place, each once a chain."""

    def put(match: re.Match[str]) -> str:
        beside = str(PurePosixPath(path).parent / match[1])
        found = next((place for place in (beside, match[1]) if place in texts), None)
        if found is None:
            return match[0]
        return "" if found in (*above, path) else _included(found, texts, (*above, path))

    return INCLUDE.sub(put, texts[path].replace("#pragma once", ""))


def _filling(definition: Definition) -> str:
    """`ModelNew` that makes the outputs, with sizes read off the inputs at every call."""
    sizes: dict[str, str] = {name: repr(axis.value) for name, axis in definition.axes.items() if axis.value is not None}
    for name, spec in definition.inputs.items():
        for dimension, axis in enumerate(spec.shape or ()):
            sizes.setdefault(axis, f"{name}.shape[{dimension}]")
    computed = [(name, axis.expression) for name, axis in definition.axes.items() if axis.expression]
    lines = [f"        sizes[{name!r}] = int({_over_sizes(expression or '')})\n" for name, expression in computed]
    for axis in {axis for spec in definition.outputs.values() for axis in spec.shape or ()}:
        if axis not in sizes and axis not in dict(computed):
            raise Unsupported(f"{definition.name}: no input tells the size of axis {axis!r} of an output")
    tensors = [name for name, spec in definition.inputs.items() if spec.shape is not None]
    outputs = [
        f"_torch.empty([{', '.join(f'sizes[{axis!r}]' for axis in spec.shape or ())}], "
        f"dtype=_torch.{spec.dtype}, device=device)"
        for spec in definition.outputs.values()
    ]
    return FILLING.format(
        parameters=", ".join(definition.inputs),
        sizes="{" + ", ".join(f"{name!r}: {value}" for name, value in sizes.items()) + "}",
        computed="".join(lines),
        device=f"{tensors[0]}.device" if tensors else '"cpu"',
        outputs=", ".join(outputs),
    )


def _over_sizes(expression: str) -> str:
    """The expression of an axis, over the dict `sizes`."""

    class Renamed(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.Subscript(ast.Name("sizes", ast.Load()), ast.Constant(node.id), ast.Load())

    try:
        return ast.unparse(Renamed().visit(parse_expression(expression.strip())))
    except SyntaxError:
        raise ProblemError(f"the axis expression {expression!r} does not parse; correct it") from None
