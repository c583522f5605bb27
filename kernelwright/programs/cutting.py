"""Calls that were watched, cut into parts: whole modules and runs of operators, each tried and written as a problem."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import fx
from torch.utils import _pytree as pytree

from kernelwright.problems.problem import ProblemError
from kernelwright.problems.source import check_reference
from kernelwright.programs import graphs
from kernelwright.programs.graphs import CallGraph, CannotCut
from kernelwright.programs.problem_text import Piece, Written, finished, skeleton, written
from kernelwright.programs.record import CallSite, Part, PartInput, PartSize, Run, TensorSeen, Uncut
from kernelwright.programs.values import draw, layout, look
from kernelwright.programs.watching import (
    CallKind,
    CallWatch,
    PlaceTimes,
    SeenPlace,
    counted_steps,
    timed,
    times_of,
    total_ms,
)
from kernelwright.sandbox.verdict.roofline import NecessaryWork
from kernelwright_child.models import differentiate, weights_of
from kernelwright_child.roofline import trace

LEAST_SHARE = 0.02
"""Of the program's time: a call that takes less is left whole."""
MOST_IN_GRAPH = 200
"""Operators of a module whose graph is looked at; of a larger one its children are."""
MOST_OPERATORS = 12
"""Operators that compute, of a part: more are no longer one kernel, or a few."""
MOST_SIZES = 8
SHORT_MS = {"cpu": 0.1, "cuda": 0.005}
"""A call that takes less than this by itself cannot be distinguished from an empty one."""
TRIES = 5
CLOSE_ENOUGH = 1e-3
"""Of the largest magnitude of an output: graphs may add in another order than the module does."""


class GraphRun:
    """A graph computed operator by operator on given inputs: the values at some nodes, and each operator's time."""

    def __init__(
        self, graph: CallGraph, state: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor], kept: set[fx.Node]
    ) -> None:
        self.start = {**state, **graph.constants, **given}
        self.ms: dict[fx.Node, float] = {}
        last = {argument: node for node in graph.nodes for argument in node.all_input_nodes}
        for _ in range(2):
            values: dict[fx.Node, Any] = {}
            for node in graph.nodes:
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
        """Return that of one call; None where it cannot be traced."""
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
    def ms(self) -> float:
        return sum(site.ms for site in self.sites)

    def tried(self, text: str) -> Tried:
        return Tried(text, self.state, self.expected[0].device)


