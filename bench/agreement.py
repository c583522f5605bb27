"""The last recorded answer of each problem, judged twice by judges of their own: do both say the same speedup?

`python -m bench agreement`: those in CUDA where there is a device, else those in C++. All are judged once, and then all
once more, so that minutes lie between. `KERNELWRIGHT_BENCH=NAME,NAME` picks problems.
"""

from typing import Literal, NamedTuple

from bench.chosen import chosen
from bench.recorded import recorded_source
from kernelwright.agent.providers.recorded import recorded_targets
from kernelwright.evals.runs import default_size
from kernelwright.problems import catalog_names, load_problem
from kernelwright.sandbox.judge.judging import judge
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Measurement
from kernelwright_child import driver


class Twice(NamedTuple):
    """Two measurements of one kernel, or why there are none."""

    problem: str
    found: tuple[Measurement | str, Measurement | str]

    @property
    def agrees(self) -> bool:
        """Whether the two 95 % intervals meet."""
        one, other = self.found
        if isinstance(one, str) or isinstance(other, str):
            return False
        return one.interval.low <= other.interval.high and other.interval.low <= one.interval.high

    def __str__(self) -> str:
        said = [
            one if isinstance(one, str) else f"{one.speedup:.2f} [{one.interval.low:.2f}, {one.interval.high:.2f}]"
            for one in self.found
        ]
        return f"  {self.problem:36} {said[0]:>20}   {said[1]:>20}   {'' if self.agrees else 'DIFFERENT'}"


class Agreement(NamedTuple):
    """All of them."""

    pairs: tuple[Twice, ...]

    @property
    def holds(self) -> bool:
        """Whether every second verdict agrees with the first."""
        return all(pair.agrees for pair in self.pairs)

    def __str__(self) -> str:
        agreeing = sum(pair.agrees for pair in self.pairs)
        return "\n".join([*map(str, self.pairs), f"  {agreeing} of {len(self.pairs)} agree (promised: all)"])


def run() -> Agreement:
    """About four minutes on two idle cores."""
    target: Literal["cpp", "cuda"] = "cuda" if driver.device_count() else "cpp"
    names = chosen([name for name in catalog_names() if target in recorded_targets(name)])
    first = [_measured(name, target) for name in names]
    again = [_measured(name, target) for name in names]
    return Agreement(tuple(Twice(name, pair) for name, pair in zip(names, zip(first, again, strict=True), strict=True)))


def _measured(name: str, target: Literal["cpp", "cuda"]) -> Measurement | str:
    problem = load_problem(name, default_size(name, target))
    verdict = judge(
        problem,
        Candidate(source=recorded_source(name, target), language=target),
        Settings(device="cuda" if target == "cuda" else "cpu"),
    )
    return f"failed at {verdict.stage}" if isinstance(verdict, Failed) else verdict.measurement
