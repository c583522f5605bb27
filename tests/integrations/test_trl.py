import pickle

import pytest

from kernelwright.integrations.scoring import CompletionScorer
from kernelwright.integrations.trl_reward import KernelReward
from tests.support.replies import OWN, SETTINGS, WRONG, posed, reply

pytestmark = pytest.mark.slow
WITHOUT = "trl is not installed; `pip install trl` beside kernelwright to run this"


@pytest.fixture(scope="module")
def rewarding():
    with CompletionScorer(settings=SETTINGS, load=posed) as scorer:
        yield KernelReward(scorer)


def test_a_list_of_completions_gives_a_list_of_rewards_in_its_order(rewarding):
    columns = {"prompts": ["p"] * 3, "completion_ids": [[1]] * 3, "trainer_state": None}
    completions = [reply(WRONG), [{"role": "assistant", "content": reply(OWN)}], "no code"]
    wrong, right, none = rewarding(completions=completions, problem=["scaled"] * 3, **columns)
    assert (wrong, none) == (0, 0)
    assert right > 0


def test_what_is_flagged_goes_into_the_trainers_log(rewarding):
    extra, metrics = {}, {}
    rewarding(completions=[reply(OWN)], problem=["scaled"], log_extra=extra.__setitem__, log_metric=metrics.__setitem__)
    assert len(extra["flags"]) == 1
    assert metrics == {"quarantined": 0, "unjudged": 0}


def test_it_can_be_sent_to_another_process_before_it_judges():
    assert pickle.loads(pickle.dumps(KernelReward())).__name__ == "kernel_reward"


def test_the_trainer_takes_it_and_computes_advantages_from_it(tmp_path, rewarding):
    trl = pytest.importorskip("trl", reason=WITHOUT)
    from tests.support.replies import tiny

    model, tokenizer = tiny()
    from datasets import Dataset

    arguments = trl.GRPOConfig(
        output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=2, num_generations=2, report_to=[],
        max_completion_length=8, use_cpu=True, logging_steps=1, save_strategy="no",
    )  # fmt: skip
    rows = Dataset.from_list([{"prompt": "one", "problem": "scaled"}] * 2)
    trainer = trl.GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=rewarding, args=arguments, train_dataset=rows
    )
    trainer.train()
    logged = next(entry for entry in trainer.state.log_history if "rewards/kernel_reward/mean" in entry)
    assert logged["rewards/kernel_reward/mean"] == 0
    columns = [{"prompt": "one", "problem": "scaled"}] * 2
    found = trainer._calculate_rewards(columns, ["one"] * 2, [reply(OWN), reply(WRONG)], [[1], [1]])
    assert found[0, 0] > found[1, 0] == 0
