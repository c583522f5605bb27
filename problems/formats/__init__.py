"""Problems in the formats of other benchmarks, read into ours. Text is read and checked; nothing is run.

`read_collection` reads a complete collection: each entry has its problem, or the reason why it cannot be judged. A
problem of another form becomes a reference in our convention: its own text, and a few generated lines at its end.
"""

import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from pathlib import Path

from kernelwright.problems.formats import flashinfer, kernelbench, kernelbot, robust
from kernelwright.problems.formats.reading import Collection, Entry, read_tasks, task_folders
from kernelwright.problems.problem import Format, Problem, ProblemError

__all__ = ["Collection", "Entry", "find_collection", "format_of", "load_address", "read_collection", "select"]

PART = re.compile(r"([^\[\],]+)(?:\[([^\[\]]*)\])?(?:,|$)")
RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def select(entries: Iterable[Entry], selection: str) -> list[Entry]:
    """Return the entries that a selection names, in its order, each once; all for an empty one.

    A word is an id, a group of ids (the part before `/`), a name, or a pattern with `*`; numbers in brackets choose
    from a group by number, ranges with both ends. Raises `ProblemError` for what is not there.
    """
    there = list(entries)
    if not selection:
        return there
    chosen: dict[str, Entry] = {}
    for word, numbers in _parts(selection):
        for entry in _numbered(there, word, numbers) if numbers is not None else _named(there, word):
            chosen.setdefault(entry.id, entry)
    return list(chosen.values())


def _parts(selection: str) -> list[tuple[str, str | None]]:
    found, at = [], 0
    for match in PART.finditer(selection):
        if match.start() != at:
            break
        found.append((match[1].strip(), match[2]))
        at = match.end()
    if at != len(selection) or selection.endswith(","):
        raise ProblemError(f"the selection {selection!r} cannot be read; write it like level1[3,7,10-20],level2")
    return found


def _named(entries: list[Entry], word: str) -> list[Entry]:
    def fits(entry: Entry) -> bool:
        name = entry.problem.name if entry.problem else ""
        return word in (entry.id, entry.id.partition("/")[0], name) or (
            "*" in word and any(fnmatch.fnmatchcase(text, word) for text in (entry.id, name))
        )

    found = [entry for entry in entries if fits(entry)]
    if not found:
        groups = sorted({entry.id.partition("/")[0] for entry in entries})
        shown = ", ".join(groups[:8]) + (", ..." if len(groups) > 8 else "")
        raise ProblemError(f"the collection has no {word!r}; there are: {shown or 'no problems'}")
    return found


def _numbered(entries: list[Entry], group: str, numbers: str) -> list[Entry]:
    by_number = {entry.id.rpartition("/")[2]: entry for entry in _named(entries, group)}
    found = []
    for part in numbers.split(","):
        match = RANGE.fullmatch(part.strip())
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise ProblemError(f"{part.strip()!r} in {group}[{numbers}] is not a number or range; write 7 or 10-20")
        first, last = int(match[1]), int(match[2] or match[1])
        here = [
            by_number[str(number)] for number in range(first, min(last, first + 10**5) + 1) if str(number) in by_number
        ]
        if not here:
            raise ProblemError(f"{group} has no problem {part.strip()}; it has {_span(by_number)}")
        found += here
    return found


def _span(by_number: dict[str, Entry]) -> str:
    numbers = sorted(int(number) for number in by_number if number.isdigit())
    return f"numbers {numbers[0]} to {numbers[-1]}" if numbers else "no numbers"


SEPARATOR = "::"
TASKS: dict[Format, tuple[str, Callable[[Path, str], Iterator[Entry]]]] = {
    "robust-kbench": (robust.SOURCE, robust.read_task),
    "kernelbot": (kernelbot.TASK, kernelbot.read_task),
}
"""Formats of a folder a task: a file that marks such a folder, and the reader of one."""
HOMES: dict[str, tuple[str, ...]] = {
    "kernelbench": ("KernelBench", "kernelbench"),
    "robust-kbench": ("robust-kbench/tasks", "robust-kbench", "robust_kbench"),
    "flashinfer": ("flashinfer-trace", "flashinfer_trace"),
    "sol-execbench": ("SOL-ExecBench", "sol-execbench"),
    "kernelbot": ("reference-kernels/problems", "reference-kernels"),
}
"""By format, the folders that a collection is looked for in, from the current one."""
FORMS = "a tree of level1/1_Name.py, a .jsonl or .parquet of KernelBench, definition.json, func_forward.py or task.yml"


