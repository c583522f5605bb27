"""The text of a problem: operators of a graph as `Model`, weights and inputs drawn like those that were seen."""

import keyword
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from torch import fx

from kernelwright.programs.graphs import CallGraph, CannotCut, op_name, words
from kernelwright.programs.record import TensorSeen, ValuesSeen

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
SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "bitwise_and": "&", "bitwise_or": "|"}
SIGNS |= {"eq": "==", "le": "<=", "ge": ">=", "lt": "<", "gt": ">"}
MAKERS = words("arange zeros ones full empty scalar_tensor eye linspace")
LEFT_OUT = ("device", "layout", "pin_memory", "memory_format")
"""Of what makes tensors; the device is that of the inputs, wherever the problem runs."""


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
            return self._converted(node)
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

    def _converted(self, node: fx.Node) -> str:
        """A conversion: to a dtype or as another tensor is; a device alone is where everything is."""
        dtypes = [value for value in (*node.args[1:], *node.kwargs.values()) if isinstance(value, torch.dtype)]
        others = [value for value in node.args[1:] if isinstance(value, fx.Node)]
        source = self.names[node.args[0]]  # type: ignore[index]
        if dtypes or others:
            return f"{source}.to({dtypes[0] if dtypes else self.names[others[0]]})"
        return source


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
    "bitwise_not": lambda given, named: f"~{given[0]}",
}
"""By operator, what neither `torch.nn.functional` nor `torch` nor a method takes in the same way."""


UNKNOWN = ValuesSeen(drawing="normal", deviation=1.0)
WOBBLE = 0.1
"""How far weights are drawn from a constant such as a norm's ones, so that no kernel can leave them out."""


def drawn(seen: TensorSeen, shape: str, is_weight: bool = False) -> str:
    """The expression for one tensor; `shape` is the text of its axes, such as `8, 128`."""
    values = seen.values or UNKNOWN
    dtype = getattr(torch, seen.dtype)
    if not dtype.is_floating_point:
        return _whole(values, shape, seen.dtype)
    if values.drawing in ("causal", "share"):
        return _cast(_mask(values, shape), seen.dtype)
    if values.drawing == "constant" and is_weight:
        values = values.model_copy(update={"drawing": "normal", "deviation": WOBBLE * max(abs(values.low), 1.0)})
    return _cast(_floating(values, shape), seen.dtype)


def _floating(values: ValuesSeen, shape: str) -> str:
    match values.drawing:
        case "constant":
            return f"torch.full(({shape},), {_short(values.low)})" if shape else f"torch.tensor({_short(values.low)})"
        case "uniform":
            return _moved(f"torch.rand({shape or '()'})", values.high - values.low, values.low)
        case "rectified":
            # So that the same share lies below zero, and what is left has the same mean.
            cut = NormalDist().inv_cdf(min(max(values.zeros, 0.01), 0.99))
            scale = values.mean / max(1e-9, NormalDist().pdf(cut) - cut * (1 - values.zeros))
            return f"torch.relu({_moved(f'torch.randn({shape})', scale, -cut * scale)})"
    return _moved(f"torch.randn({shape or '()'})", values.deviation, values.mean)


def _moved(text: str, scale: float, offset: float) -> str:
    text = text if _short(scale) == "1.0" else f"{text} * {_short(scale)}"
    if abs(offset) < 0.01 * abs(scale):
        return text
    return f"{text} {'-' if offset < 0 else '+'} {_short(abs(offset))}"


def _mask(values: ValuesSeen, shape: str) -> str:
    low = '-float("inf")' if values.infinite else _short(values.low)
    high = _short(values.high)
    if values.drawing == "causal":
        return f"torch.full(({shape},), {high}).masked_fill(torch.ones({shape}).triu(1).bool(), {low})"
    # The first of each row stays, so that no row is masked as a whole.
    hidden = f"(torch.rand({shape}) >= {_short(values.share)}).index_fill(-1, torch.tensor([0]), False)"
    return f"torch.full(({shape},), {high}).masked_fill({hidden}, {low})"


def _whole(values: ValuesSeen, shape: str, dtype: str) -> str:
    last = shape.rpartition(",")[2].strip()
    if dtype == "bool" and values.drawing in ("causal", "share"):
        if values.drawing == "causal":
            return f"torch.ones({shape}).tril().bool()"
        return f"torch.rand({shape}) < {_short(values.share)}"
    if values.drawing == "constant":
        value = bool(values.low) if dtype == "bool" else int(values.low)
        return f"torch.full(({shape}{',' if shape else ''}), {value}, dtype=torch.{dtype})"
    if values.drawing == "counting":
        repeats = ", ".join([*shape.split(", ")[:-1], "1"])
        return f"torch.arange({last}, dtype=torch.{dtype}).repeat({repeats})"
    size = f"({shape}{',' if shape else ''})"
    return f"torch.randint({int(values.low)}, {int(values.high) + 1}, {size}, dtype=torch.{dtype})"


