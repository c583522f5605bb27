"""Verdicts in a running judge with kept builds, on the processor and on a GPU, and the seconds of one from the shell.

`python -m bench warm`: the last recorded C++ answer of three problems, again and again, on an otherwise idle machine.
The first judging, which builds it and starts the references, is not counted; from the shell the build is kept too.

`python -m bench gpu_warm`: the last recorded CUDA answer of each problem of the catalog and one that is wrong by a
tenth, at size gpu and effort `search`, against eager and one mode of torch.compile. All are built first, side by side,
and the first verdict of each is not counted. `KERNELWRIGHT_COMPILED` names other modes than `default`.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.measuring import NO_DEVICE, Report, chosen, is_in_time, recorded_source, spread
from kernelwright.agent.providers.recorded import recorded_targets
from kernelwright.problems import Problem, catalog_names, load_problem
from kernelwright.sandbox.jail.zygote import prepare_judge
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.pool.judges import Judges
from kernelwright.sandbox.verdict.errors import SandboxError
from kernelwright.sandbox.verdict.settings import JudgeSettings, JudgingEffort
from kernelwright.sandbox.verdict.verdicts import Candidate, Passed
from kernelwright_child import driver

PROBLEMS = ("max_pool2d", "rms_norm", "cross_entropy")
EFFORTS: tuple[JudgingEffort, ...] = ("search", "rank")
ROUNDS, FROM_THE_SHELL = 6, 3
LEAST_A_MINUTE, MOST_SHELL_S = 20, 5.0
CARD_ROUNDS, BUILDERS = 3, 14
MOST_RIGHT_S, MOST_WRONG_S = 2.5, 1.0
OFF_BY_A_TENTH = '''

_Right = ModelNew


class ModelNew(_Right):
    """Off by a tenth, or by one where the result is of whole numbers."""

    def forward(self, *args):
        out = super().forward(*args)
        return out + (0.1 if out.is_floating_point() else 1)
'''


class Unexpected(Exception):
    """A verdict that is not the one that the candidate must get."""


def run() -> Report:
    """Verdicts in a running judge and from the shell, on the processor; three minutes."""
    prepare_judge()
    names = chosen(PROBLEMS)
    lines, searching = [], []
    for name in names:
        candidate = Candidate(source=recorded_source(name, "cpp"), language="cpp")
        for effort in EFFORTS:
            with Judges(JudgeSettings(effort=effort)) as judges:
                problem = load_problem(name, "cpu")
                times = [_seconds(judges, problem, candidate, "passed") for _ in range(1 + ROUNDS)][1:]
            lines.append(f"  {name} at {effort}, in a running judge: {spread(times)}")
            if effort == "search":
                searching.append(statistics.median(times))
    shell = {name: _from_the_shell(name) for name in names}
    lines += [f"  {name} from the shell: {spread(times)}" for name, times in shell.items()]
    a_minute = 60 / statistics.mean(searching)
    lines.append(
        f"  {a_minute:.1f} verdicts a minute at search (promised: {LEAST_A_MINUTE}); from the shell promised: "
        f"under {MOST_SHELL_S:g} s"
    )
    holds = a_minute >= LEAST_A_MINUTE and max(map(statistics.median, shell.values())) < MOST_SHELL_S
    return Report("\n".join(lines), holds)


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


def _seconds(judges: Judges, problem: Problem, candidate: Candidate, outcome: str) -> float:
    start = time.perf_counter()
    verdict = judges.judge(problem, candidate)
    seconds = time.perf_counter() - start
    said = verdict.outcome if isinstance(verdict, Passed) else f"failed at {verdict.stage}"
    if said != outcome:
        reason = "" if isinstance(verdict, Passed) else verdict.reason[:300]
        raise Unexpected(f"{problem.name} {said}: {reason}")
    return seconds


def run_on_card() -> Report:
    """Verdicts in a running judge on a GPU, right and wrong; half a minute a problem where nothing is kept yet."""
    if driver.device_count() == 0:
        return NO_DEVICE
    names = chosen(name for name in catalog_names() if "cuda" in recorded_targets(name))
    _build_all(names)
    rights, wrongs, failed = [], [], []
    modes = os.environ.get("KERNELWRIGHT_COMPILED", "default").split()
    settings = JudgeSettings.model_validate({"device": "cuda", "effort": "search", "compiled": modes})
    with Judges(settings) as judges:
        for name in names:
            if not is_in_time():
                break
            try:
                right, wrong = _times(judges, name, "right", "passed"), _times(judges, name, "wrong", "failed at check")
            except (SandboxError, Unexpected) as error:
                failed.append(name)
                print(f"  {name:36} {error}", flush=True)
                continue
            rights.append(statistics.median(right))
            wrongs.append(statistics.median(wrong))
            print(f"  {name:36} right {spread(right)}, wrong {spread(wrong)}", flush=True)
    if not rights:
        return Report(f"  not as expected: {', '.join(failed)}", False)
    right_s, wrong_s = statistics.median(rights), statistics.median(wrongs)
    return Report(
        f"  {len(rights)} of {len(names)} problems at search, builds and baselines kept, in the median: a right one "
        f"{right_s:.2f} s (promised: {MOST_RIGHT_S:g}), {60 / statistics.fmean(rights):.1f} a minute; a wrong one "
        f"{wrong_s:.2f} s (promised: {MOST_WRONG_S:g}); not as expected: {', '.join(failed) or 'none'}",
        right_s <= MOST_RIGHT_S and wrong_s <= MOST_WRONG_S and not failed,
    )


def _candidate(name: str, kind: str) -> Candidate:
    source = recorded_source(name, "cuda") + (OFF_BY_A_TENTH if kind == "wrong" else "")
    return Candidate(source=source, language="cuda")


def _times(judges: Judges, name: str, kind: str, outcome: str) -> list[float]:
    problem, candidate = load_problem(name, "gpu"), _candidate(name, kind)
    return [_seconds(judges, problem, candidate, outcome) for _ in range(1 + CARD_ROUNDS)][1:]


def _build_all(names: list[str]) -> None:
    """Fill the store of builds, each in a process of its own; the judge sees again what fails."""
    commands = [[sys.executable, "-m", "bench.warm", name, kind] for name in names for kind in ("right", "wrong")]
    start = time.perf_counter()
    with ThreadPoolExecutor(BUILDERS) as pool:
        done = list(pool.map(lambda command: subprocess.run(command, capture_output=True, check=False), commands))
    failed = [" ".join(command[-2:]) for command, one in zip(commands, done, strict=True) if one.returncode]
    seconds = time.perf_counter() - start
    print(f"  {len(done)} builds in {seconds:.0f} s; failed: {', '.join(failed) or 'none'}", flush=True)


if __name__ == "__main__":
    with Judge(load_problem(sys.argv[1], "gpu"), JudgeSettings(device="cuda", effort="search")) as judge:
        judge.build(_candidate(sys.argv[1], sys.argv[2]), ahead=False).close()
