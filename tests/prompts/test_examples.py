"""The worked examples are real: they compile, and they compute what their references compute."""

import ast
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.prompts.targets import EXAMPLES, TARGETS
from kernelwright.sandbox.machine import PACKAGES, language_environment, package_version

FOLDERS = sorted(choice.folder for language in TARGETS.values() for choice in language.examples)


def string_constant(path: Path, name: str) -> str:
    """The value of the module-level string `name`, read without running the file."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{path} defines no {name}")


def test_every_example_folder_is_shown_to_someone():
    assert sorted(path.parent.name for path in EXAMPLES.glob("*/answer.py")) == FOLDERS


@pytest.mark.parametrize("folder", FOLDERS)
def test_answer_runs_under_the_oldest_python_that_its_target_allows(folder):
    ast.parse((EXAMPLES / folder / "answer.py").read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("folder", FOLDERS)
def test_answer_takes_the_constructor_arguments_of_its_reference(folder):
    def arguments(file, name):
        tree = ast.parse((EXAMPLES / folder / file).read_text())
        model = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        return {part.name: ast.dump(part.args) for part in model.body if isinstance(part, ast.FunctionDef)}

    assert arguments("answer.py", "ModelNew") == arguments("reference.py", "Model")


@pytest.mark.slow
def test_cpp_example_computes_what_its_reference_computes(tmp_path, monkeypatch):
    import torch

    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    reference = runpy.run_path(str(EXAMPLES / "cpp" / "reference.py"))
    answer = runpy.run_path(str(EXAMPLES / "cpp" / "answer.py"))
    model = reference["Model"](*reference["get_init_inputs"]())
    candidate = answer["ModelNew"](*reference["get_init_inputs"]())
    candidate.load_state_dict(model.state_dict())
    (x,) = reference["get_inputs"]()
    torch.testing.assert_close(candidate(x), model(x), rtol=1e-5, atol=0.0)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc, the compiler of the CUDA toolkit, on PATH")
def test_cuda_example_compiles(tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text(string_constant(EXAMPLES / "cuda" / "answer.py", "SOURCE"))
    command = ["nvcc", "-arch=sm_90", "-Werror", "all-warnings", "-c", str(source), "-o", str(tmp_path / "kernel.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("folder", sorted(set(FOLDERS) - {"cpp", "cpp_classic"}))
def test_gpu_example_computes_what_its_reference_computes(folder, tmp_path, monkeypatch):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if folder in PACKAGES and package_version(folder) is None:
        pytest.skip(f"needs the package {PACKAGES[folder].distribution}")
    for name, value in language_environment(tmp_path):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    reference = runpy.run_path(str(EXAMPLES / folder / "reference.py"))
    answer = runpy.run_path(str(EXAMPLES / folder / "answer.py"))
    model = reference["Model"](*reference["get_init_inputs"]()).cuda()
    candidate = answer["ModelNew"](*reference["get_init_inputs"]()).cuda()
    candidate.load_state_dict(model.state_dict())
    x = reference["get_inputs"]()[0].cuda()
    torch.testing.assert_close(candidate(x), model(x), rtol=1e-5, atol=0.0)
