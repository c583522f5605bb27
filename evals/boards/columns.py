"""The columns of a leaderboard's tables, each a heading with the function that gives its text. Pure.

A new column is a line here: in `ROW_COLUMNS` for the entrants, `GROUP_COLUMNS` for their levels and families,
`CELL_COLUMNS` for each number with its record. It is then in the terminal, in Markdown and on the HTML page. What is
computed of several kernels takes `board.ranked(row)`, which leaves weak problems out, and a function of
`evals.figures.metrics`.
"""

from collections.abc import Callable, Iterable

from kernelwright.evals.boards.cells import Cell, Group
from kernelwright.evals.boards.leaderboard import Board, Row
from kernelwright.evals.figures.metrics import Effort, Estimate
from kernelwright.sandbox.verdict.in_words import marks

RowText = Callable[[Row, Board], str]
MISSING = "-"


def number_text(value: float | None, form: str = ".2f") -> str:
    """A number in that form, or a dash where there is none."""
    return MISSING if value is None else format(value, form)


def share_text(share: float | None) -> str:
    """`42 %`."""
    return MISSING if share is None else f"{100 * share:.0f} %"


def estimate_text(mean: Estimate | None) -> str:
    """`1.42 [1.10, 1.84]`."""
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
    "fast_1": _fast("best", 1.0),
    "fast_1 eager": _fast("eager", 1.0),
    "fast_1 as shipped": _fast("shipped", 1.0),
    "fast_1 compile": _fast("compile", 1.0),
    "fast_2": _fast("best", 2.0),
    "geometric mean [95 %]": lambda row, board: estimate_text(row.geometric_mean),
    "pass@1": lambda row, board: share_text(row.pass_at.get(1)),
    "roofline": lambda row, board: share_text(row.roofline),
    "SOL": lambda row, board: number_text(row.speed_of_light),
    "tries to right": lambda row, board: number_text(row.attempts_to_correct, ".1f"),
    "cost $": lambda row, board: number_text(row.cost_usd),
    "verified": lambda row, board: f"{row.verified}/{sum(1 for cell in row.cells if cell.run)}",
    "to re-judge": lambda row, board: str(row.stale),
}
"""One line an entrant. What a user's own metrics add stands behind these."""


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
    "tries to right": lambda group: _attempts(group.first_correct),
    "$ to right": lambda group: _cost(group.first_correct),
    "tries to best": lambda group: _attempts(group.to_best),
    "$ to best": lambda group: _cost(group.to_best),
}
"""One line a level or family of an entrant, behind its name."""


def _status(cell: Cell) -> str:
    return cell.status + (f": {cell.why}" if cell.why else "") + (", to be judged again" if cell.stale else "")


def _speedup(cell: Cell) -> str:
    found = cell.published
    if found is None or found.speedup is None:
        return MISSING
    effort = "" if found.effort == "rank" else f" ({found.effort})"
    said = marks(found.comparison, found.timing_clock, found.launch_bound)
    return f"{found.speedup:.2f} [{found.low:.2f}, {found.high:.2f}]{effort}{said}"


def _over(baseline: str) -> Callable[[Cell], str]:
    return lambda cell: number_text(cell.published.against(baseline) if cell.published else None)


CELL_COLUMNS: dict[str, Callable[[Cell], str]] = {
    "problem": lambda cell: cell.problem,
    "family": lambda cell: cell.family,
    "status": _status,
    "speedup [95 %]": _speedup,
    "against": lambda cell: (cell.published.counted if cell.published else None) or MISSING,
    "against any": lambda cell: number_text(cell.published.speedup_any if cell.published else None),
    "over eager": _over("eager"),
    "as shipped": _over("shipped"),
    "compile": _over("compile"),
    "claimed": lambda cell: number_text((cell.claimed.speedup or None) if cell.claimed else None),
    "tries": lambda cell: str(cell.attempts),
    "passed": lambda cell: str(cell.passed),
    "run": lambda cell: cell.run or MISSING,
    "attempt": lambda cell: cell.attempt or MISSING,
    "record": lambda cell: cell.record or MISSING,
}
"""One line an entrant and problem: the number that counts, and where its record is."""


def headings(board: Board) -> tuple[str, ...]:
    """The names of a board's columns, a user's own metrics last."""
    return (*ROW_COLUMNS, *(board.rows[0].own if board.rows else ()))


def row_texts(row: Row, board: Board) -> list[str]:
    """The texts of one row, in the order of `headings`."""
    own = (number_text(value, ".4g") for value in row.own.values())
    return [*(text(row, board) for text in ROW_COLUMNS.values()), *own]


def group_texts(row: Row) -> list[list[str]]:
    """A line for each level and family: its name, and the texts in the order of `GROUP_COLUMNS`."""
    groups: Iterable[tuple[str, Group]] = (*row.levels.items(), *row.families.items())
    return [[name, *(text(group) for text in GROUP_COLUMNS.values())] for name, group in groups]


def cell_texts(cell: Cell) -> list[str]:
    """The texts of one cell of a row, in the order of `CELL_COLUMNS`."""
    return [text(cell) for text in CELL_COLUMNS.values()]
