import torch

from problems import Tolerance
from sandbox.lint import problem_status
from sandbox.values import RawTensor, Values


def status(function, *draws):
    made = []
    for x in draws:
        inputs = Values({"l": [{"t": 0}]}, (RawTensor.of(x),))
        exact = Values({"t": 0}, (RawTensor.of(function(x.double())),))
        made.append((inputs, exact, Values({"t": 0}, (RawTensor.of(function(x)),))))
    return problem_status(made[0], made[1], Tolerance())


def two_draws():
    torch.manual_seed(0)
    return torch.randn(64, 64), torch.randn(64, 64)


def test_a_product_is_a_sound_problem():
    assert status(lambda x: x @ x, *two_draws()).status == "ok"


def test_a_problem_whose_result_does_not_depend_on_its_input_is_weak():
    found = status(lambda x: torch.softmax(x, 1).sum(1), *two_draws())
    assert "it accepts the result for other inputs" in found.why


def test_a_problem_that_accepts_zeros_is_weak():
    assert "it accepts zeros" in status(lambda x: x * 0, *two_draws()).why


def test_a_problem_that_accepts_its_input_is_weak():
    assert "it accepts input 0 passed through" in status(lambda x: x + 0, *two_draws()).why


def test_a_problem_that_accepts_half_precision_is_weak():
    assert "it accepts the result rounded to bfloat16" in status(lambda x: torch.sign(x) * 2, *two_draws()).why
