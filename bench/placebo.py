"""References judged as candidates for themselves: how often does the judge claim a difference that is not there?

`KERNELWRIGHT_PLACEBOS` is the number of judgings (200), spread over ten catalog problems at their CPU sizes. Run it on
an otherwise idle machine: on a busy one most answers are `too_noisy`, which is right and proves nothing.
"""

import os
from collections import Counter
from typing import NamedTuple

from kernelwright.problems import load_problem
from kernelwright.sandbox.jail.own_process import keep_freed_memory
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.verdicts import Candidate, Passed

PROBLEMS = (
    "activation_chain",
    "argmax_rows",
    "conv_transpose2d_depthwise",
    "cross_entropy",
    "cumsum_rows",
    "gelu_bias_residual",
    "layer_norm",
    "matmul_square",
    "max_pool2d",
    "softmax_rows",
)
COUNT = 200
MOST_FASTER = 0.01


class Placebos(NamedTuple):
    """What was said of references against themselves."""

    said: Counter[str]
    speedups: tuple[float, ...]

    @property
    def holds(self) -> bool:
        """Whether at most one in a hundred was called faster."""
        return self.said["faster"] <= MOST_FASTER * sum(self.said.values())

    def __str__(self) -> str:
        counts = ", ".join(f"{number} {word}" for word, number in self.said.most_common())
        low, high = min(self.speedups, default=1.0), max(self.speedups, default=1.0)
        total = f"  {sum(self.said.values())} judgings: {counts}"
        return f"{total}\n  speedups from {low:.3f} to {high:.3f} (promised: at most {MOST_FASTER:.0%} faster)"


def run() -> Placebos:
    """Judge each reference in turn, as often as asked."""
    keep_freed_memory()
    said: Counter[str] = Counter()
    speedups: list[float] = []
    each = -(-int(os.environ.get("KERNELWRIGHT_PLACEBOS", COUNT)) // len(PROBLEMS))
    for name in PROBLEMS:
        problem = load_problem(name, "cpu")
        here: Counter[str] = Counter()
        with Judge(problem) as judge:
            for _ in range(each):
                verdict = judge.judge(Candidate(source=itself(problem.source)))
                if isinstance(verdict, Passed):
                    here[verdict.measurement.comparison] += 1
                    speedups.append(verdict.measurement.speedup)
                else:
                    here["failed"] += 1
        print(f"  {name}: {dict(here)}", flush=True)
        said += here
    return Placebos(said, tuple(speedups))


def itself(source: str) -> str:
    """The reference as a candidate for itself."""
    return source + "\n\nclass ModelNew(Model):\n    pass\n"
