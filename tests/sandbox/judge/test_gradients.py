import pytest

from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Passed
from tests.sandbox.conftest import QUICK, SCALED_ROWS

pytestmark = pytest.mark.slow

MODEL = """
import torch

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight)
        return torch.cumsum(x * weight, dim=1)

    @staticmethod
    def backward(context, gradient):
        x, weight = context.saved_tensors
        flowing = gradient.flip(1).cumsum(1).flip(1)
        return {returned}

class ModelNew(torch.nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.zeros(1, columns))

    def forward(self, x):
        return Scaled.apply({arguments})
"""


@pytest.fixture(scope="module")
def both_ways():
    problem = SCALED_ROWS.model_copy(update={"direction": "both"})
    with Judge(problem, QUICK) as judge:
        yield judge


def verdict(judge, returned, arguments="x, self.scale"):
    return judge.judge(Candidate(source=MODEL.format(returned=returned, arguments=arguments)))


def test_right_gradients_pass_also_for_weights_of_another_name_and_shape(both_ways):
    found = verdict(both_ways, "flowing * weight, (flowing * x).sum(0, keepdim=True)")
    assert isinstance(found, Passed), found


@pytest.mark.parametrize(
    "returned",
    ["flowing, (flowing * x).sum(0, keepdim=True)", "flowing * weight, (flowing * x)[:1]", "flowing * weight, None"],
)
def test_a_wrong_or_missing_gradient_fails_at_check(both_ways, returned):
    found = verdict(both_ways, returned)
    assert isinstance(found, Failed), found
    assert found.stage == "check"


def test_a_kernel_without_gradients_fails_at_run(both_ways):
    found = verdict(both_ways, "None, None", "x.detach(), self.scale.detach()")
    assert isinstance(found, Failed), found
    assert (found.stage, "does not require grad" in found.reason) == ("run", True)
