"""A module's call as a graph of torch's operators: exported, and put into a form in which parts can be cut out."""

import hashlib
import logging
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import ConstantArgument, InputKind, TensorArgument
from torch.utils import _pytree as pytree


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


VIEWS = words(
    "view reshape _unsafe_view permute transpose t numpy_T mT unsqueeze squeeze flatten unflatten expand "
    "expand_as select slice narrow split split_with_sizes chunk unbind getitem detach alias contiguous "
    "view_as movedim swapaxes unfold diagonal sym_size lift_fresh_copy"
)
"""Operators that compute nothing: at most they copy."""
CHECKS = frozenset(("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range"))
PASSING_ON = frozenset(("lift_fresh_copy", "alias"))
"""Operators that give their argument."""
PRODUCTS = words(
    "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d mm matmul bmm addmm "
    "baddbmm scaled_dot_product_attention embedding einsum"
)
MOST_OUTPUTS = 4


class CannotCut(Exception):
    """The call of a module is not a graph of its own; the message is a clause for the user."""


@dataclass
class CallGraph:
    program: torch.export.ExportedProgram
    nodes: list[fx.Node]
    """The operators in order, none of which changes a tensor in place but for buffers."""
    inputs: dict[str, int]
    """By placeholder of a tensor argument, its leaf in `tree_flatten((args, kwargs))`."""
    state: dict[str, str]
    """By placeholder of a parameter or buffer, its qualified name in the module."""
    parameters: set[str]
    """Those of them that are parameters."""
    constants: dict[str, torch.Tensor]
    """By placeholder, tensors that were made in `forward` out of Python's numbers."""
    results: list[fx.Node | None]
    """The leaves of the result; None for those that are None."""
    written: set[str] = field(default_factory=set)
    """Placeholders of buffers that a call changes."""
    changes_input: bool = False

    @property
    def digest(self) -> str:
        """Of the operators with all their arguments and the shapes of their results, whatever the weights are."""

        def line(node: fx.Node) -> str:
            made = value_of(node)
            shape = "" if made is None else f"{list(made.shape)} {made.dtype}"
            return f"{node.name} = {node.target}{node.args}{node.kwargs} {shape}"

        text = "\n".join(map(line, self.nodes))
        return hashlib.sha256(text.encode()).hexdigest()


