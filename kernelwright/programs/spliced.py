"""Kernels for runs of operators inside a `forward`: the call as a graph, with kernels in the place of their runs.

Needs torch alone: packages that are exported carry this file. The graph is that of `torch.export`, made anew in the
first call of each kind; modules within that have kernels of their own stay calls of these modules.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from kernelwright.programs.graphs import CallGraph, CannotCut, export_call, owner
from kernelwright.programs.guarded import NoPlace, Replacement, TiedKernel, differs, replacement_of

MOST_KINDS = 16
"""Of calls, each with a graph of its own; a module whose settings change in every call would make ever more."""
PLAIN = (bool, int, float, str, type(None))
Plan = Callable[[nn.Module, list[Any]], Any]


class SplicedReplacement(Replacement):
    def put(self, module: nn.Module) -> None:
        self._plans: dict[Any, Plan | str] = {}
        self._within = {
            name: replacement
            for name, one in module.named_modules()
            if one is not module and (replacement := replacement_of(one)) is not None
        }
        super().put(module)

    def _result(self, module: nn.Module, leaves: list[Any], structure: pytree.TreeSpec) -> Any:
        key = (structure, tuple(map(_kind, leaves)), torch.is_grad_enabled(), _settings(module))
        if key not in self._plans:
            if len(self._plans) == MOST_KINDS:
                raise NoPlace("its calls are of too many kinds")
            self._plans[key] = self._planned(module, leaves, structure)
        plan = self._plans[key]
        if isinstance(plan, str):
            raise NoPlace(plan)
        return plan(module, leaves)

    def _planned(self, module: nn.Module, leaves: list[Any], structure: pytree.TreeSpec) -> Plan | str:
        args, kwargs = pytree.tree_unflatten(leaves, structure)
        standing = [one for one in (self, *self._within.values()) if replacement_of(one.module) is one]
        for one in standing:
            one.stand(False)
        try:
            graph = export_call(module, args, kwargs)
        except CannotCut as error:
            return str(error)
        finally:
            for one in standing:
                one.stand(True)
        if any(kernel.part["run"]["graph"] != graph.digest for kernel in self.kernels):
            return "its graph or a shape in it is another than that which was captured"
        return _spliced(graph, module, self.kernels, self._within)


class _Called(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def _spliced(
    graph: CallGraph, module: nn.Module, kernels: Sequence[TiedKernel], within: dict[str, Replacement]
) -> Plan:
    nodes = {node.name: node for node in graph.program.graph.nodes}
    for number, kernel in enumerate(kernels):
        run = kernel.part["run"]
        inputs = kernel.part["sizes"][0]["inputs"]
        names = (run["nodes"], [one["node"] for one in inputs], run["outputs"])
        taken, given, ends = ([nodes[name] for name in each] for each in names)
        call = _guarded(kernel, module, [one["tensor"] for one in inputs])
        _put(graph, f"kernel_{number}", (taken, given, ends), call)
    for number, (name, replacement) in enumerate(within.items()):
        piece = _piece(graph, name)
        if piece is not None:
            _put(graph, f"within_{number}", piece, replacement.module.__call__)
    return _plan(graph)


def _guarded(kernel: TiedKernel, module: nn.Module, seen: Sequence[dict[str, Any]]) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        for value, one in zip(inputs, seen, strict=True):
            if why := differs(value, one):
                raise NoPlace(why)
        return kernel.call(module, inputs)

    return call


Piece = tuple[list[fx.Node], list[fx.Node], list[fx.Node]]
"""Nodes one after another, what they take, and those whose values are used elsewhere."""


def _piece(graph: CallGraph, name: str) -> Piece | None:
    """The nodes of a module within, where it takes one tensor and gives one; None where it does not."""
    nodes = [node for node in graph.program.graph.nodes if f"{owner(node)}.".startswith(f"{name}.")]
    nodes = [node for node in nodes if node.op not in ("placeholder", "output")]
    inside = set(nodes)
    taken = {one for node in nodes for one in node.all_input_nodes if one not in inside and one.name not in graph.state}
    ends = [node for node in nodes if any(user not in inside for user in node.users)]
    whole = nodes and len(taken) == 1 and len(ends) == 1 and not any(one.name in graph.constants for one in taken)
    return (nodes, list(taken), ends) if whole else None


def _put(graph: CallGraph, name: str, piece: Piece, function: Callable[..., Any]) -> None:
    nodes, inputs, ends = piece
    graph.program.graph_module.add_submodule(name, _Called(function))
    inside, within = set(nodes), graph.program.graph
    with within.inserting_after(nodes[-1]):
        call = within.call_module(name, tuple(inputs))
    results = [call]
    if len(ends) > 1:
        with within.inserting_after(call):
            results = [within.call_function(operator.getitem, (call, place)) for place in range(len(ends))]
    for end, result in zip(ends, results, strict=True):
        end.replace_all_uses_with(result, delete_user_cb=lambda user: user not in inside and user is not call)
    for node in reversed(nodes):
        within.erase_node(node)


def _plan(graph: CallGraph) -> Plan:
    program = graph.program
    getters, leaf = [], 0
    for spec in program.graph_signature.input_specs:
        getters.append(_getter(program, spec, leaf))
        leaf += spec.kind is InputKind.USER_INPUT
    made = fx.GraphModule(program.graph_module, program.graph)
    result = program.call_spec.out_spec
    assert result is not None, "an exported program has one"

    def plan(module: nn.Module, leaves: list[Any]) -> Any:
        return pytree.tree_unflatten(list(made(*[getter(module, leaves) for getter in getters])), result)

    return plan


def _getter(program: Any, of: Any, leaf: int) -> Callable[[nn.Module, list[Any]], Any]:
    if of.kind is InputKind.USER_INPUT:
        return lambda module, leaves: leaves[leaf]
    if of.kind is InputKind.CONSTANT_TENSOR:
        constant = program.constants[str(of.target)]
        return lambda module, leaves: constant
    owner_name, _, last = str(of.target).rpartition(".")
    return lambda module, leaves: getattr(module.get_submodule(owner_name), last)


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.shape, leaf.dtype, leaf.device, leaf.stride(), leaf.requires_grad
    return repr(leaf)


def _settings(module: nn.Module) -> tuple[Any, ...]:
    """What a `forward` may go by beside its arguments: which modules there are, and their plain attributes."""
    return tuple(
        (id(one), *((name, value) for name, value in vars(one).items() if isinstance(value, PLAIN)))
        for one in module.modules()
    )
