"""Results of one call that share memory with each other on a device: refused unless the reference's do."""

import pytest

from kernelwright_child import driver
from tests.gpu.harness import Judges
from tests.gpu.honest import problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(driver.device_count() == 0, reason="the driver sees no CUDA device"),
]
TWICE = problem("twice", "y = inputs[0] * 2; return y, y.clone()", "torch.randn(2048, 4096)")
HALVES = problem(
    "halves", "y = inputs[0] * 2; return y[:, :2048].contiguous(), y[:, 2048:].contiguous()", "torch.randn(2048, 4096)"
)
CANDIDATE = """
import sys, torch

{top}

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        return {result}
"""
NAMED_TWICE = """
from kernelwright_child import wire

def pack(value, tensors):
    if isinstance(value, tuple) and len(value) == 2 and value[0] is value[1]:
        tensors.append(value[0])
        return {"p": [{"t": len(tensors) - 1}] * 2}
    return PACK(value, tensors)

PACK, wire.pack = wire.pack, pack
"""


@pytest.mark.parametrize(
    ("posed", "result", "top", "stage"),
    [
        (TWICE, "y, y.clone()", "", "passed"),
        (TWICE, "y, y", "", "check"),
        (TWICE, "y, y", NAMED_TWICE, "run"),
        (HALVES, "y[:, :2048], y[:, 2048:]", "", "passed"),
        (HALVES, "y[:, :2048], y[:, 2047:-1]", "", "check"),
    ],
    ids=["apart", "one tensor", "one tensor named twice", "views beside each other", "views that overlap"],
)
def test_results_that_share_memory_are_refused_where_the_references_do_not(posed, result, top, stage):
    with Judges() as judges:
        verdict = judges.judged(posed, CANDIDATE.format(top=top, result=result))
    assert getattr(verdict, "stage", verdict.outcome) == stage, verdict