def export_call(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallGraph:
    """Export the graph of `module(*args, **kwargs)` in the module's mode. `CannotCut` where torch finds none."""
    for leaf in pytree.tree_leaves((args, kwargs)):
        if not isinstance(leaf, torch.Tensor | bool | int | float | str | torch.dtype | torch.device | None):
            raise CannotCut(f"it takes a {type(leaf).__name__}, which no problem can be given")
    logged = logging.root.manager.disable
    logging.disable(logging.ERROR)  # torch's log about an export that fails: it is reported in a sentence of ours
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(module, tuple(args), dict(kwargs), strict=False)
    except Exception as error:  # torch.export raises any exception of the code that it runs
        raise CannotCut(_why_not(error)) from None
    finally:
        logging.disable(logged)
    graph = _read(program)
    _normalise(graph)
    return graph


def _why_not(error: Exception) -> str:
    said = str(error)
    first = next((line.strip() for line in said.splitlines() if line.strip()), type(error).__name__)
    if "data-dependent" in said or "DataDependent" in type(error).__name__ or "GuardOnDataDependent" in said:
        place = re.search(r'File "([^"]+)", line (\d+)', said)
        where = f" ({place[1].rpartition('/')[2]}, line {place[2]})" if place else ""
        return f"its forward decides by the values of a tensor{where}"
    return f"torch.export cannot follow it: {first[:160]}"


def _read(program: torch.export.ExportedProgram) -> CallGraph:
    signature = program.graph_signature
    state, parameters, constants, inputs = {}, set(), {}, {}
    leaf = 0
    for spec in signature.input_specs:
        name = spec.arg.name
        match spec.kind:
            case InputKind.PARAMETER | InputKind.BUFFER:
                state[name] = str(spec.target)
                parameters |= {name} if spec.kind is InputKind.PARAMETER else set()
            case InputKind.USER_INPUT:
                if isinstance(spec.arg, TensorArgument):
                    inputs[name] = leaf
                elif not isinstance(spec.arg, ConstantArgument):
                    raise CannotCut(f"it takes a number that its graph keeps open ({name})")
                leaf += 1
            case InputKind.CONSTANT_TENSOR:
                constant = program.constants[str(spec.target)]
                assert isinstance(constant, torch.Tensor), "its kind says so"
                constants[name] = constant
            case _:
                raise CannotCut(f"its graph takes {spec.kind.name.lower().replace('_', ' ')}, which no problem can")
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    results = []
    for value in output.args[0]:
        if value is not None and not isinstance(value, fx.Node):
            raise CannotCut(f"it returns {value!r} next to tensors")
        results.append(value)
    nodes = [node for node in program.graph.nodes if node.op in ("call_function", "get_attr")]
    return CallGraph(program, nodes, inputs, state, parameters, constants, results)


def _normalise(graph: CallGraph) -> None:
    """Take out operators that do nothing, and writing in place but into buffers."""
    for node in list(graph.nodes):
        name = op_name(node)
        if name in CHECKS | PASSING_ON or (name == "dropout" and not is_random(node)):
            if name not in CHECKS:
                node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
            graph.program.graph.erase_node(node)
            graph.nodes.remove(node)
        elif name == "batch_norm" and node.args[5] is True:
            graph.written |= {str(argument) for argument in node.args[3:5] if argument is not None}
        elif name.endswith("_") and not name.endswith("__"):
            _without_writing(graph, node)
    (output,) = (node for node in graph.program.graph.nodes if node.op == "output")
    graph.results = list(output.args[0])


def _without_writing(graph: CallGraph, node: fx.Node) -> None:
    """Replace `relu_(x)` by `relu(x)`, which later users of x take in its place."""
    changed = node.args[0]
    assert isinstance(changed, fx.Node), "an operator that writes in place is given a tensor"
    if changed.name in graph.state:
        graph.written.add(changed.name)
        return
    views = VIEWS - {"contiguous", "reshape"}
    around = (changed, *(user for user in changed.users if user < node))
    if any(one.op == "call_function" and op_name(one) in views for one in around):
        raise CannotCut(f"its forward writes into a part of a tensor in place ({op_name(node)})")
    packet = getattr(torch.ops.aten, op_name(node).removesuffix("_"), None)
    overload = getattr(packet, str(node.target).rpartition(".")[2], None)
    if overload is None:
        raise CannotCut(f"its forward writes in place ({op_name(node)})")
    graph.changes_input |= changed.name in graph.inputs
    node.target = overload
    changed.replace_all_uses_with(node, delete_user_cb=lambda user: user is not node and node < user)


def op_name(node: fx.Node) -> str:
    """Return `conv2d` for `aten.conv2d.default`."""
    if node.target is operator.getitem:
        return "getitem"
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target._schema.name).partition("::")[2]
    return getattr(node.target, "__name__", str(node.target))


