"""Recorded answers of the catalog through the judge on a GPU: verdict, speedup with interval, share of the roofline.

`python -m bench gpu_catalog` judges the last recorded CUDA answer of each problem at size gpu, in a process of its own
with a time limit. Options:

- names of problems in place of all; `--all` for every answer of a recorded session; `--backward` for gradients too;
- `--limit SECONDS` for each answer;
- `--compiled MODE`, which may be repeated: the speedup is against the best of eager and these modes of torch.compile.
  They are compiled, one problem after the other, while the answers are built and before anything is judged.

`KERNELWRIGHT_BENCH=NAME,NAME` picks problems too, `KERNELWRIGHT_TARGET=cutlass` (or any other language of a GPU) the
answers in that, `KERNELWRIGHT_DTYPE=bfloat16` those for the problems cast to that dtype. Where `KERNELWRIGHT_OUT` names
a folder, each verdict goes to `gpu_kernels.jsonl` there as a line of JSON.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, NamedTuple, cast, get_args

from bench.measuring import NO_DEVICE, Kept, Report, chosen, recorded_source
from kernelwright.agent.providers.recorded import read_session, recorded_targets
from kernelwright.problems import Problem, catalog_names, load_problem
from kernelwright.prompts import Target
from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.calls.reference import Form
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.settings import CompileMode, JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Verdict
from kernelwright_child import driver

SETTINGS = JudgeSettings(
    device="cuda", worker_pairs=3, min_pairs=12, max_pairs=24, interval_target=0.02, time_budget_s=2
)
BUILDERS, CALLS = 8, 5
LIMIT_S, COMPILING_S = 60, 600
"""For an answer; and for a problem's compiled baselines, where they are not known."""
TARGET = cast(Target, os.environ.get("KERNELWRIGHT_TARGET", "cuda"))
DTYPE = os.environ.get("KERNELWRIGHT_DTYPE")


class Answer(NamedTuple):
    """A recorded answer, as a child process is given it; `number` counts the entries of the session from 1."""

    problem: str
    number: int
    backward: bool = False
    compiled: tuple[CompileMode, ...] = ()

    @property
    def asked(self) -> Problem:
        """The problem, at the size for a device."""
        problem = load_problem(self.problem, "gpu", DTYPE)
        return problem.model_copy(update={"direction": "both"}) if self.backward else problem

    def run(self, what: str, limit_s: float) -> dict[str, Any]:
        """Build, judge or compile baselines in a process of its own; return its row, or why there is none."""
        row = {"problem": self.problem, "number": self.number, "outcome": "stopped"}
        words = [self.problem, "--number", str(self.number), *["--backward"] * self.backward]
        words += [word for mode in self.compiled for word in ("--compiled", mode)]
        command = [sys.executable, "-m", "bench.gpu_catalog", *words, what]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            return row | {"reason": f"it took more than {limit_s:.0f} s"}
        if done.returncode:
            return row | {"reason": done.stderr[-2000:]}
        return row if what == "--build" else json.loads(done.stdout.splitlines()[-1])


def run(*words: str) -> Report:
    """Recorded answers through the judge on a GPU: the last for each problem, or those that are named."""
    typed = _typed(words)
    if driver.device_count() == 0:
        return NO_DEVICE
    recorded = (name for name in catalog_names() if TARGET in recorded_targets(name, dtype=DTYPE))
    todo = []
    for name in typed.problems or chosen(recorded):
        last = len(read_session(name, TARGET, dtype=DTYPE).entries)
        numbers = range(1 if typed.all else last, last + 1)
        todo += [Answer(name, number, typed.backward, tuple(typed.compiled)) for number in numbers]
    with ThreadPoolExecutor(BUILDERS) as pool:
        builds = pool.map(lambda answer: answer.run("--build", typed.limit), todo)
        for answer in {answer.problem: answer for answer in todo if answer.compiled}.values():
            row = answer.run("--compile", COMPILING_S)
            print(f"  {answer.problem:36} {row.get('reason') or row['compiled']}", flush=True)
        list(builds)
    failed = []
    for answer in todo:
        row = answer.run("--judge", typed.limit)
        print(line(row), flush=True)
        if "KERNELWRIGHT_OUT" in os.environ:
            Kept("gpu_kernels.jsonl").add(row)
        if row["outcome"] != "passed":
            failed.append(f"{answer.problem} {answer.number}")
    return Report(f"{len(todo)} answers; not passed: {', '.join(failed) or 'none'}", not failed)


