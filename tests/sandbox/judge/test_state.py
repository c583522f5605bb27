"""Modules in the state they are made in: whether what a call makes of buffers must be what the reference makes."""

import pytest

from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Passed
from tests.sandbox.conftest import QUICK
from tests.support.problems import tiny_problem

pytestmark = pytest.mark.slow

SOURCE = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(48)

    def forward(self, x):
        {forward}
"""
REST = """
def get_inputs():
    return [torch.randn(64, 48) + 3]

def get_init_inputs():
    return []
"""
FOLLOWING = "return self.norm(x)"
BY_HAND = """n = self.norm
        mean, var = x.mean(0), x.var(0, unbiased=False)
        with torch.no_grad():
            n.running_mean.mul_(0.9).add_(0.1 * mean)
            n.running_var.mul_(0.9).add_(0.1 * var * 64 / 63)
            n.num_batches_tracked.add_(1)
        return (x - mean) / torch.sqrt(var + n.eps) * n.weight + n.bias"""
LEAVING = "n = self.norm; return F.batch_norm(x, None, None, n.weight, n.bias, True)"
BIASED = BY_HAND.replace(" * 64 / 63", "")
UNCOUNTED = BY_HAND.replace("n.num_batches_tracked.add_(1)", "pass")
REPLACING = """n = self.norm
        n.running_mean = 0.9 * n.running_mean + 0.1 * x.mean(0)
        n.running_var = 0.9 * n.running_var + 0.1 * x.var(0)
        n.num_batches_tracked = n.num_batches_tracked + 1
        return F.batch_norm(x, None, None, n.weight, n.bias, True)"""


@pytest.fixture(scope="module", params=["free", "followed"])
def judged(request):
    source = SOURCE.format(name="Model", forward=FOLLOWING) + REST
    problem = tiny_problem(source, name="normed", state=request.param)
    with Judge(problem, QUICK.model_copy(update={"worker_pairs": 2})) as judge:
        yield request.param, lambda one: judge.judge(Candidate(source=SOURCE.format(name="ModelNew", forward=one)))


@pytest.mark.parametrize("forward", [FOLLOWING, BY_HAND, REPLACING], ids=["torch's", "by hand", "replaced"])
def test_who_changes_buffers_alike_passes_in_any_case(judged, forward):
    _, verdict = judged
    found = verdict(forward)
    assert isinstance(found, Passed), found


@pytest.mark.parametrize("forward", [LEAVING, BIASED, UNCOUNTED], ids=["left alone", "another variance", "not counted"])
def test_who_does_not_fails_where_they_must_follow_and_passes_where_they_are_free(judged, forward):
    state, verdict = judged
    found = verdict(forward)
    if state == "free":
        assert isinstance(found, Passed), found
    else:
        assert isinstance(found, Failed) and found.stage == "check" and "norm." in found.reason, found


def test_buffers_that_are_larger_than_the_result_are_followed_too():
    tabled = SOURCE.replace(
        "nn.BatchNorm1d(48)", "nn.BatchNorm1d(48); self.register_buffer('table', torch.rand(2**24))"
    )
    source = tabled.format(name="Model", forward=FOLLOWING) + REST
    problem = tiny_problem(source, name="tabled", state="followed")
    with Judge(problem, QUICK.model_copy(update={"worker_pairs": 2})) as judge:
        found = judge.judge(Candidate(source=tabled.format(name="ModelNew", forward=FOLLOWING)))
        assert isinstance(found, Passed), found


def test_buffers_that_can_not_be_read_are_the_candidates_fault(judged):
    state, verdict = judged
    lines = """self.norm.running_mean = torch.ones(2**26)
        return F.batch_norm(x, None, None, self.norm.weight, self.norm.bias, True)"""
    found = verdict(lines)
    assert state == "free" or (isinstance(found, Failed) and found.stage == "run"), found
