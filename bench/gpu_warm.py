"""Verdicts in a running judge on the device, builds and baselines kept: the whole catalog, right and wrong.

For each problem with a recorded CUDA answer, at size gpu: the last answer and one that is wrong by a tenth, judged at
effort `search` against eager and one mode of torch.compile. All are built first, side by side. The first verdict of
each, which starts references and has the baseline compiled, is not counted. `KERNELWRIGHT_BENCH=NAME,NAME` picks
problems, `KERNELWRIGHT_SECONDS` ends the run in time, `KERNELWRIGHT_COMPILED` names other modes than `default`.
"""

import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from bench.chosen import chosen, is_in_time
from bench.gpu_facts import NO_DEVICE, Report
from bench.recorded import recorded_source
from bench.warm import spread
from kernelwright.agent.providers.recorded import recorded_targets
from kernelwright.problems import Problem, catalog_names, load_problem
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.pool.judges import Judges
from kernelwright.sandbox.verdict.errors import SandboxError
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import Candidate, Passed
from kernelwright_child import driver

ROUNDS = 3
BUILDERS = 14
MOST_RIGHT_S, MOST_WRONG_S = 2.5, 1.0
WRONG = '''

_Right = ModelNew


class ModelNew(_Right):
    """Off by a tenth, or by one where the result is of whole numbers."""

    def forward(self, *args):
        out = super().forward(*args)
        return out + (0.1 if out.is_floating_point() else 1)
'''


class Unexpected(Exception):
    """A verdict that is not the one that the candidate must get."""


class Timed(NamedTuple):
    """One problem's verdicts in a running judge, in seconds."""

    right_s: tuple[float, ...]
    wrong_s: tuple[float, ...]


def run() -> Report:
    """A line a problem, then medians; half a minute a problem where nothing is kept yet."""
    if driver.device_count() == 0:
        return NO_DEVICE
    names = chosen(name for name in catalog_names() if "cuda" in recorded_targets(name))
    _build_all(names)
    found: dict[str, Timed] = {}
    failed: list[str] = []
    modes = os.environ.get("KERNELWRIGHT_COMPILED", "default").split()
    settings = Settings.model_validate({"device": "cuda", "effort": "search", "compiled": modes})
    with Judges(settings) as judges:
        for name in names:
            if not is_in_time():
                break
            try:
                found[name] = _timed(judges, name)
            except (SandboxError, Unexpected) as error:
                failed.append(name)
                print(f"  {name:36} {error}", flush=True)
                continue
            right, wrong = found[name]
            print(f"  {name:36} right {spread(right)}, wrong {spread(wrong)}", flush=True)
    return _told(len(names), found, failed)


def _build_all(names: list[str]) -> None:
    """Each in a process of its own, so that the store of builds has them; what fails is met again by the judge."""
    commands = [[sys.executable, "-m", "bench.gpu_warm", name, kind] for name in names for kind in SOURCES]
    start = time.perf_counter()
    with ThreadPoolExecutor(BUILDERS) as pool:
        done = list(pool.map(lambda command: subprocess.run(command, capture_output=True, check=False), commands))
    failed = [" ".join(command[-2:]) for command, one in zip(commands, done, strict=True) if one.returncode]
    seconds = time.perf_counter() - start
    print(f"  {len(done)} builds in {seconds:.0f} s; failed: {', '.join(failed) or 'none'}", flush=True)


def _build(name: str, kind: str) -> None:
    with Judge(load_problem(name, "gpu"), Settings(device="cuda", effort="search")) as judge:
        judge.build(Candidate(source=SOURCES[kind](name), language="cuda"), ahead=False).close()


def _right(name: str) -> str:
    return recorded_source(name, "cuda")


def _wrong(name: str) -> str:
    return _right(name) + WRONG


SOURCES = {"right": _right, "wrong": _wrong}


def _timed(judges: Judges, name: str) -> Timed:
    problem = load_problem(name, "gpu")
    right = [_seconds(judges, problem, _right(name), "passed") for _ in range(1 + ROUNDS)]
    wrong = [_seconds(judges, problem, _wrong(name), "failed at check") for _ in range(1 + ROUNDS)]
    return Timed(tuple(right[1:]), tuple(wrong[1:]))


def _seconds(judges: Judges, problem: Problem, source: str, outcome: str) -> float:
    start = time.perf_counter()
    verdict = judges.judge(problem, Candidate(source=source, language="cuda"))
    seconds = time.perf_counter() - start
    said = verdict.outcome if isinstance(verdict, Passed) else f"failed at {verdict.stage}"
    if said != outcome:
        raise Unexpected(f"{said}: {'' if isinstance(verdict, Passed) else verdict.reason[:300]}")
    return seconds


def _told(wanted: int, found: dict[str, Timed], failed: list[str]) -> Report:
    if not found:
        return Report(f"  not as expected: {', '.join(failed)}", False)
    right = [statistics.median(one.right_s) for one in found.values()]
    wrong = [statistics.median(one.wrong_s) for one in found.values()]
    right_s, wrong_s = statistics.median(right), statistics.median(wrong)
    return Report(
        f"  {len(found)} of {wanted} problems at search, builds and baselines kept, in the median: a right one "
        f"{right_s:.2f} s (promised: {MOST_RIGHT_S:g}), {60 / statistics.fmean(right):.1f} a minute; a wrong one "
        f" {wrong_s:.2f} s (promised: {MOST_WRONG_S:g}); not as expected: {', '.join(failed) or 'none'}",
        right_s <= MOST_RIGHT_S and wrong_s <= MOST_WRONG_S and not failed,
    )


if __name__ == "__main__":
    _build(*sys.argv[1:3])
