"""FlashInfer-Trace and SOL-ExecBench: definitions with workloads, read and written; one problem a workload.

Unknown fields are kept unchanged and can be read; nothing is dropped.
"""

import ast
import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from kernelwright.problems.arithmetic import NotArithmetic, evaluate
from kernelwright.problems.formats.reading import (
    Collection,
    Entry,
    Foreign,
    Unsupported,
    entry_of,
    entry_with,
    fault_of,
    first_line,
    json_lines,
    safe_name,
)
from kernelwright.problems.problem import Format, Origin, ProblemError, StatedTolerance, Tolerance
from kernelwright.problems.source import bound_names, function_in, parse, read_json, read_text


class DefinitionAxis(Foreign):
    """One dimension: constant, given by the workload, or computed from others."""

    type: Literal["const", "var", "expr"]
    value: int | None = None
    expression: str | None = None
    description: str | None = None


class TensorSpec(Foreign):
    shape: list[str] | None
    dtype: str
    description: str | None = None


class Definition(Foreign):
    """Definition of a computation; `reference` defines `run`."""

    name: str = Field(min_length=1)
    op_type: str | None = None
    type: str | None = None
    """What `op_type` was called in early files."""
    axes: dict[str, DefinitionAxis]
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec] = Field(min_length=1)
    reference: str
    custom_inputs_entrypoint: str | None = None
    tags: list[str] | None = None
    description: str | None = None
    constraints: list[str] | None = None

    def sizes(self, given: dict[str, int]) -> dict[str, int]:
        """Return the size of every axis. Raises `ProblemError` where one is missing or not a number."""
        sizes = {name: axis.value for name, axis in self.axes.items() if axis.value is not None} | given
        waiting = {name: axis.expression for name, axis in self.axes.items() if axis.expression is not None}
        for _ in range(len(waiting)):
            for name, expression in list(waiting.items()):
                try:
                    sizes[name] = int(evaluate(expression, sizes))
                except NotArithmetic:
                    continue
                del waiting[name]
        for name in self.axes:
            if sizes.get(name) is None:
                raise ProblemError(
                    f"{self.name}: axis {name!r} has no size; the workload or an expression must give it"
                )
        return {name: int(size) for name, size in sizes.items() if size is not None}

    def shape(self, spec: TensorSpec, sizes: dict[str, int]) -> list[int] | None:
        """Return the shape of an input or output; None for a number."""
        if spec.shape is None:
            return None
        for axis in spec.shape:
            if axis not in sizes:
                raise ProblemError(f"{self.name}: a shape names the axis {axis!r}, which is not defined; define it")
        return [sizes[axis] for axis in spec.shape]


class WorkloadInput(Foreign):
    """Source of an input."""

    type: str
    value: bool | int | float | None = None
    path: str | None = None
    tensor_key: str | None = None


class ForeignTolerance(StatedTolerance, Foreign):
    """The tolerance of one workload of SOL-ExecBench."""


class Workload(Foreign):
    """The sizes of the variable axes, and where each input comes from."""

    uuid: str = Field(min_length=1)
    axes: dict[str, int]
    inputs: dict[str, WorkloadInput] = Field(default={})
    tolerance: ForeignTolerance | None = None


class FlashInferTrace(Foreign):
    """A line of FlashInfer-Trace: a workload alone, or with what a solution did on it."""

    definition: str
    workload: Workload
    solution: str | None = None
    evaluation: dict[str, Any] | None = None


def read_definition(path: Path) -> Definition:
    """Return the definition in a JSON file. Raises `ProblemError`."""
    definition = Definition.read(path)
    for name, axis in definition.axes.items():
        if (axis.type == "const" and axis.value is None) or (axis.type == "expr" and axis.expression is None):
            raise ProblemError(f"{path}: axis {name!r} is of type {axis.type} and has no value; give it one")
    return definition


def read_workloads(path: Path, definition: Definition) -> tuple[list[Workload | str], bool]:
    """Return the workloads of a JSONL file, a sentence for a line that is not one, and whether they were traces.

    A line is a workload (SOL-ExecBench), or a trace that holds one (FlashInfer-Trace). Lines of other definitions and
    results of solutions are left out.
    """
    found: list[Workload | str] = []
    traced = False
    for number, line in enumerate(json_lines(read_text(path)), 1):
        if not line.strip():
            continue
        where = f"line {number} of {path.name}"
        try:
            content = read_json(line, where)
            if isinstance(content, dict) and "workload" in content:
                traced = True
                trace = FlashInferTrace.model_validate(content)
                if trace.definition == definition.name and trace.solution is None:
                    found.append(trace.workload)
            else:
                found.append(Workload.model_validate(content))
        except ValidationError as error:
            found.append(f"{where}: {fault_of(error)}")
        except ProblemError as error:
            found.append(str(error))
    return found, traced


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
    """Return the reference of a workload. Raises `ProblemError` and `Unsupported`."""
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
                raise ProblemError(f"{definition.name}: the {kind} {name!r} is not a name for a parameter; rename it")
            if spec.dtype not in (*FLOATS, *INTEGERS, "bool"):
                raise Unsupported(f"{kind} {name} is {spec.dtype}, which the judge does not draw or compare")
            definition.shape(spec, call.sizes)  # raises where an axis is not defined
    entry = definition.custom_inputs_entrypoint
    if entry is not None and entry not in defined:
        raise ProblemError(f"{definition.name}: its reference has no function {entry!r} to make inputs; add it")
    return definition.reference.rstrip("\n") + ADAPTER.format(
        captured=f"_custom_inputs = {entry}\n" if _is_custom(call.workload) else "",
        title=first_line(definition.description or definition.name),
        parameters=", ".join(definition.inputs),
        arguments=", ".join(_arguments(definition, tree)),
        names=list(definition.outputs),
        drawing=_drawing(call),
    )


