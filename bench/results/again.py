"""Kept kernels judged in full by the present clock, and a second time: other processes and seeds, another day.

What is judged is in the file before the next begins, so it may be stopped at any time and goes on where it was.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.measuring import of_this_part
from bench.results.records import (
    AGAIN,
    Kept,
    is_in_full,
    judgings_in,
    meet,
    read_index,
    records_in,
    waiting,
    write_index,
    write_lines,
)
from kernelwright.agent.briefs import sheet_for
from kernelwright.evals.metrics import summarize
from kernelwright.evals.score import judged_here
from kernelwright.evals.verdict_store import Judgement
from kernelwright.problems import Problem, ProblemError, load_problem
from kernelwright.problems.formats import SEPARATOR
from kernelwright.sandbox.authenticity.scan import candidate_of
from kernelwright.sandbox.gpu_tools import hazards
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.machine import SANITIZE, tool_of
from kernelwright.sandbox.storage import write_atomically
from kernelwright.sandbox.verdict.errors import SandboxError
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Verdict


def judge_again(folder: Path, tree: Path, report: Callable[[str], None], minutes: float = float("inf")) -> list[str]:
    """Judge in full what `waiting` says, against the problems of a checkout; return what could not be judged.

    Raises `ProblemError` where this machine has another device than the run's, or the checkout another problem.
    """
    from kernelwright.sandbox.jail.zygote import prepare_judge

    end = time.monotonic() + 60 * minutes
    index, known = read_index(folder), judgings_in(folder)
    records = {(one.address, one.dtype): one for one in records_in(folder)}
    rows = of_this_part(index.rows)
    pairs = [(row, answered) for row in rows for answered in waiting(records[row.address, row.dtype], known)]
    pairs.sort(key=lambda pair: is_in_full(pair[1].attempt))  # a second judging waits for the first of all others
    problems = {row.facts.digest: problem_of(row, tree) for row, _ in pairs}
    prepare_judge()
    left: list[str] = []
    for at, (row, answered) in enumerate(pairs):
        if time.monotonic() > end:
            left += [f"{one.address} in {one.dtype}: no time was left" for one, _ in pairs[at:]]
            break
        header = index.runs[row.run]
        _check_device(header["device"], index.run_summary(row).target)
        settings, problem = _here(header["config"]["judging"]).at("rank"), problems[row.facts.digest]
        device = sheet_for("cuda" if settings.gpu else "cpp", ordinal=settings.ordinal).name
        where = f"{row.address} in {row.dtype}, answer {answered.attempt.number}"
        try:
            done = judged_here(problem, candidate_of(str(answered.source)), settings, device, where)
        except SandboxError as error:
            left.append(f"{where}: {error}")
            continue
        known.append(done)
        write_lines(folder / AGAIN, known)
        report(f"{where}: {said(answered.attempt.ruling, done)}")
    write_index(folder)
    return left


def problem_of(row: Kept, tree: Path) -> Problem:
    """Return the problem of a row, from a checkout. `ProblemError` where that has another one under its address."""
    problem = problem_at(tree, row.address, row.dtype)
    if problem.digest != row.facts.digest:
        raise ProblemError(f"{tree} has another {row.address} than the run; check out the selection's commit")
    return problem


def problem_at(tree: Path, address: str, dtype: str) -> Problem:
    """Load a problem of a checkout by its address; `float32` is not cast."""
    return load_problem(f"{tree}{SEPARATOR}{address}", dtype=None if dtype == "float32" else dtype)


def said(before: Verdict | None, done: Judgement) -> str:
    """Compare two verdicts on a kernel, in words."""
    second = summarize(done.verdict)
    if not second.passed or before is None:
        return f"REFUSED at {second.stage}"
    first = summarize(before)
    words = "the intervals meet" if meet(first, second) else "THE INTERVALS DO NOT MEET"
    return f"{_words(first)}, now {_words(second)}: {words}"


def _words(found: object) -> str:
    speedup, low, high = (getattr(found, name) or 0.0 for name in ("speedup", "low", "high"))
    return f"{speedup:.3f} [{low:.3f}, {high:.3f}]"


def _here(judging: dict[str, Any]) -> JudgeSettings:
    """Return the settings of a run, with the cores of this machine."""
    return JudgeSettings.model_validate({name: value for name, value in judging.items() if name != "cores"})


def _check_device(device: str, target: str) -> None:
    here = sheet_for(target).name
    if here != device:
        raise ProblemError(f"this machine is {here!r} and the run was made on {device!r}; judge it again on such a one")


HAZARDS, TOOLS = "hazards.json", ("racecheck", "synccheck")


def read_hazards(folder: Path) -> dict[str, dict[str, str]]:
    """By kernel's digest and tool, what it found; empty where nothing was run."""
    path = folder / HAZARDS
    found: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _write_hazards(folder: Path, found: dict[str, dict[str, str]]) -> None:
    write_atomically(folder / HAZARDS, json.dumps(found, indent=1, sort_keys=True) + "\n")


def check_hazards(folder: Path, tree: Path, report: Callable[[str], None], minutes: float = float("inf")) -> int:
    """Run the tools over what has no outcome yet; how many kernels are left. Raises `MachineError` without a tool."""
    end = time.monotonic() + 60 * minutes
    index = read_index(folder)
    known = read_hazards(folder)
    waiting = [row for row in of_this_part(index.rows) if _digest(row) not in ("", *known)]
    if waiting:
        tool_of(SANITIZE)
    for at, row in enumerate(waiting):
        if time.monotonic() > end:
            return len(waiting) - at
        settings = _here(index.runs[row.run]["config"]["judging"]).at("screen")
        try:
            found = _checked(row, tree, (folder / str(row.kernel)).read_text(encoding="utf-8"), settings)
        except SandboxError as error:
            found = {tool: f"silent: {error}" for tool in TOOLS}
        known[_digest(row)] = found
        _write_hazards(folder, known)
        report(f"{row.address} in {row.dtype}: {', '.join(f'{tool} {said}' for tool, said in found.items())}")
    return 0


def join(folder: Path, others: Sequence[Path]) -> int:
    """Add the judgings and outcomes of copies of the folder, made by other processes; return how many were added."""
    before = known = {(one.key, one.time): one for one in judgings_in(folder)}
    hazards = read_hazards(folder)
    for other in others:
        known = known | {(one.key, one.time): one for one in judgings_in(other)}
        hazards |= read_hazards(other)
    write_lines(folder / AGAIN, sorted(known.values(), key=lambda one: one.time))
    if hazards:
        _write_hazards(folder, hazards)
    write_index(folder)
    return len(known) - len(before)


def _digest(row: Kept) -> str:
    return row.facts.best.candidate_digest if row.facts.best else ""


def _checked(row: Kept, tree: Path, source: str, settings: JudgeSettings) -> dict[str, str]:
    with Judge(problem_of(row, tree), settings) as judge:
        built = judge.build(candidate_of(source))
        try:
            if built.failure:
                return {tool: f"silent: it fails at {built.failure.stage}" for tool in TOOLS}
            return {tool: hazards(judge.subject(built), tool) for tool in TOOLS}
        finally:
            built.close()
