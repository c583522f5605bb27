"""References that change their inputs on the device: what a call leaves there is compared like its result."""

import pytest

from kernelwright.sandbox.verdict.verdicts import Failed, Passed
from kernelwright_child import driver
from tests.gpu.harness import Judges
from tests.sandbox.judge.test_in_place import CASES, posed, source

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(driver.device_count() == 0, reason="the driver sees no CUDA device"),
]
POSED = ("cache", "step", "out", "positive")
CHOSEN = [(name, forward) for name in POSED for forward in CASES[name] if CASES[name][forward] != "memory of an input"]


@pytest.fixture(scope="module")
def judges(device):
    with Judges() as judges:
        yield judges


@pytest.mark.parametrize(("name", "forward"), CHOSEN)
def test_what_a_call_changes_on_the_device_is_part_of_its_result(judges, name, forward):
    problem = posed(name).model_copy(update={"size": "gpu"})
    verdict = judges.judged(problem, source("ModelNew", name, forward))
    words = CASES[name][forward]
    if words is None:
        assert isinstance(verdict, Passed), verdict.reason
    else:
        assert isinstance(verdict, Failed) and words in verdict.reason
