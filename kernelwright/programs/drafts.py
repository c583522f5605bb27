"""One kind of call as the problems that it could become: the whole module, and runs of operators in its `forward`."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from pydantic import ValidationError
from torch import fx
from torch.utils import _pytree as pytree

from kernelwright.programs import graphs
from kernelwright.programs.graphs import CallGraph, CannotCut
from kernelwright.programs.problem_text import Piece, Written, draw, skeleton, written
from kernelwright.programs.record import CallSite, Run, TensorSeen
from kernelwright.programs.watching import CallKind, look
from kernelwright.sandbox.verdict.roofline import NecessaryWork
from kernelwright_child.casting import differentiate, weights_of
from kernelwright_child.roofline import trace

TRIES = 5
CLOSE_ENOUGH = 1e-3
"""Of the largest magnitude of an output: graphs may add in another order than the module does."""


class GraphRun:
    """A graph computed operator by operator on given inputs: the values at some nodes, and each operator's time."""

    def __init__(self, graph: CallGraph, state: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> None:
        self.graph = graph
        self.start = {**state, **graph.constants, **given}
        self.ms: dict[fx.Node, float] = {}
        self.kept: dict[fx.Node, Any] = {}

    def compute(self, kept: set[fx.Node]) -> None:
        last = {argument: node for node in self.graph.nodes for argument in node.all_input_nodes}
        for _ in range(2):
            values: dict[fx.Node, Any] = {}
            for node in self.graph.nodes:
                values[node], self.ms[node] = timed(self._call(node, values))
                for argument in node.all_input_nodes:
                    if last[argument] is node and argument not in kept:
                        values.pop(argument, None)
            self.kept = {node: self._of(node, values) for node in kept}

    def _call(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Callable[[], Any]:
        arguments, options = fx.map_arg((node.args, node.kwargs), lambda one: self._of(one, values))
        target: Any = node.target
        return lambda: target(*arguments, **options)

    def _of(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        return values[node] if node in values else self.start[node.name]


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What the call gives, and how long it took in ms, with what it started on a GPU."""
    _wait()
    began = time.perf_counter()
    result = call()
    _wait()
    return result, 1e3 * (time.perf_counter() - began)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Tried:
    """The `Model` of a text with the program's own weights."""

    def __init__(self, text: str, state: Mapping[str, torch.Tensor], device: torch.device) -> None:
        namespace: dict[str, Any] = {"__name__": "problem"}
        exec(compile(text, "<problem>", "exec"), namespace)
        self.model: torch.nn.Module = namespace["Model"]().to(device)
        with torch.no_grad():
            for name, value in self.model.state_dict().items():
                value.copy_(state[name])

    def agrees(self, inputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
        with torch.no_grad():
            got = pytree.tree_leaves(self.model(*(value.clone() for value in inputs)))
        return len(got) == len(expected) and all(map(_near, got, expected))

    def work(self, inputs: Sequence[torch.Tensor], backward: bool) -> NecessaryWork | None:
        """Of one call; None where it can not be traced."""
        try:
            if not backward:
                return NecessaryWork.of(trace(self.model, list(inputs)))
            return NecessaryWork.of(trace(self.model, self._gradients(inputs), self._differentiated))
        except (ValidationError, KeyError, RuntimeError, NotImplementedError):
            return None

    def milliseconds(self, inputs: Sequence[torch.Tensor], backward: bool) -> float:
        if backward:
            values = self._gradients(inputs)
            return min(timed(lambda: self._differentiated(self.model, values))[1] for _ in range(TRIES))
        with torch.no_grad():
            return min(timed(lambda: self.model(*inputs))[1] for _ in range(TRIES))

    def _gradients(self, inputs: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
        with torch.no_grad():
            outputs = pytree.tree_leaves(self.model(*inputs))
        return [list(inputs), [torch.randn_like(one) for one in outputs if one.is_floating_point()]]

    def _differentiated(self, model: torch.nn.Module, values: Any) -> Any:
        order = [(name, value.shape) for name, value in model.state_dict().items()]
        return differentiate(model, weights_of(model, order), values)


def _near(got: Any, want: torch.Tensor) -> bool:
    if not isinstance(got, torch.Tensor) or got.shape != want.shape or got.dtype != want.dtype:
        return False
    if not want.is_floating_point() or not want.numel():
        return bool(torch.equal(got, want))
    finite = torch.isfinite(want)
    if not torch.equal(torch.isfinite(got), finite):
        return False
    scale = want[finite].abs().max() if bool(finite.any()) else want.new_tensor(1.0)
    rough = CLOSE_ENOUGH if want.dtype in (torch.float32, torch.float64) else 20 * CLOSE_ENOUGH
    return bool(((got - want)[finite].abs() <= rough * scale).all())


@dataclass
class Draft:
    kind: CallKind
    piece: Piece
    text: Written
    values: list[torch.Tensor]
    """Of its inputs, drawn."""
    expected: list[torch.Tensor]
    state: dict[str, torch.Tensor]
    """By the problem's names, the program's own weights."""
    backward: bool
    sites: list[CallSite]
    run: Run | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        shapes = tuple((name, tuple(value.shape), value.dtype) for name, value in self.state.items())
        return (self.run is None, skeleton(self.piece), shapes, self.backward, self.kind.training)

    @property
    def operators(self) -> int:
        return sum(graphs.computes(node) for node in self.piece.nodes)

    @property
    def ms(self) -> float:
        return sum(site.ms for site in self.sites)

    def tried(self, text: str) -> Tried:
        return Tried(text, self.state, self.expected[0].device)


@dataclass
class KindOnTrial:
    kind: CallKind
    sites: list[CallSite]
    backward: bool
    custom: set[str] = field(default_factory=set)

    def drafts(self, most_operators: int) -> Iterator[Draft]:
        """The whole first. `CannotCut` where there is no graph, or where the whole is none that stands alone."""
        if self.kind.autocast:
            raise CannotCut("it runs under autocast; capture it in the dtype that it is to have")
        device = next((seen.device for seen in self.kind.tensors), "cpu")
        drawn = draw(self.kind.tensors, device)
        graph = self._graph(drawn)
        state = state_of(self.kind.module, graph)
        found = [] if self.custom and self.backward else graphs.runs(graph, most_operators)
        whole = self._why_no_whole(graph, most_operators)
        kept = {node for run in found for node in (*graphs.inputs_of(graph, run), *graphs.outputs_of(graph, run))}
        kept |= {node for node in graph.results if node is not None}
        places = [index for index, leaf in enumerate(self.kind.leaves) if isinstance(leaf, TensorSeen)]
        by_leaf = dict(zip(places, drawn, strict=True))
        values = GraphRun(graph, state, {name: by_leaf[leaf] for name, leaf in graph.inputs.items()})
        with torch.no_grad():
            values.compute(kept)
        if whole is None:
            yield self._whole(graph, values, state)
        for run in found:
            yield self._run(graph, values, state, run)
        if whole:
            raise CannotCut(whole)

    def _graph(self, drawn: Sequence[torch.Tensor]) -> CallGraph:
        given = iter(drawn)
        leaves = [next(given) if isinstance(leaf, TensorSeen) else leaf for leaf in self.kind.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.kind.structure)
        with in_mode(self.kind.module, self.kind.training), torch.set_grad_enabled(self.kind.gradients):
            return graphs.export_call(self.kind.module, args, kwargs)

    def _why_no_whole(self, graph: CallGraph, most_operators: int) -> str | None:
        """Why the module as a whole is no problem, in words for the user; empty where it is merely too large."""
        if self.custom and self.backward:
            return f"its gradients are those of {', '.join(sorted(self.custom))}, an autograd.Function of its own"
        if drawing := [node for node in graph.nodes if graphs.is_random(node)]:
            return f"it draws random values ({graphs.op_name(drawing[0])}), so no kernel could agree with it"
        if foreign := [node for node in graph.nodes if not graphs.is_plain(node)]:
            return f"it calls {graphs.op_name(foreign[0])}, which is no operator of torch's own"
        if graph.changes_input:
            return "it changes its input in place"
        if not any(node is not None for node in graph.results) or not graph.inputs:
            return "it takes or gives no tensor"
        operators = sum(map(graphs.computes, graph.nodes))
        return None if 0 < operators <= most_operators else ""

    def _whole(self, graph: CallGraph, values: GraphRun, state: Mapping[str, torch.Tensor]) -> Draft:
        placeholders = {node.name: node for node in graph.program.graph.nodes if node.op == "placeholder"}
        used = {one for node in graph.nodes for one in node.all_input_nodes}
        leaves = {name: self.kind.leaves[leaf] for name, leaf in graph.inputs.items()}
        inputs = [(placeholders[name], seen) for name, seen in leaves.items() if placeholders[name] in used]
        outputs = list(dict.fromkeys(node for node in graph.results if node is not None))
        return self._draft(graph, values, state, (graph.nodes, inputs, outputs), None)

    def _run(self, graph: CallGraph, values: GraphRun, state: Mapping[str, torch.Tensor], run: list[fx.Node]) -> Draft:
        inputs = [(node, look(values.kept[node])) for node in graphs.inputs_of(graph, run)]
        outputs = graphs.outputs_of(graph, run)
        record = Run(
            nodes=tuple(node.name for node in run),
            outputs=tuple(node.name for node in outputs),
            graph=graph.digest,
            owners=tuple(dict.fromkeys(graphs.owner(node) for node in run)),
        )
        return self._draft(graph, values, state, (run, inputs, outputs), record)

    def _draft(
        self,
        graph: CallGraph,
        values: GraphRun,
        state: Mapping[str, torch.Tensor],
        cut: tuple[list[fx.Node], list[tuple[fx.Node, TensorSeen]], list[fx.Node]],
        run: Run | None,
    ) -> Draft:
        nodes, inputs, outputs = cut
        nodes = [*graphs.of_weights(graph, nodes), *nodes] if run else nodes
        used = {one.name for node in nodes for one in node.all_input_nodes}
        tensors = {name: value for name, value in {**state, **graph.constants}.items() if name in used}
        drawn = {name: value for name, value in tensors.items() if value.is_floating_point()}
        title = type(self.kind.module).__name__
        if run is None:
            title = f"{title} in {'training' if self.kind.training else 'evaluation'} mode"
        else:
            title = f"In {title}: {', '.join(graphs.op_name(node) for node in nodes if graphs.computes(node))}"
        piece = Piece(
            graph, nodes, inputs, outputs, title,
            state={name: look(value) for name, value in drawn.items()},
            tables={name: value for name, value in tensors.items() if name not in drawn},
        )  # fmt: skip
        text = written(piece)
        whole_ms = sum(values.ms.values()) or 1.0
        share = sum(values.ms[node] for node in nodes) / whole_ms
        sites = [site.model_copy(update={"ms": site.ms * share}) for site in self.sites] if run else self.sites
        expected = [values.kept[node] for node in outputs]
        given = [values.start[node.name] if node.name in values.start else values.kept[node] for node, _ in inputs]
        weights = {name: tensors[placeholder] for name, placeholder in text.state.items()}
        return Draft(self.kind, piece, text, given, expected, weights, self.backward, sites, run)


def state_of(module: torch.nn.Module, graph: CallGraph) -> dict[str, torch.Tensor]:
    """By placeholder, the module's weights and buffers; those that a call writes are copies."""
    own: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    own |= dict(module.named_buffers(remove_duplicate=False))
    found = {placeholder: own[name].detach() for placeholder, name in graph.state.items()}
    return {name: value.clone() if name in graph.written else value for name, value in found.items()}


@contextmanager
def in_mode(module: torch.nn.Module, training: bool) -> Iterator[None]:
    """The module as it was when it was called: a program may train and then evaluate."""
    before = {one: one.training for one in module.modules()}
    if module.training is not training:
        module.train(training)
    try:
        yield
    finally:
        for one, was in before.items():
            one.training = was
