import asyncio

import pytest

from tests.support.replies import OWN, REFERENCE, WRONG, reply

vf = pytest.importorskip("verifiers.v1", reason="verifiers is not installed; `pip install verifiers` to run this")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    from kernelwright.integrations import verifiers_taskset as ours

    path = tmp_path_factory.mktemp("problems") / "scaled.py"
    path.write_text(REFERENCE)
    (found,) = ours.KernelTaskset(ours.KernelTasksetConfig(problems=[str(path)]))
    yield found
    ours.scorer_on("cpu", None).close()


def scored(task, text):
    node = vf.MessageNode(message=vf.AssistantMessage(content=text), sampled=True)
    made_of = vf.TraceTask(type=type(task).__name__, data=task.data)
    trace = vf.Trace(task=made_of, agent=vf.AgentInfo(config=vf.AgentConfig()), nodes=[node])
    asyncio.run(task.score(trace))
    return trace


def test_a_task_asks_for_its_problem_with_our_prompt(task):
    assert "class ModelNew" in task.data.prompt
    assert "own kernels" in task.data.prompt


def test_the_last_reply_earns_what_it_is_worth(task):
    assert scored(task, reply(OWN)).rewards["kernel"].score > 0
    wrong = scored(task, reply(WRONG))
    assert wrong.rewards["kernel"].score == 0
    assert wrong.info["kernelwright"]["words"].startswith("failed at check")


def test_copies_of_a_task_share_one_judge(task):
    copied = task.defer_scoring()
    copied.scoring_deferred = False
    assert scored(copied, "no code").rewards["kernel"].score == 0


def test_where_nothing_could_be_judged_the_rollout_is_in_error_and_not_worth_nothing(task):
    weak = task.with_data(problem="no_such_problem")
    with pytest.raises(vf.TaskError, match="no_such_problem"):
        scored(weak, reply(OWN))
