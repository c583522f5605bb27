"""What was watched, cut into parts: each tried, written down as a problem, with the sites where it occurs."""

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernelwright.problems.record.problem import ProblemError
from kernelwright.problems.record.source import check_reference
from kernelwright.programs.drafts import Draft, KindOnTrial
from kernelwright.programs.graphs import CannotCut
from kernelwright.programs.problem_text import finished, written
from kernelwright.programs.record import CallSite, Part, PartInput, PartSize, TensorSeen, Uncut
from kernelwright.programs.watching import CallWatch, PlaceTimes, SeenPlace, SeenStep, layout

LEAST_SHARE = 0.02
"""Of the program's time: what takes less is left whole."""
MOST_IN_GRAPH = 200
"""Operators of a module whose graph is looked at; of a larger one its children are."""
MOST_OPERATORS = 12
"""Operators that compute, of a part: more are no longer one kernel, or a few."""
MOST_SIZES = 8
SHORT_MS = {"cpu": 0.1, "cuda": 0.005}
"""A call that takes less than this by itself can not be told from one that does nothing."""


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


def counted_steps(watch: CallWatch) -> list[SeenStep]:
    """The steps whose times count: the first pays for what is done once, and is left out where another follows."""
    steps = watch.steps
    return steps[1:] if len(steps) > 1 and set(steps[0].times.places) <= set(steps[-1].times.places) else steps


def typical_ms(seen: Sequence[tuple[int, float]]) -> float:
    """Of all calls: the median over the steps of the ms a call, times the calls. `seen`: calls and ms of each step."""
    return sum(calls for calls, _ in seen) * statistics.median(ms / max(1, calls) for calls, ms in seen)


