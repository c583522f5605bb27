"""KernelBench: a tree of `level{N}/{id}_{Name}.py`, or its data set as rows of JSONL or parquet."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from kernelwright.problems.formats.reading import (
    Collection,
    Entry,
    entry_of,
    entry_with,
    into_convention,
    json_lines,
    safe_name,
)
from kernelwright.problems.problem import Origin, ProblemError, library
from kernelwright.problems.source import check_reference, read_json, read_text, title_of

LEVEL = re.compile(r"level_?(\d+)")
FILE = re.compile(r"(\d+)_(.*)")
COLUMNS = ("code", "level", "name", "problem_id")
ROW_SUFFIXES = (".jsonl", ".parquet")


def origin_of(path: Path) -> Origin | None:
    """Return the place in KernelBench that the path of a file names; None for a file that lies elsewhere."""
    level, file = LEVEL.fullmatch(path.parent.name), FILE.fullmatch(path.stem)
    if not level or not file or path.suffix != ".py":
        return None
    return Origin(format="kernelbench", id=f"level{int(level[1])}/{int(file[1])}", title=path.name)


def level_folders(root: Path) -> list[Path]:
    """Return the folders of levels in `root` or in its folder KernelBench, or `root` itself if it is one."""
    if LEVEL.fullmatch(root.name) and root.is_dir():
        return [root]
    for place in (root, root / "KernelBench"):
        if place.is_dir():
            folders = ((LEVEL.fullmatch(path.name), path) for path in place.iterdir() if path.is_dir())
            if found := [(int(match[1]), path) for match, path in folders if match]:
                return [path for _, path in sorted(found)]
    return []


def read_tree(root: Path) -> Collection:
    entries: list[Entry] = []
    strangers: list[str] = []
    for level in level_folders(root):
        files = [path for path in level.glob("*.py") if path.stem != "__init__"]
        strangers += [str(path) for path in sorted(files) if origin_of(path) is None]
        numbered = [(int(path.stem.partition("_")[0]), path, origin) for path in files if (origin := origin_of(path))]
        for _, path, origin in sorted(numbered, key=lambda one: one[:2]):
            entries.append(entry_of(origin, partial(_file_entry, origin, path)))
    notes = tuple(f"{path} has no number, so it is not a problem of a level" for path in strangers)
    return Collection("kernelbench", tuple(_numbered_once(entries)), notes)


def _file_entry(origin: Origin, path: Path) -> Entry:
    return _entry(origin, path.stem, read_text(path))


def read_rows(path: Path) -> Collection:
    """Return every problem of a data set file: `.jsonl`, or `.parquet` with the extra `data`."""
    rows = list(_parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path))
    entries = [_row_entry(f"{path}, row {number}", row) for number, row in enumerate(rows, 1)]
    return Collection("kernelbench", tuple(_numbered_once(entries)))


def _row_entry(where: str, row: object) -> Entry:
    if not isinstance(row, dict):
        return Entry(id=where, status="broken", why="the line is not a JSON object; give one object a line")
    missing = [column for column in COLUMNS if row.get(column) is None]
    if missing:
        return Entry(
            id=where, status="broken", why=f"the row has no {', '.join(missing)}; it needs {', '.join(COLUMNS)}"
        )
    try:
        level, number = int(str(row["level"]).removeprefix("level").lstrip("_")), int(row["problem_id"])
    except ValueError:
        return Entry(id=where, status="broken", why=f"level {row['level']!r} or problem_id is not a number")
    name = str(row["name"])
    title = name if name.endswith(".py") else f"{name}.py"
    stem = name.removesuffix(".py") if FILE.fullmatch(name.removesuffix(".py")) else f"{number}_{name}"
    origin = Origin(format="kernelbench", id=f"level{level}/{number}", title=title)
    unknown = tuple(f"column {column!r} is not known and was left" for column in row if column not in COLUMNS)
    return entry_of(origin, lambda: _entry(origin, stem, str(row["code"]), unknown))


def _entry(origin: Origin, stem: str, source: str, notes: tuple[str, ...] = ()) -> Entry:
    level = origin.id.partition("/")[0]
    tree = check_reference(source, origin.id)
    source = into_convention(source, tree)
    title = title_of(tree) or origin.title
    return entry_with(origin, source, notes, name=f"{level}_{safe_name(stem)}", title=title, family=level)


def _numbered_once(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield the same entries; the second one of the same number becomes broken."""
    seen: set[str] = set()
    for entry in entries:
        if entry.id in seen:
            yield Entry(id=entry.id, status="broken", why="another problem has the same level and number; renumber one")
        else:
            yield entry
        seen.add(entry.id)


def _json_rows(path: Path) -> Iterator[object]:
    for line in json_lines(read_text(path)):
        if line.strip():
            try:
                yield read_json(line, "a line")
            except ProblemError:
                yield line


def _parquet_rows(path: Path) -> Iterator[Any]:
    parquet = library("pyarrow.parquet", f"reading {path}")
    read: Callable[[Path], Any] = parquet.read_table
    try:
        return iter(read(path).to_pylist())
    except (OSError, ValueError) as error:
        raise ProblemError(f"cannot read {path} as parquet ({error}); check the file") from None
