"""Python's parser, for one thread at a time."""

import ast
import threading

PARSING = threading.Lock()
"""In Python 3.11 parsing counts its depth for the whole interpreter, and ends with a SystemError where another thread's
comes between (https://github.com/python/cpython/issues/106905)."""


def parse_module(source: str, filename: str = "<unknown>") -> ast.Module:
    """As `ast.parse`. Raises what it raises, and a `SyntaxError` with its line for a null byte under every Python."""
    if "\0" in source:
        line = source.count("\n", 0, source.index("\0")) + 1
        text = source.split("\n", line)[line - 1]
        raise SyntaxError("Python text can not hold null bytes", (filename, line, None, text))
    with PARSING:
        return ast.parse(source, filename=filename)


def parse_expression(text: str) -> ast.Expression:
    """As `ast.parse` of an expression. Raises what it raises."""
    with PARSING:
        return ast.parse(text, mode="eval")
