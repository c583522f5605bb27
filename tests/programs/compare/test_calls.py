import subprocess
import sys

import pytest

PROGRAM = """
import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def forward(self, x):
        return F.softplus(x)


with torch.no_grad():
    nn.Sequential(Layer(), Layer())(torch.ones(8))
"""
COMPILED = """
import sys
from pathlib import Path

import torch

from kernelwright.programs.timing import calls_of

(call,) = calls_of(Path(sys.argv[1]), ())
same, _ = call.outputs(call.root)
compiled, _ = call.outputs(torch.compile(call.root))
torch.testing.assert_close(compiled, same)
"""


@pytest.mark.long
def test_what_torch_compile_traces_finds_what_the_script_names_at_its_top(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-c", COMPILED, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
