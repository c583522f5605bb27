"""Finding problems and candidates in two folders, and which candidate belongs to which problem. Runs nothing."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from kernelwright.problems import Problem, ProblemError, catalog_names, load_problem

LARGEST_BYTES = 32 * 2**20
BENCH_FILE = re.compile(r"level_?(\d+)_problem_?(\d+)(?:_|$)")
"""The names that KernelBench gives to generated files: level_1_problem_23_sample_0_kernel.py."""


class Collected(NamedTuple):
    """The problems of a folder by name, and what keeps others from being read."""

    problems: dict[str, Problem]
    broken: dict[str, str]


class CandidateFile(NamedTuple):
    """A file, and the problem that its place or name says it is for."""

    problem: str
    name: str
    """Its path within the folder."""
    path: Path


def collect_problems(place: str, size: str | None = None, dtype: str | None = None) -> Collected:
    """The problems under a folder, or the one that a path or catalog name gives; cast to a dtype where one is named.

    A problem is named by its path within the folder, without `.py`; a folder with a `problem.toml` is one problem. A
    file that is no problem does not keep the others from being read. Raises `ProblemError` where there is none at all.
    """
    folder = Path(place)
    if place in catalog_names() or (folder / "problem.toml").is_file() or not folder.is_dir():
        problem = load_problem(place, size, dtype)
        return Collected({problem.name: problem}, {})
    problems: dict[str, Problem] = {}
    broken: dict[str, str] = {}
    for path in problem_paths(folder):
        name = _name_within(folder, path)
        try:
            sized = size if path.is_dir() else None
            problems[name] = load_problem(str(path), sized, dtype)
        except ProblemError as error:
            broken[name] = str(error)
    if not problems:
        why = next(iter(broken.values()), "it holds no .py file")
        raise ProblemError(f"{place} holds no problem that can be read ({why}); give a folder of problem files")
    return Collected(problems, broken)


def problem_paths(folder: Path) -> Iterator[Path]:
    """The problem files and problem folders below a folder, in order."""
    manifests = {path.parent for path in folder.rglob("problem.toml")}
    for path in sorted({*manifests, *folder.rglob("*.py")}):
        inside = any(parent in manifests for parent in path.parents)
        hidden = any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
        if not inside and not hidden:
            yield path


def _name_within(folder: Path, path: Path) -> str:
    place = path.relative_to(folder)
    return place.as_posix() if path.is_dir() else place.with_suffix("").as_posix()


def collect_candidates(folder: Path, names: Mapping[str, object]) -> tuple[list[CandidateFile], list[str]]:
    """The candidate files under a folder in the order of their names, and those that belong to none of the problems.

    Belonging: a folder on the file's path is named like the problem; or the file is, perhaps with `__`, `.` or `-` and
    more behind; or it bears KernelBench's name for a generated file. `ProblemError` where the folder is missing.
    """
    if not folder.is_dir():
        raise ProblemError(f"there is no folder {folder}; give the folder that holds the candidate files")
    matching = _Matching(names)
    found: list[CandidateFile] = []
    strangers: list[str] = []
    for path in sorted(folder.rglob("*.py")):
        place = PurePosixPath(path.relative_to(folder).as_posix())
        if any(part.startswith((".", "__pycache__")) for part in place.parts):
            continue
        problem = matching.problem_of(place)
        if problem is None:
            strangers.append(str(place))
        else:
            found.append(CandidateFile(problem, str(place), path))
    return found, strangers


class _Matching:
    def __init__(self, names: Mapping[str, object]) -> None:
        self.by_stem: dict[str, list[str]] = {}
        for name in names:
            self.by_stem.setdefault(name.rpartition("/")[2], []).append(name)
        self.by_number = {
            (match[1], match[2]): name for name in names if (match := re.search(r"level_?(\d+)/(\d+)_", name))
        }

    def problem_of(self, place: PurePosixPath) -> str | None:
        stem = place.stem
        if match := BENCH_FILE.search(stem):
            return self.by_number.get((match[1], match[2]))
        for part in reversed(place.parts[:-1]):
            if part in self.by_stem:
                return self._one_of(self.by_stem[part], place)
        ends = sorted({len(stem), *(match.start() for match in re.finditer(r"__|\.|-", stem))}, reverse=True)
        for end in ends:
            if stem[:end] in self.by_stem:
                return self._one_of(self.by_stem[stem[:end]], place)
        return None

    @staticmethod
    def _one_of(names: list[str], place: PurePosixPath) -> str | None:
        """Of several problems of one stem, the one whose folders stand in the path; None where that leaves a doubt."""
        if len(names) == 1:
            return names[0]
        there = set(place.parts)
        fitting = [name for name in names if set(name.split("/")[:-1]) <= there]
        return fitting[0] if len(fitting) == 1 else None


def read_source(path: Path) -> str:
    """The text of a candidate file. Raises `OSError`, also for one that is too large."""
    if path.stat().st_size > LARGEST_BYTES:
        raise OSError(0, f"larger than {LARGEST_BYTES // 2**20} MiB")
    return path.read_text(encoding="utf-8", errors="replace")


def source_digest(source: str) -> str:
    """The digest of the candidate with that source, without reading its language out of it."""
    return hashlib.sha256(source.encode()).hexdigest()


def level_of(problem: str) -> str | None:
    """`level2` out of `level2/23_Softmax`; None where the name has no such folder."""
    match = re.search(r"(?:^|/)(level_?\d+)(?=/)", problem)
    return match[1].replace("_", "") if match else None
