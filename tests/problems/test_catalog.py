import ast
import tomllib
from typing import Any

import pytest

from kernelwright.problems import Problem, Tolerance, catalog_names, lint_source, load_problem
from kernelwright.problems.loading import CATALOG

NAMES = catalog_names()
INTEGER_OUTPUT = {"argmax_rows"}
TWO_OUTPUTS = {"min_max"}
CONV_TRANSPOSE_AT_GPU_SIZE = {
    "conv_transpose2d_strided_dilated": ((16, 32, 64, 128), [32, 64, 3, 5, 1, 2]),
    "conv_transpose2d_kernel3x5": ((64, 64, 128, 256), [64, 128, (3, 5)]),
    "conv_transpose2d_kernel3x7": ((8, 64, 512, 512), [64, 64, (3, 7)]),
    "conv_transpose2d_grouped_asymmetric": ((16, 32, 128, 256), [32, 64, (3, 5), (2, 3), (1, 2), (2, 1), 4]),
}


def namespace(problem: Problem) -> dict[str, Any]:
    defined: dict[str, Any] = {"__name__": "reference"}
    exec(compile(problem.source, problem.name, "exec"), defined)
    return defined


def constants(problem: Problem) -> dict[str, Any]:
    found = {}
    for statement in ast.parse(problem.source).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            found[statement.targets[0].id] = ast.literal_eval(statement.value)
    return found


def test_every_folder_of_the_catalog_is_a_problem() -> None:
    assert {folder.name for folder in CATALOG.iterdir() if folder.is_dir()} == set(NAMES)


@pytest.mark.parametrize("size", ["cpu", "gpu"])
@pytest.mark.parametrize("name", NAMES)
def test_a_problem_has_the_constants_of_its_size(name: str, size: str) -> None:
    asked = tomllib.loads((CATALOG / name / "problem.toml").read_text())["sizes"][size]
    found = constants(load_problem(name, size))
    assert {constant: found[constant] for constant in asked} == asked


@pytest.mark.parametrize("name", NAMES)
def test_the_file_as_it_stands_is_the_cpu_size_without_warnings_and_the_gpu_size_another_problem(name: str) -> None:
    cpu, gpu = load_problem(name, "cpu"), load_problem(name, "gpu")
    assert (CATALOG / name / "reference.py").read_text() == cpu.source != gpu.source
    assert cpu.digest != gpu.digest
    assert lint_source(cpu.source) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_tolerance_still_refuses_half_precision(name: str) -> None:
    """Rounding a result to fp16 moves its largest element by about 2**11 units of float32, or more."""
    tolerance = load_problem(name).tolerance
    assert tolerance.floor_ulp <= 256
    assert tolerance.factor == Tolerance().factor


@pytest.mark.parametrize("name", CONV_TRANSPOSE_AT_GPU_SIZE)
def test_a_transposed_convolution_has_the_published_parameters(name: str) -> None:
    shape, arguments = CONV_TRANSPOSE_AT_GPU_SIZE[name]
    problem = load_problem(name, "gpu")
    sizes = constants(problem)
    assert (sizes["BATCH"], sizes["IN_CHANNELS"], sizes["HEIGHT"], sizes["WIDTH"]) == shape
    assert namespace(problem)["get_init_inputs"]() == arguments


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_reference_computes_finite_values_of_the_declared_kind(name: str) -> None:
    import torch

    outputs = run_reference(load_problem(name))
    assert len(outputs) == (2 if name in TWO_OUTPUTS else 1)
    for output in outputs:
        assert output.dtype == (torch.int64 if name in INTEGER_OUTPUT else torch.float32)
        assert torch.isfinite(output).all()
        assert output.double().std() > 1e-3  # neither constant nor so small that zeros would do


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_reference_draws_other_inputs_each_time(name: str) -> None:
    import torch

    get_inputs = namespace(load_problem(name))["get_inputs"]
    assert not any(torch.equal(once, again) for once, again in zip(get_inputs(), get_inputs(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "group_norm", "mlp_block"])
def test_ignoring_the_weights_of_a_norm_is_wrong(name: str) -> None:
    import torch

    model = namespaced_model(namespace(load_problem(name)))
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    assert all(parameter.std() > 0.01 for parameter in vectors)
    assert not any(torch.equal(parameter, torch.ones_like(parameter)) for parameter in vectors)


def namespaced_model(defined: dict[str, Any]) -> Any:
    return defined["Model"](*defined["get_init_inputs"]())


def run_reference(problem: Problem) -> tuple[Any, ...]:
    import torch

    defined = namespace(problem)
    torch.manual_seed(0)
    with torch.no_grad():
        result = namespaced_model(defined)(*defined["get_inputs"]())
    return result if isinstance(result, tuple) else (result,)
