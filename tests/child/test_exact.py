"""The float64 result is one, whatever types a reference names on its way."""

import pytest
import torch

from kernelwright_child.models import widened

X = torch.rand(100, dtype=torch.float64)
NAMING = {
    "float()": lambda x: x.float() * 3,
    "half()": lambda x: x.half() * 3,
    "to(dtype)": lambda x: x.to(torch.bfloat16) * 3,
    "to(dtype=...)": lambda x: x.to(dtype=torch.float32) * 3,
    "a dtype for a sum": lambda x: torch.sum(x * 3, dtype=torch.float32),
    "a new tensor of a dtype": lambda x: torch.full((100,), 3.0, dtype=torch.float32) * x,
    "a new tensor of no dtype": lambda x: torch.full((100,), 3.0) * x,
    "softmax in a dtype": lambda x: torch.softmax(x, 0, dtype=torch.float32),
}


@pytest.mark.parametrize("name", NAMING)
def test_arithmetic_is_wide(name):
    with widened():
        found = NAMING[name](X)
    assert found.dtype == torch.float64


def test_casts_integers_and_bits_are_what_they_were():
    with widened():
        assert torch.equal(X.float().half().bfloat16(), X)
    with widened():
        assert X.to(torch.int64).dtype == torch.int64
    with widened():
        assert torch.zeros(4, dtype=torch.int32).view(torch.float32).dtype == torch.float32


def test_afterwards_the_default_is_what_it_was():
    with widened():
        pass
    assert torch.zeros(1).dtype == torch.float32
