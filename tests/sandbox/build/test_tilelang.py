"""Answers in TileLang: a jailed builder makes their kernels for Hopper without a device, and keeps them."""

import shutil

import pytest

from bench.measuring import recorded_source
from kernelwright.prompts.rendering import EXAMPLES
from kernelwright.sandbox.machine import package_version
from tests.gpu.languages import HONEST, HOSTILE
from tests.sandbox.build.constructing import ARGUMENTS, constructed, recorded

pytestmark = [
    pytest.mark.skipif(package_version("tilelang") is None, reason="needs the package tilelang"),
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc, the compiler of the CUDA toolkit, on PATH"),
]
FOR_HOPPER = """import os
os.environ["TILELANG_DEFAULT_TARGET"] = '{"kind": "cuda", "arch": "sm_90a"}'
"""
EXAMPLE = (EXAMPLES / "tilelang.py").read_text()


@pytest.mark.slow
def test_the_example_compiles_in_the_jail():
    assert constructed(FOR_HOPPER + EXAMPLE, 1000) == (1, "")


@pytest.mark.slow
def test_without_a_device_one_line_says_so():
    _, said = constructed(EXAMPLE, 1000)
    assert "available target" in said.splitlines()[0]


@pytest.mark.long
@pytest.mark.parametrize("problem", recorded("tilelang"))
def test_a_recorded_answer_compiles_in_the_jail(problem):
    assert constructed(FOR_HOPPER + recorded_source(problem, "tilelang"), *ARGUMENTS[problem]) == (1, "")


@pytest.mark.long
@pytest.mark.parametrize("told", [*HONEST["tilelang"].values(), *HOSTILE["tilelang"].values()])
def test_a_candidate_of_the_corpora_compiles_in_the_jail(told):
    count, said = constructed(FOR_HOPPER + told.source)
    assert count and not said
