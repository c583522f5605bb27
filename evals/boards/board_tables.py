"""A board on a terminal: as many tables as its columns need at that width, so that no word of a heading is broken."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rich.box import SIMPLE
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from kernelwright.evals.boards.columns import headings, row_texts
from kernelwright.evals.boards.leaderboard import Board
from kernelwright.sandbox.machine.escaping import escaped

IN_FRONT = 2
"""Columns that each table begins with: rank and model, by which its rows are known."""
NAMES = frozenset({"model", "strategy", "target"})
"""Columns whose words may be broken where there is no room: they come from outside and can be of any length."""
LEAST_OF_A_NAME = 12
FRAME, BETWEEN = 1, 3
"""What the lines around a table take, and each column beside its text."""


class TerminalColumn(NamedTuple):
    """One column of a board; its first text is the heading."""

    texts: tuple[str, ...]

    @property
    def least(self) -> int:
        """The width at which no word of the heading is broken, and no cell; of a long name as much as has to be."""
        cells = _longest(self.texts[1:])
        return max(_longest(self.texts[0].split()), min(LEAST_OF_A_NAME, cells) if self.texts[0] in NAMES else cells)

    @property
    def wanted(self) -> int:
        """The width at which each text stands on one line."""
        return _longest(self.texts)


def board_tables(board: Board, width: int) -> list[Table]:
    """The tables of a board, in the order of its columns; the first bears the device's name."""
    rows = [headings(board), *(row_texts(row, board) for row in board.rows)]
    columns = [TerminalColumn(tuple(escaped(text) for text in texts)) for texts in zip(*rows, strict=True)]
    tables = [_table(group, width) for group in _groups(columns, width)]
    tables[0].title = Text(escaped(board.device))
    return tables


def _groups(columns: list[TerminalColumn], width: int) -> Iterator[list[TerminalColumn]]:
    """The columns of each table."""
    front = columns[:IN_FRONT]
    group = list(front)
    for column in columns[IN_FRONT:]:
        if len(group) > IN_FRONT and _room([*group, column], width) < 0:
            yield group
            group = list(front)
        group.append(column)
    yield group


def _room(group: list[TerminalColumn], width: int) -> int:
    """Columns of the terminal that are left where each column of the table has its least width."""
    return width - FRAME - sum(column.least + BETWEEN for column in group)


def _table(group: list[TerminalColumn], width: int) -> Table:
    table = Table(title_justify="left", box=SIMPLE)
    room = max(0, _room(group, width))
    for column in group:
        more = min(room, max(0, column.wanted - column.least))
        room -= more
        table.add_column(Text(column.texts[0]), overflow="fold", width=column.least + more)
    for cells in zip(*(column.texts[1:] for column in group), strict=True):
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _longest(texts: Iterable[str]) -> int:
    return max(map(cell_len, texts), default=0)
