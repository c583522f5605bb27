import pytest
import torch
from torch import nn

from kernelwright import capture
from kernelwright.programs.record import read_capture
from kernelwright.programs.split import speedup_of_compile
from kernelwright.sandbox.verdict.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.long]


class Chain(nn.Module):
    """What a compiler makes one loop of."""

    def forward(self, x):
        return torch.tanh(torch.exp(-x * x) + x * 2) * torch.sigmoid(x - 1)


def test_a_chain_of_operators_is_measured_against_its_compiled_form(tmp_path):
    folder = capture(Chain().eval(), torch.randn(512, 1024), out=tmp_path / "capture", steps=1)
    (part,) = read_capture(folder).parts
    speedup = speedup_of_compile(folder, part, Settings(threads=1))
    assert speedup is not None and speedup > 0
