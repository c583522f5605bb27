"""Which problems the results are for, fixed before any of them was looked at: `results/selection.toml`."""

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
ENDS_IN = "5"
DTYPES = {"level1": ("float32", "bfloat16"), "level2": ("float32", "bfloat16"), "level3": ("float32",)}
"""By level, what its problems are judged in; `float32` is as they come, without a cast."""


class Chosen(Record):
    """One problem of the benchmark, by its file."""

    file: str
    sha256: str
    dtypes: tuple[str, ...]


class Selection(Record):
    """What is asked, and how."""

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
        """What the options come to in a run's header, by the place there, such as `search.attempts`."""
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


def fits(address: str) -> bool:
    """The rule: levels 1 to 3, every problem whose number ends in 5."""
    return address.partition("/")[0] in DTYPES and address.endswith(ENDS_IN)


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


def chosen_of(tree: Path) -> dict[str, Chosen]:
    """What the rule chooses from a checkout, by address."""
    found: dict[str, Chosen] = {}
    for path in files_of(tree):
        origin = origin_of(path)
        if origin is not None and fits(origin.id):
            dtypes = DTYPES[origin.id.partition("/")[0]]
            found[origin.id] = Chosen(file=path.name, sha256=digest_of(path), dtypes=dtypes)
    if not found:
        raise ProblemError(f"{tree} holds no level of KernelBench; give the folder of a checkout")
    return dict(sorted(found.items(), key=lambda item: _place(item[0])))


def files_of(tree: Path) -> Iterable[Path]:
    """The files of all levels of a checkout."""
    return (path for level in level_folders(tree) for path in sorted(level.glob("*.py")))


def digest_of(path: Path) -> str:
    """sha256 of a file, as 64 hex digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def table(problems: dict[str, Chosen]) -> str:
    """The problems as TOML, a line each."""
    lines = [
        f'"{address}" = {{ file = "{one.file}", sha256 = "{one.sha256}", dtypes = {list(one.dtypes)} }}'.replace(
            "'", '"'
        )
        for address, one in problems.items()
    ]
    return "\n".join(["[problems]", *lines, ""])


def write_table(folder: Path, tree: Path) -> int:
    """Put what the rule chooses from a checkout into the selection's file, below its settings; how many there are."""
    path, problems = folder / FILE, chosen_of(tree)
    settings = path.read_text(encoding="utf-8").partition("[problems]")[0]
    path.write_text(settings + table(problems), encoding="utf-8")
    return len(problems)


def chosen_files(selection: Selection, tree: Path) -> dict[str, Path]:
    """Where each chosen problem lies in a checkout, by address. Raises `ProblemError` where one is another."""
    there = {origin.id: path for path in files_of(tree) if (origin := origin_of(path))}
    for address, chosen in selection.problems.items():
        path = there.get(address)
        if path is None or digest_of(path) != chosen.sha256:
            what = "has no" if path is None else "has another"
            raise ProblemError(f"{tree} {what} {address}; check out commit {selection.commit} of {selection.source}")
    return {address: there[address] for address in selection.problems}


def chosen_texts(selection: Selection, tree: Path) -> dict[str, str]:
    """What each chosen file says, by address. Raises `ProblemError`."""
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


def _place(address: str) -> tuple[str, int]:
    level, _, number = address.partition("/")
    return level, int(number)
