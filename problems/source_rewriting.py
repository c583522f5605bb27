"""Changes to the text of a reference: its sizes, its device, and the order of its constructor arguments.

Our convention for constructor arguments is a list of positions, which a candidate takes in the order of the reference's
`Model`. A source in another convention (a dict of keywords, or positions and a dict) gets lines at its end that order
them; its own text stays.
"""

import ast
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from kernelwright.problems.problem import ProblemError
from kernelwright.problems.source import CUDA, function_in, parse_module

IN_ORDER = """

# Constructor arguments in the order of Model's parameters.
import inspect as _inspect

_given_init_inputs = get_init_inputs


def get_init_inputs():
    given = _given_init_inputs()
    positions, keywords = given, {}
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
    function = function_in(tree.body, "get_init_inputs")
    if function is None or _plain(function, _dicts(tree)):
        return source
    return source.rstrip("\n") + "\n" + IN_ORDER


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
        + (IN_ORDER if configuration else "")
    )


def keyword_only(tree: ast.Module) -> dict[str, bool]:
    """Return the keyword-only parameters of `Model`'s constructor, and whether each is required."""
    model = next((one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == "Model"), None)
    init = function_in(model.body, "__init__") if model else None
    if init is None:
        return {}
    pairs = zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)
    return {argument.arg: default is None for argument, default in pairs}


def gives_keywords(tree: ast.Module) -> bool:
    """Return whether `get_init_inputs` visibly returns a dict, whose items the judge passes by keyword."""
    function, dicts = function_in(tree.body, "get_init_inputs"), _dicts(tree)
    returns = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)] if function else []
    return bool(returns) and all(value is not None and _may_be_dict(value, dicts) for value in returns)


def _plain(function: ast.FunctionDef, dicts: set[str]) -> bool:
    """Return whether every return is a list or tuple, written out, that cannot be one of positions and a dict."""
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


DRAWING = ("get_inputs", "get_init_inputs")


def without_cuda(source: str) -> str:
    """`source` with the device `cpu` for `cuda` in the functions that draw inputs, and `.cuda()` there left out.

    The model itself keeps its text. A device that is named through a variable of the module is replaced there too.
    `source` must parse.
    """
    edits = []
    for node in _mentions(parse_module(source)):
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Attribute)
            edits.append((_end(node.func.value), _end(node), ""))
        else:
            edits.append((_start(node), _end(node), '"cpu"'))
    return _edited(source, edits)


def _mentions(tree: ast.Module) -> Iterator[ast.Call | ast.Constant]:
    for statement in tree.body:
        draws = isinstance(statement, ast.FunctionDef) and statement.name in DRAWING
        for node in ast.walk(statement) if draws or isinstance(statement, ast.Assign) else ():
            match node:
                case ast.Call(func=ast.Attribute(attr="cuda")) if draws:
                    yield node
                case ast.Constant(value=str() as text) if CUDA.fullmatch(text):
                    yield node


def put_sizes(source: str, values: Mapping[str, int]) -> str:
    """Set each constant named in `values` to its value in `source`; all other text, comments included, stays.

    A constant is a module-level `NAME = literal`, with or without an annotation. Raises `ProblemError` for a name that
    has no such line, or more than one, since then it is not clear which value holds.
    """
    places = _literals(parse_module(source))
    found = [(_only(places, name), str(value)) for name, value in values.items()]
    return _edited(source, [(_start(node), _end(node), text) for node, text in found])


def _literals(tree: ast.Module) -> dict[str, list[ast.expr]]:
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


Position = tuple[int, int]
"""A line, counted from 1, and a column in UTF-8 bytes, as `ast` counts them; lines end at newlines only."""


def _start(node: ast.expr) -> Position:
    return node.lineno, node.col_offset


def _end(node: ast.expr) -> Position:
    assert node.end_lineno is not None and node.end_col_offset is not None, "a parsed expression has an end"
    return node.end_lineno, node.end_col_offset


def _edited(source: str, edits: Iterable[tuple[Position, Position, str]]) -> str:
    """Put each text in place of the text between two positions; no two edits overlap."""
    encoded = source.encode()
    starts = [0, *accumulate(len(line) + 1 for line in encoded.split(b"\n"))]
    for (line, column), (last_line, last_column), text in sorted(edits, reverse=True):
        start, end = starts[line - 1] + column, starts[last_line - 1] + last_column
        encoded = encoded[:start] + text.encode() + encoded[end:]
    return encoded.decode()
