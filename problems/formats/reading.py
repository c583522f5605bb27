"""Entries of a foreign collection, each with its problem or a reason; and writing them as our own problems."""

import ast
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, ValidationError, computed_field

from kernelwright.problems.arithmetic import input_bytes
from kernelwright.problems.problem import Format, Origin, Problem, ProblemError, Record, Tolerance, first_fault
from kernelwright.problems.source import read_json, read_text
from kernelwright.problems.source_rewriting import gives_keywords, in_order, keyword_only, without_cuda


def json_lines(text: str) -> list[str]:
    """Return the lines of a text whose newlines are `\\n`, empty ones too, so that they can be counted."""
    return text.removesuffix("\n").split("\n") if text else []


class Foreign(BaseModel):
    """A record of theirs: frozen, and open for fields that we do not know."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a JSON file. Raises `ProblemError`."""
        try:
            return cls.model_validate(read_json(read_text(path), str(path)))
        except ValidationError as error:
            raise ProblemError(f"{path}: {fault_of(error)}") from None

    def unknown(self, where: str = "") -> list[str]:
        """Return the names of the fields that are not known, also in the records within."""
        found = [f"{where}{name}" for name in self.model_extra or ()]
        for name in type(self).model_fields:
            value = getattr(self, name)
            for key, item in value.items() if isinstance(value, dict) else [("", value)]:
                if isinstance(item, Foreign):
                    found += item.unknown(f"{where}{name}.{key}." if key else f"{where}{name}.")
        return found

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_unset=True)


def fault_of(error: ValidationError) -> str:
    """Describe the first of pydantic's faults: its path, and the expected value."""
    key, said = first_fault(error)
    return f"{key or 'the record'}: {said[0].lower()}{said[1:]}; correct it"


def first_line(text: str) -> str:
    """Return the first line of a text, as it can be put into a docstring; empty for a blank text."""
    return text.strip().splitlines()[0].replace("\\", "/").replace('"', "'") if text.strip() else ""


class Unsupported(Exception):
    """A sound problem that needs more than the judge can do; the message is a clause that names it."""


class Entry(Record):
    id: str
    """As its collection names it: `level1/3`, `DEFINITION/WORKLOAD`."""
    problem: Problem | None = None
    """None where it cannot be judged; see `status` and `why`."""
    status: Literal["read", "unsupported", "broken"] = "read"
    """`unsupported`: sound, but more than the judge can do. `broken`: not in its format."""
    why: str = ""
    notes: tuple[str, ...] = ()
    """Fields that were found and are not known, or known and not used."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def input_bytes(self) -> int:
        """A lower bound of the inputs' memory, from the text."""
        return input_bytes(self.problem.source) if self.problem else 0


class Collection(NamedTuple):
    format: Format
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()
    """Files that are not read."""


def task_folders(root: Path, file: str) -> list[Path]:
    """Return the folders at or below `root` that hold a file of that name."""
    return sorted(path.parent for path in root.rglob(file))


def read_tasks(kind: Format, root: Path, file: str, read: Callable[[Path, str], Iterator[Entry]]) -> Collection:
    """Return the entries of every task folder; `read` makes them of a folder and its name below `root`."""
    entries: list[Entry] = []
    for folder in task_folders(root, file):
        name = folder.relative_to(root).as_posix() if folder != root else folder.name
        try:
            entries += read(folder, name)
        except ProblemError as error:
            entries.append(Entry(id=name, status="broken", why=str(error)))
    return Collection(kind, tuple(entries))


def entry_with(origin: Origin, source: str, notes: tuple[str, ...] = (), **more: Any) -> Entry:
    """Return an entry with its problem: `more` are further fields of `Problem`, its name among them."""
    name = safe_name(more.pop("name"))
    problem = Problem(name=name, size="file", source=source, origin=origin, **more)
    return Entry(id=origin.id, problem=problem, notes=notes)


def entry_of(origin: Origin, make: Callable[[], Entry]) -> Entry:
    """Return the result of `make`; where it raises, an entry with the reason."""
    try:
        return make()
    except Unsupported as error:
        return Entry(id=origin.id, status="unsupported", why=str(error))
    except ProblemError as error:
        return Entry(id=origin.id, status="broken", why=str(error))


def into_convention(source: str, tree: ast.Module) -> str:
    """Return the reference with inputs drawn on the processor and constructor arguments in order."""
    required = [name for name, must in keyword_only(tree).items() if must]
    if required:
        if gives_keywords(tree):
            return without_cuda(source)
        raise Unsupported(
            f"Model takes {', '.join(required)} by keyword only; let get_init_inputs return a dict with nothing else"
        )
    return in_order(without_cuda(source), tree)


def safe_name(text: str) -> str:
    """`text` as the name of a file or folder: other characters than letters, digits, `.`, `_` and `-` become `_`."""
    kept = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in text)
    return kept.strip(".") or "_"


INDEX = "import.json"


def write_problem(folder: Path, problem: Problem) -> None:
    """Write `problem.toml` and `reference.py`: what `load_problem` reads as this problem, under the folder's name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reference.py").write_text(problem.source, encoding="utf-8")
    (folder / "problem.toml").write_text(manifest_text(problem), encoding="utf-8")


def manifest_text(problem: Problem) -> str:
    """Return the manifest of a problem whose source has its sizes put in."""
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
    """Return a JSON value in TOML. None, which TOML lacks, is left out of tables."""
    if isinstance(value, dict):
        items = (f"{_toml(str(key))} = {_toml(item)}" for key, item in value.items() if item is not None)
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value if item is not None) + "]"
    # What JSON escapes, TOML escapes alike; DEL is the one control character that JSON leaves.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_collection(folder: Path, entries: Iterable[Entry]) -> dict[str, str]:
    """Write every problem of a collection. Return the name of each one's folder, by its id.

    A problem of KernelBench goes to `level1/3_Name`, so that its candidates are found by level and number.
    `import.json` holds every entry with its notes, also those that cannot be judged and why.
    """
    places: dict[str, str] = {}
    index = []
    for entry in entries:
        if entry.problem is not None:
            origin, place = entry.problem.origin, entry.problem.name
            if origin is not None and origin.format == "kernelbench":
                place = f"{entry.id.partition('/')[0]}/{safe_name(origin.title.removesuffix('.py'))}"
            places[entry.id] = place
            write_problem(folder / place, entry.problem)
        index.append(entry.model_dump(mode="json", exclude={"problem"}) | {"folder": places.get(entry.id)})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return places
