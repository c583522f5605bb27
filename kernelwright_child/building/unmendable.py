"""Whether what failed with the light header would fail with the stock one too, by its first error.

Compiling again with the stock header costs many times what has failed. It is not needed where the error names something
that the stock header does not so much as mention: more declarations can not mend that. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from kernelwright_child.building.light import WORD

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
