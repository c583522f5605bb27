"""The same candidates through KernelBench's own evaluator and through ours: seconds, verdicts a minute, who is fooled.

`python -m bench beside_kernelbench TREE` takes a checkout of the benchmark and needs a CUDA device. Theirs and ours
from the shell take turns, candidate by candidate; then all go through a running service and through one `score`. Each
of the four has builds of its own, none at the start. `KERNELWRIGHT_WAYS=theirs,service` takes some of `theirs`,
`shell`, `service` and `score`, for a machine that is had for minutes; `KERNELWRIGHT_CANDIDATES` the first so many of
the twenty, `KERNELWRIGHT_EFFORT` another effort than `search`. A candidate has fooled whoever calls it right where it
is not, or 1.2 times as fast where that is its lie.

A line of JSON for each answer goes to `beside-kernelbench.jsonl` in the folder that `KERNELWRIGHT_OUT` names, or in
`runs`; what is there is not asked again. `KERNELWRIGHT_SECONDS` ends the run in time; what is compared is whole.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.chosen import Kept, is_in_time
from bench.foreign.candidates import CASES, ForeignCase
from bench.gpu_facts import NO_DEVICE, Report
from kernelwright.sandbox.machine.cache import VARIABLE
from kernelwright.sandbox.pool.judge_pool import judge_many
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright_child import driver

THEIRS, SHELL, SERVICE, SCORE = "KernelBench, a process each", "ours, shell", "ours, service", "ours, one score"
WAYS = {"theirs": THEIRS, "shell": SHELL, "service": SERVICE, "score": SCORE}
EVALUATOR = Path(__file__).parent / "foreign" / "kernelbench_process.py"
LIMIT_S, START_S, IN_FLIGHT = 300, 120, 4
FAST = 1.2
LEAST_RATIO = 3.0
"""Of the service's verdicts a minute over theirs."""


class Found(NamedTuple):
    """What one way says of one candidate."""

    correct: bool
    speedup: float | None
    seconds: float


class Place(NamedTuple):
    """Where the files of this run lie."""

    tree: Path
    folder: Path

    def problem(self, case: ForeignCase) -> Path:
        """The benchmark's own file."""
        level, _, number = case.problem.partition("/")
        root = self.tree / "KernelBench" if (self.tree / "KernelBench").is_dir() else self.tree
        return next((root / level).glob(f"{number}_*.py"))

    def candidate(self, case: ForeignCase) -> Path:
        """Where `score` looks for it too."""
        path = self.folder / "candidates" / self.problem(case).stem / f"{case.name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(case.source, encoding="utf-8")
        return path

    def environment(self, way: str) -> dict[str, str]:
        """With caches of this way's own."""
        own = self.folder / way.replace(" ", "_").replace(",", "")
        (own / "triton").mkdir(parents=True, exist_ok=True)
        return os.environ | {
            VARIABLE: str(own / "ours"),
            "TORCH_EXTENSIONS_DIR": str(own / "torch"),
            "TRITON_CACHE_DIR": str(own / "triton"),
        }


def run(*words: str) -> Report:
    """About a quarter of an hour for all twenty."""
    if len(words) != 1:
        return Report("  give a checkout of KernelBench: python -m bench beside_kernelbench TREE", holds=False)
    if driver.device_count() == 0:
        return NO_DEVICE
    cases = CASES[: int(os.environ.get("KERNELWRIGHT_CANDIDATES", len(CASES)))]
    words_of_ways = list(dict.fromkeys(os.environ.get("KERNELWRIGHT_WAYS", ",".join(WAYS)).split(",")))
    if not set(words_of_ways) <= WAYS.keys():
        return Report(f"  KERNELWRIGHT_WAYS takes some of {', '.join(WAYS)}", holds=False)
    wanted = [WAYS[word] for word in words_of_ways]
    with tempfile.TemporaryDirectory() as folder:
        found = _found(Place(Path(words[0]).resolve(), Path(folder)), cases, wanted, Kept("beside-kernelbench.jsonl"))
    whole = [way for way in wanted if len(found[way]) == len(cases)]
    walls = {way: sum(one.seconds for one in found[way]) for way in whole}
    lines = [_told(way, cases, found[way], walls[way]) for way in whole]
    lines += [f"  {way}: {len(found[way])} of {len(cases)} answered" for way in wanted if way not in whole]
    promised = []
    for way, least in ((SERVICE, LEAST_RATIO), (SHELL, 1.0)):
        if way in walls and THEIRS in walls:
            ratio = walls[THEIRS] / walls[way]
            lines.append(f"  {way} against theirs: {ratio:.2f} times the verdicts a minute (promised: {least:g})")
            promised.append(ratio >= least)
    if not promised:
        lines.append("  nothing is compared: a promise is about theirs beside the service or the shell")
    return Report("\n".join(lines), all(promised))


def _found(place: Place, cases: tuple[ForeignCase, ...], wanted: list[str], kept: Kept) -> dict[str, list[Found]]:
    """What each way says of each candidate, in their order, as far as there was time."""
    known = {(row["way"], row["case"]): Found(row["correct"], row["speedup"], row["seconds"]) for row in kept.rows()}

    def keep(way: str, case: ForeignCase, one: Found) -> None:
        known[way, case.name] = one
        kept.add({"way": way, "case": case.name, **one._asdict()})

    _in_turn(place, cases, [way for way in wanted if way in (THEIRS, SHELL)], known, keep)
    for way, ask in ((SERVICE, _served), (SCORE, _scored)):
        if way in wanted and is_in_time() and not all((way, case.name) in known for case in cases):
            for case, one in zip(cases, ask(place, cases), strict=True):
                keep(way, case, one)
    return {way: [known[way, case.name] for case in cases if (way, case.name) in known] for way in wanted}


