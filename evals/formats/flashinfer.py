"""FlashInfer-Trace and SOL-ExecBench: solutions and traces as records, and candidates in and out.

A solution's function becomes `ModelNew`: its own text stays, with a few generated lines behind it.
"""

import ast
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import Field

from kernelwright.evals.formats.samples import Outcome, Sample, Samples, sample_of
from kernelwright.problems import Problem, ProblemError
from kernelwright.problems.formats.flashinfer import Definition, FlashInferTrace, Workload
from kernelwright.problems.formats.reading import Foreign, Unsupported, safe_name
from kernelwright.problems.languages import LANGUAGES
from kernelwright.problems.source import parse_expression
from kernelwright.sandbox.storage import write_atomically
from kernelwright.sandbox.verdict.report import verdict_words
from kernelwright.sandbox.verdict.verdicts import Failed, Passed

CANDIDATE_FILE, ENTRY_FILE = "candidate.py", "main.py"
AUTHOR = "kernelwright"
NATIVE = {".cu", ".cpp", ".cc", ".cxx", ".c"}
HEADERS = {".h", ".hpp", ".cuh"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"[ \t]*$', re.MULTILINE)
OPTIONS = {"cflags": "extra_cflags", "cuda_cflags": "extra_cuda_cflags", "ld_flags": "extra_ldflags"}
RETURNING = """
class ModelNew(_torch.nn.Module):
    def forward(self, *inputs):
        outputs = _entry(*inputs)
        if isinstance(outputs, dict):
            outputs = tuple(outputs.values())
        if isinstance(outputs, (list, tuple)):
            return outputs[0] if len(outputs) == 1 else tuple(outputs)
        return outputs
"""
FILLING = """
class ModelNew(_torch.nn.Module):
    def forward(self, {parameters}):
        sizes = {sizes}
{computed}        device = {device}
        outputs = [{outputs}]
        _entry({parameters}, *outputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)
"""
FILES = """
import importlib as _importlib
import os as _os
import sys as _sys
import tempfile as _tempfile

_folder = _tempfile.mkdtemp()
for _path, _text in {texts!r}.items():
    _os.makedirs(_os.path.dirname(_os.path.join(_folder, _path)), exist_ok=True)
    with open(_os.path.join(_folder, _path), "w") as _file:
        _file.write(_text)
_sys.path.insert(0, _folder)
_entry = getattr(_importlib.import_module({module!r}), {symbol!r})
"""
BUILT = """
from torch.utils.cpp_extension import load_inline as _load_inline

_entry = _load_inline(
    name={name!r},
    cpp_sources={cpp!r},
    cuda_sources={cuda!r},
{options}).{symbol}
"""
MAIN = '''"""The candidate's module, behind the function that the definition asks for."""

from candidate import ModelNew

_model = None


def run({parameters}):
    global _model
    if _model is None:
        _model = ModelNew()
    return _model({parameters})
'''
Flavour = Literal["flashinfer", "sol-execbench"]


class SourceFile(Foreign):
    path: str
    content: str


class Spec(Foreign):
    language: str | None = None
    languages: list[str] | None = None
    """Used by SOL-ExecBench instead of `language`."""
    target_hardware: list[str] = Field(default=[])
    entry_point: str
    dependencies: list[str] = Field(default=[])
    destination_passing_style: bool = True
    binding: str | None = None
    compile_options: dict[str, Any] | None = None


class Solution(Foreign):
    name: str
    definition: str
    author: str = ""
    spec: Spec
    sources: list[SourceFile] = Field(min_length=1)
    description: str | None = None


def solution_files(root: Path) -> list[Path]:
    """Return the solutions at or under `root`: files of a folder `solutions`, and every `solution*.json`."""
    if root.is_file():
        return [root]
    return sorted({*root.rglob("solutions/**/*.json"), *root.rglob("solution*.json")})


def read_samples(root: Path, definitions: Mapping[str, Definition]) -> Samples:
    """Read the candidates of all solutions under `root`. Without a definition, only those that return outputs."""
    samples: list[Sample] = []
    refused: list[tuple[str, str]] = []
    notes: list[str] = []
    counts: dict[str, int] = {}
    for path in solution_files(root):
        try:
            solution = Solution.read(path)
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
    """Return a candidate that does the same as the solution, whose function may fill outputs that it is given.

    Raises `ProblemError`, also where the definition is needed and None, and `Unsupported` for what cannot be wrapped.
    """
    texts = {file.path: file.content for file in solution.sources}
    entry = solution.spec.entry_point
    if entry.startswith(f"{ENTRY_FILE}::") and CANDIDATE_FILE in texts and solution.author == AUTHOR:
        return texts[CANDIDATE_FILE]
    place, _, symbol = entry.partition("::")
    if place not in texts or not symbol.isidentifier():
        raise ProblemError(f"{solution.name}: the entry point {entry!r} names no function of a source; correct it")
    suffix = PurePosixPath(place).suffix
    if suffix == ".py":
        source = _python(solution.name, texts, place, symbol)
    elif suffix in NATIVE:
        source = _native(solution, texts, symbol)
    else:
        raise Unsupported(f"{solution.name}: an entry point in a {suffix or 'nameless'} file cannot be called")
    if not solution.spec.destination_passing_style:
        return source + "\n" + RETURNING
    if definition is None:
        raise ProblemError(
            f"{solution.name} writes into given outputs, whose shapes its definition says; give that too"
        )
    return source + "\n" + _filling(definition)


def _python(name: str, texts: Mapping[str, str], place: str, symbol: str) -> str:
    if len(texts) == 1:
        head = texts[place].rstrip("\n")
        return f"{head}\n\n\nimport torch as _torch\n\n_entry = {symbol}"
    for path in texts:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise ProblemError(f"{name}: the source path {path!r} leads out of its folder; correct it")
    module = place.removesuffix(".py").replace("/", ".")
    return "import torch as _torch\n" + FILES.format(texts=dict(texts), module=module, symbol=symbol)


def _native(solution: Solution, given: Mapping[str, str], symbol: str) -> str:
    name, spec = solution.name, solution.spec
    if spec.binding not in (None, "torch"):
        raise Unsupported(f"{name}: the binding {spec.binding} is not known here, only torch is")
    texts = {path: _included(path, given) for path in given}
    sources = {path: text for path, text in texts.items() if PurePosixPath(path).suffix in NATIVE}
    if not any("PYBIND11_MODULE" in text for text in sources.values()):
        raise Unsupported(f"{name}: its sources bind no Python module (PYBIND11_MODULE)")
    unread = [path for path in texts if PurePosixPath(path).suffix not in NATIVE | HEADERS]
    if unread:
        raise Unsupported(f"{name}: the file {unread[0]} is neither C++ nor CUDA")
    options = {key: value for key, value in (spec.compile_options or {}).items() if value and key in OPTIONS}
    return "import torch as _torch\n" + BUILT.format(
        name=re.sub(r"\W", "_", name),
        cpp=[text for path, text in sources.items() if not path.endswith(".cu")],
        cuda=[text for path, text in sources.items() if path.endswith(".cu")] or None,
        options="".join(f"    {OPTIONS[key]}={value!r},\n" for key, value in options.items()),
        symbol=symbol,
    )


def _included(path: str, texts: Mapping[str, str], above: tuple[str, ...] = ()) -> str:
    """Return the text of a file with the given files that it includes, each once."""

    def put(match: re.Match[str]) -> str:
        sibling = str(PurePosixPath(path).parent / match[1])
        found = next((place for place in (sibling, match[1]) if place in texts), None)
        if found is None:
            return match[0]
        return "" if found in (*above, path) else _included(found, texts, (*above, path))

    return INCLUDE.sub(put, texts[path].replace("#pragma once", ""))


def _filling(definition: Definition) -> str:
    """Return a `ModelNew` that allocates the outputs, whose sizes follow from the definition and the inputs' shapes."""
    sizes: dict[str, str] = {name: repr(axis.value) for name, axis in definition.axes.items() if axis.value is not None}
    for name, spec in definition.inputs.items():
        for dimension, axis in enumerate(spec.shape or ()):
            sizes.setdefault(axis, f"{name}.shape[{dimension}]")
    computed = {name: axis.expression for name, axis in definition.axes.items() if axis.expression}
    for axis in {axis for spec in definition.outputs.values() for axis in spec.shape or ()}:
        if axis not in sizes and axis not in computed:
            raise Unsupported(f"{definition.name}: no input has the size of axis {axis!r} of an output")
    tensors = [name for name, spec in definition.inputs.items() if spec.shape is not None]
    outputs = [
        f"_torch.empty([{', '.join(f'sizes[{axis!r}]' for axis in spec.shape or ())}], "
        f"dtype=_torch.{spec.dtype}, device=device)"
        for spec in definition.outputs.values()
    ]
    return FILLING.format(
        parameters=", ".join(definition.inputs),
        sizes="{" + ", ".join(f"{name!r}: {value}" for name, value in sizes.items()) + "}",
        computed="".join(f"        sizes[{name!r}] = int({_over_sizes(text)})\n" for name, text in computed.items()),
        device=f"{tensors[0]}.device" if tensors else '"cpu"',
        outputs=", ".join(outputs),
    )


class _FromSizes(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Subscript(ast.Name("sizes", ast.Load()), ast.Constant(node.id), ast.Load())


def _over_sizes(expression: str) -> str:
    try:
        return ast.unparse(_FromSizes().visit(parse_expression(expression.strip())))
    except SyntaxError:
        raise ProblemError(f"the axis expression {expression!r} does not parse; correct it") from None


def solution_of(outcome: Outcome, flavour: Flavour, hardware: str) -> Solution:
    sample, origin = outcome.sample, outcome.problem.origin
    assert origin is not None and origin.title, "only problems with a definition have solutions"
    given = origin.details.get("inputs")
    inputs = [str(name) for name in given] if isinstance(given, list) else []
    is_flashinfer = flavour == "flashinfer"
    language = LANGUAGES[sample.candidate.language].flashinfer or ("python" if is_flashinfer else "pytorch")
    spec: dict[str, Any] = {"language": language} if is_flashinfer else {"languages": [language]}
    return Solution(
        name=solution_name(sample, outcome.problem),
        definition=origin.title,
        author=AUTHOR,
        spec=Spec(
            **spec,
            target_hardware=[hardware if is_flashinfer else "LOCAL"],
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


def solution_name(sample: Sample, problem: Problem) -> str:
    """Return the name that connects solution and traces: definition, and the candidate's digest."""
    title = problem.origin.title if problem.origin else problem.name
    return safe_name(sample.name or f"{title}_{sample.candidate.digest[:12]}")


def write_solution(path: Path, solution: Solution) -> None:
    write_atomically(path, json.dumps(solution.as_json(), indent=2) + "\n")


STATUS = {
    "scan": "COMPILE_ERROR",
    "build": "COMPILE_ERROR",
    "load": "RUNTIME_ERROR",
    "run": "RUNTIME_ERROR",
    "check": "INCORRECT_NUMERICAL",
    "time": "RUNTIME_ERROR",
}
"""Their word for each stage at which a candidate fails."""
UNKNOWN_ERROR = {"max_relative_error": "NaN", "max_absolute_error": "NaN"}
"""They require a largest error wherever values were compared; a verdict does not keep one, and they allow NaN."""


def trace_of(outcome: Outcome) -> FlashInferTrace:
    origin = outcome.problem.origin
    assert origin is not None, "only problems with a workload have traces"
    return FlashInferTrace(
        definition=origin.title,
        workload=Workload.model_validate(origin.details["workload"]),
        solution=solution_name(outcome.sample, outcome.problem),
        evaluation=_evaluation(outcome),
    )


def _evaluation(outcome: Outcome) -> dict[str, Any]:
    """Give `correctness` exactly where values were compared, `performance` exactly where the candidate passed."""
    verdict = outcome.verdict
    found: dict[str, Any] = {
        "status": "PASSED" if isinstance(verdict, Passed) else STATUS[verdict.stage],
        "environment": {"hardware": outcome.device, "libs": dict(verdict.evidence.versions)},
        "timestamp": (outcome.time or datetime.now(UTC)).isoformat(),
        "log": verdict_words(verdict),
        "correctness": None,
        "performance": None,
    }
    if found["status"] in ("PASSED", "INCORRECT_NUMERICAL"):
        found["correctness"] = dict(UNKNOWN_ERROR)
    if isinstance(verdict, Failed):
        found["log"] = "\n".join(filter(None, (verdict.reason, verdict.log)))
    else:
        measurement = verdict.measurement
        found["environment"]["libs"]["timing_clock"] = measurement.timing_clock
        found["performance"] = {
            "latency_ms": measurement.candidate_ms,
            "reference_latency_ms": measurement.baselines_ms[measurement.closest.baseline],
            "speedup_factor": measurement.speedup,
        }
    return found