@dataclass
class KindOnTrial:
    """One kind of call as the problems that it could become: the whole module, and runs in its `forward`."""

    kind: CallKind
    sites: list[CallSite]
    backward: bool
    custom: set[str]

    @property
    def ms(self) -> float:
        return sum(site.ms for site in self.sites)

    def drafts(self) -> Iterator[Draft]:
        """Draft the whole first. `CannotCut` where the graph is missing, or the whole cannot be a problem."""
        if self.kind.autocast:
            raise CannotCut("it runs under autocast; capture it in the dtype that it is to have")
        device = next((seen.device for seen in self.kind.tensors), "cpu")
        given = iter(drawn := draw(self.kind.tensors, device))
        leaves = [next(given) if isinstance(leaf, TensorSeen) else leaf for leaf in self.kind.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.kind.structure)
        with _in_mode(self.kind.module, self.kind.training), torch.set_grad_enabled(self.kind.gradients):
            graph = graphs.export_call(self.kind.module, args, kwargs)
        state = _state_of(self.kind.module, graph)
        found = [] if self.custom and self.backward else graphs.runs(graph, MOST_OPERATORS)
        whole = self._why_no_whole(graph, has_parts=bool(found) or any(self.kind.module.children()))
        kept = {node for run in found for node in (*graphs.inputs_of(graph, run), *graphs.outputs_of(graph, run))}
        kept |= {node for node in graph.results if node is not None}
        places = [index for index, leaf in enumerate(self.kind.leaves) if isinstance(leaf, TensorSeen)]
        by_leaf = dict(zip(places, drawn, strict=True))
        with torch.no_grad():
            values = GraphRun(graph, state, {name: by_leaf[leaf] for name, leaf in graph.inputs.items()}, kept)
        if whole is None:
            placeholders = {node.name: node for node in graph.program.graph.nodes if node.op == "placeholder"}
            used = {one for node in graph.nodes for one in node.all_input_nodes}
            seen = {placeholders[name]: self.kind.leaves[leaf] for name, leaf in graph.inputs.items()}
            inputs = [(node, leaf) for node, leaf in seen.items() if node in used]
            outputs = list(dict.fromkeys(node for node in graph.results if node is not None))
            yield self._draft(graph, values, state, (graph.nodes, inputs, outputs), None)
        for run in found:
            inputs = [(node, look(values.kept[node])) for node in graphs.inputs_of(graph, run)]
            outputs = graphs.outputs_of(graph, run)
            record = Run(
                nodes=tuple(node.name for node in run),
                outputs=tuple(node.name for node in outputs),
                graph=graph.digest,
                owners=tuple(dict.fromkeys(graphs.owner(node) for node in run)),
            )
            yield self._draft(graph, values, state, (run, inputs, outputs), record)
        if whole:
            raise CannotCut(whole)

    def _why_no_whole(self, graph: CallGraph, has_parts: bool) -> str | None:
        """Say why the module as a whole cannot be a problem, for the user; empty where only its parts can."""
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
        count = sum(map(graphs.computes, graph.nodes))
        if 0 < count <= MOST_OPERATORS:
            return None
        return "" if has_parts or not count else f"no stretch of its {count} operators can be a problem"

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
        share = sum(values.ms[node] for node in nodes) / (sum(values.ms.values()) or 1.0)
        sites = [site.model_copy(update={"ms": site.ms * share}) for site in self.sites] if run else self.sites
        expected = [values.kept[node] for node in outputs]
        given = [values.start[node.name] if node.name in values.start else values.kept[node] for node, _ in inputs]
        weights = {name: tensors[placeholder] for name, placeholder in text.state.items()}
        return Draft(self.kind, piece, text, given, expected, weights, self.backward, sites, run)


def _state_of(module: torch.nn.Module, graph: CallGraph) -> dict[str, torch.Tensor]:
    """Return by placeholder the module's weights and buffers; those that a call writes are copies."""
    own: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    own |= dict(module.named_buffers(remove_duplicate=False))
    found = {placeholder: own[name].detach() for placeholder, name in graph.state.items()}
    return {name: value.clone() if name in graph.written else value for name, value in found.items()}


@contextmanager
def _in_mode(module: torch.nn.Module, training: bool) -> Iterator[None]:
    """Put the module into the mode of the call: a program may train and then evaluate."""
    before = {one: one.training for one in module.modules()}
    if module.training is not training:
        module.train(training)
    try:
        yield
    finally:
        for one, was in before.items():
            one.training = was