def times_of(steps: Iterable[SeenStep]) -> dict[int, PlaceTimes]:
    """By place, its calls in all steps, with `typical_ms`."""
    by_place: dict[int, list[PlaceTimes]] = defaultdict(list)
    for step in steps:
        for place, times in step.times.places.items():
            by_place[place].append(times)
    return {
        place: PlaceTimes(
            calls=sum(one.calls for one in found),
            forward_ms=typical_ms([(one.calls, max(0.0, one.forward_ms)) for one in found]),
            backward_ms=typical_ms([(one.calls, one.backward_ms) for one in found]),
            operators=max(one.operators // max(1, one.calls) for one in found),
            custom={name for one in found for name in one.custom},
        )
        for place, found in by_place.items()
    }


def alike(steps: Iterable[SeenStep]) -> list[list[float]]:
    """The ms of the steps, those together that called the same places equally often."""
    groups: dict[Any, list[float]] = defaultdict(list)
    for step in steps:
        groups[frozenset((place, times.calls) for place, times in step.times.places.items())].append(step.ms)
    return list(groups.values())


def total_ms(steps: Iterable[SeenStep]) -> float:
    """Of all steps, each as long as the median of those like it: what disturbed one of them counts little."""
    return sum(len(group) * statistics.median(group) for group in alike(steps))


def cut(watch: CallWatch, tell: Callable[[str], None]) -> Cutting:
    """Cut what takes its share of the program's time."""
    steps = counted_steps(watch)
    times = times_of(steps)
    program_ms = total_ms(steps)
    found = Cutting()
    drafts: list[Draft] = []
    for trial in _trials(watch, times, program_ms):
        name = type(trial.kind.module).__name__
        share = sum(site.ms for site in trial.sites) / max(program_ms, 1e-9)
        tell(f"cutting {name} ({100 * min(1.0, share):.1f} % of the time)")
        try:
            drafts.extend(trial.drafts(MOST_OPERATORS))
        except CannotCut as error:
            if str(error):
                first, ms = trial.sites[0], sum(site.ms for site in trial.sites)
                found.uncut.append(
                    Uncut(root=first.root, module=first.module, class_name=trial.kind.class_name, ms=ms, why=str(error))
                )
    groups: dict[tuple[Any, ...], list[Draft]] = defaultdict(list)
    for draft in drafts:
        if draft.ms >= LEAST_SHARE * program_ms:
            groups[draft.key].append(draft)
    names = _names(groups, list(map(id, watch.kinds.values())))
    for key, group in sorted(groups.items(), key=lambda item: -sum(draft.ms for draft in item[1])):
        tell(f"trying {group[0].piece.title}")
        try:
            _add(found, names[key], sorted(group, key=lambda draft: -draft.ms)[:MOST_SIZES])
        except CannotCut as error:
            found.uncut.append(_uncut_draft(group[0], str(error)))
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
    worth = [one for one in trials if sum(site.ms for site in one.sites) >= LEAST_SHARE * program_ms]
    return sorted(worth, key=lambda one: -sum(site.ms for site in one.sites))


def _uncut_draft(draft: Draft, why: str) -> Uncut:
    first = draft.sites[0]
    run = draft.piece.title.rpartition(": ")[2] if draft.run else ""
    return Uncut(root=first.root, module=first.module, class_name=draft.kind.class_name, run=run, ms=draft.ms, why=why)


def _add(found: Cutting, name: str, drafts: Sequence[Draft]) -> None:
    """One part of the drafts of one key, tried at each size. `CannotCut` where the text computes something else."""
    first = drafts[0]
    plainly = not _agrees(first, first.text.plain)
    texts = [written(_drawn_as(draft, first), plainly) for draft in drafts]
    if plainly and not _agrees(first, texts[0].plain):
        raise CannotCut("its graph, written down, does not give what it gives")
    by_numbers: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, text in enumerate(texts):
        by_numbers[tuple(text.numbers)].append(index)
    chosen = [indices[0] for indices in by_numbers.values()]
    reference, constants = finished([texts[index] for index in chosen])
    try:
        check_reference(reference, name)
    except ProblemError as error:
        raise CannotCut(str(error)) from None
    sizes = [
        _size(
            f"size{place + 1}" if place else "cpu",
            [drafts[index] for index in indices],
            values,
            texts[indices[0]].plain,
        )
        for place, (indices, values) in enumerate(zip(by_numbers.values(), constants, strict=True))
    ]
    if all((size.eager_ms or 0.0) < SHORT_MS[first.expected[0].device.type] for size in sizes):
        raise CannotCut(f"a call takes {sizes[0].eager_ms:.2g} ms, too short to be timed by itself")
    part = _part(name, first, sizes)
    found.parts.append(part)
    found.texts[name] = reference, manifest(part)


def _agrees(draft: Draft, text: str) -> bool:
    try:
        return draft.tried(text).agrees(draft.values, draft.expected)
    except Exception:  # an operator that is spelled as Python does not take it
        return False


def _drawn_as(draft: Draft, first: Draft) -> Any:
    """Its piece, with values drawn as those of the first size are."""
    inputs = [
        (node, seen.model_copy(update={"values": other.values}))
        for (node, seen), (_, other) in zip(draft.piece.inputs, first.piece.inputs, strict=True)
    ]
    state = dict(zip(draft.piece.state, first.piece.state.values(), strict=True))
    return draft.piece._replace(inputs=inputs, state=state)


def _size(name: str, drafts: Sequence[Draft], constants: dict[str, int], text: str) -> PartSize:
    first = drafts[0]
    tried = first.tried(text)
    leaves = first.piece.graph.inputs
    inputs = tuple(
        PartInput(
            name=parameter,
            leaf=None if first.run else leaves[node.name],
            node=node.name if first.run else None,
            tensor=seen,
        )
        for parameter, (node, seen) in zip(first.text.parameters, first.piece.inputs, strict=True)
    )
    return PartSize(
        name=name,
        constants=constants,
        inputs=inputs,
        outputs=tuple(layout(value) for value in first.expected),
        sites=_merged(site for draft in drafts for site in draft.sites),
        work=tried.work(first.values, first.backward),
        eager_ms=tried.milliseconds(first.values, first.backward),
        **({} if first.run else _calling(first)),
    )


def _calling(draft: Draft) -> dict[str, Any]:
    """How a whole module is called and what it gives, in the words of torch's trees."""
    graph, leaves = draft.piece.graph, draft.kind.leaves
    others = {place: repr(leaf) for place, leaf in enumerate(leaves) if not isinstance(leaf, TensorSeen)}
    outputs = list(draft.piece.outputs)
    try:
        call = pytree.treespec_dumps(draft.kind.structure)
        result = pytree.treespec_dumps(graph.program.call_spec.out_spec)
    except NotImplementedError as error:
        raise CannotCut(f"its result is put together in a way that can not be written down: {error}") from None
    places = tuple(None if node is None else outputs.index(node) for node in graph.results)
    return {"call": call, "other_leaves": others, "result": result, "result_leaves": places}


def _merged(sites: Iterable[CallSite]) -> tuple[CallSite, ...]:
    total: dict[tuple[str, str], CallSite] = {}
    for site in sites:
        before = total.get((site.root, site.module))
        added = {"calls": site.calls + before.calls, "ms": site.ms + before.ms} if before else {}
        total[site.root, site.module] = site.model_copy(update=added)
    return tuple(total.values())


def _part(name: str, first: Draft, sizes: list[PartSize]) -> Part:
    graph = first.piece.graph
    state = {own: graph.state.get(placeholder, "") for own, placeholder in first.text.state.items()}
    return Part(
        id=name,
        title=first.piece.title,
        kind="run" if first.run else "module",
        class_name=first.kind.class_name,
        run=first.run,
        state=state,
        written=tuple(own for own, placeholder in first.text.state.items() if placeholder in graph.written),
        training=first.kind.training,
        precision="tf32" if first.expected[0].is_cuda and torch.backends.cuda.matmul.allow_tf32 else "strict",
        direction="both" if first.backward else "forward",
        operators=first.operators,
        sizes=tuple(sizes),
    )


def _names(groups: Mapping[Any, Sequence[Draft]], kinds: Sequence[int]) -> dict[Any, str]:
    """Numbered as the program comes to them, which is the same on every machine; times are not."""
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
