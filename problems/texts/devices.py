"""Inputs are drawn on the processor and moved by the judge: what a file says of CUDA outside its model is taken out."""

import ast
import re
from collections.abc import Iterator

from kernelwright.problems.record.syntax import parse_module

CUDA = re.compile(r"cuda(:\d+)?")
DRAWING = ("get_inputs", "get_init_inputs")


def without_cuda(source: str) -> str:
    """`source` with the device `cpu` for `cuda` in the functions that draw inputs, and `.cuda()` there left out.

    The model itself keeps its text. A device that is named through a variable of the module is replaced there too.
    `source` must parse.
    """
    lines = source.encode().split(b"\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)

    def at(line: int | None, column: int | None) -> int:
        assert line is not None and column is not None, "a parsed expression has an end"
        return starts[line - 1] + column

    encoded = source.encode()
    edits = []
    for node in _mentions(parse_module(source)):
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Attribute)
            end = at(node.func.value.end_lineno, node.func.value.end_col_offset)
            edits.append((end, at(node.end_lineno, node.end_col_offset), b""))
        else:
            edits.append((at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset), b'"cpu"'))
    for start, end, text in sorted(edits, reverse=True):
        encoded = encoded[:start] + text + encoded[end:]
    return encoded.decode()


def _mentions(tree: ast.Module) -> Iterator[ast.Call | ast.Constant]:
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name in DRAWING:
            yield from _in(statement)
        elif isinstance(statement, ast.Assign):
            yield from (node for node in _in(statement) if isinstance(node, ast.Constant))


def _in(statement: ast.stmt) -> Iterator[ast.Call | ast.Constant]:
    for node in ast.walk(statement):
        match node:
            case ast.Call(func=ast.Attribute(attr="cuda")):
                yield node
            case ast.Constant(value=str() as text) if CUDA.fullmatch(text):
                yield node
