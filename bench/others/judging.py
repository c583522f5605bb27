"""Kernels that others released, as problems and candidates. Nothing of them is kept: they are read where they lie."""

import argparse
import csv
import hashlib
import json
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, get_args

from bench.beside_kernelbench import Found, evaluated
from bench.measuring import NO_DEVICE, Kept, Report, is_in_time, of_this_part
from bench.others.page import OURS, REASON, THEIRS, Row, outcome_of, read_rows
from kernelwright.problems import Problem
from kernelwright.problems.formats import read_collection
from kernelwright.sandbox.authenticity.scan import candidate_of
from kernelwright.sandbox.pool.judges import Judges
from kernelwright.sandbox.verdict.errors import SandboxError
from kernelwright.sandbox.verdict.settings import Accuracy, JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Passed
from kernelwright_child import driver

STATE_OR_ATTRIBUTE = '''

import inspect as _inspect


class ModelNew(Model):
    """Calls the released function: inputs first, then the model's state in its order, other values by their names."""

    def forward(self, *inputs):
        given, state = list(inputs), [
            value for name, value in self.state_dict(keep_vars=True).items() if not name.endswith("num_batches_tracked")
        ]
        arguments, by_name = [], {}
        for name, parameter in _inspect.signature(kernel_function).parameters.items():
            value = getattr(self, name, None)
            if given:
                arguments.append(given.pop(0))
            elif isinstance(value, (int, float, tuple, list)):
                by_name[name] = value
            elif state and parameter.default is parameter.empty or state and "out" not in name:
                by_name[name] = state.pop(0)
        return kernel_function(*arguments, **by_name)
'''
FUNCTION_OF_EXTENSION = '''

from torch.utils.cpp_extension import load_inline as _load_inline

_extension = _load_inline(name="released", cpp_sources=[""], cuda_sources=[_SOURCE], no_implicit_headers=True)


class ModelNew(Model):
    """Passes the released function on, as robust-kbench does."""

    def forward(self, *inputs):
        return super().forward(*inputs, fn=_extension.forward)
'''


class Released(NamedTuple):
    """A kernel of a release, and the problem that it is for."""

    source: str
    name: str
    problem: Problem
    kernel: str
    claimed: float | None
    """The speedup that its authors state, against eager PyTorch."""

    @property
    def digest(self) -> str:
        """sha256 of the kernel as released, as 64 hex digits."""
        return hashlib.sha256(self.kernel.encode()).hexdigest()


def read(path: Path) -> list[Released]:
    """Return all kernels of the release at the path. Raises `SandboxError` for an unknown release."""
    for is_there, reader in READERS:
        if is_there(path):
            return list(reader(path))
    raise SandboxError(f"{path} is not a release of CUDA-L1, KernelAgent or robust-kbench; see python -m bench others")


def with_present_reference(one: Released, tree: Path) -> Released:
    """Return the same kernel for KernelBench's present problem of that name."""
    level, _, number = one.name.partition("/")
    root = tree / "KernelBench" if (tree / "KernelBench").is_dir() else tree
    text = next((root / level).glob(f"{number}_*.py")).read_text(encoding="utf-8")
    return one._replace(problem=_problem(one.name, text))


def _problem(name: str, source: str, dtype: str | None = None) -> Problem:
    title = name.replace("/", "_")
    return Problem(name=title, title=title, family="released", size="gpu", source=source, dtype=dtype)


def _cuda_l1(path: Path) -> Iterator[Released]:
    """Return a list of objects, or a line for each; some have no kernel, or the text `None` in its place."""
    text = path.read_text(encoding="utf-8")
    rows = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines()]
    for row in rows:
        if row.get("custom_code") not in (None, "", "None"):
            name = f"level{row['level_id']}/{row['task_id']}"
            yield Released("CUDA-L1", name, _problem(name, row["ref_code"]), row["custom_code"], row["score_default"])


def _kernelagent(root: Path) -> Iterator[Released]:
    """Folders with `original.py` and a kernel; their functions take bfloat16, and weights as arguments."""
    for original in sorted(root.glob("L[123]/*/original.py")):
        kernel = next(
            (path for file in ("kernel_code.py", "final_kernel.py", "composed_kernel.py")
             if (path := original.with_name(file)).exists()), None
        )  # fmt: skip
        if kernel is not None:
            name = f"level{original.parts[-3][1:]}/{original.parent.name.partition('_')[0]}"
            reference, code = original.read_text(encoding="utf-8"), kernel.read_text(encoding="utf-8")
            problem = _problem(name, reference, "bfloat16")
            yield Released("KernelAgent", name, problem, f"{reference}\n\n{code}{STATE_OR_ATTRIBUTE}", None)


