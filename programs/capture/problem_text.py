"""The text of a problem: operators of a graph as `Model`, weights and inputs drawn like those that were seen."""

import keyword
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import fx

from kernelwright.programs.capture.drawing import drawn
from kernelwright.programs.capture.graphs import CallGraph, CannotCut, op_name
from kernelwright.programs.capture.spelling import CLOSE, NUMBER, OPEN, Speller
from kernelwright.programs.record.seen import TensorSeen

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
    """What of a graph a problem is made of."""

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
        """The text as it runs, at its own size."""
        return NUMBER.sub(r"\1", self.text.replace(CONSTANTS, "\n", 1))

    @property
    def numbers(self) -> list[int]:
        """The marked ones, in order."""
        return [int(number) for number in NUMBER.findall(self.text)]


def written(piece: Piece, plainly: bool = False) -> Written:
    """The text; `plainly` in operators of aten alone. `CannotCut` where the text can not stand alone."""
    names = _names(piece)
    used = [name for name in (*piece.state, *piece.tables) if any(node.name == name for node in names)]
    home = names[piece.inputs[0][0]] if piece.inputs else f"self.{_attribute(piece, used[0])}"
    speller = Speller(names, home, plainly)
    body = [f"        {_statement(node, names, speller)}" for node in piece.nodes]
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
    """What each value is called in the text."""
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


def _statement(node: fx.Node, names: Mapping[fx.Node, str], speller: Speller) -> str:
    call = speller.call(node)
    return call if op_name(node).endswith("_") and not node.users else f"{names[node]} = {call}"


def _made(piece: Piece, name: str) -> str:
    """The line of a constructor for a weight, a buffer or a table."""
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
