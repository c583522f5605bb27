"""Problems that the results are for, fixed by a rule before any of them was looked at: `results/selection.toml`."""

import hashlib
import json
import shlex
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelwright.problems import ProblemError
from kernelwright.problems.formats.kernelbench import level_folders, origin_of
from kernelwright.problems.problem import Record, first_fault

FILE = "selection.toml"
PLACES = {
    "--target": "search.target", "--provider": "provider.kind", "--strategy": "search.strategy",
    "--attempts": "search.attempts", "--compile": "judging.compiled",
}  # fmt: skip
"""Where a run's header has what an option of `kernelwright run` says; of modes of torch.compile the only one."""


class Chosen(Record):
    """One problem of the benchmark, by its file."""

    file: str
    sha256: str
    dtypes: tuple[str, ...]


class Selection(Record):
    """Chosen problems, and the options of the runs over them."""

    source: str
    commit: str
    rule: str
    options: tuple[str, ...]
    """Words for `kernelwright run` that are the same for every problem."""
    problems: dict[str, Chosen]
    """By the benchmark's own address, such as `level1/5`."""

    def asked(self, dtype: str) -> list[str]:
        """The addresses of those that are judged in this dtype."""
        return [address for address, chosen in self.problems.items() if dtype in chosen.dtypes]

    @property
    def settings(self) -> dict[str, Any]:
        """Values of the options in a run's header, by the place there, such as `search.attempts`."""
        words = shlex.split(" ".join(self.options))
        found: dict[str, Any] = {}
        for option, value in zip(words[::2], words[1::2], strict=True):
            key, is_set, of = value.partition("=")
            if option == "--set" and is_set:
                found[f"search.{key}"] = json.loads(of)
            elif option in PLACES:
                found[PLACES[option]] = int(value) if value.isdecimal() else value
            else:
                raise ProblemError(f"{FILE} has {option} {value}, which no run can be held against; leave it out")
        return found

    @property
    def dtypes(self) -> list[str]:
        """All dtypes, in the order in which they come."""
        return list(dict.fromkeys(dtype for chosen in self.problems.values() for dtype in chosen.dtypes))


def read_selection(folder: Path) -> Selection:
    """The selection of a folder of results. Raises `ProblemError`."""
    path = folder / FILE
    try:
        return Selection.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ProblemError(f"cannot read {path} ({error.strerror}); give the folder that holds {FILE}") from None
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        why = first_fault(error).key if isinstance(error, ValidationError) else error
        raise ProblemError(f"{path} can not be read ({why}); restore it from the repository") from None


def files_of(tree: Path) -> Iterable[Path]:
    """The files of all levels of a checkout."""
    return (path for level in level_folders(tree) for path in sorted(level.glob("*.py")))


def digest_of(path: Path) -> str:
    """sha256 of a file, as 64 hex digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def chosen_files(selection: Selection, tree: Path) -> dict[str, Path]:
    """Return the path of each chosen problem in a checkout, by address. Raises `ProblemError` where one differs."""
    there = {origin.id: path for path in files_of(tree) if (origin := origin_of(path))}
    for address, chosen in selection.problems.items():
        path = there.get(address)
        if path is None or digest_of(path) != chosen.sha256:
            what = "has no" if path is None else "has another"
            raise ProblemError(f"{tree} {what} {address}; check out commit {selection.commit} of {selection.source}")
    return {address: there[address] for address in selection.problems}


def chosen_texts(selection: Selection, tree: Path) -> dict[str, str]:
    """Return the text of each chosen file, by address. Raises `ProblemError`."""
    return {address: path.read_text(encoding="utf-8") for address, path in chosen_files(selection, tree).items()}


def copy_chosen(selection: Selection, tree: Path, out: Path) -> None:
    """Lay the chosen files, and no others, into `out` as a tree of their own. Raises `ProblemError`."""
    for address, path in chosen_files(selection, tree).items():
        place = out / address.partition("/")[0] / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())


def commands(selection: Selection, tree: Path, out: Path, model: str) -> list[str]:
    """The `kernelwright run` of each dtype, over a tree that holds the chosen problems alone."""
    said = []
    for dtype in selection.dtypes:
        numbers: dict[str, list[str]] = {}
        for address in selection.asked(dtype):
            level, _, number = address.partition("/")
            numbers.setdefault(level, []).append(number)
        chosen = ",".join(f"{level}[{','.join(each)}]" for level, each in numbers.items())
        cast = "" if dtype == "float32" else f" --dtype {dtype}"
        options = " ".join([*selection.options, "--model", shlex.quote(model)])
        said.append(f"kernelwright run --suite '{tree}:{chosen}'{cast} {options} --out {out / dtype}")
    return said
