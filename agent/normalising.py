"""Digests that sources share if they differ only in local names, comments and layout.

A name is replaced only where it is surely local, since a false match would give a candidate the verdict of another. A
string constant that looks like C++ is normalised as C++.
"""

import ast
import hashlib
import itertools
import re
from collections.abc import Iterator
from functools import lru_cache

from kernelwright.problems.source import parse_module

_C_SOURCE = re.compile(r"[;{}]\s*\n|\bextern\s+\"C\"|__global__|^\s*#\s*include\b", re.MULTILINE)
_C_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r"|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*"
    r"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'"
    r"|[A-Za-z_]\w*|\.?\d(?:[\w.']|[eEpP][+-])*|->|::|<<=|>>=|<<|>>|[-+*/%&|^!=<>]=|&&|\|\||\+\+|--|\S",
    re.MULTILINE | re.DOTALL,
)
_TYPE = re.compile(
    r"auto|bool|char|const|constexpr|double|float[24]?|half|int|long|short|signed|unsigned|volatile"
    r"|(?:__)?restrict(?:__)?|__half|__nv_bfloat16|[A-Za-z]\w*_t"
)


def normal_digest(source: str) -> str:
    """Hash a source without local names, comments, docstrings and layout, as 64 hex digits of sha256.

    A source that is not Python is hashed as it is.
    """
    try:
        tree = parse_module(source)
        for function in _functions(tree.body):
            _rename_locals(function)
        text = _dumped(_Plain().visit(tree))
    except (SyntaxError, ValueError, RecursionError):
        text = source
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=1024)
def is_copy(source: str, reference: str) -> bool:
    """Tell whether a candidate defines, inputs aside, only what the reference defines or what derives from it."""
    try:
        own, known = _definitions(source), _definitions(f"{reference}\nclass Model(Model): pass\nModel = Model")
    except (SyntaxError, ValueError, RecursionError):
        return False
    return bool(own) and own <= known


def _definitions(source: str) -> set[str]:
    tree = parse_module(re.sub(r"\bModelNew\b", "Model", source))
    for function in _functions(tree.body):
        _rename_locals(function)
    parts = [part for part in _Plain().visit(tree).body if not isinstance(part, ast.Import | ast.ImportFrom)]
    return {_dumped(part) for part in parts if getattr(part, "name", "") not in ("get_inputs", "get_init_inputs")}


def _dumped(part: object) -> str:
    """Write a tree as text, the same under every Python: as `ast.dump` of 3.12 has it.

    Before it, functions and classes have no `type_params`; after it, empty lists are left out; its first releases add
    empty text to an f-string's format.
    """
    if isinstance(part, list):
        return f"[{', '.join(map(_dumped, part))}]"
    if not isinstance(part, ast.AST):
        return repr(part)
    fields = [(name, getattr(part, name, None)) for name in part._fields]
    if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and "type_params" not in part._fields:
        fields.append(("type_params", []))
    written = [
        f"{name}={_dumped(value)}"
        for name, value in fields
        if value is not None or getattr(type(part), name, ...) is not None
    ]
    return f"{type(part).__name__}({', '.join(written)})"


class _Plain(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant):
            return None
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == "load_inline":
            node.keywords = [keyword for keyword in node.keywords if keyword.arg not in {"name", "verbose"}]
        return self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        node.values = [part for part in node.values if not (isinstance(part, ast.Constant) and part.value == "")]
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and _C_SOURCE.search(node.value):
            return ast.Constant(value=normal_c(node.value))
        return ast.Constant(value=node.value)


def normal_c(source: str) -> str:
    """Write C++ without comments and layout, its local variables numbered by their first appearance."""
    tokens = [token.strip() for token in _C_TOKEN.findall(source) if not token.startswith(("//", "/*"))]
    kept_lines = " ".join(token for token in tokens if token.startswith(("#", '"')))
    members = {name for before, name in itertools.pairwise(tokens) if before in {".", "->", "::"}}
    local = set(_declared(tokens)) - members - set(re.findall(r"\w+", kept_lines))
    numbers: dict[str, str] = {}
    return " ".join(
        numbers.setdefault(token, f"@{len(numbers)}") if token in local else " ".join(token.split()) for token in tokens
    )


def _declared(tokens: list[str]) -> Iterator[str]:
    """Yield names directly behind a type, and not called: `float x`, `const float* x`, `int64_t i`."""
    for at in range(1, len(tokens)):
        name, after = tokens[at], tokens[at + 1] if at + 1 < len(tokens) else ""
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or _is_type(name) or after in {"(", "::", "<"}:
            continue
        before = at - 1
        while before > 0 and tokens[before] in {"*", "&"}:
            before -= 1
        if _is_type(tokens[before]):
            yield name


def _is_type(token: str) -> bool:
    return _TYPE.fullmatch(token) is not None


def _functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for part in body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            yield part
        elif isinstance(part, ast.ClassDef):
            yield from _functions(part.body)


def _rename_locals(function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """Number the names that the function assigns; arguments keep theirs, since callers may use them."""
    nodes = list(ast.walk(function))
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    foreign = {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    assigned = {node.id for node in names if isinstance(node.ctx, ast.Store)} - arguments - foreign
    numbers: dict[str, str] = {}
    for node in sorted(names, key=lambda node: (node.lineno, node.col_offset)):
        if node.id in assigned:
            node.id = numbers.setdefault(node.id, f"@{len(numbers)}")
