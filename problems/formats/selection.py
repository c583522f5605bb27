"""Choosing from a collection: `level1`, `level1[3,7,10-20]`, `gemm*`, several of them with commas between."""

import fnmatch
import re
from collections.abc import Iterable

from kernelwright.problems.formats.reading import Entry
from kernelwright.problems.record.problem import ProblemError

PART = re.compile(r"([^\[\],]+)(?:\[([^\[\]]*)\])?(?:,|$)")
RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def select(entries: Iterable[Entry], selection: str) -> list[Entry]:
    """The entries that a selection names, in its order, each once; all for an empty one.

    A word is an id, a group of ids (what stands before `/`), a name, or a pattern with `*`; numbers in brackets choose
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
        raise ProblemError(f"the selection {selection!r} can not be read; write it like level1[3,7,10-20],level2")
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
            raise ProblemError(f"{part.strip()!r} in {group}[{numbers}] is no number or range; write 7 or 10-20")
        first, last = int(match[1]), int(match[2] or match[1])
        here = [
            by_number[str(number)] for number in range(first, min(last, first + 10**5) + 1) if str(number) in by_number
        ]
        if not here or (first == last and not here):
            raise ProblemError(f"{group} has no problem {part.strip()}; it has {_span(by_number)}")
        found += here
    return found


def _span(by_number: dict[str, Entry]) -> str:
    numbers = sorted(int(number) for number in by_number if number.isdigit())
    return f"numbers {numbers[0]} to {numbers[-1]}" if numbers else "no numbers"
