"""Problems that the results are for, by a rule from before any of them was looked at: `results/selection.toml`."""

import gzip
import hashlib
import json
import shlex
import sqlite3
import tomllib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from bench.results.asking import ask, without_open
from bench.results.records import (
    RECORDS,
    Index,
    Searched,
    records_in,
    searched,
    write_compressed,
    write_index,
    write_lines,
)
from kernelwright.agent.log.store import DATABASE, HEADER
from kernelwright.agent.providers.files import ANSWER, TASKS
from kernelwright.problems import ProblemError
from kernelwright.problems.formats.kernelbench import level_folders, origin_of
from kernelwright.problems.problem import Record, first_fault

FILE = "selection.toml"
HEADER_KEYS = {
    "--target": "search.target", "--provider": "provider.kind", "--strategy": "search.strategy",
    "--attempts": "search.attempts", "--compile": "judging.compiled",
}  # fmt: skip
"""Key of a run's header for an option of `kernelwright run`; for torch.compile its only mode."""


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
    at_the_wall: dict[str, tuple[str, ...]] = Field(default={})
    """By dtype, problems whose fastest baseline took at most as long as a copy of the bytes, within 3 %."""

    def asked(self, dtype: str) -> list[str]:
        """Return the addresses of those that are judged in this dtype."""
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
            elif option in HEADER_KEYS:
                found[HEADER_KEYS[option]] = int(value) if value.isdecimal() else value
            else:
                raise ProblemError(f"{FILE} has {option} {value}, which no run can be held against; leave it out")
        return found

    @property
    def dtypes(self) -> list[str]:
        """All dtypes, in the order in which they come."""
        return list(dict.fromkeys(dtype for chosen in self.problems.values() for dtype in chosen.dtypes))


def read_selection(folder: Path) -> Selection:
    """Read the selection of a folder of results. Raises `ProblemError`."""
    path = folder / FILE
    try:
        return Selection.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ProblemError(f"cannot read {path} ({error.strerror}); give the folder that holds {FILE}") from None
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        why = first_fault(error).key if isinstance(error, ValidationError) else error
        raise ProblemError(f"{path} cannot be read ({why}); restore it from the repository") from None


def files_of(tree: Path) -> Iterable[Path]:
    """Return the files of all levels of a checkout."""
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
    """Return the `kernelwright run` of each dtype, over a tree that holds the chosen problems alone."""
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


def keep(folder: Path, runs: Sequence[Path], replace: bool = False) -> Index:
    """Take runs over, whole or as far as they have come. Raises `ProblemError`, and then nothing is changed.

    What was kept of the same run is replaced; what another run came to for the same problem only with `replace`.
    """
    selection = read_selection(folder)
    fresh = [one for run in runs for one in searched(run)]
    _check(selection, fresh)
    new = {(one.address, one.dtype): one.run for one in fresh}
    kept = records_in(folder)
    others = [one for one in kept if new.get((one.address, one.dtype), one.run) != one.run]
    if others and not replace:
        reported = ", ".join(f"{one.address} in {one.dtype}" for one in others)
        raise ProblemError(f"another run was kept of {reported}; say --replace if this one is to take its place")
    found = [one for one in kept if (one.address, one.dtype) not in new] + fresh
    _check_entrants(found)
    found.sort(key=lambda one: one.place)
    write_lines(folder / RECORDS, found)
    return write_index(folder)


def _check(selection: Selection, found: Sequence[Searched]) -> None:
    """Nothing may be in the results that was not chosen beforehand, and nothing twice."""
    seen: set[tuple[str, str]] = set()
    for one in found:
        if one.address not in selection.problems or one.dtype not in selection.problems[one.address].dtypes:
            raise ProblemError(
                f"run {one.run} asks {one.address} in {one.dtype}, which was not chosen beforehand; leave that run out"
            )
        if one.source_sha256 != selection.problems[one.address].sha256:
            raise ProblemError(f"run {one.run} asks another {one.address} than was chosen; leave that run out")
        _check_settings(selection, one)
        if (one.address, one.dtype) in seen:
            raise ProblemError(f"two of the runs ask {one.address} in {one.dtype}; give one of them")
        seen.add((one.address, one.dtype))


def _check_settings(selection: Selection, one: Searched) -> None:
    """A run is made as the selection says, with nothing of the prompts and none of the judge's defences left out."""
    config = one.header["config"]
    config = config | {"judging": config["judging"] | {"compiled": " ".join(config["judging"]["compiled"])}}
    asked = {"judging.compiled": "", "judging.without": [], "judging.jail_without": [], "search.without": []}
    for place, wanted in (asked | selection.settings).items():
        group, _, key = place.partition(".")
        had = config[group].get(key)
        if had != wanted:
            raise ProblemError(f"run {one.run} has {place} {had!r}, where {FILE} says {wanted!r}; leave that run out")
    if config["judging"]["jail"] == "off":
        raise ProblemError(f"run {one.run} was judged without a jail; leave that run out")


