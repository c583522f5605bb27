"""Kernel problems as a taskset of verifiers, from 0.4: each a task whose reward is what the verdict is worth.

taskset = KernelTaskset(KernelTasksetConfig(problems=["rms_norm"], task=KernelTaskConfig(device="cuda")))
"""

from collections.abc import Iterator
from functools import cache

from kernelwright.evals.runs import first_prompt
from kernelwright.integrations.scoring import CompletionScorer
from kernelwright.problems.problem import LibraryMissing
from kernelwright.prompts import Target
from kernelwright.sandbox.verdict.settings import JudgeSettings

try:
    import verifiers.v1 as vf
except ImportError as error:
    raise LibraryMissing(f"the taskset needs {error.name}; run pip install 'verifiers>=0.4'") from None


class KernelData(vf.TaskData):
    problem: str


class KernelTaskConfig(vf.TaskConfig):
    device: str = "cpu"
    server: str | None = None


class KernelTasksetConfig(vf.TasksetConfig):
    """The problems, and the language of answers: `cpp` on a processor, `cuda`, `triton` and others on a GPU."""

    problems: list[str]
    target: Target = "cpp"
    task: KernelTaskConfig = KernelTaskConfig()


@cache
def scorer_on(device: str, server: str | None) -> CompletionScorer:
    """Return one for all tasks of this process: tasks are copied, and a judge is not."""
    return CompletionScorer(server=server, settings=JudgeSettings(device=device, effort="search"))


class KernelTask(vf.Task[KernelData, vf.State, KernelTaskConfig]):
    @vf.reward
    async def kernel(self, trace: vf.Trace) -> float:
        """Reward the last reply. Raises where it could not be judged, so that nothing is learnt from the rollout."""
        scorer = scorer_on(self.config.device, self.config.server)
        (scored,) = await scorer.score_async([self.data.problem], [trace.last_reply])
        trace.info["kernelwright"] = {"flags": list(scored.reward.flags), "words": scored.words}
        if scored.reward.value is None:
            raise RuntimeError(f"{scored.reward.why} ({', '.join(scored.reward.flags)}): {scored.words}")
        return scored.reward.value


class KernelTaskset(vf.Taskset[KernelTask, KernelTasksetConfig]):
    """The problems, each with the prompt for a first draft."""

    def load(self) -> Iterator[KernelTask]:
        scorer = scorer_on(self.config.task.device, self.config.task.server)
        for name in self.config.problems:
            problem = scorer.problem(name)
            prompt = first_prompt(problem, self.config.target).text
            yield KernelTask(KernelData(name=name, prompt=prompt, problem=name), self.config.task)