def _cast(text: str, dtype: str) -> str:
    if dtype == "float32":
        return text
    inner = text if text.startswith("torch.") and text.endswith(")") and " " not in text else f"({text})"
    return f"{inner}.to(torch.{dtype})"


def _short(value: float) -> str:
    """Three digits are enough for a likeness; what is large and whole stays as it is."""
    if value and math.isfinite(value) and abs(value) > 1e30:
        return repr(value)
    return repr(float(f"{value:.3g}"))


def draw(tensors: Sequence[TensorSeen], device: str) -> list[torch.Tensor]:
    """Tensors like those, with the strides that were seen where no two elements share their place."""
    found = []
    for seen in tensors:
        made = eval(drawn(seen, ", ".join(map(str, seen.shape))), {"torch": torch, "float": float})
        assert isinstance(made, torch.Tensor), "the expressions above make tensors"
        if made.stride() != seen.stride and 0 not in seen.stride:
            made = torch.empty_strided(seen.shape, seen.stride, dtype=made.dtype).copy_(made)
        found.append(made.to(device))
    return found


MOST_WRITTEN_OUT = 4096
"""Elements of a table of whole numbers that is written into a problem's text."""
TAKEN = frozenset({"torch", "nn", "F", "self", "Model"})
CONSTANTS = "# constants\n"
"""Where those of several sizes will stand."""
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
    """By placeholder, what the weights and buffers that are used are like."""
    tables: Mapping[str, torch.Tensor]
    """By placeholder, buffers and constants of whole numbers, which are a part of the problem."""


class Written(NamedTuple):
    """A text whose numbers are still marked."""

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
    """The text; `plainly` in operators of aten alone. `CannotCut` where the text can not stand alone."""
    names = _names(piece)
    used = [name for name in (*piece.state, *piece.tables) if any(node.name == name for node in names)]
    home = names[piece.inputs[0][0]] if piece.inputs else f"self.{_attribute(piece, used[0])}"
    speller = Speller(names, home, plainly)
    body = []
    for node in piece.nodes:
        call = speller.call(node)
        is_statement = op_name(node).endswith("_") and not node.users
        body.append(f"        {call}" if is_statement else f"        {names[node]} = {call}")
    returned = ", ".join(names[node] for node in piece.outputs)
    body.append(f"        return {returned}")
    parameters = [names[node] for node, _ in piece.inputs]
    drawing = [f"        {drawn(seen, _shape(seen))},\n" for _, seen in piece.inputs]
    text = TEMPLATE.format(
        constants=CONSTANTS,
        title=piece.title,
        made="".join(f"        {_made(piece, name)}\n" for name in used) or "",
        parameters="".join(f", {name}" for name in parameters),
        body="\n".join(body) + "\n",
        inputs="".join(drawing),
    )
    return Written(text, {_attribute(piece, name): name for name in used}, parameters)


def skeleton(piece: Piece) -> str:
    """The text without its numbers and without how values are drawn: two sizes of one part have the same."""
    inputs = [(node, seen.model_copy(update={"values": None})) for node, seen in piece.inputs]
    state = {name: seen.model_copy(update={"values": None}) for name, seen in piece.state.items()}
    return NUMBER.sub("#", written(piece._replace(inputs=inputs, state=state)).text)


def finished(texts: Sequence[Written]) -> tuple[str, list[dict[str, int]]]:
    """The text at all sizes, with a constant for each number that differs, and their values at each size.

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
    """The problem's own name of a weight: the module's, with `_` for the points."""
    name = re.sub(r"\W", "_", piece.graph.state.get(placeholder, placeholder))
    name = name if name.isidentifier() else f"_{name}"
    return f"{name}_" if hasattr(torch.nn.Module, name) or keyword.iskeyword(name) else name


def _made(piece: Piece, name: str) -> str:
    attribute = _attribute(piece, name)
    if name in piece.tables:
        return f'self.register_buffer("{attribute}", {_table(piece.tables[name])})'
    seen = piece.state[name]
    value = drawn(seen, _shape(seen), is_weight=True)
    is_parameter = name in piece.graph.parameters
    return (
        f"self.{attribute} = nn.Parameter({value})" if is_parameter else f'self.register_buffer("{attribute}", {value})'
    )


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
