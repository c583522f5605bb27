"""The worked examples are real: they compile, and they compute what their references compute."""

import ast
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.problems.languages import TARGETS
from kernelwright.prompts.rendering import EXAMPLES
from kernelwright.sandbox.machine import PACKAGES, language_environment, package_version

NAMES = sorted(example.name for language in TARGETS.values() for example in language.examples)
REFERENCE = EXAMPLES / "reference.py"


def string_constant(path: Path, name: str) -> str:
    """The value of the module-level string `name`, read without running the file."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{path} defines no {name}")


def test_every_example_is_shown_to_someone():
    assert sorted(path.stem for path in EXAMPLES.glob("*.py") if path != REFERENCE) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_answer_runs_under_the_oldest_python_that_its_target_allows(name):
    ast.parse((EXAMPLES / f"{name}.py").read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("name", NAMES)
def test_answer_takes_the_constructor_arguments_of_its_reference(name):
    def arguments(path, entry):
        tree = ast.parse(path.read_text())
        model = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == entry)
        return {part.name: ast.dump(part.args) for part in model.body if isinstance(part, ast.FunctionDef)}

    assert arguments(EXAMPLES / f"{name}.py", "ModelNew") == arguments(REFERENCE, "Model")


@pytest.mark.slow
def test_cpp_example_computes_what_its_reference_computes(tmp_path, monkeypatch):
    import torch

    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    reference = runpy.run_path(str(REFERENCE))
    answer = runpy.run_path(str(EXAMPLES / "cpp.py"))
    model = reference["Model"](*reference["get_init_inputs"]())
    candidate = answer["ModelNew"](*reference["get_init_inputs"]())
    candidate.load_state_dict(model.state_dict())
    (x,) = reference["get_inputs"]()
    torch.testing.assert_close(candidate(x), model(x), rtol=1e-5, atol=0.0)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc, the compiler of the CUDA toolkit, on PATH")
def test_cuda_example_compiles(tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text(string_constant(EXAMPLES / "cuda.py", "SOURCE"))
    command = ["nvcc", "-arch=sm_90", "-Werror", "all-warnings", "-c", str(source), "-o", str(tmp_path / "kernel.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("cpp")])
def test_gpu_example_computes_what_its_reference_computes(name, tmp_path, monkeypatch):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if name in PACKAGES and package_version(name) is None:
        pytest.skip(f"needs the package {PACKAGES[name].distribution}")
    for variable, value in language_environment(tmp_path).items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    reference = runpy.run_path(str(REFERENCE))
    answer = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    model = reference["Model"](*reference["get_init_inputs"]()).cuda()
    candidate = answer["ModelNew"](*reference["get_init_inputs"]()).cuda()
    candidate.load_state_dict(model.state_dict())
    x = reference["get_inputs"]()[0].cuda()
    torch.testing.assert_close(candidate(x), model(x), rtol=1e-5, atol=0.0)