def _typed(words: tuple[str, ...]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench gpu_catalog")
    parser.add_argument("problems", nargs="*", help="default: all with a recorded answer")
    parser.add_argument("--all", action="store_true", help="every answer of a recorded session, not the last alone")
    parser.add_argument("--backward", action="store_true", help="judge and time the gradients too")
    parser.add_argument(
        "--compiled",
        metavar="MODE",
        action="append",
        default=[],
        choices=get_args(CompileMode),
        help="a mode of torch.compile, as another baseline; repeatable",
    )
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS", help="for each answer")
    for hidden in ("--build", "--judge", "--compile"):
        parser.add_argument(hidden, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def compile_baselines(answer: Answer) -> None:
    """In the child: have the compiled baselines in the store of such, and print what that took."""
    said = []
    for mode in answer.compiled:
        start = time.monotonic()
        backend = backend_of(SETTINGS)
        with backend.device_lock(), closing(backend.reference(answer.asked, Form(mode))) as session:
            took_s, values = time.monotonic() - start, session.draw()
            best = min(session.call_ms(values) for _ in range(CALLS))
        made, found = session.compilation
        said.append(
            f"{session.form.baseline} ready after {took_s:.0f} s ({made} graphs compiled, {found} found), {best:.4f} ms"
        )
    print(json.dumps({"problem": answer.problem, "compiled": "; ".join(said)}))


def build_or_judge(answer: Answer, judge_it: bool) -> None:
    """In the child: compile, so that the store of builds has it, or judge and print the facts as JSON."""
    source = recorded_source(answer.problem, TARGET, answer.number - 1, DTYPE)
    with Judge(answer.asked, SETTINGS.model_copy(update={"compiled": answer.compiled})) as judge:
        built = judge.build(Candidate(source=source))
        if not judge_it:
            built.close()
            return
        verdict = judge.evaluate(built)
    print(json.dumps({"problem": answer.problem, "number": answer.number} | facts(verdict)))


def facts(verdict: Verdict) -> dict[str, Any]:
    """Return the parts of a verdict that a row keeps."""
    seconds = {"seconds": verdict.evidence.seconds, "builds": verdict.evidence.builds}
    if isinstance(verdict, Failed):
        return {"outcome": verdict.stage, "reason": verdict.reason, "log": verdict.log[-3000:]} | seconds
    found = verdict.measurement
    return {
        "outcome": "passed",
        "comparison": found.comparison,
        "clock": found.timing_clock,
        "speedup": found.speedup,
        "interval": [found.interval.low, found.interval.high],
        "against": found.closest.baseline,
        "over": {one.baseline: [one.speedup, one.interval.low, one.interval.high] for one in found.pairings},
        "ms": found.candidate_ms,
        "baselines_ms": found.baselines_ms,
        "times": found.times,
        "less_accurate": found.less_accurate,
        "floor_ms": found.floor_ms,
        "of_floor": found.fraction_of_floor,
    } | seconds


def line(row: dict[str, Any]) -> str:
    name = f"  {row['problem']:36} {row['number']:2}"
    if row["outcome"] != "passed":
        return f"{name} {row['outcome']}: {row['reason'][:300]}"
    low, high = row["interval"]
    floor = f"{row['of_floor']:.3f} of the floor {row['floor_ms']:.4f} ms" if row["of_floor"] else "floor unknown"
    others = ", ".join(f"{label} {ms:.4f} ({row['over'][label][0]:.3f} x)" for label, ms in row["baselines_ms"].items())
    return (
        f"{name} {row['speedup']:6.3f} x [{low:.3f}, {high:.3f}] {row['comparison']} against {row['against']}, "
        f"{row['ms']:.4f} ms by {row['clock']}; {others} ms; {floor}; {sum(row['seconds'].values()):.0f} s"
    )


if __name__ == "__main__":
    own = _typed(tuple(sys.argv[1:]))
    asked = Answer(own.problems[0], own.number, own.backward, tuple(own.compiled))
    compile_baselines(asked) if own.compile else build_or_judge(asked, own.judge)
