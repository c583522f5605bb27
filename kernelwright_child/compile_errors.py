"""After a failed compilation: whether the stock header could mend it, and an end to the others of its build.

Compiling again with the stock header costs many times what has failed. It is not needed where the error names something
that the stock header does not so much as mention: more declarations can not mend that. Standard library only; a
compilation that succeeds does not import it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable

ROUNDS = 3
"""A compiler may start another one while it is looked for."""
TYPE_CHECKING = False
if TYPE_CHECKING:
    Table = dict[int, tuple[str, int, str]]
    """Name, parent and start of every process that lives."""
WORD = re.compile(r"[A-Za-z_]\w*")
ERROR = re.compile(r"^(?P<file>[^\s:(][^:(]*)(?::\d+:\d+|\(\d+\)):\s+(?:fatal )?error:?\s*(?P<words>.*)$", re.M)
QUOTE, UNQUOTE = "['\u2018\"]", "['\u2019\"]"
UNKNOWN = re.compile(
    rf"{QUOTE}(?:[\w:]*::)?(?P<one>\w+){UNQUOTE} (?:was not declared|is not a member of|does not name a type)"
    rf"|identifier \"(?:[\w:]*::)?(?P<two>\w+)\" is undefined|has no member (?:named )?{QUOTE}(?P<three>\w+){UNQUOTE}"
)
SYNTAX = re.compile(r"^expected |: No such file or directory$")
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"][^\n]*$", re.M)


def first_error(said: str, source_path: str) -> str | None:
    """The words of the first error, if it lies in the source itself and not in a header."""
    found = ERROR.search(said)
    return found["words"] if found and found["file"] == source_path else None


def is_unmendable(error: str, stock: Callable[[], frozenset[str]]) -> bool:
    """Whether no header could mend it. `stock` tells all words of the text that the stock header brings.

    Where a name is not known, the compiler says so first: a sentence of names that it knows, and that makes no sense,
    is wrong whatever else is declared. A macro could change that; the light header lacks none that the source names.
    """
    if unknown := UNKNOWN.search(error):
        return next(name for name in unknown.groups() if name) not in stock()
    return SYNTAX.search(error) is not None


def includes_of(source: str) -> str:
    return "\n".join([*INCLUDE.findall(source), ""])


def words_of(preprocessed: str) -> frozenset[str]:
    return frozenset(WORD.findall(STRING.sub("", preprocessed)))


def end_siblings() -> None:
    """Kill what else the ninja above this process is running; nothing where there is none above.

    SIGKILL, since ninja takes a job that ends by another signal for the user's wish to interrupt the whole. Of two that
    fail at once, one alone does so: else both could end without a word.
    """
    table = _processes()
    line = [os.getpid()]
    while line[-1] in table and not table[line[-1]][0].startswith("ninja"):
        line.append(table[line[-1]][1])
    ninja = line.pop()
    if ninja not in table:
        return
    try:
        mark = f".failed-{ninja}-{table[ninja][2]}"
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
    except OSError:
        return
    for _ in range(ROUNDS):
        found = _others(table, ninja, line)
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return
        table = _processes()


def _others(table: Table, ninja: int, line: list[int]) -> list[int]:
    """All processes below ninja but those on the line to this one, and what is below those."""
    found = [ninja]
    for above in found:
        found += [pid for pid, (_, parent, _) in table.items() if parent == above and pid not in line]
    return found[1:]


def _processes() -> Table:
    table: Table = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208
        try:
            with open(f"/proc/{int(entry)}/stat", "rb") as file:
                front, _, rest = file.read().rpartition(b")")
            fields = rest.decode().split()
            if fields[0] != "Z":
                name = front.partition(b"(")[2].decode(errors="replace")
                table[int(entry)] = (name, int(fields[1]), fields[19])
        except (OSError, ValueError, IndexError):
            continue
    return table
