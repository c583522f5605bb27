import pytest

from kernelwright.problems.problem import Mode
from kernelwright.prompts import render
from kernelwright.prompts.brief import Baselines
from tests.support.briefs import BATCH_NORM, PROBLEM, brief

TRAINING = Mode(is_training=True, batch=("batch_norm",), drawing=("dropout",))
EVAL = Mode(is_training=False, running=("batch_norm",), silent=("dropout",))


def told(problem=PROBLEM, mode=None):
    asked = brief(problem=problem, baselines=Baselines(mode=mode))
    contract = next(one.text for one in render(asked).sections if one.name == "contract")
    return "".join(line for line in contract.splitlines() if line.startswith("- Mode:"))


@pytest.mark.parametrize("mode", [None, Mode(is_training=True), Mode(is_training=False)])
def test_a_problem_that_is_the_same_in_both_modes_is_told_nothing_of_modes(mode):
    assert not told(mode=mode)


@pytest.mark.parametrize(("mode", "name"), [(TRAINING, "in training mode"), (EVAL, "in eval mode")])
def test_a_prompt_tells_the_mode_that_the_reference_s_process_found(mode, name):
    assert name in told(mode=mode) and "`batch_norm`" in told(mode=mode)
    assert ("call's own input" in told(mode=mode), "same torch calls" in told(mode=mode)) == (mode.is_training,) * 2
    assert ("are buffers" in told(mode=mode)) is not mode.is_training


def test_a_source_that_reads_its_mode_is_told_it():
    asking = PROBLEM.model_copy(
        update={"source": PROBLEM.source.replace("relu(x)", "relu(x if self.training else -x)")}
    )
    assert "in eval mode" in told(asking, Mode(is_training=False))


def test_before_the_reference_was_called_a_prompt_tells_what_decides():
    assert "unless it calls `eval()`" in told(BATCH_NORM)


def test_running_statistics_are_free_unless_the_problem_follows_them():
    followed = BATCH_NORM.model_copy(update={"state": "followed"})
    assert "need not be updated" in told(BATCH_NORM, TRAINING)
    for mode in (None, TRAINING):
        assert "need not be updated" not in told(followed, mode)
        assert "must hold what `Model`'s" in told(followed, mode)
    assert "must hold what `Model`'s" in told(PROBLEM.model_copy(update={"state": "followed"}))
