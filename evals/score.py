"""Many kernels judged in one go: a batch of candidate files on an executor, and the best of a board again.

A verdict on record under the same conditions is reused. No candidate ends the batch; a fault of the machine or of a
problem is reported for each candidate that it concerns, and tried again next time.
"""

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pydantic import ValidationError

from kernelwright.evals.leaderboard import Board, LeaderboardCell, boards
from kernelwright.evals.metrics import VerdictSummary
from kernelwright.evals.verdict_store import (
    VERIFIED,
    JudgedKernel,
    Judgement,
    RunSummary,
    VerdictStore,
    log_of,
    source_digest,
)
from kernelwright.problems import Problem, ProblemError, catalog_names, load_problem
from kernelwright.sandbox.authenticity.scan import candidate_of
from kernelwright.sandbox.pool.dispatcher import Dispatcher
from kernelwright.sandbox.pool.executor import Conditions, Executor, Unjudged, Work, choose_kind_name
from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION
from kernelwright.sandbox.verdict.settings import JudgeSettings, JudgingEffort
from kernelwright.sandbox.verdict.verdicts import Candidate

LARGEST_BYTES = 32 * 2**20
BENCH_FILE = re.compile(r"level_?(\d+)_problem_?(\d+)(?:_|$)")
"""KernelBench's names of generated files: level_1_problem_23_sample_0_kernel.py."""
PROBLEMS_A_DEVICE = 2
"""Problems that are judged side by side, for each of several devices."""
NOT_JUDGED = "not_judged"
"""The outcome of a file without a verdict, since the machine, the problem or the file itself cannot be used."""


class Collected(NamedTuple):
    """The problems of a folder by name, and the reason for each that cannot be read."""

    problems: dict[str, Problem]
    broken: dict[str, str]


class CandidateFile(NamedTuple):
    problem: str
    name: str
    """Its path within the folder."""
    path: Path


class Shard(NamedTuple):
    """Part `number` (from 1) of `parts`: its files depend on their names alone."""

    number: int
    parts: int

    def has(self, file: CandidateFile) -> bool:
        digest = hashlib.sha256(f"{file.problem}\0{file.name}".encode()).digest()
        return int.from_bytes(digest[:8]) % self.parts == self.number - 1


class Scored(NamedTuple):
    file: CandidateFile
    report: dict[str, Any]
    """The judge's report; for a file without a verdict only `outcome` (`not_judged`) and `reason`."""
    measured: VerdictSummary | None
    """None for a file without a verdict."""
    cached: bool
    machine_lacks: bool = False
    """True where the verdict is missing because this machine lacks something."""

    @property
    def line(self) -> dict[str, Any]:
        return {"problem": self.file.problem, "candidate": self.file.name} | self.report


def collect_problems(where: str, size: str | None = None, dtype: str | None = None) -> Collected:
    """Collect the problems under a folder, or the one of a path or catalog name; cast to a dtype where one is given.

    A problem is named by its path within the folder, without `.py`; a folder with a `problem.toml` is one problem. A
    file that cannot be read does not hide the others. Raises `ProblemError` where there is none at all.
    """
    folder = Path(where)
    if where in catalog_names() or (folder / "problem.toml").is_file() or not folder.is_dir():
        problem = load_problem(where, size, dtype)
        return Collected({problem.name: problem}, {})
    problems: dict[str, Problem] = {}
    broken: dict[str, str] = {}
    for path in problem_paths(folder):
        place = path.relative_to(folder)
        name = place.as_posix() if path.is_dir() else place.with_suffix("").as_posix()
        try:
            problems[name] = load_problem(str(path), size if path.is_dir() else None, dtype)
        except ProblemError as error:
            broken[name] = str(error)
    if not problems:
        why = next(iter(broken.values()), "it holds no .py file")
        raise ProblemError(f"{where} holds no problem that can be read ({why}); give a folder of problem files")
    return Collected(problems, broken)


