"""Answers of a folder, each judged as it is on its problem: where it fails, and the deciding line.

`python -m bench gpu_seeds` reads `KERNELWRIGHT_ANSWERS` (a folder of PROBLEM__NAME.py, such as `kernelwright extract`
makes of replies); `KERNELWRIGHT_EXPECTED` may name the stage for each, as `NAME=stage,NAME=stage`.
"""

import os
from pathlib import Path

from bench.gpu_facts import Report
from kernelwright.problems import load_problem
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import Passed
from tests.gpu.harness import Judges


def run() -> Report:
    """A line and the log's head for each."""
    folder = os.environ.get("KERNELWRIGHT_ANSWERS")
    if not folder:
        return Report("  set KERNELWRIGHT_ANSWERS to a folder of answers, named PROBLEM__NAME.py")
    files = sorted(Path(folder).glob("*__*.py"))
    words = filter(None, os.environ.get("KERNELWRIGHT_EXPECTED", "").split(","))
    expected = dict(word.split("=") for word in words)
    wrong = []
    with Judges(Settings(device="cuda")) as judges:
        todo = [(path.stem, load_problem(path.stem.split("__")[0], "gpu"), path.read_text()) for path in files]
        for name, verdict in judges.all_judged(todo):
            stage = "passed" if isinstance(verdict, Passed) else verdict.stage
            print(f"  {name}: {stage}" + (f": {verdict.reason}" if stage != "passed" else ""), flush=True)
            if stage != expected.get(name.split("__")[1], stage):
                wrong.append(name)
            if stage != "passed":
                print("\n".join(f"      {line}" for line in verdict.log.splitlines()[:12]), flush=True)
            print(f"      {', '.join(f'{key} {value:.1f} s' for key, value in verdict.evidence.seconds.items())}")
    return Report(f"{len(files)} answers; at another stage than expected: {', '.join(wrong) or 'none'}", not wrong)
