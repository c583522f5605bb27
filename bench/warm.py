"""Verdicts a minute in a running judge with kept builds, and the seconds of one from the shell.

The last recorded C++ answer of each problem, again and again; its first judging, which builds it and starts the
references, is not counted in the running judge, and from the shell the build is kept too. Run it on an otherwise idle
machine. `KERNELWRIGHT_BENCH=NAME,NAME` picks problems.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.chosen import chosen
from bench.recorded import recorded_source
from kernelwright.problems import load_problem
from kernelwright.sandbox.jail.zygote import become_a_judge
from kernelwright.sandbox.pool.judges import Judges
from kernelwright.sandbox.verdict.settings import JudgingEffort, Settings
from kernelwright.sandbox.verdict.verdicts import Candidate, Passed

PROBLEMS = ("max_pool2d", "rms_norm", "cross_entropy")
EFFORTS: tuple[JudgingEffort, ...] = ("search", "rank")
ROUNDS, FROM_THE_SHELL = 6, 3
LEAST_A_MINUTE, MOST_SHELL_S = 20, 5.0


class Warm(NamedTuple):
    """Seconds of each verdict: by problem and effort in a running judge, and by problem from the shell."""

    running_s: dict[tuple[str, JudgingEffort], list[float]]
    shell_s: dict[str, list[float]]

    @property
    def a_minute(self) -> float:
        """Verdicts at effort `search`, the problems in turn."""
        each = [statistics.median(times) for (_, effort), times in self.running_s.items() if effort == "search"]
        return 60 / statistics.mean(each)

    @property
    def holds(self) -> bool:
        """Whether both promises are kept."""
        return self.a_minute >= LEAST_A_MINUTE and max(map(statistics.median, self.shell_s.values())) < MOST_SHELL_S

    def __str__(self) -> str:
        lines = [
            f"  {name} at {effort}, in a running judge: {spread(times)}"
            for (name, effort), times in self.running_s.items()
        ]
        lines += [f"  {name} from the shell: {spread(times)}" for name, times in self.shell_s.items()]
        lines.append(
            f"  {self.a_minute:.1f} verdicts a minute at search (promised: {LEAST_A_MINUTE}); from the shell promised: "
            f"under {MOST_SHELL_S:g} s"
        )
        return "\n".join(lines)


def run() -> Warm:
    """On this machine's processor; three minutes."""
    become_a_judge()
    names = chosen(PROBLEMS)
    running = {(name, effort): _running(name, effort) for name in names for effort in EFFORTS}
    return Warm(running, {name: _from_the_shell(name) for name in names})


def _running(name: str, effort: JudgingEffort) -> list[float]:
    problem, candidate = load_problem(name, "cpu"), Candidate(source=recorded_source(name, "cpp"), language="cpp")
    found = []
    with Judges(Settings(effort=effort)) as judges:
        for _ in range(1 + ROUNDS):
            start = time.perf_counter()
            verdict = judges.judge(problem, candidate)
            found.append(time.perf_counter() - start)
            if not isinstance(verdict, Passed):
                raise SystemExit(f"the recorded answer of {name} failed: {verdict.reason}")
    return found[1:]


def _from_the_shell(name: str) -> list[float]:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "candidate.py"
        file.write_text(recorded_source(name, "cpp"))
        for _ in range(FROM_THE_SHELL):
            start = time.perf_counter()
            words = [sys.executable, "-m", "kernelwright", "judge", name, str(file)]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            found.append(time.perf_counter() - start)
    return found


def spread(times: Sequence[float]) -> str:
    """The median of some seconds, and from where to where they go."""
    return f"{statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f})"
