"""Putting foreign text into Markdown without breaking it: the filters that the templates use."""

import re

LONGEST_EVIDENCE = 6000
"""Characters. Beyond it the middle goes: the deciding fact stands at the head, the last words of a tool at the end."""


def fenced(text: str, language: str = "") -> str:
    """`text` in a code fence that is longer than any run of backticks inside it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.strip(chr(10))}\n{fence}"


def cell(text: str) -> str:
    """`text` as the cell of a table: on one line and without bars."""
    return " ".join(text.replace("|", "/").split())


def trimmed(text: str, limit: int = LONGEST_EVIDENCE) -> str:
    """`text` cut to about `limit` characters at line ends: two thirds from its head, one third from its tail."""
    if len(text) <= limit:
        return text
    head = text[: limit * 2 // 3].rpartition("\n")[0] or text[: limit * 2 // 3]
    tail = text[-(limit // 3) :].partition("\n")[2] or text[-(limit // 3) :]
    left_out = len(text) - len(head) - len(tail)
    return f"{head}\n[... {left_out} characters left out ...]\n{tail}"


def milliseconds(value: float | None) -> str:
    """A time in ms to three significant digits, never in scientific notation; a dash for None."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def times(value: float | None) -> str:
    """A speedup with two decimals and an x; a dash for None."""
    return "-" if value is None else f"{value:.2f}x"
