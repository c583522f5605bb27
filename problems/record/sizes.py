"""Putting a size into a reference: the values of module-level constants, replaced in the source text."""

import ast
from collections.abc import Mapping

from kernelwright.problems.record.problem import ProblemError
from kernelwright.problems.record.syntax import parse_module


def put_sizes(source: str, values: Mapping[str, int]) -> str:
    """`source` with each constant named in `values` set to its value; all other text, comments included, stays.

    A constant is a module-level `NAME = literal`, with or without an annotation. Raises `ProblemError` for a name that
    has no such line, or more than one, since then it is not clear which value holds.
    """
    encoded = source.encode()
    places = _literals(parse_module(source))
    edits = [(*_span(encoded, _only(places, name)), str(value).encode()) for name, value in values.items()]
    for start, end, text in sorted(edits, reverse=True):
        encoded = encoded[:start] + text + encoded[end:]
    return encoded.decode()


def _literals(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """Where each module-level constant gets its value."""
    places: dict[str, list[ast.expr]] = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_literal(value):
                places.setdefault(name, []).append(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if _is_literal(value):
                places.setdefault(name, []).append(value)
    return places


def _is_literal(value: ast.expr) -> bool:
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError):
        return False
    return True


def _only(places: Mapping[str, list[ast.expr]], name: str) -> ast.expr:
    found = places.get(name, [])
    if not found:
        there = ", ".join(sorted(places)) or "none"
        raise ProblemError(f"the reference has no constant {name!r} to set (a line `{name} = 1`); it has: {there}")
    if len(found) > 1:
        lines = " and ".join(str(value.lineno) for value in found)
        raise ProblemError(f"the reference sets the constant {name!r} on lines {lines}; set it once")
    return found[0]


def _span(encoded: bytes, node: ast.expr) -> tuple[int, int]:
    """Start and end of a node, in bytes: `ast` counts columns in UTF-8 bytes, and ends lines at newlines only."""
    if node.end_lineno is None or node.end_col_offset is None:
        raise AssertionError("a parsed expression has an end")
    starts = [0]
    for line in encoded.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
