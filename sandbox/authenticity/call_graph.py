"""What a source's `ModelNew.forward` can lead to, read from the text alone. Pure.

Names are followed, not values: whatever a name that is used could mean is taken as reached. So nothing that can be
found by its name is missed; what is hidden from names is, and only a run shows it. Everything here takes time in
proportion to the source, whatever it looks like: it is read in the judge's own process.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from kernelwright.problems.record.source import parse_module
from kernelwright.sandbox.authenticity.native import assignment, named, own_names

REGISTRY = "ops"
"""`torch.ops`, where a library that was built registers its operators."""
ENTRY = ("ModelNew", "forward")
MOST_NODES = 100_000
"""Of syntax; a candidate has some thousands, and ten times as many take the judge a second."""


class Unreadable(Exception):
    """A source that is not followed; the text says why."""


class Reach(NamedTuple):
    """What was found from `ModelNew.forward`."""

    tree: ast.Module
    """All of the source."""
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


@lru_cache(maxsize=1)
def reach(source: str) -> Reach:
    """Follow names from `ModelNew.forward`. Raises `Unreadable` for a source that does not parse, or is too large."""
    try:
        tree = parse_module(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Unreadable("the source can not be read") from None
    if sum(1 for _ in ast.walk(tree)) > MOST_NODES:
        raise Unreadable("the source is too large to be read for what it calls")
    own, builds = own_names(tree)
    nodes = _reached(tree)
    native = own | ({REGISTRY} if builds else set())
    holding = _holding(tree, native)
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    handlers = [node for node in nodes if isinstance(node, ast.ExceptHandler)]
    return Reach(
        tree=tree,
        nodes=tuple(nodes),
        own=frozenset(own),
        own_calls=frozenset(call.lineno for call in calls if id(call.func) in holding),
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
        nodes.append(node)
        todo += ast.iter_child_nodes(node)
        for name in named(node):
            todo += meanings.pop(name, ())  # once: a name means the same wherever it is used
    return nodes


def _meanings(tree: ast.Module) -> dict[str, list[ast.AST]]:
    """By name or attribute: the functions and classes of that name, and what is assigned to it."""
    meanings: dict[str, list[ast.AST]] = defaultdict(list)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name != ENTRY[0]:
            meanings[node.name].append(node)
        targets, value = assignment(node) or ([], node)
        for name in targets:
            meanings[name].append(value)
    return meanings


def _holding(tree: ast.Module, wanted: set[str]) -> set[int]:
    """The nodes, by identity, that mention one of the names or hold one that does."""
    holding: set[int] = set()
    for node in reversed(list(ast.walk(tree))):  # children first
        if not wanted.isdisjoint(named(node)) or any(id(child) in holding for child in ast.iter_child_nodes(node)):
            holding.add(id(node))
    return holding


def _lines(body: Iterable[ast.stmt]) -> frozenset[int]:
    return frozenset(node.lineno for statement in body for node in ast.walk(statement) if isinstance(node, ast.stmt))
