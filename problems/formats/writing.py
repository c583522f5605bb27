"""Writing a problem as a folder of ours, and a collection as a tree of such folders."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kernelwright.problems.formats.reading import Entry, safe_name
from kernelwright.problems.record.problem import Problem, Tolerance

INDEX = "import.json"


def write_problem(folder: Path, problem: Problem) -> None:
    """Write `problem.toml` and `reference.py`: what `load_problem` reads as this problem, under the folder's name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reference.py").write_text(problem.source, encoding="utf-8")
    (folder / "problem.toml").write_text(manifest_text(problem), encoding="utf-8")


def manifest_text(problem: Problem) -> str:
    """The manifest of a problem whose source has its sizes put in."""
    record = problem.model_dump(mode="json", exclude={"name", "size", "source"}, exclude_none=True)
    plain = Problem(name="", title="", family="", size="", source="").model_dump(mode="json", exclude_none=True)
    kept = {key: value for key, value in record.items() if value != plain.get(key)}
    tables = {key: kept.pop(key) for key in ("tolerance", "values", "origin") if key in kept}
    if "tolerance" in tables:
        ours = Tolerance().model_dump(mode="json")
        tables["tolerance"] = {key: value for key, value in tables["tolerance"].items() if value != ours.get(key)}
    lines = [f"{key} = {_toml(value)}" for key, value in kept.items()]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join([*lines, "", "[sizes.cpu]", "", "[sizes.gpu]"]) + "\n"


def _toml(value: Any) -> str:
    """A JSON value in TOML; None, which TOML has not, is left out of tables."""
    if isinstance(value, dict):
        items = (f"{_toml(str(key))} = {_toml(item)}" for key, item in value.items() if item is not None)
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value if item is not None) + "]"
    # What JSON escapes, TOML escapes alike; DEL is the one control character that JSON leaves.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_collection(folder: Path, entries: Iterable[Entry]) -> dict[str, str]:
    """Write every problem of a collection; by id, the name of its folder within.

    A problem of KernelBench goes to `level1/3_Name`, so that its candidates are found by level and number.
    `import.json` holds every entry with its notes, also those that can not be judged and why.
    """
    places: dict[str, str] = {}
    index = []
    for entry in entries:
        if entry.problem is not None:
            places[entry.id] = place_of(entry)
            write_problem(folder / places[entry.id], entry.problem)
        index.append(entry.model_dump(mode="json", exclude={"problem"}) | {"folder": places.get(entry.id)})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return places


def place_of(entry: Entry) -> str:
    """Where a problem of a collection is put."""
    assert entry.problem is not None and entry.problem.origin is not None
    if entry.problem.origin.format == "kernelbench":
        return f"{entry.id.partition('/')[0]}/{safe_name(entry.problem.origin.title.removesuffix('.py'))}"
    return entry.problem.name