def _check_entrants(found: Sequence[Searched]) -> None:
    """A table is of one model, asked in one way, on one kind of device."""
    for dtype in {one.dtype for one in found}:
        said = {_entrant(one) for one in found if one.dtype == dtype}
        if len(said) > 1:
            reported = "; ".join(", ".join(each) for each in sorted(said))
            raise ProblemError(f"the runs in {dtype} differ ({reported}); keep those of one model and device")


def _entrant(one: Searched) -> tuple[str, ...]:
    search = one.header["config"]["search"]
    torch = one.header["versions"].get("torch", "unknown")
    return search["model"], search["strategy"], search["target"], one.header["device"], f"torch {torch}"


NUMBERS = "application_id", "user_version"
SCHEMA = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY rowid"


def pack(run: Path, tree: Path, selection: Selection, out: Path) -> int:
    """Write the run's folder as one file, the same bytes for the same run; return their number.

    Raises `ProblemError` for a folder without a run, or another checkout.
    """
    marks = _marks(chosen_texts(selection, tree))
    try:
        with closing(sqlite3.connect(f"{(run / DATABASE).resolve().as_uri()}?mode=ro", uri=True)) as log:
            numbers = {name: log.execute(f"PRAGMA {name}").fetchone()[0] for name in NUMBERS}
            schema = [statement for (statement,) in log.execute(SCHEMA)]
            events = log.execute(
                "SELECT seq, time, kind, problem, attempt, payload FROM events ORDER BY seq"
            ).fetchall()
            blobs = dict(log.execute("SELECT sha256, bytes FROM blobs ORDER BY sha256").fetchall())
    except sqlite3.Error as error:
        raise ProblemError(f"{run} holds no log of a run that can be read ({error})") from None
    texts = {digest: _replaced(raw.decode(), marks) for digest, raw in blobs.items()}
    _restored(texts, marks, run)
    parcel = {
        "header": (run / HEADER).read_text(encoding="utf-8"),
        "numbers": numbers,
        "schema": schema,
        "events": events,
        "blobs": texts,
        "answers": {path.name: path.read_text(encoding="utf-8") for path in sorted((run / TASKS).glob(f"*{ANSWER}"))},
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write_compressed(out, json.dumps(parcel, ensure_ascii=False, indent=0))
    return out.stat().st_size


def unpack(parcel: Path, tree: Path, selection: Selection, run: Path, anew: bool = False) -> int:
    """Write the run's folder again and return its number of answers. `kernelwright resume` writes its tasks.

    `anew`: what nobody has answered is asked anew by the present prompts. Raises `ProblemError` where the folder is not
    empty, or a text has another digest.
    """
    if run.exists() and any(run.iterdir()):
        raise ProblemError(f"{run} is not empty; choose another folder")
    try:
        found: dict[str, Any] = json.loads(gzip.decompress(parcel.read_bytes()))
        if not {"header", "numbers", "schema", "events", "blobs", "answers"} <= found.keys():
            raise ValueError("parts of it are missing")
    except (OSError, EOFError, ValueError, AttributeError, zlib.error) as error:
        raise ProblemError(f"{parcel} is not a parcel of a run ({error})") from None
    blobs = _restored(found["blobs"], _marks(chosen_texts(selection, tree)), parcel)
    strange = [name for name in found["answers"] if Path(name).name != name]
    if strange:
        raise ProblemError(f"{parcel} would write outside of the run's folder ({strange[0]}); it is not one of ours")
    (run / TASKS).mkdir(parents=True)
    (run / HEADER).write_text(found["header"], encoding="utf-8")
    for name, text in found["answers"].items():
        (run / TASKS / name).write_text(text, encoding="utf-8")
    with closing(sqlite3.connect(run / DATABASE)) as log, log:
        log.execute("PRAGMA journal_mode = WAL")
        for name in NUMBERS:
            log.execute(f"PRAGMA {name} = {int(found['numbers'][name])}")
        for statement in found["schema"]:
            log.execute(statement)
        events = without_open(found["events"], found["answers"]) if anew else found["events"]
        log.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", events)
        log.executemany("INSERT INTO blobs VALUES (?, ?)", blobs.items())
    if anew:
        ask(run)
    return len(found["answers"])


def _restored(texts: Mapping[str, str], marks: Mapping[str, str], where: Path) -> dict[str, bytes]:
    """Put the benchmark's texts back, and check the digest of each."""
    back = {mark: text for text, mark in marks.items()}
    found = {digest: _replaced(text, back).encode() for digest, text in texts.items()}
    for digest, raw in found.items():
        if hashlib.sha256(raw).hexdigest() != digest:
            raise ProblemError(f"a text of {where} does not come to its digest {digest[:8]}; give the same checkout")
    return found


def _marks(texts: Mapping[str, str]) -> dict[str, str]:
    """Return a mark for each text of the benchmark, as it is and as JSON writes it; the longest text first."""
    marks = {}
    for address, text in texts.items():
        marks[text] = f"\0{address}\0"
        marks[json.dumps(text, ensure_ascii=False)[1:-1]] = f"\0json {address}\0"
    return dict(sorted(marks.items(), key=lambda pair: -len(pair[0])))


def _replaced(text: str, marks: Mapping[str, str]) -> str:
    for old, new in marks.items():
        text = text.replace(old, new)
    return text