def _robust_kbench(root: Path) -> Iterator[Released]:
    """Highlighted forward kernels, at the first configuration of their tasks."""
    tasks = {entry.id: entry.problem for entry in read_collection(root / "tasks").entries}
    csv.field_size_limit(2**31 - 1)
    with (root / "highlighted" / "results.csv").open(encoding="utf-8", newline="") as file:
        claims = {row["task_name"]: row["Speedup"] for row in csv.DictReader(file) if row["forward"] == "True"}
    for path in sorted((root / "highlighted").glob("*/forward/kernel.cu")):
        name = path.parts[-3]
        problem = tasks.get(f"{name}/0")
        if problem is not None:
            code = path.read_text(encoding="utf-8")
            kernel = f"{problem.source}\n\n_SOURCE = {code!r}\n{FUNCTION_OF_EXTENSION}"
            claimed = float(claims[name]) if claims.get(name) else None
            yield Released("robust-kbench", name, problem, kernel, claimed)


READERS: tuple[tuple[Callable[[Path], bool], Callable[[Path], Iterator[Released]]], ...] = (
    (Path.is_file, _cuda_l1),
    (lambda path: (path / "highlighted").is_dir(), _robust_kbench),
    (lambda path: any(path.glob("L[123]/*/original.py")), _kernelagent),
)


IN_FLIGHT, BUILT_AHEAD = 4, 8


class _Rows:
    """Known rows by key; each new row is on disk before the next is taken."""

    def __init__(self) -> None:
        self.kept = Kept("others.jsonl")
        rows = read_rows(self.kept.path) if self.kept.path.exists() else []
        self.known = {row.key: row for row in rows}
        self._lock = threading.Lock()

    def add(self, row: Row) -> None:
        with self._lock:
            self.known[row.key] = row
            self.kept.add(row.model_dump(mode="json"))
            speedup = "" if row.speedup is None else f"{row.speedup:.2f} x"
            print(
                f"  {row.name:12} {row.way:12} {row.accuracy or '':12} {row.outcome:16} {speedup} {row.why}", flush=True
            )


def judge_released(words: tuple[str, ...]) -> Report:
    """Judge the chosen kernels, as far as time allows."""
    options = _options(words)
    if options.device != "cpu" and driver.device_count() == 0:
        return NO_DEVICE
    chosen = _chosen(options)
    rows = _Rows()
    accuracies: list[Accuracy] = options.accuracy or ["default", "kernelbench"]
    facts = {"sizes": "present" if options.present else "released", "device": _device_name(options.device)}
    for accuracy in accuracies:
        ours = facts | {"way": OURS, "accuracy": accuracy, "effort": options.effort}
        _judge(chosen, rows, ours, options.device, is_first=accuracy == accuracies[0])
    if options.tree and not options.present:
        _evaluate(options.tree, chosen, rows, facts)
    return _report(chosen, rows, facts["sizes"], with_theirs=bool(options.tree))


def _judge(chosen: list[Released], rows: _Rows, facts: dict[str, Any], device: str, is_first: bool) -> None:
    """Judge at one accuracy; after the first one only kernels whose earlier verdicts do not show it."""
    asked = {"device": device, "effort": facts["effort"], "accuracy": facts["accuracy"], "compiled": ["default"]}

    def shows(row: Row, one: Released) -> bool:
        is_same = (row.source, row.name, row.sizes) == (one.source, one.name, facts["sizes"])
        return is_same and row.meets(facts["accuracy"]) is not None

    def work(one: Released) -> None:
        is_known = not is_first and any(shows(row, one) for row in list(rows.known.values()))
        if is_in_time() and not is_known and _row(one, facts | EMPTY).key not in rows.known:
            rows.add(_row(one, facts | _judged(judges, one)))

    with Judges(JudgeSettings.model_validate(asked)) as judges:
        _each(chosen, work, IN_FLIGHT)


EMPTY = {"outcome": "", "seconds": 0.0}


def _each(kernels: list[Released], work: Callable[[Released], None], in_flight: int) -> None:
    with ThreadPoolExecutor(in_flight) as pool:
        list(pool.map(work, kernels))


def _row(one: Released, facts: dict[str, Any]) -> Row:
    return Row(source=one.source, name=one.name, digest=one.digest, claimed=one.claimed, **facts)


