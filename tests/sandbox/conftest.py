import logging
from contextlib import closing

import pytest

from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import WorkFolder
from tests.support.problems import tiny_problem

QUICK = JudgeSettings(warm_up=1, min_pairs=4, max_pairs=4, call_timeout_s=6)
"""Few pairs: these tests ask whether a verdict is right, not how fast a candidate is."""

SCALED_ROWS = tiny_problem(
    """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(columns))

    def forward(self, x):
        return torch.cumsum(x * self.weight, dim=1)

def get_inputs():
    return [torch.randn(32, 48)]

def get_init_inputs():
    return [48]
""",
    name="scaled_rows",
    title="Rows times a weight, summed up along the row",
)


@pytest.fixture
def folder():
    with closing(WorkFolder()) as folder:
        yield folder


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.INFO, "kernelwright.sandbox")
    return caplog


@pytest.fixture(scope="session")
def scaled_rows():
    """A judge for a small problem with a weight; its reference child serves the whole session."""
    with Judge(SCALED_ROWS, QUICK) as judge:
        yield judge
