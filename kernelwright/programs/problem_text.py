"""The text of a problem: operators of a graph as `Model`, weights and inputs drawn like those that were seen."""

import keyword
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from kernelwright.programs.graphs import CallGraph, CannotCut, op_name, words
from kernelwright.programs.record import TensorSeen
from kernelwright.programs.values import drawn

OPEN, CLOSE = "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}", "\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}"
NUMBER = re.compile(f"{OPEN}(-?\\d+){CLOSE}")
FUNCTIONAL = words(
    "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d gelu silu mish elu "
    "leaky_relu hardswish hardsigmoid hardtanh relu6 softplus max_pool1d max_pool2d avg_pool2d "
    "adaptive_avg_pool2d adaptive_avg_pool1d layer_norm group_norm scaled_dot_product_attention pad "
    "one_hot log_sigmoid"
)
LESS = {"layer_norm": 5, "group_norm": 5}
"""Arguments that `torch.nn.functional` takes of those; the rest are hints for cuDNN."""
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
SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "bitwise_and": "&", "bitwise_or": "|"}
SIGNS |= {"eq": "==", "le": "<=", "ge": ">=", "lt": "<", "gt": ">"}
MAKERS = words("arange zeros ones full empty scalar_tensor eye linspace")
LEFT_OUT = ("device", "layout", "pin_memory", "memory_format")
"""Options of `MAKERS`; the device is that of the inputs, wherever the problem runs."""


class Speller:
    """Writes nodes; `names` are those of values, `home` an input whose device new tensors go to."""

    def __init__(self, names: Mapping[fx.Node, str], home: str, plainly: bool = False) -> None:
        self.names, self.home, self.plainly = names, home, plainly

    def call(self, node: fx.Node) -> str:
        name = op_name(node)
        arguments = [self.value(argument) for argument in node.args]
        named = {key: self.value(value) for key, value in node.kwargs.items() if key not in LEFT_OUT}
        if node.target is operator.getitem:
            return f"{arguments[0]}[{arguments[1]}]"
        if name in MAKERS:
            return _called(f"torch.{name}", arguments, named | {"device": f"{self.home}.device"})
        if name in ("to", "_to_copy") and not self.plainly:
            # To a dtype or as another tensor is; a device alone is the one that everything is on.
            dtypes = [value for value in (*node.args[1:], *node.kwargs.values()) if isinstance(value, torch.dtype)]
            kinds = [*map(str, dtypes), *(self.names[one] for one in node.args[1:] if isinstance(one, fx.Node))]
            return f"{arguments[0]}.to({kinds[0]})" if kinds else arguments[0]
        if not self.plainly and (written := _friendly(name, arguments, named)):
            return written
        return _called(f"torch.ops.{node.target}", arguments, named)

    def value(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            return self.names[value]
        if isinstance(value, list | tuple):
            return f"[{', '.join(self.value(item) for item in value)}]"
        if isinstance(value, torch.device):
            return f"{self.home}.device"
        if isinstance(value, bool | str | None):
            return repr(value)
        if isinstance(value, int):
            return f"{OPEN}{value}{CLOSE}"
        return f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else str(value)


def _friendly(name: str, arguments: list[str], named: dict[str, str]) -> str | None:
    if name in SPELLINGS:
        return SPELLINGS[name](arguments, named)
    if name in SIGNS and not named and len(arguments) == 2:
        return f"{arguments[0]} {SIGNS[name]} {arguments[1]}"
    if name in FUNCTIONAL:
        return _called(f"F.{name}", arguments[: LESS.get(name)], named)
    if name in TORCH:
        return _called(f"torch.{name}", arguments, named)
    return _called(f"{arguments[0]}.{name}", arguments[1:], named) if name in METHODS else None


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
    numbers = [_slice_end(text) for text in (start, end, step)]
    inside = f"{numbers[0]}:{numbers[1]}" + (f":{numbers[2]}" if numbers[2] not in ("", f"{OPEN}1{CLOSE}") else "")
    before = [":"] * number if number >= 0 else ["..."]
    after = [":"] * (-number - 1) if number < 0 else []
    return f"{source}[{', '.join([*before, inside, *after])}]"


def _slice_end(text: str) -> str:
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
    "bitwise_not": lambda given, named: f"~{given[0]}",
}
"""Operators that neither `torch.nn.functional` nor `torch` nor a method takes in the same way."""


MOST_WRITTEN_OUT = 4096
"""Elements of a table of whole numbers that is written into a problem's text."""
TAKEN = frozenset({"torch", "nn", "F", "self", "Model"})
CONSTANTS = "# constants\n"
"""The place of those of several sizes."""
TEMPLATE = '''import torch
import torch.nn.functional as F
from torch import nn

{constants}class Model(nn.Module):
    """{title}"""

    def __init__(self):
        super().__init__()
{made}
    def forward(self{parameters}):
{body}

def get_inputs():
    return [
{inputs}    ]


def get_init_inputs():
    return []
'''


class Piece(NamedTuple):
    graph: CallGraph
    nodes: Sequence[fx.Node]
    inputs: Sequence[tuple[fx.Node, TensorSeen]]
    outputs: Sequence[fx.Node]
    title: str
    state: Mapping[str, TensorSeen]
    """By placeholder, the descriptions of the weights and buffers that are used."""
    tables: Mapping[str, torch.Tensor]
    """By placeholder, buffers and constants of whole numbers, which are a part of the problem."""


