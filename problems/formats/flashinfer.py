"""FlashInfer-Trace and SOL-ExecBench: definitions with workloads; one problem a workload."""

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from kernelwright.problems.formats.calling import SizedDefinition, source_of
from kernelwright.problems.formats.definition import Definition, Workload, read_definition, read_workloads
from kernelwright.problems.formats.reading import Collection, Entry, entry_of, safe_name
from kernelwright.problems.record.problem import Format, Origin, Problem, ProblemError, Tolerance
from kernelwright.problems.record.reference import read_json, read_text
from kernelwright.problems.texts.arithmetic import NotArithmetic, evaluate

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
    """Every workload of every definition."""
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
    """`workloads/OP/NAME.jsonl` for `definitions/OP/NAME.json`."""
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
