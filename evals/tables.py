"""The tables of a leaderboard: their columns, on a terminal, in Markdown, CSV and JSON, and as one HTML page. Pure.

A column is a heading with the function that gives its text. A new one is a line in `ROW_COLUMNS` for the entrants, in
`GROUP_COLUMNS` for their levels and families, or in `CELL_COLUMNS` for each number. It is then on the terminal, in
Markdown and on the HTML page. A column over several kernels takes `board.ranked(row)`, without degenerate problems.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rich.box import SIMPLE
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from kernelwright.evals.leaderboard import Board, Group, LeaderboardCell, Row
from kernelwright.evals.metrics import BASELINES, Effort, Estimate, VerdictSummary
from kernelwright.sandbox.logs import escaped
from kernelwright.sandbox.verdict.report import marks

RowText = Callable[[Row, Board], str]
MISSING = "-"


def number_text(value: float | None, form: str = ".2f") -> str:
    return MISSING if value is None else format(value, form)


def share_text(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:.0f} %"


def estimate_text(mean: Estimate | None) -> str:
    if mean is None:
        return MISSING
    return f"{mean.value:.2f}" + (f" [{mean.low:.2f}, {mean.high:.2f}]" if mean.low and mean.high else "")


def _fast(baseline: str, p: float) -> RowText:
    return lambda row, board: share_text(row.fast.get(baseline, {}).get(p))


ROW_COLUMNS: dict[str, RowText] = {
    "rank": lambda row, board: str(row.rank),
    "model": lambda row, board: row.model,
    "strategy": lambda row, board: row.strategy,
    "target": lambda row, board: row.target,
    "score": lambda row, board: number_text(row.score, ".3f"),
    "correct": lambda row, board: f"{row.correct}/{len(board.problems) - len(board.weak)}",
    "own kernels": lambda row, board: f"{row.own_kernels}/{len(board.problems) - len(board.weak)}",
    "fast_1": _fast("best", 1.0),
    "fast_1 eager": _fast("eager", 1.0),
    "fast_1 as shipped": _fast("shipped", 1.0),
    "fast_1 compile": _fast("compile", 1.0),
    "fast_2": _fast("best", 2.0),
    "geometric mean [95 %]": lambda row, board: estimate_text(row.geometric_mean),
    "pass@1": lambda row, board: share_text(row.pass_at.get(1)),
    "roofline": lambda row, board: share_text(row.roofline),
    "SOL": lambda row, board: number_text(row.speed_of_light),
    "tries to correct": lambda row, board: number_text(row.attempts_to_correct, ".1f"),
    "cost $": lambda row, board: number_text(row.cost_usd),
    "verified": lambda row, board: f"{row.verified}/{sum(1 for cell in row.cells if cell.run)}",
    "to re-judge": lambda row, board: str(row.stale),
}
"""One line an entrant. A user's own metrics follow these."""


def _attempts(effort: Effort | None) -> str:
    return MISSING if effort is None else str(effort.attempts)


def _cost(effort: Effort | None) -> str:
    return number_text(effort.cost_usd if effort else None)


GROUP_COLUMNS: dict[str, Callable[[Group], str]] = {
    "problems": lambda group: str(group.problems),
    "compiled": lambda group: share_text(group.compile_rate),
    "correct": lambda group: share_text(group.fast[0.0]),
    "fast_1": lambda group: share_text(group.fast[1.0]),
    "fast_2": lambda group: share_text(group.fast[2.0]),
    "geometric mean [95 %]": lambda group: estimate_text(group.geometric_mean),
    "tries to correct": lambda group: _attempts(group.first_correct),
    "$ to correct": lambda group: _cost(group.first_correct),
    "tries to best": lambda group: _attempts(group.to_best),
    "$ to best": lambda group: _cost(group.to_best),
}
"""One line a level or family of an entrant, behind its name."""


def _status(cell: LeaderboardCell) -> str:
    return cell.status + (f": {cell.why}" if cell.why else "") + (", to be judged again" if cell.stale else "")