def problem_paths(folder: Path) -> Iterator[Path]:
    manifests = {path.parent for path in files_in(folder, ".toml") if path.name == "problem.toml"}
    for path in sorted({*manifests, *files_in(folder, ".py")}):
        if not (path.name.startswith("__") or any(parent in manifests for parent in path.parents)):
            yield path


def files_in(folder: Path, *endings: str) -> list[Path]:
    """Return the files below with these endings, without hidden ones and caches, in order."""
    found = {path: path.relative_to(folder).parts for path in folder.rglob("*") if path.suffix in endings}
    return sorted(p for p, parts in found.items() if not any(one.startswith((".", "__pycache__")) for one in parts))


def collect_candidates(folder: Path, names: Mapping[str, object]) -> tuple[list[CandidateFile], list[str]]:
    """Collect the candidate files under a folder by name, and those that belong to none of the problems.

    A file belongs to a problem where a folder on its path has the problem's name; where its own name is the problem's,
    perhaps with `__`, `.` or `-` and more behind; or where it has KernelBench's name for a generated file. Raises
    `ProblemError` where the folder is missing.
    """
    if not folder.is_dir():
        raise ProblemError(f"there is no folder {folder}; give the folder that holds the candidate files")
    by_stem: dict[str, list[str]] = {}
    for name in names:
        by_stem.setdefault(name.rpartition("/")[2], []).append(name)
    numbers = ((re.search(r"level_?(\d+)/(\d+)_", name), name) for name in names)
    by_number = {(match[1], match[2]): name for match, name in numbers if match}
    found: list[CandidateFile] = []
    strangers: list[str] = []
    for path in files_in(folder, ".py"):
        place = PurePosixPath(path.relative_to(folder).as_posix())
        match = BENCH_FILE.search(place.stem)
        problem = by_number.get((match[1], match[2])) if match else _problem_of(place, by_stem)
        if problem is None:
            strangers.append(str(place))
        else:
            found.append(CandidateFile(problem, str(place), path))
    return found, strangers


def _problem_of(place: PurePosixPath, by_stem: Mapping[str, Sequence[str]]) -> str | None:
    """Return the problem that a folder or the file is named by; of several with one stem, by the folders of the path.

    None where that leaves a doubt.
    """
    stem = place.stem
    ends = sorted({len(stem), *(match.start() for match in re.finditer(r"__|\.|-", stem))}, reverse=True)
    stems = (*reversed(place.parts[:-1]), *(stem[:end] for end in ends))
    names = next((by_stem[one] for one in stems if one in by_stem), ())
    if len(names) > 1:
        names = [name for name in names if set(name.split("/")[:-1]) <= set(place.parts)]
    return names[0] if len(names) == 1 else None


def read_source(path: Path) -> str:
    """Read the text of a candidate file. Raises `OSError`, also for one that is too large."""
    if path.stat().st_size > LARGEST_BYTES:
        raise OSError(0, f"larger than {LARGEST_BYTES // 2**20} MiB")
    return path.read_text(encoding="utf-8-sig", errors="replace")


class UnjudgedSource(NamedTuple):
    files: list[CandidateFile]
    source: str


