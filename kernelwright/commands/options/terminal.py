"""Where tables are printed: as wide as the terminal, or wide enough for a log."""

from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

LOG_WIDTH = 180
"""Columns of a table where the output is no terminal."""


def table_console(highlight: bool = True) -> "Console":
    """Standard output, for tables."""
    from rich.console import Console

    console = Console(highlight=highlight)
    return console if console.is_terminal else Console(highlight=highlight, width=LOG_WIDTH)


def fit_for(stream: TextIO, source: str) -> str:
    """A candidate's source for a stream: a file gets it as it is, a terminal would take some of it for commands."""
    from kernelwright.sandbox.machine.escaping import escaped

    return escaped(source) if stream.isatty() else source
