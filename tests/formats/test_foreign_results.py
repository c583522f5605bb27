import json

import pytest
import torch

from kernelwright.evals.formats import candidate_format, definitions_under, flashinfer, kernelbench
from kernelwright.evals.formats.kernelbench import BACKENDS, language_of_backend, read_run
from kernelwright.problems import ProblemError, load_problem
from kernelwright.problems.formats.flashinfer import Definition
from kernelwright.problems.formats.reading import Unsupported
from kernelwright.problems.languages import ON_DEVICE
from tests.support.foreign import (
    CANDIDATE,
    DEFINITION,
    DEVICE,
    WORKLOAD,
    failed,
    outcome,
    passed,
    read_baselines,
    read_eval_results,
    trace_problem,
    tree_problems,
)

RESULTS = {
    "7": [
        {
            "sample_id": 0, "compiled": True, "correctness": True, "metadata": {"hardware": "H100"},
            "runtime": 0.5, "runtime_stats": {"mean": 0.5, "std": 0.1, "min": 0.4, "max": 0.7, "num_trials": 100},
        },
        {"sample_id": 1, "compiled": False, "correctness": False, "metadata": {}, "runtime": -1.0, "runtime_stats": {}},
    ]
}  # fmt: skip
BASELINES = {
    "level1": {
        "7_Sum.py": {
            "mean": 5.78, "std": 0.06, "min": 5.5, "max": 5.9, "num_trials": 9, "hardware": "A10G", "device": "cuda",
        }
    }
}  # fmt: skip
SUBMISSION = {
    "metadata": {"display_name": "m", "organization": "o", "notes": "n"},
    "kernels": {"level_1_problem_7_sample_0": CANDIDATE, "level_2_problem_3_sample_1": "x = 1"},
}


@pytest.fixture
def problems(tmp_path):
    return tree_problems(tmp_path / "tree")


@pytest.fixture
def outcomes(problems):
    return [
        outcome(problems["level1/10"], failed("build"), 0, "broken"),
        outcome(problems["level1/1"], failed("check"), 1),
        outcome(problems["level1/1"], passed(), 0),
    ]


def test_eval_results_are_written_as_they_were_read(tmp_path):
    path = tmp_path / "eval_results.json"
    path.write_text(json.dumps(RESULTS | {"8": [RESULTS["7"][1] | {"new": 1}]}))
    found = read_eval_results(path)
    assert json.loads(kernelbench.results_text(found)) == json.loads(path.read_text())
    assert found["8"][0].unknown() == ["new"]


def test_baselines_and_a_submission_are_written_as_they_were_read(tmp_path):
    path = tmp_path / "baseline_time_torch.json"
    path.write_text(json.dumps(BASELINES))
    assert json.loads(kernelbench.baselines_text(read_baselines(path))) == BASELINES
    path = tmp_path / "m.json"
    path.write_text(json.dumps(SUBMISSION))
    kernelbench.write_submission(tmp_path / "again.json", kernelbench.Submission.read(path))
    assert json.loads((tmp_path / "again.json").read_text()) == SUBMISSION


def test_the_kernels_of_a_submission_are_candidates(tmp_path):
    path = tmp_path / "m.json"
    path.write_text(json.dumps(SUBMISSION | {"kernels": SUBMISSION["kernels"] | {"one": "x"}, "colour": 1}))
    found = kernelbench.read_samples(path)
    wanted = [("level1/7", 0, "m"), ("level2/3", 1, "m")]
    assert [(one.target, one.number, one.author) for one in found.samples] == wanted
    (note,) = found.notes
    assert found.refused[0][0] == "one" and "'colour'" in note


def test_a_run_folder_is_read_again_as_it_was_written_and_what_lies_beside_the_kernels_is_noted(tmp_path, outcomes):
    kernelbench.write_run(tmp_path / "run", outcomes)
    (tmp_path / "run/notes.txt").write_text("")
    found = kernelbench.read_run(tmp_path / "run")
    (note,) = found.notes
    assert "notes.txt" in note
    sources = {(one.target, one.number): one.candidate.source for one in found.samples}
    assert sources == dict.fromkeys([("level1/1", 0), ("level1/1", 1)], CANDIDATE) | {("level1/10", 0): "broken"}


def test_results_stand_in_the_order_of_problems_and_samples_with_failures_unmeasured(outcomes):
    fitting, _ = kernelbench.split(outcomes)
    found = kernelbench.eval_results(fitting[1])
    assert [(key, [one.sample_id for one in results]) for key, results in found.items()] == [("1", [0, 1]), ("10", [0])]
    right, wrong, unbuilt = found["1"][0], found["1"][1], found["10"][0]
    assert (right.correctness, right.runtime, right.runtime_stats["num_trials"]) == (True, 1.1875, 4)
    assert (wrong.compiled, wrong.correctness, wrong.runtime) == (True, False, -1.0)
    assert (unbuilt.compiled, unbuilt.metadata["compilation_error"]) == (False, "wrong at build")