def _options(words: tuple[str, ...]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench others")
    parser.add_argument("path", type=Path)
    parser.add_argument("--draw", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--names", type=lambda text: text.split(","))
    parser.add_argument("--tree", type=Path)
    parser.add_argument("--present", action="store_true")
    parser.add_argument("--accuracy", action="append", choices=get_args(Accuracy))
    parser.add_argument("--effort", default="search")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(words)
    if options.present and not options.tree:
        parser.error("--present takes references from a checkout of KernelBench; name it with --tree")
    return options


def _chosen(options: argparse.Namespace) -> list[Released]:
    released = read(options.path)
    if options.names:
        released = [one for one in released if one.name in options.names]
    if options.draw:
        released = random.Random(options.seed).sample(released, min(options.draw, len(released)))
    if options.device == "cpu":
        released = [one for one in released if candidate_of(one.kernel).language in ("python", "cpp")]
    released = of_this_part(released)
    return [with_present_reference(one, options.tree) for one in released] if options.present else released


def _device_name(device: str) -> str:
    if device == "cpu":
        return "cpu"
    import torch

    return torch.cuda.get_device_name()


def _judged(judges: Judges, one: Released) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        verdict = judges.judge(one.problem, candidate_of(one.kernel))
    except SandboxError as error:
        found: dict[str, Any] = {"outcome": "not judged", "why": " ".join(str(error).split())[:REASON]}
    else:
        outcome, why = outcome_of(verdict)
        speedup = verdict.measurement.speedup if isinstance(verdict, Passed) else None
        found = {"outcome": outcome, "why": why, "speedup": speedup, "verdict": verdict}
    return found | {"seconds": round(time.perf_counter() - start, 1)}


def _evaluate(tree: Path, chosen: list[Released], rows: _Rows, facts: dict[str, Any]) -> None:
    """By KernelBench's evaluator; those that we do not pass come first, and a few builds run ahead."""
    theirs = facts | {"way": THEIRS, "accuracy": None, "effort": None}
    passed = {row.name for row in rows.known.values() if row.way == OURS and row.outcome == "passed"}
    left = [one for one in chosen if _row(one, theirs | EMPTY).key not in rows.known]
    left.sort(key=lambda one: one.name in passed)
    with tempfile.TemporaryDirectory() as builds:
        for first in range(0, len(left), BUILT_AHEAD):
            some = left[first : first + BUILT_AHEAD]
            if is_in_time():
                _each(some, lambda one: _only_build(tree, Path(builds), one), BUILT_AHEAD)
            for one in some:
                if is_in_time():
                    found = _evaluator(tree, Path(builds), one)
                    outcome = "passed" if found.correct else "failed"
                    said = {"outcome": outcome, "speedup": found.speedup, "seconds": round(found.seconds, 1)}
                    rows.add(_row(one, theirs | said))


def _only_build(tree: Path, builds: Path, one: Released) -> None:
    _evaluator(tree, builds, one, "build")


def _evaluator(tree: Path, builds: Path, one: Released, *only: str) -> Found:
    """KernelBench's, in a process; each kernel has a folder for its builds."""
    folder = builds / one.name.replace("/", "_")
    folder.mkdir(exist_ok=True)
    problem, kernel = folder / "problem.py", folder / "kernel.py"
    problem.write_text(one.problem.source, encoding="utf-8")
    kernel.write_text(one.kernel, encoding="utf-8")
    return evaluated([str(tree), str(problem), str(kernel), "cuda", str(folder), *only], dict(os.environ))


def _report(chosen: list[Released], rows: _Rows, sizes: str, with_theirs: bool) -> Report:
    lines: list[str] = []
    best: dict[str, Row] = {}
    for accuracy in get_args(Accuracy):
        found = [row for row in rows.known.values() if (row.way, row.accuracy, row.sizes) == (OURS, accuracy, sizes)]
        if found:
            counts = Counter(row.outcome for row in found)
            reported = ", ".join(f"{counts[key]} {key}" for key in sorted(counts))
            lines.append(f"  {OURS} at {accuracy}: {len(found)} of {len(chosen)}; {reported}")
        best |= {row.name: row for row in found if row.name not in best or best[row.name].outcome != "passed"}
    theirs = {row.name: row.outcome == "passed" for row in rows.known.values() if row.way == THEIRS}
    if with_theirs:
        lines.append(f"  {THEIRS}: {len(theirs)} of {len(chosen)}; {sum(theirs.values())} passed")
    for one in chosen:
        row = best.get(one.name)
        if theirs.get(one.name) and (row is None or row.outcome != "passed"):
            said = f"{row.outcome}; {row.why}" if row else "not judged yet"
            lines.append(f"  right there, not here: {one.name}: {said}")
    judged = [best[one.name].outcome for one in chosen if one.name in best]
    return Report("\n".join(lines), len(judged) == len(chosen) and not {"not judged", "failed: load"} & set(judged))
