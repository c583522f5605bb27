"""kernelwright: language models write kernels for your PyTorch program; an honest judge decides.

    from kernelwright import Candidate, Passed, judge, load_problem

    verdict = judge(load_problem("rms_norm"), Candidate(source=open("candidate.py").read()))

Names are loaded when first used, so that `kernelwright --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evals.running import run
    from kernelwright.judging import Judged, Judging, JudgingError, judge_all
    from problems import Problem, load_problem
    from sandbox.judge import Judge, judge
    from sandbox.settings import Settings
    from sandbox.verdict import Candidate, Failed, Passed, Verdict

__all__ = [
    "Candidate",
    "Failed",
    "Judge",
    "Judged",
    "Judging",
    "JudgingError",
    "Passed",
    "Problem",
    "Settings",
    "Verdict",
    "judge",
    "judge_all",
    "load_problem",
    "run",
]

_HOMES = {
    "Candidate": "sandbox.verdict",
    "Failed": "sandbox.verdict",
    "Judge": "sandbox.judge",
    "Judged": "kernelwright.judging",
    "Judging": "kernelwright.judging",
    "JudgingError": "kernelwright.judging",
    "Passed": "sandbox.verdict",
    "Problem": "problems",
    "Settings": "sandbox.settings",
    "Verdict": "sandbox.verdict",
    "judge": "sandbox.judge",
    "judge_all": "kernelwright.judging",
    "load_problem": "problems",
    "run": "evals.running",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"kernelwright has no {name!r}; it has: {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)
