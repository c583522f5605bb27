"""What reading a foreign collection gives: one entry a problem, with the problem or the reason why there is none."""

import ast
from collections.abc import Callable
from typing import Literal, NamedTuple

from kernelwright.problems.record.base import Record
from kernelwright.problems.record.problem import Format, Origin, Problem, ProblemError
from kernelwright.problems.record.reference import check_reference, title_of
from kernelwright.problems.texts.constructing import gives_keywords, in_order, keyword_only
from kernelwright.problems.texts.devices import without_cuda
from kernelwright.problems.texts.memory import input_bytes


class Unsupported(Exception):
    """A sound problem that asks for what the judge can not do; the message is a clause that says what."""


class Entry(Record):
    """One problem of a collection."""

    id: str
    """As its collection names it: `level1/3`, `DEFINITION/WORKLOAD`."""
    problem: Problem | None = None
    """None where it can not be judged; then `status` and `why` say so."""
    status: Literal["read", "unsupported", "broken"] = "read"
    """`unsupported`: sound, but more than the judge can do. `broken`: not what its format asks for."""
    why: str = ""
    notes: tuple[str, ...] = ()
    """Fields that were found and are not known, or known and not used."""
    input_bytes: int = 0
    """What the inputs need at least, as far as the text tells."""


class Collection(NamedTuple):
    """A whole collection."""

    format: Format
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()
    """What was found beside the problems and is not read."""


class ForeignReference(NamedTuple):
    """A reference in the KernelBench convention before it is looked at, with what its collection says of it."""

    origin: Origin
    name: str
    family: str
    source: str
    title: str = ""
    size: str = "file"


def entry_of(origin: Origin, make: Callable[[], Entry]) -> Entry:
    """What `make` gives; where it raises, the entry that says why."""
    try:
        return make()
    except Unsupported as error:
        return Entry(id=origin.id, status="unsupported", why=str(error))
    except ProblemError as error:
        return Entry(id=origin.id, status="broken", why=str(error))


def read_reference(given: ForeignReference, notes: tuple[str, ...] = ()) -> Entry:
    """The entry for a reference, put into our convention. Raises `ProblemError` and `Unsupported`."""
    tree = check_reference(given.source, given.origin.id)
    source = into_convention(given.source, tree)
    title = given.title or title_of(tree) or given.origin.title or given.name
    problem = Problem(
        name=given.name, title=title, family=given.family, size=given.size, source=source, origin=given.origin
    )
    return Entry(id=given.origin.id, problem=problem, notes=notes, input_bytes=input_bytes(source))


def into_convention(source: str, tree: ast.Module) -> str:
    """A reference that keeps its own text, with inputs drawn on the processor and constructor arguments in order."""
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
