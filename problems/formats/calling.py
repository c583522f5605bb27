"""A function `run` with its inputs, written as a reference in our convention: the definition's own text stays."""

import ast
from typing import NamedTuple

from kernelwright.problems.formats.definition import Definition, TensorSpec, Workload, WorkloadInput
from kernelwright.problems.formats.reading import Unsupported
from kernelwright.problems.record.defining import bound_names
from kernelwright.problems.record.problem import ProblemError
from kernelwright.problems.record.reference import parse

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
    """A definition at the sizes of one workload."""

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