class Batch:
    """One pass over candidate files. `on_done` is called for each file once, cached ones first."""

    def __init__(self, store: VerdictStore, on_done: Callable[[Scored], None]) -> None:
        self.store = store
        self.on_done = on_done

    def run(self, collected: Collected, files: Sequence[CandidateFile], executor: Executor, kind: str | None) -> None:
        """Report on every file; judge those that have no verdict under the conditions of the executor's devices.

        `kind` is a part of the name of the devices to judge on, where there are several kinds. Raises `ExecutorError`.
        """
        asyncio.run(self._run(collected, files, Dispatcher(executor, kind)))

    def report_known(self, collected: Collected, files: Sequence[CandidateFile], kind: str | None) -> None:
        """Report what the current judge version has on record for every file; judge nothing."""
        kept = [one for one in self.store.conditions() if one.judge_version == str(JUDGE_VERSION)]
        name = choose_kind_name({one.device for one in kept}, kind) if kept else None
        for group in self._unknown(collected, files, [one for one in kept if one.device == name]):
            self._unjudged(group.files, "no verdict of this version is on record")

    async def _run(self, collected: Collected, files: Sequence[CandidateFile], dispatcher: Dispatcher) -> None:
        async with dispatcher:
            conditions = [device.conditions for device in dispatcher.devices]
            waiting = self._unknown(collected, files, conditions)
            # A device keeps the references of a few problems, so one device takes one problem after the other.
            concurrency = 1 if len(conditions) == 1 else PROBLEMS_A_DEVICE * len(conditions)
            tasks = [
                asyncio.create_task(self._judge(collected.problems[one.files[0].problem], one, dispatcher))
                for one in interleaved(waiting, concurrency)
            ]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()

    def _unknown(
        self, collected: Collected, files: Sequence[CandidateFile], conditions: Sequence[Conditions]
    ) -> list[UnjudgedSource]:
        """Report on files with a verdict under one of these conditions or that cannot be judged; return the others."""
        waiting: dict[tuple[str, str], UnjudgedSource] = {}
        for file in files:
            if file.problem in collected.broken:
                self._unjudged([file], collected.broken[file.problem])
                continue
            try:
                source = read_source(file.path)
            except OSError as error:
                self._unjudged([file], f"the file cannot be read ({error.strerror}); check it and its permissions")
                continue
            digest, problem = source_digest(source), collected.problems[file.problem]
            self.store.keep(problem.record, source)
            known = self.store.known_like(problem.digest, digest, conditions)
            if known is not None:
                self.on_done(Scored(file, *known, cached=True))
            else:
                waiting.setdefault((file.problem, digest), UnjudgedSource([], source)).files.append(file)
        return list(waiting.values())

    async def _judge(self, problem: Problem, waiting: UnjudgedSource, dispatcher: Dispatcher) -> None:
        candidate, first = candidate_of(waiting.source), waiting.files[0]
        try:
            judged = await dispatcher.judge(Work(problem=problem, candidate=candidate))
        except Unjudged as error:
            self._unjudged(waiting.files, str(error), error.error.machine_lacks)
            return
        judgement = Judgement(
            problem=first.problem,
            problem_digest=problem.digest,
            candidate=first.name,
            candidate_digest=candidate.digest,
            conditions=(judged.device or dispatcher.devices[0]).conditions,
            time=datetime.now(UTC),
            verdict=judged.verdict,
        )
        found = self.store.add(judgement)
        for file in waiting.files:
            self.on_done(Scored(file, *found, cached=False))

    def _unjudged(self, files: list[CandidateFile], reason: str, machine_lacks: bool = False) -> None:
        for file in files:
            report = {"outcome": NOT_JUDGED, "reason": reason}
            self.on_done(Scored(file, report, None, cached=False, machine_lacks=machine_lacks))


def interleaved(waiting: Iterable[UnjudgedSource], concurrency: int) -> list[UnjudgedSource]:
    """Order sources by problem, `concurrency` problems at a time, alternating between these until they are done."""
    groups: dict[str, list[UnjudgedSource]] = {}
    for one in waiting:
        groups.setdefault(one.files[0].problem, []).append(one)
    names, found = list(groups), []
    for start in range(0, len(names), concurrency):
        together = [groups[name] for name in names[start : start + concurrency]]
        for index in range(max(map(len, together))):
            found += [group[index] for group in together if index < len(group)]
    return found


UNSETTLED = ("unverified", "provisional")
MORE = 2
"""The factor on the pairs of a search's judging for a re-evaluation."""