def _speedup(found: VerdictSummary | None) -> str:
    if found is None or found.speedup is None:
        return MISSING
    effort = "" if found.effort == "rank" else f" ({found.effort})"
    said = marks(found.comparison, found.timing_clock, found.launch_bound, found.weights)
    return f"{found.speedup:.2f} [{found.low:.2f}, {found.high:.2f}]{effort}{said}"


def _over(baseline: str) -> Callable[[LeaderboardCell], str]:
    return lambda cell: number_text(cell.published.against(baseline) if cell.published else None)


CELL_COLUMNS: dict[str, Callable[[LeaderboardCell], str]] = {
    "problem": lambda cell: cell.problem,
    "family": lambda cell: cell.family,
    "status": _status,
    "speedup [95 %]": lambda cell: _speedup(cell.published),
    "kernel": lambda cell: cell.published.authenticity if cell.published else MISSING,
    "against": lambda cell: (cell.published.counted if cell.published else None) or MISSING,
    "against any": lambda cell: number_text(cell.published.speedup_any if cell.published else None),
    "over eager": _over("eager"),
    "as shipped": _over("shipped"),
    "compile": _over("compile"),
    "claimed": lambda cell: _speedup(cell.claimed),
    "tries": lambda cell: str(cell.attempts),
    "passed": lambda cell: str(cell.passed),
    "run": lambda cell: cell.run or MISSING,
    "attempt": lambda cell: cell.attempt or MISSING,
    "record": lambda cell: cell.record or MISSING,
}
"""One line an entrant and problem: the number that counts, and its record."""


def headings(board: Board) -> tuple[str, ...]:
    return (*ROW_COLUMNS, *(board.rows[0].own if board.rows else ()))


def row_texts(row: Row, board: Board) -> list[str]:
    own = (number_text(value, ".4g") for value in row.own.values())
    return [*(text(row, board) for text in ROW_COLUMNS.values()), *own]


def group_texts(row: Row) -> list[list[str]]:
    groups: Iterable[tuple[str, Group]] = (*row.levels.items(), *row.families.items())
    return [[name, *(text(group) for text in GROUP_COLUMNS.values())] for name, group in groups]


def cell_texts(cell: LeaderboardCell) -> list[str]:
    return [text(cell) for text in CELL_COLUMNS.values()]


IN_FRONT = 2
"""The number of columns that each table begins with: rank and model, which identify its rows."""
NAMES = frozenset({"model", "strategy", "target"})
"""Columns whose words may be broken for lack of space: they come from outside and can be of any length."""
LEAST_OF_A_NAME = 12
FRAME, BETWEEN = 1, 3
"""The width of the lines around a table, and that of each column besides its text."""


class TerminalColumn(NamedTuple):
    texts: tuple[str, ...]

    @property
    def least(self) -> int:
        """The width at which no word of the heading and no cell is broken; of a long name the least part."""
        cells = _longest(self.texts[1:])
        return max(_longest(self.texts[0].split()), min(LEAST_OF_A_NAME, cells) if self.texts[0] in NAMES else cells)

    @property
    def wanted(self) -> int:
        return _longest(self.texts)


def board_tables(board: Board, width: int) -> list[Table]:
    """Split the columns into as many tables as the width needs; each begins with the first `IN_FRONT` of them."""
    rows = [headings(board), *(row_texts(row, board) for row in board.rows)]
    columns = [TerminalColumn(tuple(escaped(text) for text in texts)) for texts in zip(*rows, strict=True)]
    groups = [columns[:IN_FRONT]]
    for column in columns[IN_FRONT:]:
        if len(groups[-1]) > IN_FRONT and _space([*groups[-1], column], width) < 0:
            groups.append(columns[:IN_FRONT])
        groups[-1].append(column)
    tables = [_table(group, width) for group in groups]
    tables[0].title = Text(escaped(board.device))
    return tables


def _space(group: list[TerminalColumn], width: int) -> int:
    return width - FRAME - sum(column.least + BETWEEN for column in group)


