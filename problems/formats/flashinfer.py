"""FlashInfer-Trace and SOL-ExecBench: definitions with workloads; one problem a workload."""

import ast
import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kernelwright.problems.formats.definition import (
    Definition,
    TensorSpec,
    Workload,
    WorkloadInput,
    read_definition,
    read_workloads,
)
from kernelwright.problems.formats.reading import Collection, Entry, Unsupported, entry_of, safe_name
from kernelwright.problems.record.problem import Format, Origin, Problem, ProblemError, Tolerance
from kernelwright.problems.record.source import bound_names, parse, read_json, read_text
from kernelwright.problems.texts.arithmetic import NotArithmetic, evaluate

FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = {"int64": 1000, "int32": 1000, "int16": 1000, "int8": 128}
"""By dtype, how far from zero a drawn value may lie; indices that must fit a shape come from the workload instead."""
RESERVED = ("Model", "get_init_inputs")
ADAPTER = '''

# In the convention of the judge: the inputs of one workload, and the outputs as a tensor or a tuple of tensors.
import torch as _torch

_run = run
{captured}

class Model(_torch.nn.Module):
    """{title}"""

    def forward(self, {parameters}):
        outputs = _run({arguments})
        if isinstance(outputs, dict):
            outputs = tuple(outputs[name] for name in {names!r})
        if isinstance(outputs, (list, tuple)):
            return outputs[0] if len(outputs) == 1 else tuple(outputs)
        return outputs


def get_inputs():
{drawing}


def get_init_inputs():
    return []
'''


class SizedDefinition(NamedTuple):
    definition: Definition
    workload: Workload
    sizes: dict[str, int]


def source_of(call: SizedDefinition) -> str:
    """The reference of a workload. Raises `ProblemError` and `Unsupported`."""
    definition = call.definition
    tree = parse(definition.reference, f"the reference of {definition.name}")
    defined = set(bound_names(tree))
    if "run" not in defined:
        raise ProblemError(f"the reference of {definition.name} has no function run; add it")
    if taken := [name for name in RESERVED if name in defined]:
        raise Unsupported(f"its reference defines {taken[0]}, a name that the judge's convention needs; rename it")
    for kind, specs in (("input", definition.inputs), ("output", definition.outputs)):
        for name, spec in specs.items():
            if not name.isidentifier():
                raise ProblemError(f"{definition.name}: the {kind} {name!r} is no name for a parameter; rename it")
            if spec.dtype not in (*FLOATS, *INTEGERS, "bool"):
                raise Unsupported(f"{kind} {name} is {spec.dtype}, which the judge does not draw or compare")
    entry = definition.custom_inputs_entrypoint
    if entry is not None and entry not in defined:
        raise ProblemError(f"{definition.name}: its reference has no function {entry!r} to make inputs; add it")
    return definition.reference.rstrip("\n") + ADAPTER.format(
        captured=f"_custom_inputs = {entry}\n" if _is_custom(call.workload) else "",
        title=_one_line(definition.description or definition.name),
        parameters=", ".join(definition.inputs),
        arguments=", ".join(_arguments(definition, tree)),
        names=list(definition.outputs),
        drawing=_drawing(call),
    )


def _arguments(definition: Definition, tree: ast.Module) -> list[str]:
    """How `run` is called: by name where its parameters are called like the inputs, else in order."""
    changed = changed_parameters(tree)
    values = {name: f"{name}.clone()" if name in changed else name for name in definition.inputs}
    by_name = set(_parameters(tree)) == set(values)
    return [f"{name}={value}" if by_name else value for name, value in values.items()]


def _parameters(tree: ast.Module) -> list[str]:
    run = next((s for s in tree.body if isinstance(s, ast.FunctionDef) and s.name == "run"), None)
    return [argument.arg for argument in [*run.args.args, *run.args.kwonlyargs]] if run else []


