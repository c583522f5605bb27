import json

import pytest
import torch

from kernelwright.evals.formats import candidate_format, definitions_under, flashinfer
from kernelwright.problems.formats.flashinfer import Definition
from kernelwright.problems.formats.reading import Unsupported
from tests.support.foreign import CANDIDATE, DEFINITION, WORKLOAD, failed, outcome, passed, trace_problem

FILLS = "import torch\n\ndef run(x, weight, eps, y):\n    y.copy_(x * weight * eps)\n"
RETURNS = "import torch\n\ndef run(x, weight, eps):\n    return {'y': x * weight * eps}\n"
SOLUTION = {
    "name": "mine",
    "definition": "rms_norm_h64",
    "author": "someone",
    "spec": {
        "language": "python", "target_hardware": ["LOCAL"], "entry_point": "main.py::run", "dependencies": ["torch"],
        "destination_passing_style": True,
    },
    "sources": [{"path": "main.py", "content": FILLS}],
    "description": None,
}  # fmt: skip
BINDING = '#include <torch/extension.h>\n#include "own.cuh"\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}\n'


def solution(**changes):
    spec = SOLUTION["spec"] | changes.pop("spec", {})
    return flashinfer.Solution.model_validate(SOLUTION | {"spec": spec} | changes)


def called(source):
    namespace = {}
    exec(compile(source, "candidate", "exec"), namespace)
    return namespace["ModelNew"]()(torch.ones(3, 64), torch.full((64,), 2.0), 0.5)


@pytest.mark.parametrize(
    "content",
    [
        SOLUTION,
        SOLUTION | {"spec": {"languages": ["cuda_cpp"], "target_hardware": ["B200"], "entry_point": "k.cu::f",
                             "binding": "torch", "compile_options": {"cuda_cflags": ["-O3"]}}},
    ],
)  # fmt: skip
def test_a_solution_is_written_as_it_was_read(tmp_path, content):
    (tmp_path / "s.json").write_text(json.dumps(content))
    found = flashinfer.read_solution(tmp_path / "s.json")
    flashinfer.write_solution(tmp_path / "again.json", found)
    assert json.loads((tmp_path / "again.json").read_text()) == content and not found.unknown()


def test_a_function_that_fills_its_outputs_becomes_a_module_that_returns_them():
    result = called(flashinfer.source_of(solution(), Definition.model_validate(DEFINITION)))
    assert result.shape == (3, 64) and bool((result == 1).all())


def test_a_function_that_returns_its_outputs_needs_no_definition():
    own = solution(spec={"destination_passing_style": False}, sources=[{"path": "main.py", "content": RETURNS}])
    assert bool((called(flashinfer.source_of(own, None)) == 1).all())


def test_a_solution_of_several_files_finds_its_modules():
    main = "from parts.scale import scaled\n\ndef run(x, w, e):\n    return scaled(x, w, e)\n"
    texts = {"main.py": main, "parts/scale.py": "def scaled(x, w, e):\n    return x * w * e\n"}
    files = [{"path": path, "content": text} for path, text in texts.items()]
    source = flashinfer.source_of(solution(spec={"destination_passing_style": False}, sources=files), None)
    assert bool((called(source) == 1).all())


def test_a_solution_in_cuda_is_built_from_its_texts_with_its_headers_in_place():
    files = [{"path": "k.cu", "content": BINDING}, {"path": "own.cuh", "content": "#pragma once\nint one;\n"}]
    spec = {"entry_point": "k.cu::f", "destination_passing_style": False, "language": "cuda",
            "compile_options": {"cuda_cflags": ["-O3"]}}  # fmt: skip
    source = flashinfer.source_of(solution(spec=spec, sources=files), None)
    assert "int one;" in source and "own.cuh" not in source and "extra_cuda_cflags=['-O3']" in source


