"""A problem's text tried in this process, on the user's own weights: does it compute what the program computes?"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pydantic import ValidationError
from torch import fx
from torch.utils import _pytree as pytree

from kernelwright.programs.capture.graphs import CallGraph
from kernelwright.sandbox.verdict.roofline import NecessaryWork
from kernelwright_child.floor.trace import trace
from kernelwright_child.gradients import differentiate, weights_of

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
        """Twice, since the first time pays for what is done once."""
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
    """What it gives, and the milliseconds that it took."""
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
        """Whether it gives what is expected."""
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
        """The least of a few calls."""
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
