"""The reward function that TRL's GRPO trainer takes: a callable on a list of completions. It imports nothing of TRL."""

from collections.abc import Callable, Sequence
from typing import Any

from kernelwright.integrations.scoring import Completion, CompletionScorer
from kernelwright.sandbox.authenticity.scan import GivenProblem


class KernelReward:
    """`GRPOTrainer(reward_funcs=KernelReward(), ...)`; the data set has a column `problem` with a problem's name.

    None, for a sample that nothing can be learnt from, is what the trainer takes for it too.
    """

    def __init__(self, scorer: CompletionScorer | None = None) -> None:
        self.scorer = scorer or CompletionScorer()
        self.__name__ = "kernel_reward"

    def __call__(
        self,
        completions: Sequence[Completion],
        problem: Sequence[GivenProblem],
        log_extra: Callable[[str, list[Any]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[float | None]:
        """Return a reward for each completion; flags go into the trainer's log where it offers one."""
        scored = self.scorer.score(problem, completions)
        if log_extra is not None:
            log_extra("flags", [", ".join(one.reward.flags) for one in scored])
        if log_metric is not None and scored:
            log_metric("quarantined", sum(one.reward.is_quarantined for one in scored) / len(scored))
            log_metric("unjudged", sum(one.reward.value is None for one in scored) / len(scored))
        return [one.reward.value for one in scored]