def _in_turn(
    place: Place,
    cases: tuple[ForeignCase, ...],
    ways: list[str],
    known: dict[tuple[str, str], Found],
    keep: Callable[[str, ForeignCase, Found], None],
) -> None:
    """A process for each candidate: those of both ways side by side, each first in every other candidate."""
    asks: dict[str, Callable[[Place, ForeignCase], Found]] = {THEIRS: _theirs, SHELL: _ours}
    for number, case in enumerate(cases):
        left = [way for way in ways if (way, case.name) not in known]
        if not left or not is_in_time():
            continue
        for way in left if number % 2 == 0 else left[::-1]:
            keep(way, case, asks[way](place, case))
        print(_line(case, [known[way, case.name] for way in ways]), flush=True)


def _asked(command: list[str], environment: dict[str, str]) -> tuple[str, float]:
    start = time.perf_counter()
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        said = done.stdout
    except subprocess.TimeoutExpired:
        said = ""
    return said, time.perf_counter() - start


def _theirs(place: Place, case: ForeignCase) -> Found:
    environment = place.environment(THEIRS)
    files = [str(place.tree), str(place.problem(case)), str(place.candidate(case))]
    return evaluated([*files, case.backend, environment["TORCH_EXTENSIONS_DIR"]], environment)


def evaluated(words: list[str], environment: dict[str, str]) -> Found:
    """By KernelBench's evaluator in a process; tree, problem, candidate, backend, and where its builds go."""
    said, seconds = _asked([sys.executable, str(EVALUATOR), *words], environment)
    told: dict[str, Any] = json.loads(said.splitlines()[-1]) if said.strip() else {"correct": False, "speedup": None}
    return Found(told["correct"], told["speedup"], seconds)


def _ours(place: Place, case: ForeignCase) -> Found:
    words = ["judge", str(place.problem(case)), str(place.candidate(case)), "--device", "cuda", "--json"]
    command = [sys.executable, "-m", "kernelwright", *words, "--effort", _effort()]
    said, seconds = _asked(command, place.environment(SHELL))
    return _read(json.loads(said) if said.strip() else None, seconds)


def _read(report: dict[str, object] | None, seconds: float) -> Found:
    if report is None or report["outcome"] != "passed":
        return Found(False, None, seconds)
    return Found(True, float(str(report["speedup"])), seconds)


def _served(place: Place, cases: tuple[ForeignCase, ...]) -> list[Found]:
    """All at once, as clients would send them; the clock starts when the service answers."""
    environment, socket = place.environment(SERVICE), place.folder / "socket"
    state = ["--socket", str(socket), "--state", str(place.folder / "state"), "--device", "cuda"]
    service = subprocess.Popen([sys.executable, "-m", "kernelwright", "serve", *state], env=environment)
    try:
        end = time.monotonic() + START_S
        while not socket.exists() and time.monotonic() < end and service.poll() is None:
            time.sleep(0.05)
        start = time.perf_counter()
        pairs = [(str(place.problem(case)), case.source) for case in cases]
        judged = judge_many(pairs, concurrency=IN_FLIGHT, settings=_settings(), server=f"unix:{socket}")
        seconds = time.perf_counter() - start
    finally:
        service.terminate()
        service.wait()
    return [_read(one.report, seconds / len(cases)) for one in judged]


def _scored(place: Place, cases: tuple[ForeignCase, ...]) -> list[Found]:
    problems = place.folder / "problems"
    problems.mkdir()
    for case in cases:
        source = place.problem(case)
        place.candidate(case)
        (problems / source.name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    words = ["score", str(problems), str(place.folder / "candidates"), "--out", str(place.folder / "scores")]
    options = ["--device", "cuda", "--json", "--effort", _effort()]
    command = [sys.executable, "-m", "kernelwright", *words, *options]
    said, seconds = _asked(command, place.environment(SCORE))
    reports = {Path(told["candidate"]).stem: told for told in map(json.loads, said.splitlines())}
    return [_read(reports.get(case.name), seconds / len(cases)) for case in cases]


def _effort() -> str:
    return os.environ.get("KERNELWRIGHT_EFFORT", "search")


def _settings() -> Settings:
    return Settings.model_validate({"effort": _effort()})


def _fooled(case: ForeignCase, found: Found) -> bool:
    if not found.correct:
        return False
    fast = found.speedup is not None and found.speedup > FAST
    return case.expected == "failed" or (bool(case.lie) and fast)


def _line(case: ForeignCase, found: list[Found]) -> str:
    told = "  ".join(
        f"{'right' if one.correct else 'wrong'} {one.speedup or 0:6.2f} x {one.seconds:6.1f} s" for one in found
    )
    return f"  {case.name:28} {case.expected:7} {told}"


def _told(way: str, cases: tuple[ForeignCase, ...], found: list[Found], wall_s: float) -> str:
    fooled = [case.name for case, one in zip(cases, found, strict=True) if _fooled(case, one)]
    denied = [
        case.name for case, one in zip(cases, found, strict=True) if case.expected == "passed" and not one.correct
    ]
    each = statistics.median(one.seconds for one in found)
    return (
        f"  {way:28} {wall_s:7.1f} s, {60 * len(cases) / wall_s:5.1f} verdicts a minute, {each:5.1f} s each (median); "
        f"fooled by {', '.join(fooled) or 'none'}; right ones refused: {', '.join(denied) or 'none'}"
    )