def _table(group: list[TerminalColumn], width: int) -> Table:
    table = Table(title_justify="left", box=SIMPLE)
    space = max(0, _space(group, width))
    for column in group:
        more = min(space, max(0, column.wanted - column.least))
        space -= more
        table.add_column(Text(column.texts[0]), overflow="fold", width=column.least + more)
    for cells in zip(*(column.texts[1:] for column in group), strict=True):
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _longest(texts: Iterable[str]) -> int:
    return max(map(cell_len, texts), default=0)


def unranked(board: Board) -> str:
    """Return the problems that are not ranked, each with the reason in its cells."""
    why = {cell.problem: cell.why for row in board.rows for cell in row.cells if cell.status == "weak problem"}
    return "Not ranked: " + ", ".join(f"{name} ({why[name]})" if why.get(name) else name for name in board.weak)


def as_markdown(boards: Sequence[Board]) -> str:
    parts = ["# Leaderboard"]
    for board in boards:
        parts.append(f"## {in_markdown(board.device)}")
        if board.weak:
            parts.append(f"{in_markdown(unranked(board))}.")
        parts.append(
            _md_table([in_markdown(name) for name in headings(board)], [row_texts(row, board) for row in board.rows])
        )
        for row in board.rows:
            parts.append(
                f"### {row.rank}. {in_markdown(row.model)}, {in_markdown(row.strategy)}, {in_markdown(row.target)}"
            )
            parts.append(_md_table(("", *GROUP_COLUMNS), group_texts(row)))
            parts.append(_md_table(tuple(CELL_COLUMNS), [cell_texts(cell) for cell in row.cells]))
    return "\n\n".join(parts) + "\n"


def _md_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown_table(names, ([in_markdown(text) for text in row] for row in rows))


def markdown_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write rows under names in Markdown; the texts are not escaped."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [names, ["---"] * len(names), *rows])


def in_markdown(text: str) -> str:
    """Escape a text for a table: names come from configurations and files."""
    for mark in "\\|<>`*_[]":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


def as_csv(boards: Sequence[Board]) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    measured = (
        "speedup", "low", "high", "candidate_ms", "floor_ms", "authenticity", "effort", "comparison", "timing_clock",
    )  # fmt: skip
    plain = (
        "problem", "problem_digest", "family", "level", "status", "why", "stale", "attempts", "passed",
        "run", "attempt", "record", "candidate_digest",
    )  # fmt: skip
    against = [f"speedup_{name}" for name in ("eager", "shipped", "compiled", "any")]
    writer.writerow(["device", "rank", "model", "strategy", "target", *plain, *measured, "claimed_speedup", *against])
    for board in boards:
        for row in board.rows:
            for cell in row.cells:
                values = [getattr(cell, name) for name in plain]
                values += [getattr(cell.published, name, None) for name in measured]
                claimed = cell.claimed.speedup if cell.claimed else None
                others = [cell.published.against(name) if cell.published else None for name in BASELINES]
                others.append(cell.published.speedup_any if cell.published else None)
                about = [board.device, row.rank, row.model, row.strategy, row.target]
                writer.writerow([*about, *values, claimed, *others])
    return out.getvalue()


def as_json(boards: Sequence[Board]) -> str:
    return json.dumps({"boards": [board.model_dump(mode="json") for board in boards]})


def as_html(boards: Sequence[Board]) -> str:
    """Write one page by itself; every text in it is escaped, and it runs no script."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(loader=PackageLoader("kernelwright.evals"), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("board.html.j2").render(
        boards=boards,
        headings_of=headings,
        details=tuple(CELL_COLUMNS),
        groups=("", *GROUP_COLUMNS),
        cells_of=row_texts,
        details_of=cell_texts,
        groups_of=group_texts,
    )


FORMATS: dict[str, Callable[[Sequence[Board]], str]] = {
    "md": as_markdown,
    "json": as_json,
    "csv": as_csv,
    "html": as_html,
}
