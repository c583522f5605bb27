"""The same candidates through KernelBench's own evaluator and through ours: seconds, verdicts a minute, errors.

`python -m bench beside_kernelbench TREE` takes a checkout of the benchmark and needs a CUDA device. Theirs and ours
from the shell alternate, candidate by candidate; then all go through a running service, and through one `score`. Each
way has builds of its own, none at the start. `KERNELWRIGHT_WAYS=theirs,service` takes some of `theirs`, `shell`,
`service` and `score`, `KERNELWRIGHT_CANDIDATES` the first N of the twenty, `KERNELWRIGHT_EFFORT` another effort than
`search`. A candidate has fooled a judge that calls it correct where it is not, or 1.2 times as fast where that is its
lie.

A line of JSON for each answer goes to `beside-kernelbench.jsonl`; what is there is not asked again. Only ways in which
every candidate was answered are compared.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.kernelbench_candidates import CASES, ForeignCase
from bench.measuring import NO_DEVICE, Kept, Report, is_in_time, output_of
from kernelwright.sandbox.pool.judge_pool import judge_many
from kernelwright.sandbox.storage import VARIABLE
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright_child import driver

THEIRS, SHELL, SERVICE, SCORE = "KernelBench, a process each", "ours, shell", "ours, service", "ours, one score"
WAYS = {"theirs": THEIRS, "shell": SHELL, "service": SERVICE, "score": SCORE}
DEVICE = "cuda"
EVALUATOR = Path(__file__).with_name("kernelbench_evaluator.py")
LIMIT_S, START_S, CONCURRENCY = 300, 120, 4
"""For one candidate, for the start of a service, and the clients of that service."""
FAST = 1.2
LEAST_RATIO = {SERVICE: 3.0, SHELL: 1.0}
"""Of our verdicts a minute over theirs."""


class Found(NamedTuple):
    correct: bool
    speedup: float | None
    seconds: float


class Files(NamedTuple):
    """The checkout, and a folder for the files of this run."""

    tree: Path
    folder: Path

    def problem(self, case: ForeignCase) -> Path:
        level, _, number = case.problem.partition("/")
        root = self.tree / "KernelBench" if (self.tree / "KernelBench").is_dir() else self.tree
        return next((root / level).glob(f"{number}_*.py"))

    def candidate(self, case: ForeignCase) -> Path:
        path = self.folder / "candidates" / self.problem(case).stem / f"{case.name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(case.source, encoding="utf-8")
        return path

    def environment(self, way: str) -> dict[str, str]:
        own = self.folder / way.replace(" ", "_").replace(",", "")
        (own / "triton").mkdir(parents=True, exist_ok=True)
        return {
            VARIABLE: str(own / "ours"),
            "TORCH_EXTENSIONS_DIR": str(own / "torch"),
            "TRITON_CACHE_DIR": str(own / "triton"),
        }


def run(*words: str) -> Report:
    """The same candidates through KernelBench's own evaluator and ours; about a quarter of an hour for all twenty."""
    if len(words) != 1:
        return Report("  give a checkout of KernelBench: python -m bench beside_kernelbench TREE", holds=False)
    if driver.device_count() == 0:
        return NO_DEVICE
    cases = CASES[: int(os.environ.get("KERNELWRIGHT_CANDIDATES", len(CASES)))]
    ways = list(dict.fromkeys(os.environ.get("KERNELWRIGHT_WAYS", ",".join(WAYS)).split(",")))
    if not set(ways) <= WAYS.keys():
        return Report(f"  KERNELWRIGHT_WAYS takes some of {', '.join(WAYS)}", holds=False)
    wanted = [WAYS[way] for way in ways]
    with tempfile.TemporaryDirectory() as folder:
        files = Files(Path(words[0]).resolve(), Path(folder))
        found = _found(files, cases, wanted, Kept("beside-kernelbench.jsonl"))
    complete = [way for way in wanted if len(found[way]) == len(cases)]
    lines = [_line(way, cases, found[way]) for way in complete]
    lines += [f"  {way}: {len(found[way])} of {len(cases)} answered" for way in wanted if way not in complete]
    kept = []
    for way, least in LEAST_RATIO.items():
        if way in complete and THEIRS in complete:
            ratio = sum(one.seconds for one in found[THEIRS]) / sum(one.seconds for one in found[way])
            lines.append(f"  {way} against theirs: {ratio:.2f} times the verdicts a minute (promised: {least:g})")
            kept.append(ratio >= least)
    if not kept:
        lines.append("  nothing is compared: a promise is about theirs beside the service or the shell")
    return Report("\n".join(lines), all(kept))


