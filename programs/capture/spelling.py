"""Operators of a graph as Python that a person would write; what has no spelling here is `torch.ops.aten.NAME`.

Whole numbers are written between `OPEN` and `CLOSE`, so that texts of two sizes can be compared, and what differs be
named.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from kernelwright.programs.capture.graphs import op_name, words

OPEN, CLOSE = "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}", "\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}"
NUMBER = re.compile(f"{OPEN}(-?\\d+){CLOSE}")
FUNCTIONAL = words(
    "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d gelu silu mish elu "
    "leaky_relu hardswish hardsigmoid hardtanh relu6 softplus max_pool1d max_pool2d avg_pool2d "
    "adaptive_avg_pool2d adaptive_avg_pool1d layer_norm group_norm scaled_dot_product_attention pad "
    "one_hot log_sigmoid"
)
LESS = {"layer_norm": 5, "group_norm": 5}
"""How many arguments `torch.nn.functional` takes of those; what follows is a hint for cuDNN."""
TORCH = words(
    "relu sigmoid tanh exp log sqrt rsqrt abs neg sin cos erf pow matmul bmm mm addmm baddbmm cat stack "
    "softmax log_softmax mean sum amax amin cumsum where clamp minimum maximum square reciprocal einsum "
    "chunk split tril triu argmax rms_norm var gather index_select roll flip floor round logical_and "
    "logical_or logical_not"
)
METHODS = words(
    "view reshape permute transpose unsqueeze squeeze flatten unflatten expand expand_as select narrow "
    "contiguous unbind masked_fill repeat type_as t clone float detach"
)
SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
MAKERS = words("arange zeros ones full empty scalar_tensor eye linspace")
LEFT_OUT = ("device", "layout", "pin_memory", "memory_format")
"""Of what makes tensors; the device is that of the inputs, wherever the problem runs."""


class Speller:
    """Writes nodes; `names` are those of values, `home` an input whose device new tensors go to."""

    def __init__(self, names: Mapping[fx.Node, str], home: str, plainly: bool = False) -> None:
        self.names, self.home, self.plainly = names, home, plainly

    def call(self, node: fx.Node) -> str:
        """The expression of one operator."""
        name = op_name(node)
        arguments = [self.value(argument) for argument in node.args]
        named = {key: self.value(value) for key, value in node.kwargs.items() if key not in LEFT_OUT}
        if node.target is operator.getitem:
            return f"{arguments[0]}[{arguments[1]}]"
        if name in MAKERS:
            return _called(f"torch.{name}", arguments, named | {"device": f"{self.home}.device"})
        if name in ("to", "_to_copy") and not self.plainly:
            return self._converted(node)
        if not self.plainly and (written := _friendly(node, name, arguments, named)):
            return written
        return _called(f"torch.ops.{node.target}", arguments, named)

    def value(self, value: Any) -> str:
        """One argument, whatever it is."""
        if isinstance(value, fx.Node):
            return self.names[value]
        if isinstance(value, list | tuple):
            return f"[{', '.join(self.value(item) for item in value)}]"
        if isinstance(value, torch.device):
            return f"{self.home}.device"
        return _literal(value)

    def _converted(self, node: fx.Node) -> str:
        """A conversion: to a dtype or as another tensor is; a device alone is where everything is."""
        dtypes = [value for value in (*node.args[1:], *node.kwargs.values()) if isinstance(value, torch.dtype)]
        others = [value for value in node.args[1:] if isinstance(value, fx.Node)]
        source = self.names[node.args[0]]  # type: ignore[index]
        if dtypes or others:
            return f"{source}.to({dtypes[0] if dtypes else self.names[others[0]]})"
        return source


def _literal(value: Any) -> str:
    if isinstance(value, bool | str | None):
        return repr(value)
    if isinstance(value, int):
        return f"{OPEN}{value}{CLOSE}"
    return f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else str(value)


def _friendly(node: fx.Node, name: str, arguments: list[str], named: dict[str, str]) -> str | None:
    written = None
    if name in SPELLINGS:
        written = SPELLINGS[name](arguments, named)
    elif name in SIGNS and not named and len(arguments) == 2:
        written = f"{arguments[0]} {SIGNS[name]} {arguments[1]}"
    elif name in FUNCTIONAL:
        written = _called(f"F.{name}", arguments[: LESS.get(name)], named)
    elif name in TORCH:
        written = _called(f"torch.{name}", arguments, named)
    elif name in METHODS:
        written = _called(f"{arguments[0]}.{name}", arguments[1:], named)
    return written


def _called(function: str, arguments: Sequence[str], named: Mapping[str, str]) -> str:
    return f"{function}({', '.join([*arguments, *(f'{key}={value}' for key, value in named.items())])})"


def _batch_norm(given: list[str], named: Mapping[str, str]) -> str:
    image, weight, bias, mean, variance, training, momentum, eps = given[:8]
    options = {"training": training, "momentum": momentum, "eps": eps}
    return _called("F.batch_norm", [image, mean, variance, weight, bias], options)


def _slice(given: list[str], named: Mapping[str, str]) -> str:
    source, axis, start, end, step = (*given, *("None",) * (5 - len(given)))
    match = NUMBER.fullmatch(axis)
    number = int(match[1]) if match else 0
    numbers = [_end(text) for text in (start, end, step)]
    inside = f"{numbers[0]}:{numbers[1]}" + (f":{numbers[2]}" if numbers[2] not in ("", f"{OPEN}1{CLOSE}") else "")
    before = [":"] * number if number >= 0 else ["..."]
    after = [":"] * (-number - 1) if number < 0 else []
    return f"{source}[{', '.join([*before, inside, *after])}]"


def _end(text: str) -> str:
    match = NUMBER.fullmatch(text)
    if text == "None" or (match and abs(int(match[1])) >= 2**62):
        return ""
    return text


def _embedding(given: list[str], named: Mapping[str, str]) -> str:
    padding = {"padding_idx": given[2]} if len(given) > 2 and given[2] != f"{OPEN}-1{CLOSE}" else {}
    return _called("F.embedding", [given[1], given[0]], padding)


SPELLINGS: dict[str, Callable[[list[str], Mapping[str, str]], str]] = {
    "batch_norm": _batch_norm,
    "slice": _slice,
    "embedding": _embedding,
    "conv2d": lambda given, named: _called("F.conv2d", given, named),
    "numpy_T": lambda given, named: f"{given[0]}.T",
    "add_": lambda given, named: _called(f"{given[0]}.add_", given[1:], named),
    "rsub": lambda given, named: f"{given[1]} - {given[0]}",
    "bitwise_and": lambda given, named: f"{given[0]} & {given[1]}",
    "bitwise_or": lambda given, named: f"{given[0]} | {given[1]}",
    "bitwise_not": lambda given, named: f"~{given[0]}",
    "eq": lambda given, named: f"{given[0]} == {given[1]}",
    "le": lambda given, named: f"{given[0]} <= {given[1]}",
    "ge": lambda given, named: f"{given[0]} >= {given[1]}",
    "lt": lambda given, named: f"{given[0]} < {given[1]}",
    "gt": lambda given, named: f"{given[0]} > {given[1]}",
}
"""By operator, what neither `torch.nn.functional` nor `torch` nor a method takes in the same way."""
