"""Answers in CuTe's Python language: a jailed builder compiles their kernels for Hopper, without a device."""

import pytest
import torch

from bench.measuring import recorded_source
from kernelwright.prompts.rendering import EXAMPLES
from kernelwright.sandbox.machine import package_version
from tests.gpu.languages import HONEST, HOSTILE
from tests.sandbox.build.constructing import ARGUMENTS, constructed, recorded

pytestmark = pytest.mark.skipif(package_version("cute") is None, reason="needs the package nvidia-cutlass-dsl")
FOR_HOPPER = "import os\nos.environ['CUTE_DSL_ARCH'] = 'sm_90a'\n"
EXAMPLE = FOR_HOPPER + (EXAMPLES / "cute.py").read_text()
HAS_RUN = "assert model.run is not None"


@pytest.mark.slow
def test_the_example_compiles_in_the_jail():
    assert constructed(EXAMPLE, 1000, then=HAS_RUN)[1] == ""


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_device_a_call_says_so():
    matrix = "given(torch.empty(512, 1000))"
    call = f"model.run({matrix}, given(model.scale.detach()), {matrix}, CUstream(0))"
    _, said = constructed(EXAMPLE, 1000, then=call)
    assert "cudaErrorInsufficientDriver" in said or "cudaErrorNoDevice" in said


@pytest.mark.long
@pytest.mark.parametrize("problem", recorded("cute"))
def test_a_recorded_answer_compiles_in_the_jail(problem):
    source = FOR_HOPPER + recorded_source(problem, "cute")
    assert constructed(source, *ARGUMENTS[problem], then=HAS_RUN)[1] == ""


@pytest.mark.long
@pytest.mark.parametrize("told", [*HONEST["cute"].values(), *HOSTILE["cute"].values()])
def test_a_candidate_of_the_corpora_compiles_in_the_jail(told):
    assert constructed(FOR_HOPPER + told.source, then=HAS_RUN)[1] == ""
