"""Kernels that others released, judged here and by KernelBench's own evaluator, beside what they claim.

`python -m bench others FILE [--draw N] [--seed S] [--tree TREE] [--device cpu]` takes a release of CUDA-L1
(`optimized_cuda_code/h100.json` of deepreinforce-ai/CUDA-L1): reference, kernel and claimed speedup for each problem.
It draws N of those that have a kernel, and judges each at effort `search`, four in flight. TREE, a checkout of
KernelBench, adds its evaluator: builds side by side, then one process after the other. `KERNELWRIGHT_ACCURACY` names
another accuracy than `kernelbench`.

A line of JSON a kernel and way goes to `others.jsonl` in the folder that `KERNELWRIGHT_OUT` names, or in `runs`; it is
not judged again. `KERNELWRIGHT_SECONDS` ends the run in time. Nothing of the release is kept but names.
"""

import argparse
import json
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from bench.beside_kernelbench import Found, evaluated
from bench.chosen import Kept, is_in_time
from bench.gpu_facts import NO_DEVICE, Report
from kernelwright.problems import Problem
from kernelwright.sandbox.authenticity.languages import candidate_of
from kernelwright.sandbox.pool.judges import Judges
from kernelwright.sandbox.verdict.errors import SandboxError
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import Passed
from kernelwright_child.gpu import driver

OURS, THEIRS = "kernelwright", "KernelBench"
IN_FLIGHT, BUILT_AHEAD = 4, 8
REASON = 300
"""Characters of a reason that are kept."""


class Released(NamedTuple):
    """A kernel of a release."""

    name: str
    reference: str
    kernel: str
    claimed: float | None

    @property
    def problem(self) -> Problem:
        """Its own reference, at the sizes of the release."""
        title = self.name.replace("/", "_")
        return Problem(name=title, title=title, family="released", size="gpu", source=self.reference)


def read(path: Path) -> list[Released]:
    """Those that have a kernel; a list of objects, or a line for each."""
    text = path.read_text(encoding="utf-8")
    rows = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines()]
    return [
        Released(f"level{row['level_id']}/{row['task_id']}", row["ref_code"], row["custom_code"], row["score_default"])
        for row in rows
        if row.get("custom_code")
    ]


def run(*words: str) -> Report:
    """About ten seconds a kernel and way, and less where builds overlap."""
    options = _options(words)
    if options.device != "cpu" and driver.device_count() == 0:
        return NO_DEVICE
    released = read(options.file)
    drawn = random.Random(options.seed).sample(released, min(options.draw or len(released), len(released)))
    if options.device == "cpu":
        drawn = [one for one in drawn if candidate_of(one.kernel).language in ("python", "cpp")]
    kept = Kept("others.jsonl")
    known = {(row["name"], row["way"]): row for row in kept.rows()}
    ways = [OURS, *([THEIRS] if options.tree else [])]
    accuracy = os.environ.get("KERNELWRIGHT_ACCURACY", "kernelbench")
    settings = Settings.model_validate({"device": options.device, "effort": "search", "accuracy": accuracy})
    lock = threading.Lock()

    def take(way: str, kernels: list[Released], judge: Callable[[Released], dict[str, Any]], in_flight: int) -> None:
        def one_row(one: Released) -> None:
            if (one.name, way) in known or not is_in_time():
                return
            row = {"name": one.name, "way": way, "claimed": one.claimed} | judge(one)
            told = f"  {one.name:12} {way:12} {row['outcome']:16} {row['speedup'] or 0:7.2f} x {row['why']}"
            with lock:
                known[one.name, way] = row
                kept.add(row)
                print(told, flush=True)

        with ThreadPoolExecutor(in_flight) as pool:
            list(pool.map(one_row, kernels))

    with Judges(settings) as judges:
        take(OURS, drawn, lambda one: _judged(judges, one), IN_FLIGHT)
    if options.tree:
        by_outcome = sorted(drawn, key=lambda one: _is(known, one, OURS, "passed"))  # what it says of those comes first
        left = [one for one in by_outcome if (one.name, THEIRS) not in known]
        with tempfile.TemporaryDirectory() as builds:
            for first in range(0, len(left), BUILT_AHEAD):
                some = left[first : first + BUILT_AHEAD]
                if is_in_time():
                    with ThreadPoolExecutor(BUILT_AHEAD) as pool:
                        list(pool.map(lambda one: _evaluator(options.tree, Path(builds), one, "build"), some))
                take(THEIRS, some, lambda one: _evaluated(options.tree, Path(builds), one), 1)
    return _report(drawn, ways, known)


def _options(words: tuple[str, ...]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench others")
    parser.add_argument("file", type=Path)
    parser.add_argument("--draw", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tree", type=Path)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args(words)


def _judged(judges: Judges, one: Released) -> dict[str, Any]:
    start = time.perf_counter()
    row: dict[str, Any] = {"speedup": None, "weights": None, "why": ""}
    try:
        verdict = judges.judge(one.problem, candidate_of(one.kernel))
    except SandboxError as error:
        row |= {"outcome": "not judged", "why": " ".join(str(error).split())[:REASON]}
    else:
        row["weights"] = verdict.evidence.weights
        if isinstance(verdict, Passed):
            found = verdict.measurement
            row |= {"outcome": "passed", "speedup": found.speedup, "why": found.comparison}
        else:
            row |= {"outcome": f"failed: {verdict.stage}", "why": " ".join(verdict.reason.split())[:REASON]}
            row["log"] = verdict.log[-REASON:]
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def _evaluated(tree: Path, builds: Path, one: Released) -> dict[str, Any]:
    found = _evaluator(tree, builds, one)
    outcome = "passed" if found.correct else "failed"
    return {"outcome": outcome, "speedup": found.speedup, "why": "", "seconds": round(found.seconds, 1)}


def _evaluator(tree: Path, builds: Path, one: Released, *only: str) -> Found:
    """KernelBench's, in a process; each kernel has a folder for its builds."""
    folder = builds / one.name.replace("/", "_")
    folder.mkdir(exist_ok=True)
    problem, kernel = folder / "problem.py", folder / "kernel.py"
    problem.write_text(one.reference, encoding="utf-8")
    kernel.write_text(one.kernel, encoding="utf-8")
    return evaluated([str(tree), str(problem), str(kernel), "cuda", str(folder), *only], dict(os.environ))


def _report(drawn: list[Released], ways: list[str], known: dict[tuple[str, str], dict[str, Any]]) -> Report:
    lines = []
    for way in ways:
        rows = [known[one.name, way] for one in drawn if (one.name, way) in known]
        counts = Counter(row["outcome"] for row in rows)
        told = ", ".join(f"{counts[key]} {key}" for key in sorted(counts))
        lines.append(f"  {way}: {len(rows)} of {len(drawn)}; {told}")
    refused = [one for one in drawn if _is(known, one, THEIRS, "passed") and not _is(known, one, OURS, "passed")]
    for one in refused:
        row = known.get((one.name, OURS), {"outcome": "not judged yet", "why": ""})
        lines.append(f"  right there, not here: {one.name}: {row['outcome']}; {row['why']}")
    judged = [known[one.name, OURS]["outcome"] for one in drawn if (one.name, OURS) in known]
    holds = len(judged) == len(drawn) and not {"not judged", "failed: load"} & set(judged)
    return Report("\n".join(lines), holds)


def _is(known: dict[tuple[str, str], dict[str, Any]], one: Released, way: str, outcome: str) -> bool:
    return known.get((one.name, way), {}).get("outcome") == outcome
