"""How a candidate gets the reference's weights: copied, or constructed under the seed of the reference's."""

import pytest

from kernelwright.sandbox.judge.judging import Judge, judge
from kernelwright.sandbox.verdict.errors import UnsupportedProblem
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Passed
from tests.sandbox.conftest import QUICK
from tests.support.problems import tiny_problem

pytestmark = pytest.mark.slow

HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F
"""
LINEAR = """
class {name}(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.norm = nn.LayerNorm(outputs)

    def forward(self, x):
        return self.norm(self.linear(x))
"""
REST = """
def get_inputs():
    return [torch.randn(16, 24)]

def get_init_inputs():
    return [24, 40]
"""
PROBLEM = tiny_problem(HEAD + LINEAR.format(name="Model") + REST, name="normed")


def candidate(constructor, forward):
    body = "class ModelNew(nn.Module):\n    def __init__(self, inputs, outputs):\n        super().__init__()\n"
    body += "".join(f"        {line}\n" for line in constructor.splitlines())
    body += "    def forward(self, x):\n" + "".join(f"        {line}\n" for line in forward.splitlines())
    return Candidate(source=HEAD + body)


LAYERS = "linear, norm = nn.Linear(inputs, outputs), nn.LayerNorm(outputs)\n"
RENAMED = candidate(
    LAYERS
    + "self.matrix = nn.Parameter(linear.weight.t().contiguous())\n"
    + "self.shift, self.gain, self.offset = linear.bias, norm.weight, norm.bias",
    "return F.layer_norm(x @ self.matrix + self.shift, (40,), self.gain, self.offset)",
)
OWN_CONSTANTS = candidate(
    "linear = nn.Linear(inputs, outputs)\nself.matrix = nn.Parameter(linear.weight.t().contiguous())\n"
    "self.shift = linear.bias\n"
    "self.gain, self.offset = nn.Parameter(torch.ones(outputs)), nn.Parameter(torch.zeros(outputs))",
    "return F.layer_norm(x @ self.matrix + self.shift, (40,), self.gain, self.offset)",
)
PRECOMPUTED = candidate(
    LAYERS
    + "self.matrix = nn.Parameter(linear.weight.t().contiguous())\n"
    + "self.shift = linear.bias\nself.table = nn.Parameter(torch.stack([norm.weight, norm.bias]).detach())",
    "return F.layer_norm(x @ self.matrix + self.shift, (40,)) * self.table[0] + self.table[1]",
)
RIGHT = {"renamed and transposed": RENAMED, "constants of its own": OWN_CONSTANTS, "precomputed": PRECOMPUTED}
OTHER_ORDER = candidate(
    "torch.rand(3)\n" + LAYERS + "self.matrix = nn.Parameter(linear.weight.t().contiguous())\n"
    "self.shift, self.gain, self.offset = linear.bias, norm.weight, norm.bias",
    "return F.layer_norm(x @ self.matrix + self.shift, (40,), self.gain, self.offset)",
)
WITHOUT_CONSTANTS = candidate(
    LAYERS + "self.matrix, self.shift = nn.Parameter(linear.weight.t().contiguous()), linear.bias",
    "return F.layer_norm(x @ self.matrix + self.shift, (40,))",
)
IGNORING_THEM = candidate(
    "self.linear, self.norm = nn.Linear(inputs, outputs), nn.LayerNorm(outputs)",
    "return F.layer_norm(self.linear(x), (40,))",
)
KEPT_BY_CLASS = candidate(
    LAYERS + "self.matrix = nn.Parameter(linear.weight.t().contiguous())\n"
    "self.shift, self.gain, self.offset = linear.bias, norm.weight, norm.bias\n"
    "ModelNew.kept = getattr(ModelNew, 'kept', self.matrix.detach().clone())",
    "return F.layer_norm(x @ ModelNew.kept + self.shift, (40,), self.gain, self.offset)",
)
WRONG = {
    "another order of draws": OTHER_ORDER,
    "constant weights left out": WITHOUT_CONSTANTS,
    "constant weights ignored": IGNORING_THEM,
    "the first model's weights for all": KEPT_BY_CLASS,
}


@pytest.fixture(scope="module")
def judged():
    with Judge(PROBLEM, QUICK.at("search")) as keeper:
        yield keeper.judge


@pytest.mark.parametrize("name", RIGHT)
def test_weights_under_other_names_and_in_other_forms_are_right_under_one_seed(judged, name):
    verdict = judged(RIGHT[name])
    assert isinstance(verdict, Passed), verdict.reason
    assert verdict.evidence.weights == "seeded"


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_both_ways_fails(judged, name):
    verdict = judged(WRONG[name])
    assert isinstance(verdict, Failed) and verdict.stage == "check", verdict
    assert verdict.evidence.weights == "seeded"
    assert ("order" in verdict.reason) is (WRONG[name] is not IGNORING_THEM), "its weights fit, so its kernel is wrong"


def test_copied_weights_are_enough_where_they_fit(judged):
    verdict = judged(Candidate(source=HEAD + LINEAR.format(name="ModelNew")))
    assert isinstance(verdict, Passed), verdict.reason
    assert verdict.evidence.weights == "copied"


def test_a_reference_is_as_before_once_a_candidate_was_judged_under_seeds(judged):
    assert isinstance(judged(RENAMED), Passed)
    assert judged(Candidate(source=HEAD + LINEAR.format(name="ModelNew"))).evidence.weights == "copied"


def test_a_policy_can_be_named():
    settings = QUICK.at("search")
    copied = judge(PROBLEM, RENAMED, settings.model_copy(update={"weights": "copy"}))
    assert isinstance(copied, Failed) and copied.stage == "load" and copied.evidence.weights == "copied"
    seeded = judge(PROBLEM, RENAMED, settings.model_copy(update={"weights": "seed"}))
    assert isinstance(seeded, Passed) and seeded.evidence.weights == "seeded"


def test_a_problem_without_weights_is_never_judged_twice():
    source = HEAD + "class Model(nn.Module):\n    def forward(self, x):\n        return x.sin()\n"
    source += "def get_inputs():\n    return [torch.randn(64)]\ndef get_init_inputs():\n    return []\n"
    plain = tiny_problem(source, name="plain")
    wrong = Candidate(source=HEAD + "class ModelNew(nn.Module):\n    def forward(self, x):\n        return x.cos()\n")
    verdict = judge(plain, wrong, QUICK.at("search"))
    assert isinstance(verdict, Failed) and verdict.stage == "check"
    assert verdict.evidence.weights is None and "order" not in verdict.reason


@pytest.mark.parametrize("more", [{"direction": "both"}, {"state": "followed"}])
def test_gradients_and_buffers_are_compared_by_name_and_need_copied_weights(more):
    with pytest.raises(UnsupportedProblem, match="--weights copy"):
        Judge(PROBLEM.model_copy(update=more), QUICK.model_copy(update={"weights": "seed"}))
