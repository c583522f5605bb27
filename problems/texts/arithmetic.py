"""Arithmetic in foreign text, evaluated without running it: axes, constraints, and the sizes of a file's tensors."""

import ast
import itertools
import operator
from collections.abc import Callable, Mapping
from typing import Any

from kernelwright.problems.record.syntax import parse_expression

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
    """The value of an expression over `names`; `NotArithmetic` for any other text."""
    try:
        tree = parse_expression(text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise NotArithmetic(f"{text!r} is no expression") from None
    return value_of(tree.body, names)


def value_of(node: ast.expr, names: Mapping[str, Value]) -> Value:
    """The value of a syntax tree over `names`; `NotArithmetic` where that needs more than arithmetic."""
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