def format_of(path: Path) -> Format | None:
    """Return the format of a file or folder; None for any other."""
    if os.path.isfile(path):  # noqa: PTH113 - False for a path that is too long, where Path.is_file raises
        if path.suffix in kernelbench.ROW_SUFFIXES:
            return "kernelbench"
        return "flashinfer" if path.suffix == ".json" and flashinfer.is_definition(path) else None
    if not os.path.isdir(path):  # noqa: PTH112
        return None
    tests: tuple[tuple[Format, Callable[[Path], object]], ...] = (
        ("kernelbench", kernelbench.level_folders),
        ("flashinfer", flashinfer.definition_files),
        *((name, partial(task_folders, file=file)) for name, (file, _) in TASKS.items()),
    )
    return next((name for name, test in tests if test(path)), None)


def read_collection(path: Path) -> Collection:
    """Return every problem of a collection. `ProblemError` where the path holds none that can be read."""
    kind = format_of(path)
    if kind is None:
        what = "holds no collection of problems" if path.exists() else "does not exist"
        raise ProblemError(f"{path} {what}; give the place of {FORMS}")
    if kind == "kernelbench":
        return kernelbench.read_rows(path) if path.is_file() else kernelbench.read_tree(path)
    return read_tasks(kind, path, *TASKS[kind]) if kind in TASKS else flashinfer.read_definitions(path)


def find_collection(name: str) -> Path:
    """Find a collection: a path, or a format's name, by an environment variable or in a folder of its name.

    The variable is `KERNELWRIGHT_` and the name in capitals, such as `KERNELWRIGHT_KERNELBENCH`.
    """
    if name not in HOMES:
        if Path(name).exists():
            return Path(name)
        raise ProblemError(f"no collection {name!r}; give a path, or one of: {', '.join(HOMES)}")
    variable = "KERNELWRIGHT_" + name.upper().replace("-", "_")
    places = [os.environ[variable]] if os.environ.get(variable) else list(HOMES[name])
    for place in places:
        if format_of(Path(place)):
            return Path(place)
    raise ProblemError(
        f"{name} is not at {' or '.join(places)}; set {variable} to the folder or file that holds its problems"
    )


def addresses(suite: str) -> tuple[str, ...]:
    """Return the addresses of a selection `COLLECTION:SELECTION`, such as `kernelbench:level1[3,7,10-20]`.

    Raises `ProblemError`, also where a chosen problem cannot be judged.
    """
    path, chosen = _chosen(suite)
    for entry in chosen:
        if entry.problem is None and len(chosen) == 1:
            raise ProblemError(f"{entry.id} of {path} is {entry.status}: {entry.why}")
    return tuple(f"{path}{SEPARATOR}{entry.id}" for entry in chosen if entry.problem is not None)


def left_out(suite: str) -> dict[str, Entry]:
    """By address, the entries of the same selection that `addresses` leaves out, with their `status` and `why`."""
    path, chosen = _chosen(suite)
    return {f"{path}{SEPARATOR}{entry.id}": entry for entry in chosen if entry.problem is None}


def _chosen(suite: str) -> tuple[Path, list[Entry]]:
    place, _, selection = suite.rpartition(":") if ":" in suite else (suite, "", "")
    path = find_collection(place)
    return path, select(_reading(path, _changed(path)).entries, selection)


def load_address(address: str) -> Problem:
    """Return the problem at `PATH::ID`; `ProblemError` with the reason where it cannot be judged."""
    place, _, wanted = address.rpartition(SEPARATOR)
    path = Path(place)
    entries = _reading(path, _changed(path)).entries
    found = [entry for entry in entries if wanted in (entry.id, entry.problem.name if entry.problem else None)]
    if not found:
        some = ", ".join(entry.id for entry in entries[:5]) + (", ..." if len(entries) > 5 else "")
        raise ProblemError(f"{path} has no problem {wanted!r}; there are: {some or 'none'}")
    if found[0].problem is None:
        raise ProblemError(f"{wanted} of {path} is {found[0].status}: {found[0].why}")
    return found[0].problem


def load_only(path: Path) -> Problem:
    """Return the problem of a collection of one; `ProblemError` that names the addresses where it has more."""
    entries = read_collection(path).entries
    if len(entries) == 1:
        return load_address(f"{path}{SEPARATOR}{entries[0].id}")
    some = ", ".join(f"{path}{SEPARATOR}{entry.id}" for entry in entries[:3])
    raise ProblemError(f"{path} holds {len(entries)} problems; name one of them, such as {some}")


@lru_cache(maxsize=8)
def _reading(path: Path, changed: float) -> Collection:
    return read_collection(path)


def _changed(path: Path) -> float:
    """Return the last change of a file or folder of a collection, so that an unchanged one is not read again."""
    if not path.is_dir():
        return path.stat().st_mtime if path.exists() else 0.0
    return max((file.stat().st_mtime for file in path.rglob("*")), default=0.0)
