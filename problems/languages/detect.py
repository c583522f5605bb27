"""The language that a candidate's kernels are written in, recognised in the source. Nothing is run.

This is not a defence: rules on text can be evaded.
"""

import ast
from collections.abc import Iterator

from kernelwright.problems.languages import LANGUAGES, LanguageName

LOADERS = frozenset({"load_inline", "load"})


def language_of(tree: ast.Module) -> LanguageName:
    """`cuda` and `cpp` for what torch's extension loader compiles, that of jitted kernels, else `python`.

    CUDA text that is passed as C++ counts as `cuda`, since its author wrote CUDA. With headers of CUTLASS or CuTe it
    is `cutlass`.
    """
    nodes = list(ast.walk(tree))
    loads = [node for node in nodes if isinstance(node, ast.Call) and _name(node.func) in LOADERS]
    if not _imports(nodes, "cpp_extension"):
        loads = []
    texts = list(_texts(nodes)) if loads else []
    has_cuda_text = any("__global__" in text or text.endswith(".cu") or text == "cuda_sources" for text in texts)
    if has_cuda_text or any(_takes_cuda(call) for call in loads):
        for one in LANGUAGES.values():
            if one.include and any(one.include.search(text) for text in texts):
                return one.name
        return "cuda"
    for one in LANGUAGES.values():
        if one.module and _imports(nodes, one.module) and any(_name(node) in one.marks for node in nodes):
            return one.name
    return "cpp" if loads else "python"


def _name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _imports(nodes: list[ast.AST], part: str) -> bool:
    """Return whether an import, or the dotted name of a used module, has that part."""
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


def _texts(nodes: list[ast.AST]) -> Iterator[str]:
    return (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