def changed_parameters(tree: ast.Module) -> set[str]:
    """The parameters of `run` that it is seen to change in place; the judge lets no one change inputs."""
    run = next((s for s in tree.body if isinstance(s, ast.FunctionDef) and s.name == "run"), None)
    if run is None:
        return set()
    found: set[str] = set()
    for node in ast.walk(run):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method.endswith("_"):
                found.add(name)
            case ast.AugAssign(target=ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name))):
                found.add(name)
            case ast.Assign(targets=targets):
                found |= {t.value.id for t in targets if isinstance(t, ast.Subscript) and isinstance(t.value, ast.Name)}
    return found & set(_parameters(tree))


def _is_custom(workload: Workload) -> bool:
    return any(given.type == "custom" for given in workload.inputs.values())


def _drawing(call: SizedDefinition) -> str:
    definition, workload = call.definition, call.workload
    if not _is_custom(workload):
        items = [_drawn(call, name, spec) for name, spec in definition.inputs.items()]
        return "    return [\n" + "".join(f"        {item},\n" for item in items) + "    ]"
    if not definition.custom_inputs_entrypoint:
        raise ProblemError(
            f"{definition.name}: its inputs are custom but no custom_inputs_entrypoint is named; name it"
        )
    numbers = {name: given.value for name, given in workload.inputs.items() if given.type == "scalar"}
    return (
        f"    drawn = _custom_inputs({call.sizes | numbers!r}, _torch.device('cpu'))\n"
        f"    return [drawn[name] for name in {list(definition.inputs)!r}]"
    )


def _drawn(call: SizedDefinition, name: str, spec: TensorSpec) -> str:
    given = call.workload.inputs.get(name, WorkloadInput(type="random"))
    shape = call.definition.shape(spec, call.sizes)
    if given.type == "scalar":
        if given.value is None:
            raise ProblemError(f"{call.definition.name}: the scalar {name!r} has no value; give it one")
        return repr(given.value)
    if given.type == "safetensors":
        raise Unsupported(f"input {name} is read from {given.path}, and the sandbox shows no files; draw it instead")
    if given.type != "random":
        raise ProblemError(f"{call.definition.name}: input {name!r} is of type {given.type!r}, which is not known")
    if shape is None:
        raise ProblemError(f"{call.definition.name}: the number {name!r} has no value in the workload; give it one")
    if spec.dtype in FLOATS:
        return f"_torch.randn({shape}, dtype=_torch.{spec.dtype})"
    if spec.dtype == "bool":
        return f"_torch.randint(0, 2, {shape}, dtype=_torch.bool)"
    bound = INTEGERS[spec.dtype]
    return f"_torch.randint({-bound}, {bound}, {shape}, dtype=_torch.{spec.dtype})"


def _one_line(text: str) -> str:
    return text.strip().splitlines()[0].replace("\\", "/").replace('"', "'") if text.strip() else ""


ITEM_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}
SHORT_ID = 8


def definition_files(root: Path) -> list[Path]:
    """The definitions at or under `root`: files of a folder `definitions`, and every `definition.json`."""
    if root.is_file():
        return [root]
    return sorted({*root.rglob("definitions/**/*.json"), *root.rglob("definition.json")})


def is_definition(path: Path) -> bool:
    """Whether a JSON file is meant as a definition: an object with axes and a reference, or named like one."""
    try:
        found = read_json(read_text(path), str(path))
    except ProblemError:
        return path.name == "definition.json" or "definitions" in path.parts
    return isinstance(found, dict) and {"axes", "reference"} <= found.keys()


def read_definitions(root: Path) -> Collection:
    entries: list[Entry] = []
    kinds: set[Format] = set()
    for path in definition_files(root):
        try:
            definition = read_definition(path)
            kind, workloads = _workloads(path, definition)
        except ProblemError as error:
            entries.append(Entry(id=path.stem, status="broken", why=str(error)))
            continue
        kinds.add(kind)
        entries += _entries(definition, workloads, kind)
    return Collection("sol-execbench" if kinds == {"sol-execbench"} else "flashinfer", tuple(entries))


