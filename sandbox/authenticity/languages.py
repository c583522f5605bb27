"""The language that a candidate's kernels are written in, and what cannot be judged, told from the source. Pure.

The scan refuses only what cannot be run at all. It is no defence: what text rules find, text can hide.
"""

import ast
import re
from collections.abc import Iterator

from kernelwright.problems.record.source import Kind, bound_names, parse_module
from kernelwright.sandbox.logs import one_line
from kernelwright.sandbox.verdict.verdicts import Candidate, Language

_LOADERS = frozenset({"load_inline", "load"})
_JITS: dict[Language, frozenset[str]] = {
    "tilelang": frozenset({"jit", "compile", "prim_func"}),
    "helion": frozenset({"kernel", "jit"}),
    "cute": frozenset({"kernel", "jit"}),
    "triton": frozenset({"jit", "autotune"}),
}
"""Languages within Python, by the module that they are imported from, with names of which one makes a kernel."""
_CUTLASS = re.compile(r"#\s*include\s*[<\"](?:cute|cutlass)/")


def candidate_of(source: str) -> Candidate:
    """The candidate of a source, with the language that it asks for; text that is no Python is left to the scan."""
    language: Language
    try:
        language = language_of(parse_module(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        language = "python"
    return Candidate(source=source, language=language)


def language_of(tree: ast.Module) -> Language:
    """`cuda` and `cpp` for what torch's extension loader compiles, that of jitted kernels, else `python`.

    CUDA text that is handed over as C++ counts as `cuda`: that is what its author wrote, right or wrong. With headers
    of CUTLASS or CuTe it is `cutlass`.
    """
    nodes = list(ast.walk(tree))
    loads = [node for node in nodes if isinstance(node, ast.Call) and _name(node.func) in _LOADERS]
    if not _imports(nodes, "cpp_extension"):
        loads = []
    if any(_takes_cuda(call) for call in loads) or (loads and _holds_cuda(nodes)):
        return "cutlass" if any(_CUTLASS.search(text) for text in _texts(nodes)) else "cuda"
    for language, marks in _JITS.items():
        if _imports(nodes, language) and any(_name(node) in marks for node in nodes):
            return language
    return "cpp" if loads else "python"


def _name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _imports(nodes: list[ast.AST], part: str) -> bool:
    """Whether an import, or the dotted name of a module that is used, has that part."""
    for node in nodes:
        match node:
            case ast.Import(names=names) if any(part in alias.name.split(".") for alias in names):
                return True
            case ast.ImportFrom(module=module, names=names):
                if part in (module or "").split(".") or any(alias.name == part for alias in names):
                    return True
            case ast.Attribute(attr=name) if name == part:
                return True
    return False


def _takes_cuda(call: ast.Call) -> bool:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    with_cuda = given.get("with_cuda")
    if isinstance(with_cuda, ast.Constant) and with_cuda.value is True:
        return True
    sources = given.get("cuda_sources") or (call.args[2] if len(call.args) > 2 and _name(call.func) != "load" else None)
    return sources is not None and not _is_empty(sources)


def _is_empty(value: ast.expr) -> bool:
    match value:
        case ast.Constant(value=constant):
            return not constant
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return all(_is_empty(item) for item in items)
    return False


def _holds_cuda(nodes: list[ast.AST]) -> bool:
    texts = _texts(nodes)
    return any("__global__" in text or text.endswith(".cu") or text == "cuda_sources" for text in texts)


def _texts(nodes: list[ast.AST]) -> Iterator[str]:
    return (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


SOURCE_BYTES = 1_000_000
NO_CALL: frozenset[Kind] = frozenset({"module"})
"""The kind of a name that cannot be called as a class is. A function can, and so may an import from an own package."""


def refuse(source: str, entry: str = "ModelNew") -> str:
    """Why this source cannot be judged, or an empty string."""
    if len(source.encode(errors="surrogatepass")) > SOURCE_BYTES:
        return f"the source is longer than {SOURCE_BYTES} bytes"
    try:
        tree = parse_module(source)
    except SyntaxError as error:
        return one_line(": ".join(filter(None, (f"line {error.lineno}", error.msg, (error.text or "").strip()))))
    except (ValueError, RecursionError, MemoryError) as error:
        return f"the source can not be parsed: {error}"
    names = bound_names(tree, without=NO_CALL)
    if entry in names:
        return ""
    return one_line(f"no class {entry} is defined; the file defines {', '.join(names) or 'nothing'}")
