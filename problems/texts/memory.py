"""How much memory a problem's inputs need at least, read from its text: known before anything is run."""

import ast
import math
from collections.abc import Iterable, Iterator

from kernelwright.problems.record.syntax import parse_module
from kernelwright.problems.texts.arithmetic import NotArithmetic, Value, value_of

MAKERS = {"rand", "randn", "zeros", "ones", "empty"}
"""Functions of torch whose positional arguments are the shape."""
ITEM_BYTES = {
    "float64": 8, "double": 8, "int64": 8, "long": 8, "complex64": 8, "complex128": 16,
    "float32": 4, "float": 4, "int32": 4, "int": 4,
    "float16": 2, "half": 2, "bfloat16": 2, "int16": 2, "short": 2,
    "int8": 1, "uint8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


def input_bytes(source: str) -> int:
    """The bytes of the tensors that `get_inputs` is seen to make: a lower bound, 0 where nothing can be seen.

    Seen are calls such as `torch.randn(BATCH, 4 * N)` whose sizes follow from constants of the module and of the
    function; each counts once, also inside a loop.
    """
    try:
        tree = parse_module(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    names = _constants(tree.body, {})
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and function.name == "get_inputs":
            local = _constants(function.body, names)
            return sum(_bytes(call, local) for call in _calls(function))
    return 0


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


def _calls(function: ast.FunctionDef) -> Iterator[ast.Call]:
    return (node for node in ast.walk(function) if isinstance(node, ast.Call))


def _bytes(call: ast.Call, names: dict[str, Value]) -> int:
    match call.func:
        case ast.Attribute(value=ast.Name(id="torch"), attr=maker):
            pass
        case _:
            return 0
    shape = _shape(call, maker, names)
    if shape is None or not all(isinstance(size, int) and size >= 0 for size in shape):
        return 0
    return math.prod(shape) * _item_bytes(call, "int64" if maker in ("randint", "randperm") else "float32")


def _shape(call: ast.Call, maker: str, names: dict[str, Value]) -> tuple[Value, ...] | None:
    """The shape that a call of torch asks for; None for a call that makes no tensor, or of a shape not seen."""
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


def _item_bytes(call: ast.Call, default: str) -> int:
    for keyword in call.keywords:
        if keyword.arg == "dtype" and isinstance(keyword.value, ast.Attribute):
            default = keyword.value.attr
    return ITEM_BYTES.get(default, 4)
