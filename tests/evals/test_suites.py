import pytest

from kernelwright.agent.providers.kinds.recorded import recorded_targets
from kernelwright.evals.runs import DEMO, SEEDS, suite
from kernelwright.problems import catalog_names


@pytest.mark.parametrize("target", ["cpp", "cuda"])
def test_the_recorded_suite_holds_every_problem_with_a_story_and_the_demo_no_other(target):
    assert suite("recorded", target) == tuple(name for name in catalog_names() if target in recorded_targets(name))
    assert set(suite("demo", target)) <= set(suite("recorded", target))


def test_every_seed_has_a_story_for_a_gpu():
    assert all("cuda" in recorded_targets(name) for name in SEEDS)


def test_a_suite_is_that_of_the_dtype_where_answers_are_recorded_for_it_and_else_the_same():
    assert suite("demo", "cpp", "bfloat16") == DEMO["cpp"]
    assert suite("recorded", "cpp", "float64") == suite("recorded", "cpp")
