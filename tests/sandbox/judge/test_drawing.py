"""References that draw in `forward`: both sides are seeded alike, and only what draws in the same way is right."""

import pytest

from kernelwright.evals.checking import examine_problem
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.errors import UnsupportedProblem
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
        self.inner = nn.Linear(48, 48)

    def forward(self, x):
        {forward}
"""
REST = """
def get_inputs():
    return [torch.randn(64, 48)]

def get_init_inputs():
    return []
"""
DROPPING = "return F.dropout(self.inner(x), 0.3)"


def problem(forward, **more):
    source = SOURCE.format(name="Model", forward=forward) + REST
    return tiny_problem(source, name="dropping", **more)


@pytest.fixture(scope="module")
def dropping():
    with Judge(problem(DROPPING), QUICK.model_copy(update={"worker_pairs": 2})) as judge:
        yield judge


def verdict(judge, forward):
    return judge.judge(Candidate(source=SOURCE.format(name="ModelNew", forward=forward)))


def test_the_reference_itself_passes_and_its_problem_is_weak(dropping):
    found = verdict(dropping, DROPPING)
    assert isinstance(found, Passed), found
    assert found.evidence.problem_status.status == "weak"
    assert "seeded alike" in found.evidence.problem_status.why[0]


def test_another_way_to_compute_what_is_dropped_passes(dropping):
    found = verdict(dropping, "return F.dropout(x @ self.inner.weight.t() + self.inner.bias, 0.3)")
    assert isinstance(found, Passed), found


@pytest.mark.parametrize(
    "forward",
    [
        "return self.inner(x)",
        "return F.dropout(self.inner(x), 0.5)",
        "return F.dropout(self.inner(x), 0.29)",
        "torch.manual_seed(7); return F.dropout(self.inner(x), 0.3)",
        "torch.rand(1); return F.dropout(self.inner(x), 0.3)",
        "return F.dropout(self.inner(x), 0.3) * 1.01",
    ],
    ids=["left out", "another probability", "nearly the same", "a seed of its own", "one more draw", "scaled"],
)
def test_what_draws_otherwise_fails(dropping, forward):
    found = verdict(dropping, forward)
    assert isinstance(found, Failed) and found.stage == "check", found


def test_a_candidate_before_which_nobody_knew_that_it_draws_is_judged_alike():
    """Also where the first is wrong: another judge knows nothing of it."""
    with Judge(problem(DROPPING), QUICK.model_copy(update={"worker_pairs": 2})) as judge:
        found = verdict(judge, "return self.inner(x)")
        assert isinstance(found, Failed) and found.stage == "check", found
        found = verdict(judge, DROPPING)
        assert isinstance(found, Passed), found


NUMPY = "import numpy; return x * torch.from_numpy(numpy.random.rand(64, 48) > 0.5)"


def test_what_no_seed_has_answer_alike_is_refused():
    with Judge(problem(NUMPY), QUICK) as judge, pytest.raises(UnsupportedProblem, match="under the same seed"):
        verdict(judge, NUMPY)
    with pytest.raises(UnsupportedProblem, match="under the same seed"):
        examine_problem(problem(NUMPY), QUICK)


def test_a_problem_that_drops_values_is_checked_as_weak_and_not_refused():
    found = examine_problem(problem(DROPPING), QUICK)
    assert found.status == "weak" and "dropout" in found.kinds
    assert found.why[-1].startswith("line 12: drops values at random")


def test_whether_a_dropout_is_in_training_mode_is_asked_of_the_process():
    found = examine_problem(problem("return F.dropout(self.inner(x), 0.3, self.inner.eval().training)"), QUICK)
    assert not {"random", "dropout"} & {*found.kinds} and not any("line 12" in one for one in found.why)


def test_a_reference_that_does_not_draw_is_never_seeded(scaled_rows):
    assert not scaled_rows.reference.is_random


def test_a_wrong_candidate_does_not_make_a_problem_one_that_draws():
    with Judge(problem("return self.inner(x)"), QUICK.model_copy(update={"worker_pairs": 2})) as judge:
        assert isinstance(verdict(judge, DROPPING), Failed)
        found = verdict(judge, "return self.inner(x)")
        assert isinstance(found, Passed), found
        assert "seeded" not in " ".join(found.evidence.problem_status.why)


def test_a_reference_that_only_adds_up_in_no_fixed_order_is_not_seeded():
    """As cuDNN's do: outputs of which little is left differ by what rounding does to the sums before."""
    noise = "(x != 0).repeat(1, 2) * random.SystemRandom().uniform(-1, 1) * 3e-8"
    forward = "import random; x = torch.minimum(self.inner(x), torch.tensor(0.0)) * (torch.arange(48) == 5); "
    with Judge(problem(forward + f"return x.repeat(1, 2) + {noise}"), QUICK) as judge:
        found = verdict(judge, forward + "return x.repeat(1, 2)")
        assert isinstance(found, Passed), found
        assert "seeded" not in " ".join(found.evidence.problem_status.why)
