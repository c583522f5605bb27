"""kernelwright: language models write kernels for your PyTorch program; an honest judge decides.

    from kernelwright import Candidate, Passed, judge, load_problem

    verdict = judge(load_problem("rms_norm"), Candidate(source=open("candidate.py").read()))

Names are loaded when first used, so that `kernelwright --help` does not wait for torch.
"""

import logging
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelwright.evals.runs import run
    from kernelwright.integrations.reward import Reward, RewardTerms, reward
    from kernelwright.problems import Problem, load_problem
    from kernelwright.programs.apply import apply
    from kernelwright.programs.capture import capture, capturing
    from kernelwright.programs.placing import applied
    from kernelwright.sandbox.judge.judging import Judge, judge
    from kernelwright.sandbox.pool.judge_pool import Judged, JudgePool, JudgingError, Where, judge_many
    from kernelwright.sandbox.verdict.settings import JudgeSettings
    from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Passed, Verdict

__all__ = [
    "Candidate",
    "Failed",
    "Judge",
    "JudgePool",
    "JudgeSettings",
    "Judged",
    "JudgingError",
    "Passed",
    "Problem",
    "Reward",
    "RewardTerms",
    "Verdict",
    "Where",
    "applied",
    "apply",
    "capture",
    "capturing",
    "judge",
    "judge_many",
    "load_problem",
    "reward",
    "run",
]

_HOMES = {
    "evals.runs": ("run",),
    "integrations.reward": ("Reward", "RewardTerms", "reward"),
    "problems": ("Problem", "load_problem"),
    "programs.apply": ("apply",),
    "programs.capture": ("capture", "capturing"),
    "programs.placing": ("applied",),
    "sandbox.judge.judging": ("Judge", "judge"),
    "sandbox.pool.judge_pool": ("JudgePool", "Judged", "JudgingError", "Where", "judge_many"),
    "sandbox.verdict.settings": ("JudgeSettings",),
    "sandbox.verdict.verdicts": ("Candidate", "Failed", "Passed", "Verdict"),
}

_RENAMED = {"Judging": "JudgePool", "Settings": "JudgeSettings", "judge_all": "judge_many"}

logging.getLogger(__name__).addHandler(logging.NullHandler())  # silent, unless a program or -v says otherwise


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        warnings.warn(f"kernelwright.{name} is now {_RENAMED[name]}", DeprecationWarning, stacklevel=2)
        name = _RENAMED[name]
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"kernelwright has no {name!r}; it has: {', '.join(__all__)}")
    return getattr(import_module(f"kernelwright.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
