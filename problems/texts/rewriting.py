"""Constructor arguments in the other conventions: a dict of keywords, or a list of positions and a dict of keywords.

Our convention is a list of positions, which a candidate takes in the same order as the reference's `Model`. A source
in another convention gets a few lines behind it that put the arguments in order; its own text stays.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from kernelwright.problems.record.source import parse_module

IN_ORDER = """

# Constructor arguments in the order of Model's parameters.
import inspect as _inspect

_given_init_inputs = get_init_inputs


def get_init_inputs():
    given = _given_init_inputs({arguments})
    positions, keywords = given, {{}}
    if isinstance(given, dict):
        positions, keywords = (), given
    elif len(given) == 2 and isinstance(given[0], (list, tuple)) and isinstance(given[1], dict):
        positions, keywords = given
    elif not isinstance(given, (list, tuple)):
        positions = (given,)
    if not keywords:
        return list(positions)
    bound = _inspect.signature(Model).bind(*positions, **keywords)
    wanted = [name for name in bound.signature.parameters if name in bound.arguments]
    bound.apply_defaults()
    ordered = list(bound.arguments)
    last = max(ordered.index(name) for name in wanted)
    return [bound.arguments[name] for name in ordered[: last + 1]]
"""


def in_order(source: str, tree: ast.Module) -> str:
    """`source`, with the lines that put constructor arguments in order where it does not plainly return a list."""
    function = _function(tree, "get_init_inputs")
    if function is None or _plain(function, _dicts(tree)):
        return source
    return source.rstrip("\n") + "\n" + IN_ORDER.format(arguments="")


def configured(source: str, configuration: dict[str, object], given: dict[str, object]) -> str:
    """`source` with its `get_inputs` called with `given`, and `Model` constructed with `configuration`, by keyword."""
    return (
        source.rstrip("\n")
        + textwrap.dedent(
            f"""

        # The configuration of this problem.
        _given_inputs = get_inputs


        def get_inputs():
            inputs = _given_inputs(**{given!r})
            return list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]


        def get_init_inputs():
            return {configuration or []!r}
        """
        )
        + (IN_ORDER.format(arguments="") if configuration else "")
    )


def keyword_only(tree: ast.Module) -> dict[str, bool]:
    """The parameters of `Model`'s constructor that can be given by keyword only, and whether each must be given."""
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef) and statement.name == "Model":
            init = next((s for s in statement.body if isinstance(s, ast.FunctionDef) and s.name == "__init__"), None)
            if init is not None:
                pairs = zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)
                return {argument.arg: default is None for argument, default in pairs}
    return {}


def gives_keywords(tree: ast.Module) -> bool:
    """Whether `get_init_inputs` is seen to return a dict, whose items the judge gives by keyword."""
    function, dicts = _function(tree, "get_init_inputs"), _dicts(tree)
    returns = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)] if function else []
    return bool(returns) and all(value is not None and _may_be_dict(value, dicts) for value in returns)


def _function(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    return next((s for s in tree.body if isinstance(s, ast.FunctionDef) and s.name == name), None)


def _plain(function: ast.FunctionDef, dicts: set[str]) -> bool:
    """Whether every return is a list or tuple, written out, that can not be one of positions and a dict."""
    returns = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    return bool(returns) and all(
        isinstance(value, ast.List | ast.Tuple)
        and not any(isinstance(item, ast.Starred) for item in value.elts)
        and not (len(value.elts) == 2 and _may_be_dict(value.elts[1], dicts))
        for value in returns
    )


def _dicts(tree: ast.Module) -> set[str]:
    assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and _may_be_dict(node.value, set())]
    return {target.id for node in assignments for target in node.targets if isinstance(target, ast.Name)}


def _may_be_dict(item: ast.expr, dicts: set[str]) -> bool:
    match item:
        case ast.Dict() | ast.DictComp() | ast.Call(func=ast.Name(id="dict")):
            return True
        case ast.Name(id=name):
            return name in dicts
    return False


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


class LibraryMissing(Exception):
    """A library that this installation lacks; the message is one sentence with the remedy."""

    @classmethod
    def of_extra(cls, what_for: str, package: str | None, extra: str) -> "LibraryMissing":
        """What is wanted, the package that it needs, and the extra of ours that brings it."""
        return cls(f"{what_for} needs {package}; run pip install 'kernelwright[{extra}]'")


def library(name: str, what_for: str) -> Any:
    """The module, or `LibraryMissing`, which says what it is wanted for."""
    try:
        return import_module(name)
    except ImportError:
        raise LibraryMissing.of_extra(what_for, name.partition(".")[0], "data") from None
