"""What a source's `ModelNew.forward` can lead to, read from the text alone. Pure.

Names are followed, not values: whatever a name that is used could mean is taken as reached. So nothing that can be
found by its name is missed; what is hidden from names is, and only a run shows it.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

BUILDERS = {"load_inline", "load", "CDLL", "PyDLL", "load_library", "cdll", "LoadLibrary"}
"""What gives a candidate native code of its own."""
JITS = {"jit", "autotune", "heuristics"}
"""Decorators of Triton kernels."""
REGISTRY = "ops"
"""`torch.ops`, where a library that was built registers its operators."""
ENTRY = ("ModelNew", "forward")


class Reach(NamedTuple):
    """What was found from `ModelNew.forward`."""

    nodes: tuple[ast.AST, ...]
    """All syntax that can be reached."""
    own: frozenset[str]
    """Names that stand for native code of the candidate's."""
    own_calls: frozenset[int]
    """Lines of reached calls to it."""
    builds: bool
    """Whether native code is built anywhere, reached or not."""
    handlers: tuple[tuple[int, frozenset[int]], ...]
    """Reached `except` clauses: their line, and the lines of their bodies."""


def reach(source: str) -> Reach:
    """Follow names from `ModelNew.forward`; the source must parse."""
    tree = ast.parse(source)
    own = _own_names(tree)
    nodes = _reached(tree)
    builds = bool(own) or any(_last(node.func) in BUILDERS for node in ast.walk(tree) if isinstance(node, ast.Call))
    native = own | ({REGISTRY} if builds else set())
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    handlers = [node for node in nodes if isinstance(node, ast.ExceptHandler)]
    return Reach(
        nodes=tuple(nodes),
        own=frozenset(own),
        own_calls=frozenset(call.lineno for call in calls if _names(call.func) & native),
        builds=builds,
        handlers=tuple((handler.lineno, _lines(handler.body)) for handler in handlers),
    )


def _reached(tree: ast.Module) -> list[ast.AST]:
    meanings = _meanings(tree)
    todo: list[ast.AST] = [
        method
        for entry in ast.walk(tree)
        if isinstance(entry, ast.ClassDef) and entry.name == ENTRY[0]
        for method in entry.body
        if isinstance(method, ast.FunctionDef) and method.name == ENTRY[1]
    ]
    nodes: list[ast.AST] = []
    seen: set[int] = set()
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        found = list(ast.walk(node))
        nodes += found
        for name in {name for part in found for name in _named(part)}:
            todo += meanings[name]
    return nodes


def _meanings(tree: ast.Module) -> dict[str, list[ast.AST]]:
    """By name or attribute: the functions and classes of that name, and what is assigned to it."""
    meanings: dict[str, list[ast.AST]] = defaultdict(list)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name != ENTRY[0]:
            meanings[node.name].append(node)
        for name, value in _assignments(node):
            meanings[name].append(value)
    return meanings


def _own_names(tree: ast.Module) -> set[str]:
    """Names that are assigned native code, or something taken from it; and Triton's kernels."""
    own = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any(_names(mark) & JITS for mark in node.decorator_list)
    }
    assignments = [pair for node in ast.walk(tree) for pair in _assignments(node)]
    while True:
        more = {name for name, value in assignments if _is_native(value, own)} - own
        if not more:
            return own
        own |= more


def _is_native(value: ast.AST, own: set[str]) -> bool:
    """Whether a value is made by a builder, or is an attribute of what is native."""
    match value:
        case ast.Call(func=function, args=arguments):
            made = _last(function) in BUILDERS or (_last(function) == "getattr" and bool(arguments))
            return made and (_last(function) in BUILDERS or _is_native(arguments[0], own))
        case ast.Attribute(value=holder):
            return _last(value) in own or _is_native(holder, own)
        case ast.Name(id=name):
            return name in own
    return False


def _assignments(node: ast.AST) -> list[tuple[str, ast.AST]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            return [(name, value) for target in targets for name in _targets(target)]
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
            return [(name, value) for name in _targets(target)]
    return []


def _targets(target: ast.expr) -> list[str]:
    if isinstance(target, ast.Tuple | ast.List):
        return [name for item in target.elts for name in _targets(item)]
    return [_last(target)]


def _named(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return (name,)
        case ast.Constant(value=str() as text) if text.isidentifier():  # getattr(self, "name")
            return (text,)
    return ()


def _names(expression: ast.AST) -> set[str]:
    return {name for node in ast.walk(expression) for name in _named(node)}


def _last(expression: ast.AST) -> str:
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")


def _lines(body: Iterable[ast.stmt]) -> frozenset[int]:
    return frozenset(node.lineno for statement in body for node in ast.walk(statement) if isinstance(node, ast.stmt))