class Verifier:
    """Judges the best kernels a second time: the best of many noisy measurements is too high.

    The second judging has new processes, new seeds and twice the pairs, and its number is published. Its verdicts are
    in `verified.db` in the run's folder; the run's own log is left as it is.
    """

    def __init__(
        self, device: str, on_verified: Callable[[LeaderboardCell, Judgement], None], effort: JudgingEffort = "rank"
    ) -> None:
        self.device = device
        """The device of this machine; kernels of other devices are left as they are."""
        self.on_verified = on_verified
        self.effort = effort
        self._found: dict[str, dict[tuple[str, str], JudgedKernel]] = {}

    def lookup(self, folder: str, problem_digest: str, candidate_digest: str) -> JudgedKernel | None:
        """Return the latest re-evaluation of a kernel; one of the current judge version before any other."""
        if folder not in self._found:
            path = Path(folder) / VERIFIED
            known = VerdictStore.read(path) if path.exists() else []
            known.sort(key=lambda one: (one.conditions.judge_version == str(JUDGE_VERSION), one.time))
            latest = {(one.problem_digest, one.candidate_digest): one for one in known}
            self._found[folder] = {kernel: JudgedKernel.verified(one) for kernel, one in latest.items()}
        return self._found[folder].get((problem_digest, candidate_digest))

    def verify_top(self, runs: Sequence[RunSummary], count: int) -> list[Board]:
        """Judge again until the `count` best rows of this device's board rest on numbers of the current judge version.

        A row may fall when its numbers are taken again, and the next one comes up; so it goes on until nothing moves.
        Each kernel is judged once.
        """
        tried: set[tuple[str, str]] = set()
        while True:
            found = boards(runs, str(JUDGE_VERSION), self.lookup, self.effort)
            rows = [row for board in found if board.device == self.device for row in board.rows[:count]]
            waiting: dict[tuple[str, str], LeaderboardCell] = {}
            for cell in (cell for row in rows for cell in row.cells):
                kernel = cell.problem_digest, str(cell.candidate_digest)
                if cell.run and (cell.status in UNSETTLED or cell.stale) and kernel not in tried:
                    waiting.setdefault(kernel, cell)
            if not waiting:
                return found
            for kernel, cell in waiting.items():
                tried.add(kernel)
                self._verify(cell)

    def _verify(self, cell: LeaderboardCell) -> None:
        from kernelwright.sandbox.machine import usual_device

        folder = Path(str(cell.folder))
        with log_of(folder) as log:
            problem = log.problem(cell.problem)
            candidate = candidate_of(log.text(str(cell.candidate_digest)))
            settings = _settings(log.header.config)
        if "device" not in settings.model_fields_set:
            settings = settings.on(usual_device(candidate.language, problem.size))
        judgement = judged_here(problem, candidate, settings, self.device, f"{cell.run} attempt {cell.attempt}")
        with VerdictStore(folder / VERIFIED) as store:
            store.add(judgement)
        self._found.pop(str(cell.folder), None)
        self.on_verified(cell, judgement)


def judged_here(problem: Problem, candidate: Candidate, settings: JudgeSettings, device: str, named: str) -> Judgement:
    """Judge a candidate on this machine's `device`; `named` is its origin."""
    from kernelwright.sandbox.judge.judging import judge

    return Judgement(
        problem=problem.name,
        problem_digest=problem.digest,
        candidate=named,
        candidate_digest=candidate.digest,
        conditions=Conditions.here(device, settings.model_dump(mode="json")),
        time=datetime.now(UTC),
        verdict=judge(problem, candidate, settings),
    )


def _settings(config: dict[str, Any]) -> JudgeSettings:
    """Return the run's settings at effort `rank` with more pairs; the defaults where they are unreadable."""
    try:
        settings = JudgeSettings.model_validate(config.get("judging") or {})
    except ValidationError:
        settings = JudgeSettings()
    more = {name: MORE * getattr(settings, name) for name in ("min_pairs", "max_pairs", "time_budget_s")}
    return settings.at("rank").model_copy(update=more)
