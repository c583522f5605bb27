"""A problem with a right and a wrong candidate, as texts."""

from typing import Any

from kernelwright.problems import Problem

PROBLEM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    \"\"\"A running sum along each row.\"\"\"

    def forward(self, x):
        return torch.cumsum(x, dim=1)

def get_inputs():
    return [torch.randn(256, 2048)]

def get_init_inputs():
    return []
"""
RIGHT = PROBLEM.replace("class Model(", "class ModelNew(")
WRONG = RIGHT.replace("dim=1", "dim=0")
CUDA = (
    "from torch.utils.cpp_extension import load_inline\n"
    "load_inline(name='x', cpp_sources='', cuda_sources='__global__ void f() {}')\nclass ModelNew: pass\n"
)


def stateless(forward: str, inputs: str) -> str:
    """The source of a reference without weights: its result for `x`, and the one input."""
    head = f"import torch\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return {forward}\n"
    return f"{head}\ndef get_inputs():\n    return [{inputs}]\n\ndef get_init_inputs():\n    return []\n"


MANIFEST = """family = "toy"
title = "Doubling"

[sizes.cpu]
ROWS = 4

[sizes.gpu]
ROWS = 400
"""


def tiny_problem(source: str, **facts: Any) -> Problem:
    """A problem with this source, and what a test does not care for."""
    return Problem(**{"name": "tiny", "title": "", "family": "test", "size": "cpu"} | facts, source=source)
