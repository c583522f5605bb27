"""`problems check` on a device: small problems as a whole, large ones on a part, each in one process."""

import pytest

from kernelwright.evals.checking import examine_problem
from kernelwright.problems import Problem
from kernelwright.sandbox.verdict.errors import UnsupportedProblem
from kernelwright_child import driver
from tests.gpu.harness import SETTINGS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(driver.device_count() == 0, reason="the driver sees no CUDA device"),
]
LINEAR = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.layer = nn.Linear(features, features)

    def forward(self, x):
        return {value}

def get_inputs():
    return [torch.randn({rows}, 2048)]

def get_init_inputs():
    return [2048]
"""
SMALL, LARGE = 4096, 2**18
"""Rows; those of a large one take 2 GiB."""


def examined(value, rows=SMALL, dtype=None):
    source = LINEAR.format(value=value, rows=rows)
    problem = Problem(name="linear", title="Linear", family="test", size="file", source=source, dtype=dtype)
    return examine_problem(problem, SETTINGS)


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16"])
def test_a_sound_problem_is_ok(dtype):
    assert examined("self.layer(x)", dtype=dtype).status == "ok"


def test_what_a_constructor_draws_and_does_not_hand_over_is_found():
    held = "self.layer(x) * torch.tensor(self.drawn, device=x.device)"
    source = LINEAR.format(value=held, rows=SMALL).replace(
        "        self.layer =", "        self.drawn = torch.rand(1).item()\n        self.layer ="
    )
    problem = Problem(name="linear", title="Linear", family="test", size="file", source=source)
    with pytest.raises(UnsupportedProblem, match="second model"):
        examine_problem(problem, SETTINGS)


def test_weights_that_do_not_matter_are_found():
    assert "weightless" in examined("torch.cumsum(x, 1) + 0 * self.layer(x)").kinds


def test_a_large_problem_is_examined_on_a_part():
    assert examined("self.layer(x)", LARGE).status == "ok"


def test_lazy_answers_that_a_large_problem_accepts_are_found_on_a_part():
    assert "lazy" in examined("torch.softmax(self.layer(x), 1).sum(1)", LARGE).kinds


def test_a_reference_that_draws_is_weak():
    assert examined("self.layer(x) + torch.randn_like(x)").kinds == ("random",)


def test_a_large_reference_that_draws_is_weak():
    assert examined("self.layer(x) + torch.randn_like(x)", LARGE).kinds == ("random",)