def test_results_have_all_keys_that_their_scripts_read_and_baselines_lie_in_a_file_each(tmp_path, outcomes):
    kernelbench.write_run(tmp_path, outcomes)
    written = json.loads((tmp_path / "eval_results.json").read_text())
    keys = {"sample_id", "compiled", "correctness", "metadata", "runtime", "runtime_stats"}
    assert all(set(result) == keys for results in written.values() for result in results)
    eager = read_baselines(tmp_path / "timing/baseline_time_torch.json")
    compiled = tmp_path / "timing/baseline_time_torch_compile_inductor_default.json"
    assert list(eager["level1"]) == ["1_Double.py"] and eager["level1"]["1_Double.py"].hardware == DEVICE
    assert compiled.exists() and eager["level1"]["1_Double.py"].mean == 4 * 1.1875


def test_two_levels_get_a_folder_each_and_a_problem_that_is_not_theirs_is_left_out(tmp_path, problems):
    outcomes = [
        outcome(one, passed()) for one in (problems["level1/1"], problems["level2/3"], load_problem("rms_norm"))
    ]
    (reason,) = kernelbench.write_run(tmp_path, outcomes)
    assert reason.startswith("rms_norm has no level")
    assert {path.parent.name for path in tmp_path.rglob("eval_results.json")} == {"level1", "level2"}
    assert len(kernelbench.read_run(tmp_path).samples) == 2


def test_a_submission_holds_the_fastest_right_sample_of_each_problem(problems):
    outcomes = [
        outcome(problems["level1/1"], failed(), 0, "wrong"),
        outcome(problems["level1/1"], passed(1.5), 1, "slow"),
        outcome(problems["level1/1"], passed(3.0), 2, "fast"),
        outcome(problems["level1/10"], failed(), 4, "only"),
    ]
    submission, left = kernelbench.submission_of(outcomes, kernelbench.Metadata(display_name="m"))
    kernels = {"level_1_problem_1_sample_0": "fast", "level_1_problem_10_sample_0": "only"}
    assert (left, submission.kernels) == ([], kernels)


def test_languages_with_a_backend_of_theirs_run_on_a_gpu_and_an_unknown_backend_is_refused():
    assert {"cuda", "triton"} <= set(BACKENDS) <= set(ON_DEVICE)
    for backend in ("cuda", "triton", "tilelang", "cute"):
        assert BACKENDS[language_of_backend(backend.upper())] == backend
    with pytest.raises(ProblemError, match=r"'opencl'.* cuda, .*triton"):
        language_of_backend("opencl")


@pytest.mark.parametrize(("backend", "said"), [("hip", "for AMD GPUs"), ("thunderkittens", "in no package")])
def test_a_backend_that_is_not_supported_is_told_with_the_reason(backend, said, tmp_path):
    (tmp_path / "generation_config.yaml").write_text(f"backend: {backend}\nlevel: 1\n")
    (note,) = read_run(tmp_path).notes
    assert note.startswith(f"KernelBench's backend '{backend}' is not supported: ") and said in note


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
    found = flashinfer.Solution.read(tmp_path / "s.json")
    flashinfer.write_solution(tmp_path / "again.json", found)
    assert json.loads((tmp_path / "again.json").read_text()) == content and not found.unknown()


def test_a_function_that_fills_its_outputs_becomes_a_module_and_one_that_returns_them_needs_no_definition():
    result = called(flashinfer.source_of(solution(), Definition.model_validate(DEFINITION)))
    assert result.shape == (3, 64) and bool((result == 1).all())
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
def test_our_candidate_survives_being_a_solution_of_the_definitions_inputs_by_name(tmp_path, flavour):
    one = outcome(trace_problem(tmp_path), passed())
    found = flashinfer.solution_of(one, flavour, "CPU")
    flashinfer.write_solution(tmp_path / "s.json", found)
    assert flashinfer.source_of(flashinfer.Solution.read(tmp_path / "s.json"), None) == CANDIDATE
    (main,) = [file.content for file in found.sources if file.path == "main.py"]
    assert "def run(x, weight, eps):" in main and found.spec.destination_passing_style is False
    trace = flashinfer.trace_of(one)
    assert (trace.workload.as_json(), trace.solution) == (WORKLOAD, found.name)


PRESENT = {"passed": (True, True), "check": (True, False), "build": (False, False), "run": (False, False)}


@pytest.mark.parametrize("end", PRESENT)
def test_correctness_and_performance_stand_exactly_where_their_schema_wants_them(tmp_path, end):
    verdict = passed() if end == "passed" else failed(end)
    evaluation = flashinfer.trace_of(outcome(trace_problem(tmp_path), verdict)).evaluation
    assert (evaluation["correctness"] is not None, evaluation["performance"] is not None) == PRESENT[end]


def test_the_speedup_of_a_trace_is_against_the_better_baseline(tmp_path):
    evaluation = flashinfer.trace_of(outcome(trace_problem(tmp_path), passed(2.0))).evaluation
    assert evaluation["performance"] == {"latency_ms": 1.125, "reference_latency_ms": 2.25, "speedup_factor": 2.0}
