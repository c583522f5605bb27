"""Every recorded CUDA answer through the judge: verdict, speedup with its interval, share of the floor.

`python -m bench gpu_kernels` judges the last answer of each story for target cuda, at size gpu, each problem in a
process of its own with a time limit; `KERNELWRIGHT_BENCH=NAME,NAME` picks problems, `KERNELWRIGHT_TARGET=cutlass` (or
any other target that runs on a device) the answers for that, `KERNELWRIGHT_DTYPE=bfloat16` those for the problems cast
to that dtype. `python -m bench.gpu_kernels` takes problems as arguments, and `--all` for every answer of a story,
`--backward` for the gradients too, `--limit` for the seconds of an answer. The speedup is against eager, or with
`--compiled MODE`, which may be repeated, against the best of eager and these modes of torch.compile; they are compiled,
one problem after the other, while the answers are built and before anything is judged.
Each verdict is printed when it is there; as a line of JSON it goes to `gpu_kernels.jsonl` where `KERNELWRIGHT_OUT`
names a folder.
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

from bench.chosen import Kept, chosen
from bench.gpu_facts import NO_DEVICE, Report
from bench.recorded import recorded_source
from kernelwright.agent.providers.recorded import read_session, recorded_targets
from kernelwright.problems import Problem, catalog_names, load_problem
from kernelwright.prompts import Target
from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.calls.reference import Form
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.settings import CompileMode, Settings
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Verdict
from kernelwright_child import driver

SETTINGS = Settings(device="cuda", worker_pairs=3, min_pairs=12, max_pairs=24, interval_target=0.02, time_budget_s=2)
BUILDERS = 8
LIMIT_S = 60
COMPILING_S = 600
"""For a problem's compiled baselines, where they are not known."""
CALLS = 5
TARGET = cast(Target, os.environ.get("KERNELWRIGHT_TARGET", "cuda"))
DTYPE = os.environ.get("KERNELWRIGHT_DTYPE")


class Answer(NamedTuple):
    """A recorded answer, as a child process is told of it."""

    problem: str
    number: int
    """Of the story's entry, from 1."""
    backward: bool = False
    compiled: tuple[CompileMode, ...] = ()

    @property
    def words(self) -> list[str]:
        """Arguments for the child process."""
        words = [self.problem, "--number", str(self.number)] + ["--backward"] * self.backward
        return words + [word for mode in self.compiled for word in ("--compiled", mode)]

    @property
    def asked(self) -> Problem:
        """The problem, at the size for a device."""
        problem = load_problem(self.problem, "gpu", DTYPE)
        return problem.model_copy(update={"direction": "both"}) if self.backward else problem


def run() -> Report:
    """A line for the last answer of each story."""
    return judged(answers(chosen(with_story())), LIMIT_S)


def with_story() -> list[str]:
    """The problems that have recorded answers for the target."""
    return [name for name in catalog_names() if TARGET in recorded_targets(name, dtype=DTYPE)]


def answers(
    names: list[str], every: bool = False, backward: bool = False, compiled: tuple[CompileMode, ...] = ()
) -> list[Answer]:
    """The last answer of each story, or all."""
    found = []
    for name in names:
        last = len(read_session(name, TARGET, dtype=DTYPE).entries)
        found += [Answer(name, n, backward, compiled) for n in range(1 if every else last, last + 1)]
    return found


def judged(todo: list[Answer], limit_s: float) -> Report:
    """Compile all side by side, and the baselines meanwhile; then judge one after the other."""
    if driver.device_count() == 0:
        return NO_DEVICE
    with ThreadPoolExecutor(BUILDERS) as pool:
        builds = pool.map(lambda answer: child(answer, "--build", limit_s), todo)
        for answer in {answer.problem: answer for answer in todo if answer.compiled}.values():
            told = child(answer, "--compile", COMPILING_S)
            print(f"  {answer.problem:36} {told.get('reason') or told['compiled']}", flush=True)
        list(builds)
    failed = []
    for answer in todo:
        row = child(answer, "--judge", limit_s)
        print(line(row), flush=True)
        if "KERNELWRIGHT_OUT" in os.environ:
            Kept("gpu_kernels.jsonl").add(row)
        if row["outcome"] != "passed":
            failed.append(f"{answer.problem} {answer.number}")
    return Report(f"{len(todo)} answers; not passed: {', '.join(failed) or 'none'}", not failed)


def child(answer: Answer, what: str, limit_s: float) -> dict[str, Any]:
    """One answer in a process of its own: what it told, or that the limit ended it."""
    told = {"problem": answer.problem, "number": answer.number, "outcome": "stopped"}
    command = [sys.executable, "-m", "bench.gpu_kernels", *answer.words, what]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return told | {"reason": f"it took more than {limit_s:.0f} s"}
    if done.returncode:
        return told | {"reason": done.stderr[-2000:]}
    return told if what == "--build" else json.loads(done.stdout.splitlines()[-1])


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
    """What is kept of a verdict."""
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
    """One verdict for people."""
    name = f"  {row['problem']:36} {row['number']:2}"
    if row["outcome"] != "passed":
        return f"{name} {row['outcome']}: {row['reason'][:300]}"
    low, high = row["interval"]
    floor = f"{row['of_floor']:.3f} of the floor {row['floor_ms']:.4f}" if row["of_floor"] else "floor unknown"
    others = ", ".join(f"{label} {ms:.4f} ({row['over'][label][0]:.3f} x)" for label, ms in row["baselines_ms"].items())
    return (
        f"{name} {row['speedup']:6.3f} x [{low:.3f}, {high:.3f}] {row['comparison']} against {row['against']}, "
        f"{row['ms']:.4f} ms by {row['clock']}; {others} ms; {floor} ms; {sum(row['seconds'].values()):.0f} s"
    )


def main(words: list[str]) -> int:
    """The command line of this bench alone; exit code 1 where an answer did not pass."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_kernels")
    parser.add_argument("problems", nargs="*", help="default: all with a story")
    parser.add_argument("--all", action="store_true", help="every answer of a story, not the last alone")
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
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--build", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--judge", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    typed = parser.parse_args(words)
    modes = tuple(typed.compiled)
    if typed.number:
        answer = Answer(typed.problems[0], typed.number, typed.backward, modes)
        compile_baselines(answer) if typed.compile else build_or_judge(answer, typed.judge)
        return 0
    report = judged(answers(typed.problems or with_story(), typed.all, typed.backward, modes), typed.limit)
    print(report)
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