REFUSED = {
    "no definition for given outputs": (solution(), "give that too"),
    "an entry point that is nowhere": (solution(spec={"entry_point": "other.py::run"}), "names no function"),
    "another binding": (
        solution(spec={"entry_point": "k.cu::f", "binding": "tvm-ffi"}, sources=[{"path": "k.cu", "content": BINDING}]),
        "tvm-ffi",
    ),
    "no binding": (
        solution(spec={"entry_point": "k.cu::f"}, sources=[{"path": "k.cu", "content": "int f;"}]), "PYBIND11_MODULE",
    ),
    "a path out of the folder": (
        solution(sources=[{"path": "main.py", "content": FILLS}, {"path": "../x.py", "content": ""}]), "leads out",
    ),
    "another language": (
        solution(spec={"entry_point": "k.rs::f"}, sources=[{"path": "k.rs", "content": ""}]), ".rs file",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_solution_that_can_not_be_called_says_why(name):
    found, said = REFUSED[name]
    with pytest.raises((ValueError, Unsupported), match=said):
        flashinfer.source_of(found, None)


def test_one_bad_file_does_not_take_the_others_with_it(tmp_path):
    place = tmp_path / "solutions/someone"
    place.mkdir(parents=True)
    (place / "bad.json").write_text("{")
    (place / "good.json").write_text(json.dumps(SOLUTION | {"colour": 1}))
    definitions = {"rms_norm_h64": Definition.model_validate(DEFINITION)}
    found = flashinfer.read_samples(tmp_path, definitions)
    assert [one.name for one in found.samples] == ["mine"] and found.refused[0][0] == "bad.json"
    (note,) = found.notes
    assert note.startswith("good.json: ") and "'colour'" in note
    assert candidate_format(tmp_path) == "flashinfer"


def test_definitions_are_found_beside_solutions(tmp_path):
    trace_problem(tmp_path)
    assert list(definitions_under(tmp_path)) == ["rms_norm_h64"]


@pytest.mark.parametrize("flavour", ["flashinfer", "sol-execbench"])
def test_our_candidate_survives_being_a_solution(tmp_path, flavour):
    one = outcome(trace_problem(tmp_path), passed())
    flashinfer.write_solution(tmp_path / "s.json", flashinfer.solution_of(one, flavour, "CPU"))
    assert flashinfer.source_of(flashinfer.read_solution(tmp_path / "s.json"), None) == CANDIDATE


def test_the_function_of_our_solution_takes_the_definitions_inputs_by_name(tmp_path):
    found = flashinfer.solution_of(outcome(trace_problem(tmp_path), passed()), "flashinfer", "CPU")
    (main,) = [file.content for file in found.sources if file.path == "main.py"]
    assert "def run(x, weight, eps):" in main and found.spec.destination_passing_style is False


def test_a_trace_names_the_whole_workload_and_its_solution(tmp_path):
    one = outcome(trace_problem(tmp_path), passed())
    trace = flashinfer.trace_of(one)
    assert trace.workload.as_json() == WORKLOAD
    assert trace.solution == flashinfer.solution_of(one, "flashinfer", "CPU").name


PRESENT = {"passed": (True, True), "check": (True, False), "build": (False, False), "run": (False, False)}


@pytest.mark.parametrize("end", PRESENT)
def test_correctness_and_performance_stand_exactly_where_their_schema_wants_them(tmp_path, end):
    verdict = passed() if end == "passed" else failed(end)
    evaluation = flashinfer.trace_of(outcome(trace_problem(tmp_path), verdict)).evaluation
    assert (evaluation["correctness"] is not None, evaluation["performance"] is not None) == PRESENT[end]


def test_the_speedup_of_a_trace_is_against_the_better_baseline(tmp_path):
    evaluation = flashinfer.trace_of(outcome(trace_problem(tmp_path), passed(2.0))).evaluation
    assert evaluation["performance"] == {"latency_ms": 1.125, "reference_latency_ms": 2.25, "speedup_factor": 2.0}
