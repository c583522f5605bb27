"""One line a problem of a collection: can it be judged, and does it tell right from lazy?"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal

from problems import Problem, ProblemError
from problems.formats import Entry
from sandbox.errors import BrokenProblem, UnsupportedProblem
from sandbox.settings import Settings
from sandbox.verdict import Record

COPIES = 3
"""Of the inputs that are held at once at least: as drawn, in float64 (twice the size)."""
Examine = Callable[[Problem, Settings], tuple[str, Sequence[str]]]
"""Runs a problem in the jail: `ok` or `weak`, and why or what else is to be said."""


class Checked(Record):
    """The line of one problem."""

    id: str
    status: Literal["ok", "weak", "unsupported", "broken"]
    why: tuple[str, ...] = ()


def check_entry(examine: Examine, settings: Settings, entry: Entry) -> Checked:
    """The line of an entry. What can be told from its text is told without running it. Raises `MachineError`."""
    if entry.problem is None:
        status: Literal["unsupported", "broken"] = "broken" if entry.status == "broken" else "unsupported"
        return Checked(id=entry.id, status=status, why=(entry.why,))
    if refusal := too_large(entry, settings.memory_bytes):
        return Checked(id=entry.id, status="unsupported", why=(refusal,))
    try:
        found, why = examine(entry.problem, settings)
    except UnsupportedProblem as error:
        return Checked(id=entry.id, status="unsupported", why=(str(error),))
    except (BrokenProblem, ProblemError) as error:
        return Checked(id=entry.id, status="broken", why=(str(error),))
    return Checked(id=entry.id, status="ok" if found == "ok" else "weak", why=(*why, *entry.notes))


def too_large(entry: Entry, memory_bytes: int) -> str | None:
    """The sentence for inputs that can not fit into a child's memory; None where they may."""
    if COPIES * entry.input_bytes <= memory_bytes:
        return None
    need, limit = COPIES * entry.input_bytes / 2**30, memory_bytes / 2**30
    return (
        f"its inputs alone take {entry.input_bytes / 2**30:.1f} GiB and {need:.1f} GiB with their float64 copy; "
        f"a child has {limit:.1f} GiB, so make the problem smaller or give children more memory"
    )


def check_entries(
    entries: Sequence[Entry], examine: Examine, settings: Settings, side_by_side: int
) -> Iterator[Checked]:
    """The lines of all entries, in order, several being examined at once."""
    with ThreadPoolExecutor(side_by_side) as pool:
        yield from pool.map(partial(check_entry, examine, settings), entries)
