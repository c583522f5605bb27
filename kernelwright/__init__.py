"""kernelwright: language models write kernels for your PyTorch program; an honest judge decides.

    from kernelwright import Candidate, Passed, judge, load_problem

    verdict = judge(load_problem("rms_norm"), Candidate(source=open("candidate.py").read()))

Names are loaded when first used, so that `kernelwright --help` does not wait for torch.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelwright.evals.runs.running import run
    from kernelwright.integrations.reward import Reward, RewardTerms, reward
    from kernelwright.problems import Problem, load_problem
    from kernelwright.programs.apply.kept import applied, apply
    from kernelwright.programs.capture.capturing import capture, capturing
    from kernelwright.sandbox.judge.judging import Judge, judge
    from kernelwright.sandbox.pool.rewarding import Judged, Judging, JudgingError, judge_all
    from kernelwright.sandbox.verdict.settings import Settings
    from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Passed, Verdict

__all__ = [
    "Candidate",
    "Failed",
    "Judge",
    "Judged",
    "Judging",
    "JudgingError",
    "Passed",
    "Problem",
    "Reward",
    "RewardTerms",
    "Settings",
    "Verdict",
    "applied",
    "apply",
    "capture",
    "capturing",
    "judge",
    "judge_all",
    "load_problem",
    "reward",
    "run",
]

_HOMES = {
    "Candidate": "kernelwright.sandbox.verdict.verdicts",
    "Failed": "kernelwright.sandbox.verdict.verdicts",
    "Judge": "kernelwright.sandbox.judge.judging",
    "Judged": "kernelwright.sandbox.pool.rewarding",
    "Judging": "kernelwright.sandbox.pool.rewarding",
    "JudgingError": "kernelwright.sandbox.pool.rewarding",
    "Passed": "kernelwright.sandbox.verdict.verdicts",
    "Problem": "kernelwright.problems",
    "Reward": "kernelwright.integrations.reward",
    "RewardTerms": "kernelwright.integrations.reward",
    "Settings": "kernelwright.sandbox.verdict.settings",
    "Verdict": "kernelwright.sandbox.verdict.verdicts",
    "applied": "kernelwright.programs.apply.kept",
    "apply": "kernelwright.programs.apply.kept",
    "capture": "kernelwright.programs.capture.capturing",
    "capturing": "kernelwright.programs.capture.capturing",
    "judge": "kernelwright.sandbox.judge.judging",
    "judge_all": "kernelwright.sandbox.pool.rewarding",
    "load_problem": "kernelwright.problems",
    "reward": "kernelwright.integrations.reward",
    "run": "kernelwright.evals.runs.running",
}

logging.getLogger(__name__).addHandler(logging.NullHandler())  # silent, unless a program or -v says otherwise


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"kernelwright has no {name!r}; it has: {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