def _workloads(path: Path, definition: Definition) -> tuple[Format, list[Workload | str]]:
    """Those that lie where either benchmark keeps them; without any, the one that a definition of constants has."""
    beside = path.parent / "workload.jsonl"
    places = [beside] if path.name == "definition.json" else _trace_files(path)
    found: list[Workload | str] = []
    kind: Format = "sol-execbench" if path.name == "definition.json" else "flashinfer"
    for place in places:
        if place.exists():
            lines, traced = read_workloads(place, definition)
            found += lines
            kind = "flashinfer" if traced else "sol-execbench"
    if not found and all(axis.type != "var" for axis in definition.axes.values()):
        found = [Workload(uuid="constant", axes={})]
    if not found:
        raise ProblemError(f"{path} has variable axes and no workload in {', '.join(map(str, places))}; add one")
    return kind, found


def _trace_files(path: Path) -> list[Path]:
    parts = list(path.parts)
    if "definitions" not in parts:
        return [path.with_suffix(".jsonl")]
    at = len(parts) - 1 - parts[::-1].index("definitions")
    root = Path(*parts[:at])
    within = Path(*parts[at + 1 :]).with_suffix(".jsonl")
    return [root / "workloads" / within]


def _entries(definition: Definition, workloads: list[Workload | str], kind: Format) -> Iterator[Entry]:
    ids = _short_ids([workload.uuid for workload in workloads if isinstance(workload, Workload)])
    unknown = definition.unknown()
    for workload in workloads:
        if isinstance(workload, str):
            yield Entry(id=definition.name, status="broken", why=workload)
            continue
        origin = _origin(definition, workload, kind)
        name = safe_name(f"{definition.name}-{ids[workload.uuid]}")
        notes = tuple(f"field {field!r} is not known" for field in [*unknown, *workload.unknown("workload.")])
        yield entry_of(origin, partial(_entry, definition, workload, (origin, name), notes))


def _origin(definition: Definition, workload: Workload, kind: Format) -> Origin:
    details = {
        "workload": workload.as_json(),
        "inputs": list(definition.inputs),
        "outputs": list(definition.outputs),
    }
    return Origin(format=kind, id=f"{definition.name}/{workload.uuid}", title=definition.name, details=details)


def _short_ids(uuids: list[str]) -> dict[str, str]:
    """The first letters of each, or a digest where those do not tell them apart."""
    short = {uuid: safe_name(uuid)[:SHORT_ID] for uuid in uuids}
    taken = list(short.values())
    return {
        uuid: hashlib.sha256(uuid.encode()).hexdigest()[:SHORT_ID] if taken.count(name) > 1 else name
        for uuid, name in short.items()
    }


def _entry(definition: Definition, workload: Workload, named: tuple[Origin, str], notes: tuple[str, ...]) -> Entry:
    origin, name = named
    sizes = definition.sizes(workload.axes)
    notes += tuple(_constraints(definition, sizes))
    source = source_of(SizedDefinition(definition, workload, sizes))
    operation = definition.op_type or definition.type
    problem = Problem(
        name=name,
        title=(definition.description or definition.name).splitlines()[0],
        family=operation or origin.format,
        size="file",
        source=source,
        origin=origin,
        tolerance=_tolerance(workload),
    )
    return Entry(id=origin.id, problem=problem, notes=notes, input_bytes=_input_bytes(definition, sizes))


def _tolerance(workload: Workload) -> Tolerance:
    if workload.tolerance is None:
        return Tolerance()
    return Tolerance(stated=workload.tolerance.stated(), reason="the workload states its own")


def _constraints(definition: Definition, sizes: dict[str, int]) -> Iterator[str]:
    for constraint in definition.constraints or ():
        try:
            holds = evaluate(constraint, sizes)
        except NotArithmetic:
            yield f"constraint {constraint!r} speaks of values, so it is not checked"
            continue
        if not holds:
            raise ProblemError(f"{definition.name}: the workload breaks the constraint {constraint}; correct its axes")


def _input_bytes(definition: Definition, sizes: dict[str, int]) -> int:
    total = 0
    for spec in [*definition.inputs.values(), *definition.outputs.values()]:
        count = 1
        for size in definition.shape(spec, sizes) or ():
            count *= size
        total += count * ITEM_BYTES.get(spec.dtype, 1)
    return total
