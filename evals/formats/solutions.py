"""Solutions of FlashInfer-Trace and SOL-ExecBench: their records, and candidates in and out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from kernelwright.evals.formats.samples import Outcome, Sample, Samples, sample_of
from kernelwright.evals.formats.wrapping import CANDIDATE_FILE, Wrapped, candidate_source
from kernelwright.problems import Problem, ProblemError
from kernelwright.problems.formats.definition import Definition, Foreign, fault_of
from kernelwright.problems.formats.reading import Unsupported, safe_name
from kernelwright.problems.record.source import read_json, read_text
from kernelwright.sandbox.machine.atomic import write_atomically

ENTRY_FILE = "main.py"
AUTHOR = "kernelwright"
Flavour = Literal["flashinfer", "sol-execbench"]
MAIN = '''"""The candidate's module, behind the function that the definition asks for."""

from candidate import ModelNew

_model = None


def run({parameters}):
    global _model
    if _model is None:
        _model = ModelNew()
    return _model({parameters})
'''


class SourceFile(Foreign):
    """One file of a solution."""

    path: str
    content: str


class Spec(Foreign):
    """How a solution is built and called."""

    language: str | None = None
    languages: list[str] | None = None
    """What SOL-ExecBench has instead of `language`."""
    target_hardware: list[str] = Field(default=[])
    entry_point: str
    dependencies: list[str] = Field(default=[])
    destination_passing_style: bool = True
    binding: str | None = None
    compile_options: dict[str, Any] | None = None


class Solution(Foreign):
    """One solution of a definition."""

    name: str
    definition: str
    author: str = ""
    spec: Spec
    sources: list[SourceFile] = Field(min_length=1)
    description: str | None = None


def solution_files(root: Path) -> list[Path]:
    """The solutions at or under `root`: files of a folder `solutions`, and every `solution*.json`."""
    if root.is_file():
        return [root]
    return sorted({*root.rglob("solutions/**/*.json"), *root.rglob("solution*.json")})


def read_solution(path: Path) -> Solution:
    """The solution in a file; `ProblemError` where it is none."""
    try:
        return Solution.model_validate(read_json(read_text(path), str(path)))
    except ValidationError as error:
        raise ProblemError(f"{path}: {fault_of(error)}") from None


def read_samples(root: Path, definitions: Mapping[str, Definition]) -> Samples:
    """The candidates of all solutions under `root`. Without their definition, only those that return their outputs."""
    samples: list[Sample] = []
    refused: list[tuple[str, str]] = []
    notes: list[str] = []
    counts: dict[str, int] = {}
    for path in solution_files(root):
        try:
            solution = read_solution(path)
            source = source_of(solution, definitions.get(solution.definition))
        except (ProblemError, Unsupported) as error:
            refused.append((path.name, str(error)))
            continue
        notes += [f"{path.name}: field {field!r} is not known" for field in solution.unknown()]
        number = counts.get(solution.definition, 0)
        counts[solution.definition] = number + 1
        samples.append(sample_of(solution.definition, source, number, solution.name, solution.author))
    return Samples(format="flashinfer", samples=tuple(samples), refused=tuple(refused), notes=tuple(notes))


def source_of(solution: Solution, definition: Definition | None) -> str:
    """A candidate that does what the solution does. Raises `ProblemError` and `Unsupported`."""
    texts = {file.path: file.content for file in solution.sources}
    if (
        solution.spec.entry_point.startswith(f"{ENTRY_FILE}::")
        and CANDIDATE_FILE in texts
        and solution.author == AUTHOR
    ):
        return texts[CANDIDATE_FILE]
    place, _, symbol = solution.spec.entry_point.partition("::")
    if place not in texts or not symbol.isidentifier():
        raise ProblemError(
            f"{solution.name}: the entry point {solution.spec.entry_point!r} names no function of a source; correct it"
        )
    spec = solution.spec
    options = {key: value for key, value in (spec.compile_options or {}).items() if value}
    return candidate_source(
        Wrapped(solution.name, texts, place, symbol, spec.binding, options),
        definition,
        spec.destination_passing_style,
    )


def solution_of(outcome: Outcome, flavour: Flavour, hardware: str) -> Solution:
    """The solution that holds an outcome's candidate. The problem must come from a definition."""
    sample, origin = outcome.sample, outcome.problem.origin
    assert origin is not None and origin.title, "only problems with a definition have solutions"
    inputs = [str(name) for name in _listed(origin.details.get("inputs"))]
    language = "triton" if sample.candidate.language == "triton" else "python"
    spec: dict[str, Any] = (
        {"language": language} if flavour == "flashinfer" else {"languages": [_sol_language(language)]}
    )
    return Solution(
        name=solution_name(sample, outcome.problem),
        definition=origin.title,
        author=AUTHOR,
        spec=Spec(
            **spec,
            target_hardware=[hardware if flavour == "flashinfer" else "LOCAL"],
            entry_point=f"{ENTRY_FILE}::run",
            dependencies=["torch"],
            destination_passing_style=False,
        ),
        sources=[
            SourceFile(path=CANDIDATE_FILE, content=sample.candidate.source),
            SourceFile(path=ENTRY_FILE, content=MAIN.format(parameters=", ".join(inputs))),
        ],
        description=f"Candidate {sample.candidate.digest[:16]}.",
    )


def _sol_language(language: str) -> str:
    return "pytorch" if language == "python" else language


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []


def solution_name(sample: Sample, problem: Problem) -> str:
    """The name that ties solution and traces together: definition, and the candidate's digest."""
    title = problem.origin.title if problem.origin else problem.name
    return safe_name(sample.name or f"{title}_{sample.candidate.digest[:12]}")


def write_solution(path: Path, solution: Solution) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(solution.as_json(), indent=2) + "\n")