def _arguments(definition: Definition, tree: ast.Module) -> list[str]:
    """Return the arguments of `run`: by name where its parameters are named like the inputs, else in order."""
    changed = changed_parameters(tree)
    values = {name: f"{name}.clone()" if name in changed else name for name in definition.inputs}
    by_name = set(_parameters(tree)) == set(values)
    return [f"{name}={value}" if by_name else value for name, value in values.items()]


def _parameters(tree: ast.Module) -> list[str]:
    run = function_in(tree.body, "run")
    return [argument.arg for argument in [*run.args.args, *run.args.kwonlyargs]] if run else []


def changed_parameters(tree: ast.Module) -> set[str]:
    """Return the parameters that `run` visibly changes in place; the judge keeps inputs unchanged."""
    run, found = function_in(tree.body, "run"), set[str]()
    for node in ast.walk(run) if run else ():
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


SHORT_ID = 8


def definition_files(root: Path) -> list[Path]:
    """Return the definitions at or under `root`: files of a folder `definitions`, and every `definition.json`."""
    if root.is_file():
        return [root]
    return sorted({*root.rglob("definitions/**/*.json"), *root.rglob("definition.json")})


def is_definition(path: Path) -> bool:
    """Return whether a JSON file is a definition: an object with axes and a reference, or a file named like one."""
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
    """Read them from where either benchmark keeps them; without any, a definition of constants has one."""
    is_beside = path.name == "definition.json"
    place = path.parent / "workload.jsonl" if is_beside else _trace_file(path)
    found, traced = read_workloads(place, definition) if place.exists() else ([], not is_beside)
    if not found and all(axis.type != "var" for axis in definition.axes.values()):
        found = [Workload(uuid="constant", axes={})]
    if not found:
        raise ProblemError(f"{path} has variable axes and no workload in {place}; add one")
    return "flashinfer" if traced else "sol-execbench", found


def _trace_file(path: Path) -> Path:
    parts = list(path.with_suffix(".jsonl").parts)
    if "definitions" in path.parts:
        parts[-1 - path.parts[::-1].index("definitions")] = "workloads"
    return Path(*parts)


def _entries(definition: Definition, workloads: list[Workload | str], kind: Format) -> Iterator[Entry]:
    ids = _short_ids([workload.uuid for workload in workloads if isinstance(workload, Workload)])
    unknown = definition.unknown()
    for workload in workloads:
        if isinstance(workload, str):
            yield Entry(id=definition.name, status="broken", why=workload)
            continue
        known = {"inputs": list(definition.inputs), "outputs": list(definition.outputs)}
        origin = Origin(
            format=kind,
            id=f"{definition.name}/{workload.uuid}",
            title=definition.name,
            details={"workload": workload.as_json()} | known,
        )
        name = safe_name(f"{definition.name}-{ids[workload.uuid]}")
        notes = tuple(f"field {field!r} is not known" for field in [*unknown, *workload.unknown("workload.")])
        yield entry_of(origin, partial(_entry, definition, workload, (origin, name), notes))


def _short_ids(uuids: list[str]) -> dict[str, str]:
    """Return the first letters of each, or a digest where those are not unique."""
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
    operation, stated = definition.op_type or definition.type, workload.tolerance
    tolerance = Tolerance()
    if stated is not None:
        terms = {name: getattr(stated, name) for name in StatedTolerance.model_fields}
        tolerance = Tolerance(stated=StatedTolerance(**terms), reason="the workload states its own")
    title = (definition.description or definition.name).splitlines()[0]
    family = operation or origin.format
    return entry_with(origin, source, notes, name=name, title=title, family=family, tolerance=tolerance)


def _constraints(definition: Definition, sizes: dict[str, int]) -> Iterator[str]:
    for constraint in definition.constraints or ():
        try:
            holds = evaluate(constraint, sizes)
        except NotArithmetic:
            yield f"constraint {constraint!r} speaks of values, so it is not checked"
            continue
        if not holds:
            raise ProblemError(f"{definition.name}: the workload breaks the constraint {constraint}; correct its axes")