class Written(NamedTuple):
    """The text of a problem whose numbers are still marked."""

    text: str
    state: dict[str, str]
    """By the problem's name, the placeholder."""
    parameters: list[str]

    @property
    def plain(self) -> str:
        return NUMBER.sub(r"\1", self.text.replace(CONSTANTS, "\n", 1))

    @property
    def numbers(self) -> list[int]:
        return [int(number) for number in NUMBER.findall(self.text)]


def written(piece: Piece, plainly: bool = False) -> Written:
    """Write the text; `plainly` in operators of aten alone. `CannotCut` where the text would not be complete."""
    names = _names(piece)
    used = [name for name in (*piece.state, *piece.tables) if any(node.name == name for node in names)]
    home = names[piece.inputs[0][0]] if piece.inputs else f"self.{_attribute(piece, used[0])}"
    speller = Speller(names, home, plainly)
    body = []
    for node in piece.nodes:
        is_statement = op_name(node).endswith("_") and not node.users
        body.append(speller.call(node) if is_statement else f"{names[node]} = {speller.call(node)}")
    body.append(f"return {', '.join(names[node] for node in piece.outputs)}")
    parameters = [names[node] for node, _ in piece.inputs]
    text = TEMPLATE.format(
        constants=CONSTANTS,
        title=piece.title,
        made="".join(f"        {_made(piece, name)}\n" for name in used),
        parameters="".join(f", {name}" for name in parameters),
        body="".join(f"        {line}\n" for line in body),
        inputs="".join(f"        {drawn(seen, _shape(seen))},\n" for _, seen in piece.inputs),
    )
    return Written(text, {_attribute(piece, name): name for name in used}, parameters)


def skeleton(piece: Piece) -> str:
    """Return the text without its numbers and its ways to draw: two sizes of one part have the same."""
    inputs = [(node, seen.model_copy(update={"values": None})) for node, seen in piece.inputs]
    state = {name: seen.model_copy(update={"values": None}) for name, seen in piece.state.items()}
    return NUMBER.sub("#", written(piece._replace(inputs=inputs, state=state)).text)


def finished(texts: Sequence[Written]) -> tuple[str, list[dict[str, int]]]:
    """Join the texts of all sizes, with a constant for each number that differs, and its values at each size.

    The texts must have one skeleton; the first is the one whose draws stay.
    """
    columns = list(zip(*(text.numbers for text in texts), strict=True))
    names: dict[tuple[int, ...], str] = {}
    for column in columns:
        if len(set(column)) > 1:
            names.setdefault(column, f"N{len(names) + 1}")
    at = iter(columns)

    def put(match: re.Match[str]) -> str:
        return names.get(next(at), match[1])

    text = NUMBER.sub(put, texts[0].text)
    lines = "".join(f"{name} = {column[0]}\n" for column, name in names.items())
    text = text.replace(CONSTANTS, f"{lines}\n\n" if lines else "\n", 1)
    return text, [{name: column[index] for column, name in names.items()} for index in range(len(texts))]


def _names(piece: Piece) -> dict[fx.Node, str]:
    names: dict[fx.Node, str] = {}
    taken = set(TAKEN)
    inputs = {node for node, _ in piece.inputs}
    for node in (*(node for node, _ in piece.inputs), *piece.nodes):
        name = re.sub(r"\W", "_", node.name)
        while keyword.iskeyword(name) or name in taken:
            name += "_"
        taken.add(name)
        names[node] = name
    for node in piece.nodes:
        for argument in node.all_input_nodes:
            if argument not in names and argument not in inputs:
                if argument.name not in piece.state and argument.name not in piece.tables:
                    raise CannotCut(f"it uses {argument.name}, which is no tensor")
                names[argument] = f"self.{_attribute(piece, argument.name)}"
    return names


def _attribute(piece: Piece, placeholder: str) -> str:
    """Return the problem's own name of a weight: the module's, with `_` for the points."""
    name = re.sub(r"\W", "_", piece.graph.state.get(placeholder, placeholder))
    name = name if name.isidentifier() else f"_{name}"
    return f"{name}_" if hasattr(torch.nn.Module, name) or keyword.iskeyword(name) else name


def _made(piece: Piece, name: str) -> str:
    attribute = _attribute(piece, name)
    if name in piece.tables:
        return f'self.register_buffer("{attribute}", {_table(piece.tables[name])})'
    seen = piece.state[name]
    value = drawn(seen, _shape(seen), is_weight=True)
    if name in piece.graph.parameters:
        return f"self.{attribute} = nn.Parameter({value})"
    return f'self.register_buffer("{attribute}", {value})'


def _table(tensor: torch.Tensor) -> str:
    dtype, shape = str(tensor.dtype), list(tensor.shape)
    if not tensor.numel():
        return f"torch.empty({shape}, dtype={dtype})"
    first = tensor.reshape(-1)[0].item()
    if bool((tensor == first).all()):
        return f"torch.full({shape}, {first}, dtype={dtype})"
    counting = torch.arange(tensor.numel(), dtype=tensor.dtype) if tensor.dtype != torch.bool else None
    if counting is not None and bool((tensor.reshape(-1) == counting).all()):
        return f"torch.arange({tensor.numel()}, dtype={dtype}).reshape({shape})"
    if tensor.numel() > MOST_WRITTEN_OUT:
        raise CannotCut(f"it holds a table of {tensor.numel()} {str(dtype).removeprefix('torch.')} values")
    return f"torch.tensor({tensor.tolist()}, dtype={dtype})"


def _shape(seen: TensorSeen) -> str:
    return ", ".join(f"{OPEN}{size}{CLOSE}" for size in seen.shape)
