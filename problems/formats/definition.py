"""The records of FlashInfer-Trace and SOL-ExecBench: what a definition and its workloads say, read and written.

Fields that we do not know are kept as they are and can be asked for; nothing is dropped on the way through.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernelwright.problems.formats.reading import json_lines
from kernelwright.problems.record.base import first_fault
from kernelwright.problems.record.problem import Bound, ProblemError, StatedTolerance
from kernelwright.problems.record.source import read_json, read_text
from kernelwright.problems.texts.arithmetic import NotArithmetic, evaluate


class Foreign(BaseModel):
    """A record of theirs: frozen, and open for fields that we do not know."""

    model_config = ConfigDict(frozen=True, extra="allow")

    def unknown(self, where: str = "") -> list[str]:
        """The names of the fields that are not known, also in the records within."""
        found = [f"{where}{name}" for name in self.model_extra or ()]
        for name in type(self).model_fields:
            value = getattr(self, name)
            for key, item in value.items() if isinstance(value, dict) else [("", value)]:
                if isinstance(item, Foreign):
                    found += item.unknown(f"{where}{name}.{key}." if key else f"{where}{name}.")
        return found

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_unset=True)


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
    """What is to be computed; `reference` defines `run`."""

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
        """The size of every axis for a workload's variable ones. `ProblemError` where one is missing or no number."""
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
        """The shape of an input or output; None for a number."""
        if spec.shape is None:
            return None
        for axis in spec.shape:
            if axis not in sizes:
                raise ProblemError(f"{self.name}: a shape names the axis {axis!r}, which is not defined; define it")
        return [sizes[axis] for axis in spec.shape]


class WorkloadInput(Foreign):
    """Where an input comes from."""

    type: str
    value: bool | int | float | None = None
    path: str | None = None
    tensor_key: str | None = None


class ForeignTolerance(Foreign):
    """The tolerance of one workload of SOL-ExecBench."""

    max_atol: Bound | None = None
    max_rtol: Bound | None = None
    required_matched_ratio: float | None = Field(default=None, ge=0, le=1)
    max_error_cap: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    allow_negative_inf: bool | None = None

    def stated(self) -> StatedTolerance:
        return StatedTolerance(**{name: getattr(self, name) for name in StatedTolerance.model_fields})


class Workload(Foreign):
    """The sizes of the variable axes, and where each input comes from."""

    uuid: str = Field(min_length=1)
    axes: dict[str, int]
    inputs: dict[str, WorkloadInput] = {}
    tolerance: ForeignTolerance | None = None


class FlashInferTrace(Foreign):
    """A line of FlashInfer-Trace: a workload alone, or with what a solution did on it."""

    definition: str
    workload: Workload
    solution: str | None = None
    evaluation: dict[str, Any] | None = None


def read_definition(path: Path) -> Definition:
    """The definition in a JSON file; `ProblemError` says what is wrong with it."""
    try:
        definition = Definition.model_validate(read_json(read_text(path), str(path)))
    except ValidationError as error:
        raise ProblemError(f"{path}: {fault_of(error)}") from None
    for name, axis in definition.axes.items():
        if (axis.type == "const" and axis.value is None) or (axis.type == "expr" and axis.expression is None):
            raise ProblemError(f"{path}: axis {name!r} is of type {axis.type} and has no value; give it one")
    return definition


def read_workloads(path: Path, definition: Definition) -> tuple[list[Workload | str], bool]:
    """The workloads of a JSONL file in order, with a sentence for a line that is none; and whether they were traces.

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


def fault_of(error: ValidationError) -> str:
    """The first of pydantic's faults: where, and what should stand there."""
    key, said = first_fault(error)
    return f"{key or 'the whole'}: {said[0].lower()}{said[1:]}; correct it"