def is_plain(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return True
    is_aten = isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "aten"
    return is_aten and not is_random(node)


def is_random(node: fx.Node) -> bool:
    """Return whether it draws: a dropout in training, noise."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    name = op_name(node)
    if "dropout" in name:
        return bool(node.args[1]) and node.args[2] is True
    if name == "scaled_dot_product_attention":
        share = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
        return bool(share)
    return torch.Tag.nondeterministic_seeded in node.target.tags


def computes(node: fx.Node) -> bool:
    """Return whether it is more than a view, or the count of batches that a norm keeps."""
    return op_name(node) not in VIEWS and not op_name(node).endswith("_")


def owner(node: fx.Node) -> str:
    """Return the qualified name of the module whose own `forward` has it, within the exported one."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return re.sub(r"@\d+", "", str(stack[-1][0])) if stack else ""


def child_call(node: fx.Node) -> str:
    """Return the call of a submodule in the exported module's own `forward` that it is a part of; empty for none."""
    calls = list(node.meta.get("nn_module_stack") or {})
    return str(calls[1]) if len(calls) > 1 else ""


def value_of(node: fx.Node) -> torch.Tensor | None:
    """Return the fake tensor of its value: shape, dtype and strides; None where it is not a tensor."""
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def runs(graph: CallGraph, most_operators: int) -> list[list[fx.Node]]:
    """Find the runs of a graph, each with two to `most_operators` operators that compute; longer ones are divided.

    Runs within one child are found where that one is looked at by itself.
    """
    found: dict[tuple[str, ...], list[fx.Node]] = {}
    everything = sum(computes(node) for node in graph.nodes)
    sequences: list[list[fx.Node]] = []
    for stretch in _split(graph.nodes, lambda node: not is_plain(node), keep=False):
        sequences += _split(stretch, lambda node: op_name(node) in PRODUCTS, keep=True)
        sequences += _split(stretch, lambda node: _has_weights(graph, node), keep=False)
    for sequence in sequences:
        places = [index for index, node in enumerate(sequence) if computes(node)]
        parts = -(-len(places) // most_operators)
        for part in range(parts):
            own = places[len(places) * part // parts : len(places) * (part + 1) // parts]
            run, fits = sequence[own[0] : own[-1] + 1], 2 <= len(own) < everything
            if fits and _keeps_children_whole(graph, run) and _has_ends(graph, run):
                found.setdefault(tuple(node.name for node in run), run)
    return list(found.values())


def _split(nodes: Sequence[fx.Node], is_border: Callable[[fx.Node], bool], keep: bool) -> Iterator[list[fx.Node]]:
    """Return the nodes between borders; each border with its followers where it is to be kept."""
    current: list[fx.Node] = []
    for node in nodes:
        if is_border(node):
            yield current
            current = [node] if keep else []
        else:
            current.append(node)
    yield current


def _has_weights(graph: CallGraph, node: fx.Node) -> bool:
    return op_name(node) in PRODUCTS and any(one.name in graph.parameters for one in node.all_input_nodes)


def _keeps_children_whole(graph: CallGraph, run: Sequence[fx.Node]) -> bool:
    """Return whether it is made of the module's own operators and whole calls of its children, more than one in all."""
    inside, calls = set(run), {child_call(node) for node in run}
    cut = any(child_call(node) in calls - {""} for node in graph.nodes if node not in inside and computes(node))
    return not cut and (len(calls) > 1 or "" in calls)


def _has_ends(graph: CallGraph, run: Sequence[fx.Node]) -> bool:
    """Return whether inputs and outputs are tensors, and not too many."""
    given, made = inputs_of(graph, run), outputs_of(graph, run)
    are_tensors = all(value_of(node) is not None for node in (*given, *made))
    return 1 <= len(made) <= MOST_OUTPUTS and bool(given) and are_tensors


def inputs_of(graph: CallGraph, run: Sequence[fx.Node]) -> list[fx.Node]:
    """List values from outside of the run, weights and their views left out, in the order of their first use."""
    inside, own = {*run, *of_weights(graph, run)}, set(graph.state) | set(graph.constants)
    found = [one for node in run for one in node.all_input_nodes if one not in inside and one.name not in own]
    return list(dict.fromkeys(found))


def of_weights(graph: CallGraph, run: Sequence[fx.Node]) -> list[fx.Node]:
    """List views of weights alone before the run that it uses: its problem makes them again."""
    own, views = set(graph.state) | set(graph.constants), set()
    for node in graph.nodes:
        given = node.all_input_nodes
        if given and not computes(node) and all(one.name in own or one in views for one in given):
            views.add(node)
    wanted, found = {one for node in run for one in node.all_input_nodes}, []
    for node in reversed(graph.nodes):
        if node in views and node in wanted and node not in run:
            wanted |= set(node.all_input_nodes)
            found.append(node)
    return found[::-1]


def outputs_of(graph: CallGraph, run: Sequence[fx.Node]) -> list[fx.Node]:
    inside = set(run)
    return [node for node in run if any(user not in inside for user in node.users)]