@dataclass
class Cutting:
    parts: list[Part] = field(default_factory=list)
    texts: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By part, `reference.py` and `problem.toml`."""
    uncut: list[Uncut] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        for name, (reference, manifest) in self.texts.items():
            place = folder / name
            place.mkdir(parents=True, exist_ok=True)
            (place / "reference.py").write_text(reference, encoding="utf-8")
            (place / "problem.toml").write_text(manifest, encoding="utf-8")

    def add(self, name: str, drafts: Sequence[Draft]) -> None:
        """Make one part of the drafts of one key, tried at each size. `CannotCut` where the text differs."""
        first = drafts[0]
        plainly = not _agrees(first, first.text.plain)
        texts = [written(_drawn_as(draft, first), plainly) for draft in drafts]
        if plainly and not _agrees(first, texts[0].plain):
            raise CannotCut("its graph, written down, does not give what it gives")
        by_numbers: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for index, text in enumerate(texts):
            by_numbers[tuple(text.numbers)].append(index)
        reference, constants = finished([texts[indices[0]] for indices in by_numbers.values()])
        try:
            check_reference(reference, name)
        except ProblemError as error:
            raise CannotCut(str(error)) from None
        sizes = []
        for place, (indices, values) in enumerate(zip(by_numbers.values(), constants, strict=True)):
            size = f"size{place + 1}" if place else "cpu"
            sizes.append(_size(size, [drafts[index] for index in indices], values, texts[indices[0]].plain))
        if all((size.eager_ms or 0.0) < SHORT_MS[first.expected[0].device.type] for size in sizes):
            raise CannotCut(f"a call takes {sizes[0].eager_ms:.2g} ms, too short to be timed by itself")
        part = _part(name, first, sizes)
        self.parts.append(part)
        self.texts[name] = reference, manifest(part)

    def leave(self, kind: CallKind, sites: Sequence[CallSite], why: str, run: str = "") -> None:
        ms = sum(site.ms for site in sites)
        first = sites[0]
        self.uncut.append(
            Uncut(root=first.root, module=first.module, class_name=kind.class_name, run=run, ms=ms, why=why)
        )


def cut(watch: CallWatch, report: Callable[[str], None]) -> Cutting:
    """Cut the calls that take their share of the program's time."""
    steps = counted_steps(watch.steps)
    program_ms = total_ms(steps)
    found = Cutting()
    groups: dict[tuple[Any, ...], list[Draft]] = defaultdict(list)
    for trial in _trials(watch, times_of(steps), program_ms):
        share = 100 * min(1.0, trial.ms / max(program_ms, 1e-9))
        report(f"cutting {type(trial.kind.module).__name__} ({share:.1f} % of the time)")
        try:
            for draft in trial.drafts():
                if draft.ms >= LEAST_SHARE * program_ms:
                    groups[draft.key].append(draft)
        except CannotCut as error:
            if str(error):
                found.leave(trial.kind, trial.sites, str(error))
    names = _names(groups, list(map(id, watch.kinds.values())))
    for key, group in sorted(groups.items(), key=lambda item: -sum(draft.ms for draft in item[1])):
        first = group[0]
        report(f"trying {first.piece.title}")
        try:
            found.add(names[key], sorted(group, key=lambda draft: -draft.ms)[:MOST_SIZES])
        except CannotCut as error:
            found.leave(first.kind, first.sites, str(error), first.piece.title.rpartition(": ")[2] if first.run else "")
    return found


def _trials(watch: CallWatch, times: dict[int, PlaceTimes], program_ms: float) -> list[KindOnTrial]:
    by_kind: dict[Any, list[tuple[SeenPlace, PlaceTimes]]] = defaultdict(list)
    for number, seen in times.items():
        by_kind[watch.places[number].kind].append((watch.places[number], seen))
    trials = []
    for key, places in by_kind.items():
        if max(seen.operators for _, seen in places) > MOST_IN_GRAPH:
            continue
        sites = [
            CallSite(root=place.root, module=place.name, calls=seen.calls, ms=seen.forward_ms + seen.backward_ms)
            for place, seen in places
        ]
        backward = any(seen.backward_ms for _, seen in places)
        custom = {name for _, seen in places for name in seen.custom}
        trials.append(KindOnTrial(watch.kinds[key], sites, backward, custom))
    return sorted((one for one in trials if one.ms >= LEAST_SHARE * program_ms), key=lambda one: -one.ms)


def _agrees(draft: Draft, text: str) -> bool:
    try:
        return draft.tried(text).agrees(draft.values, draft.expected)
    except Exception:  # an operator that is spelled as Python does not take it
        return False


def _drawn_as(draft: Draft, first: Draft) -> Piece:
    """Return its piece, with values drawn as those of the first size."""
    inputs = [
        (node, seen.model_copy(update={"values": other.values}))
        for (node, seen), (_, other) in zip(draft.piece.inputs, first.piece.inputs, strict=True)
    ]
    state = dict(zip(draft.piece.state, first.piece.state.values(), strict=True))
    return draft.piece._replace(inputs=inputs, state=state)


