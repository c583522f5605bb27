"""Values of expressions, and a lower bound of the memory of a problem's inputs; nothing is run."""

import ast
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kernelwright.problems.source import function_in, parse_expression, parse_module

LARGEST_BITS = 256
"""No number on the way may be longer: `9 ** 9 ** 9` is refused instead of computed."""
Value = Any
"""A number, a truth value, or a tuple of them."""

OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
COMPARISONS: dict[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class NotArithmetic(ValueError):
    """The text is more than arithmetic over the names that are known; the message says what is in the way."""


def evaluate(text: str, names: Mapping[str, Value]) -> Value:
    """Return the value of an expression over `names`; `NotArithmetic` for any other text."""
    try:
        tree = parse_expression(text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise NotArithmetic(f"{text!r} is not an expression") from None
    return value_of(tree.body, names)


def value_of(node: ast.expr, names: Mapping[str, Value]) -> Value:
    """Return the value of a syntax tree over `names`; `NotArithmetic` where that needs more than arithmetic."""
    try:
        return _value(node, names)
    except (ArithmeticError, TypeError, RecursionError, ValueError) as error:
        if isinstance(error, NotArithmetic):
            raise
        raise NotArithmetic(f"{ast.unparse(node)} has no value ({error})") from None


def _value(node: ast.expr, names: Mapping[str, Value]) -> Value:
    match node:
        case ast.Constant(value=int() | float() as value):
            return _bounded(value)
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return _combined(op, _value(left, names), _value(right, names))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, names)
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _compared([left, *others], ops, names)
        case ast.BoolOp(op=op, values=values):
            found = [bool(_value(value, names)) for value in values]
            return all(found) if isinstance(op, ast.And) else any(found)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(_value(item, names) for item in items)
        case ast.Name(id=name):
            raise NotArithmetic(f"{name} is not known")
    raise NotArithmetic(f"{ast.unparse(node)} is more than arithmetic")


def _combined(op: ast.operator, left: Value, right: Value) -> Value:
    if isinstance(op, ast.Pow) and abs(right) * max(1, int(abs(left)).bit_length()) > LARGEST_BITS:
        raise NotArithmetic("a power is too large")
    if isinstance(op, ast.Mult) and (isinstance(left, tuple) or isinstance(right, tuple)):
        raise NotArithmetic("a repeated tuple is more than arithmetic")
    return _bounded(OPERATORS[type(op)](left, right))


def _bounded(value: Value) -> Value:
    if isinstance(value, int) and value.bit_length() > LARGEST_BITS:
        raise NotArithmetic("a number is too large")
    return value


def _compared(operands: list[ast.expr], ops: list[ast.cmpop], names: Mapping[str, Value]) -> bool:
    values = [_value(operand, names) for operand in operands]
    if not all(type(op) in COMPARISONS for op in ops):
        raise NotArithmetic("only ==, !=, <, <=, > and >= can be compared with")
    return all(COMPARISONS[type(op)](*pair) for op, pair in zip(ops, itertools.pairwise(values), strict=True))


MAKERS = {"rand", "randn", "zeros", "ones", "empty"}
"""Functions of torch whose positional arguments are the shape."""
ITEM_BYTES = {
    "float64": 8, "double": 8, "int64": 8, "long": 8, "complex64": 8, "complex128": 16,
    "float32": 4, "float": 4, "int32": 4, "int": 4,
    "float16": 2, "half": 2, "bfloat16": 2, "int16": 2, "short": 2,
    "int8": 1, "uint8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


def input_bytes(source: str) -> int:
    """Count the bytes of the tensors that `get_inputs` visibly makes: a lower bound, 0 where none is visible.

    Visible are calls such as `torch.randn(BATCH, 4 * N)` whose sizes follow from constants of the module and of the
    function; each counts once, also inside a loop.
    """
    try:
        tree = parse_module(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    function = function_in(tree.body, "get_inputs")
    if function is None:
        return 0
    names = _constants(function.body, _constants(tree.body, {}))
    return sum(_bytes(node, names) for node in ast.walk(function) if isinstance(node, ast.Call))


def _constants(statements: Iterable[ast.stmt], known: dict[str, Value]) -> dict[str, Value]:
    found = dict(known)
    for statement in statements:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                try:
                    found[name] = value_of(value, found)
                except NotArithmetic:
                    found.pop(name, None)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                found = _constants(
                    [ast.Assign(targets=[target], value=value) for target, value in zip(targets, values, strict=False)],
                    found,
                )
    return found


def _bytes(call: ast.Call, names: dict[str, Value]) -> int:
    if not (isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in ("torch", "_torch")):
        return 0
    maker = call.func.attr
    shape = _shape(call, maker, names)
    if shape is None or not all(isinstance(size, int) and size >= 0 for size in shape):
        return 0
    dtype = "int64" if maker in ("randint", "randperm") else "float32"
    for keyword in call.keywords:
        if keyword.arg == "dtype" and isinstance(keyword.value, ast.Attribute):
            dtype = keyword.value.attr
    return math.prod(shape) * ITEM_BYTES.get(dtype, 4)


def _shape(call: ast.Call, maker: str, names: dict[str, Value]) -> tuple[Value, ...] | None:
    """Return the shape that a call of torch makes; None for one that makes no tensor, or whose shape is not visible."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    try:
        if maker in ("randint", "full"):
            sizes = [keywords["size"]] if "size" in keywords else [a for a in call.args if isinstance(a, ast.Tuple)]
            return tuple(value_of(sizes[0], names)) if sizes else None
        if maker == "randperm":
            return (value_of(call.args[0], names),)
        if maker not in MAKERS:
            return None
        arguments = [keywords["size"]] if "size" in keywords else call.args
        values = [value_of(item.value if isinstance(item, ast.Starred) else item, names) for item in arguments]
    except (NotArithmetic, IndexError, TypeError):
        return None
    flat: list[Value] = []
    for value in values:
        flat += value if isinstance(value, tuple) else (value,)
    return tuple(flat)
