"""Boards in Markdown, CSV, JSON or as one HTML page. Pure text; which columns there are, `columns` says."""

import csv
import io
import json
from collections.abc import Callable, Sequence

from kernelwright.evals.boards.columns import (
    CELL_COLUMNS,
    GROUP_COLUMNS,
    cell_texts,
    group_texts,
    headings,
    row_texts,
)
from kernelwright.evals.boards.leaderboard import Board
from kernelwright.evals.figures.measured import BASELINES


def unranked(board: Board) -> str:
    """Which problems are not ranked, each with the reason that its cells give."""
    why = {cell.problem: cell.why for row in board.rows for cell in row.cells if cell.status == "weak problem"}
    return "Not ranked: " + ", ".join(f"{name} ({why[name]})" if why.get(name) else name for name in board.weak)


def as_markdown(boards: Sequence[Board]) -> str:
    """A heading and two tables for each device: the rows, and every number with its record."""
    parts = ["# Leaderboard"]
    for board in boards:
        parts.append(f"## {escaped(board.device)}")
        if board.weak:
            parts.append(f"{escaped(unranked(board))}.")
        parts.append(
            _md_table([escaped(name) for name in headings(board)], [row_texts(row, board) for row in board.rows])
        )
        for row in board.rows:
            parts.append(f"### {row.rank}. {escaped(row.model)}, {escaped(row.strategy)}, {escaped(row.target)}")
            parts.append(_md_table(("", *GROUP_COLUMNS), group_texts(row)))
            parts.append(_md_table(tuple(CELL_COLUMNS), [cell_texts(cell) for cell in row.cells]))
    return "\n\n".join(parts) + "\n"


def _md_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *([escaped(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(text: str) -> str:
    """Text that stays text in a table: names come from configurations and files."""
    for mark in "\\|<>`*_[]":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


def as_csv(boards: Sequence[Board]) -> str:
    """A line for each cell, whose numbers are whole; empty where there is none."""
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
    """Everything, as one object."""
    return json.dumps({"boards": [board.model_dump(mode="json") for board in boards]})


def as_html(boards: Sequence[Board]) -> str:
    """One page by itself; every text in it is escaped, and it runs no script."""
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