def _size(name: str, drafts: Sequence[Draft], constants: dict[str, int], text: str) -> PartSize:
    first = drafts[0]
    tried, leaves = first.tried(text), first.piece.graph.inputs
    inputs = tuple(
        PartInput(
            name=parameter,
            leaf=None if first.run else leaves[node.name],
            node=node.name if first.run else None,
            tensor=seen,
        )
        for parameter, (node, seen) in zip(first.text.parameters, first.piece.inputs, strict=True)
    )
    sites: dict[tuple[str, str], CallSite] = {}
    for site in (site for draft in drafts for site in draft.sites):
        before = sites.get((site.root, site.module))
        added = {"calls": site.calls + before.calls, "ms": site.ms + before.ms} if before else {}
        sites[site.root, site.module] = site.model_copy(update=added)
    return PartSize(
        name=name,
        constants=constants,
        inputs=inputs,
        outputs=tuple(layout(value) for value in first.expected),
        sites=tuple(sites.values()),
        work=tried.work(first.values, first.backward),
        eager_ms=tried.milliseconds(first.values, first.backward),
        **({} if first.run else _calling(first)),
    )


def _calling(draft: Draft) -> dict[str, Any]:
    """Return the call of a whole module and the form of its result, as torch's trees."""
    graph, leaves = draft.piece.graph, draft.kind.leaves
    others = {place: repr(leaf) for place, leaf in enumerate(leaves) if not isinstance(leaf, TensorSeen)}
    outputs = list(draft.piece.outputs)
    try:
        call = pytree.treespec_dumps(draft.kind.structure)
        result = pytree.treespec_dumps(graph.program.call_spec.out_spec)
    except NotImplementedError as error:
        raise CannotCut(f"its result is put together in a way that cannot be written down: {error}") from None
    places = tuple(None if node is None else outputs.index(node) for node in graph.results)
    return {"call": call, "other_leaves": others, "result": result, "result_leaves": places}


def _part(name: str, first: Draft, sizes: list[PartSize]) -> Part:
    graph = first.piece.graph
    return Part(
        id=name,
        title=first.piece.title,
        kind="run" if first.run else "module",
        class_name=first.kind.class_name,
        run=first.run,
        state={own: graph.state.get(placeholder, "") for own, placeholder in first.text.state.items()},
        written=tuple(own for own, placeholder in first.text.state.items() if placeholder in graph.written),
        training=first.kind.training,
        precision="tf32" if first.expected[0].is_cuda and torch.backends.cuda.matmul.allow_tf32 else "strict",
        direction="both" if first.backward else "forward",
        operators=sum(graphs.computes(node) for node in first.piece.nodes),
        sizes=tuple(sizes),
    )


def _names(groups: Mapping[Any, Sequence[Draft]], kinds: Sequence[int]) -> dict[Any, str]:
    """Number them in the order in which the program calls them, which is the same on every machine; times are not."""
    counts: Counter[str] = Counter()
    names = {}
    for key, drafts in sorted(groups.items(), key=lambda item: min(kinds.index(id(draft.kind)) for draft in item[1])):
        class_name = type(drafts[0].kind.module).__name__
        spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", class_name).lower()
        stem = re.sub(r"\W", "_", spaced) + ("_run" if drafts[0].run else "")
        counts[stem] += 1
        names[key] = f"{stem}_{counts[stem]}"
    return names


def manifest(part: Part) -> str:
    lines = [f'family = "program"\ntitle = "{part.title}"\nprecision = "{part.precision}"']
    lines.append(f'direction = "{part.direction}"')
    if part.written:
        lines.append('state = "followed"')
    for size in part.sizes:
        lines += ["", f"[sizes.{size.name}]", *(f"{name} = {value}" for name, value in size.constants.items())]
    return "\n".join(lines) + "\n"