def _found(files: Files, cases: tuple[ForeignCase, ...], wanted: list[str], kept: Kept) -> dict[str, list[Found]]:
    """Ask each way about each candidate, as far as there is time; the answers in the order of the candidates."""
    known = {(row["way"], row["case"]): Found(row["correct"], row["speedup"], row["seconds"]) for row in kept.rows()}

    def keep(way: str, case: ForeignCase, one: Found) -> None:
        known[way, case.name] = one
        kept.add({"way": way, "case": case.name, **one._asdict()})

    separate: dict[str, Callable[[Files, ForeignCase], Found]] = {THEIRS: _theirs, SHELL: _ours}
    alone = [way for way in wanted if way in separate]
    for number, case in enumerate(cases):
        left = [way for way in alone if (way, case.name) not in known]
        if left and is_in_time():
            for way in left if number % 2 == 0 else left[::-1]:
                keep(way, case, separate[way](files, case))
            shown = "  ".join(
                f"{'right' if one.correct else 'wrong'} {one.speedup or 0:6.2f} x {one.seconds:6.1f} s"
                for one in (known[way, case.name] for way in alone)
            )
            print(f"  {case.name:28} {case.expected:7} {shown}", flush=True)
    for way, ask_all in ((SERVICE, _served), (SCORE, _scored)):
        if way in wanted and is_in_time() and not all((way, case.name) in known for case in cases):
            for case, one in zip(cases, ask_all(files, cases), strict=True):
                keep(way, case, one)
    return {way: [known[way, case.name] for case in cases if (way, case.name) in known] for way in wanted}


def _theirs(files: Files, case: ForeignCase) -> Found:
    environment = files.environment(THEIRS)
    paths = [str(files.tree), str(files.problem(case)), str(files.candidate(case))]
    return evaluated([*paths, case.backend, environment["TORCH_EXTENSIONS_DIR"]], environment)


def evaluated(words: list[str], environment: dict[str, str]) -> Found:
    """Evaluate by KernelBench's evaluator in a process: tree, problem, candidate, backend, and where its builds go."""
    said, seconds = output_of([sys.executable, str(EVALUATOR), *words], LIMIT_S, **environment)
    row: dict[str, Any] = json.loads(said.splitlines()[-1]) if said.strip() else {"correct": False, "speedup": None}
    return Found(row["correct"], row["speedup"], seconds)


def _ours(files: Files, case: ForeignCase) -> Found:
    words = ["judge", str(files.problem(case)), str(files.candidate(case)), "--device", DEVICE, "--json"]
    command = [sys.executable, "-m", "kernelwright", *words, "--effort", _effort()]
    said, seconds = output_of(command, LIMIT_S, **files.environment(SHELL))
    return _read(json.loads(said) if said.strip() else None, seconds)


def _read(report: dict[str, object] | None, seconds: float) -> Found:
    if report is None or report["outcome"] != "passed":
        return Found(False, None, seconds)
    return Found(True, float(str(report["speedup"])), seconds)


def _served(files: Files, cases: tuple[ForeignCase, ...]) -> list[Found]:
    """Send all, as clients would; the clock starts when the service answers."""
    environment, socket = files.environment(SERVICE), files.folder / "socket"
    state = ["--socket", str(socket), "--state", str(files.folder / "state"), "--device", DEVICE]
    command = [sys.executable, "-m", "kernelwright", "serve", *state]
    service = subprocess.Popen(command, env=os.environ | environment)
    try:
        end = time.monotonic() + START_S
        while not socket.exists() and time.monotonic() < end and service.poll() is None:
            time.sleep(0.05)
        start = time.perf_counter()
        pairs = [(str(files.problem(case)), case.source) for case in cases]
        settings = JudgeSettings.model_validate({"effort": _effort()})
        judged = judge_many(pairs, concurrency=CONCURRENCY, settings=settings, server=f"unix:{socket}")
        seconds = time.perf_counter() - start
    finally:
        service.terminate()
        service.wait()
    return [_read(one.report, seconds / len(cases)) for one in judged]


def _scored(files: Files, cases: tuple[ForeignCase, ...]) -> list[Found]:
    """Judge all by one `kernelwright score`, whose processes serve every candidate."""
    problems, candidates = files.folder / "problems", files.folder / "candidates"
    problems.mkdir()
    shutil.rmtree(candidates, ignore_errors=True)  # other ways may have more of them
    for case in cases:
        files.candidate(case)
        shutil.copy(files.problem(case), problems)
    words = ["score", str(problems), str(candidates), "--out", str(files.folder / "scores"), "--device", DEVICE]
    command = [sys.executable, "-m", "kernelwright", *words, "--json", "--effort", _effort()]
    said, seconds = output_of(command, LIMIT_S * len(cases), **files.environment(SCORE))
    reports = {Path(row["candidate"]).stem: row for row in map(json.loads, said.splitlines())}
    return [_read(reports.get(case.name), seconds / len(cases)) for case in cases]


def _effort() -> str:
    return os.environ.get("KERNELWRIGHT_EFFORT", "search")


def _fooled(case: ForeignCase, found: Found) -> bool:
    fast = found.speedup is not None and found.speedup > FAST
    return found.correct and (case.expected == "failed" or (bool(case.lie) and fast))


def _line(way: str, cases: tuple[ForeignCase, ...], found: list[Found]) -> str:
    pairs = list(zip(cases, found, strict=True))
    fooled = [case.name for case, one in pairs if _fooled(case, one)]
    refused = [case.name for case, one in pairs if case.expected == "passed" and not one.correct]
    seconds = sum(one.seconds for one in found)
    each = statistics.median(one.seconds for one in found)
    return (
        f"  {way:28} {seconds:7.1f} s, {60 * len(cases) / seconds:5.1f} verdicts a minute, {each:5.1f} s each (median)"
        f"; fooled by {', '.join(fooled) or 'none'}; right ones refused: {', '.join(refused) or 'none'}"
    )
