"""Which names a source defines at its top level: one rule, for references, for replies and for the scan.

Read from the text alone, in time proportional to it. What `exec`, `globals()` and a star import bind is not seen.
"""

import ast
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

Kind = Literal["class", "function", "value", "import", "module"]
"""How a name is bound: `value` by an assignment, a loop or a `with`; `import` by `from x import name`."""


class Binding(NamedTuple):
    """A name that a statement of the module's own level gives a meaning."""

    name: str
    kind: Kind


def top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of the module's own level in order, also those within `if`, `try`, `with`, loops and `match`."""
    waiting: list[ast.stmt] = list(reversed(tree.body))
    while waiting:
        statement = waiting.pop()
        yield statement
        if not isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            waiting.extend(reversed(list(_inner(statement))))


def _inner(statement: ast.stmt) -> Iterator[ast.stmt]:
    for part in ("body", "handlers", "cases", "orelse", "finalbody"):
        for node in getattr(statement, part, ()):
            if isinstance(node, ast.stmt):
                yield node
            else:
                yield from node.body


def bindings(statements: Iterable[ast.stmt]) -> Iterator[Binding]:
    """What these statements of `top_level` bind, in order; a name as often as it is bound."""
    for statement in statements:
        kind: Kind = "value"
        names: Iterable[str] = ()
        match statement:
            case ast.ClassDef(name=name):
                kind, names = "class", (name,)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                kind, names = "function", (name,)
            case ast.ImportFrom(names=aliases):
                kind, names = "import", [alias.asname or alias.name for alias in aliases]
            case ast.Import(names=aliases):
                kind, names = "module", [alias.asname or alias.name.partition(".")[0] for alias in aliases]
            case ast.Assign(targets=targets):
                names = _stored(targets)
            case ast.AnnAssign(target=target, value=ast.expr()) | ast.For(target=target):
                names = _stored([target])
            case ast.With(items=items):
                names = _stored(item.optional_vars for item in items if item.optional_vars)
        yield from (Binding(name, kind) for name in names)


def _stored(targets: Iterable[ast.expr]) -> list[str]:
    nodes = (node for target in targets for node in ast.walk(target))
    return [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]


def bound_names(tree: ast.Module, without: frozenset[Kind] = frozenset()) -> list[str]:
    """Each name that the module's own level binds, once, in order; less those that are bound in the ways named only."""
    found = (binding.name for binding in bindings(top_level(tree)) if binding.kind not in without)
    return list(dict.fromkeys(found))
