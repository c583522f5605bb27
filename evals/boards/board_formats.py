"""Boards as a table in the terminal, Markdown, CSV, JSON or one HTML page. Pure text."""

import csv
import io
import json
from collections.abc import Callable, Sequence

from kernelwright.evals.boards.cells import Cell, Group
from kernelwright.evals.boards.leaderboard import Board, Row
from kernelwright.evals.figures.measured import BASELINES
from kernelwright.evals.figures.metrics import Effort, Estimate

HEADINGS = (
    "rank", "model", "strategy", "target", "score", "correct", "fast_1", "fast_1 eager", "fast_1 as shipped",
    "fast_1 compile", "fast_2", "geometric mean [95 %]", "pass@1", "roofline", "SOL", "tries to right", "cost $",
    "verified", "to re-judge",
)  # fmt: skip


def headings(board: Board) -> tuple[str, ...]:
    """The names of a board's columns."""
    return HEADINGS + tuple(board.rows[0].own if board.rows else ())


DETAILS = (
    "problem", "family", "status", "speedup [95 %]", "against", "over eager", "as shipped", "compile", "claimed",
    "tries", "passed", "run", "attempt", "record",
)  # fmt: skip


GROUPS = (
    "", "problems", "compiled", "correct", "fast_1", "fast_2", "geometric mean [95 %]", "tries to right", "$ to right",
    "tries to best", "$ to best",
)  # fmt: skip


def group_rows(row: Row) -> list[list[str]]:
    """A line for each level and family, in the order of `GROUPS`."""
    return [_group_cells(name, group) for name, group in (*row.levels.items(), *row.families.items())]


def _group_cells(name: str, group: Group) -> list[str]:
    efforts = [part for effort in (group.first_correct, group.to_best) for part in _effort(effort)]
    shares = [_share(share) for share in (group.compile_rate, group.fast[0.0], group.fast[1.0], group.fast[2.0])]
    return [name, str(group.problems), *shares, _estimate(group.geometric_mean), *efforts]


def _effort(effort: Effort | None) -> tuple[str, str]:
    if effort is None:
        return "-", "-"
    return str(effort.attempts), "-" if effort.cost_usd is None else f"{effort.cost_usd:.2f}"


def _estimate(mean: Estimate | None) -> str:
    if mean is None:
        return "-"
    interval = f" [{mean.low:.2f}, {mean.high:.2f}]" if mean.low and mean.high else ""
    return f"{mean.value:.2f}{interval}"


def row_cells(row: Row, board: Board) -> list[str]:
    """The texts of one row, in the order of `headings`."""
    ranked = len(board.problems) - len(board.weak)
    return [
        str(row.rank),
        row.model,
        row.strategy,
        row.target,
        f"{row.score:.3f}",
        f"{row.correct}/{ranked}",
        *(_fast(row, *which) for which in (("best", 1.0), *((name, 1.0) for name in BASELINES), ("best", 2.0))),
        _estimate(row.geometric_mean),
        _share(row.pass_at.get(1)),
        _share(row.roofline),
        "-" if row.speed_of_light is None else f"{row.speed_of_light:.2f}",
        "-" if row.attempts_to_correct is None else f"{row.attempts_to_correct:.1f}",
        "-" if row.cost_usd is None else f"{row.cost_usd:.2f}",
        f"{row.verified}/{sum(1 for cell in row.cells if cell.run)}",
        str(row.stale),
        *("-" if value is None else f"{value:.4g}" for value in row.own.values()),
    ]


def detail_cells(cell: Cell) -> list[str]:
    """The texts of one cell of a row, in the order of `DETAILS`."""
    found = cell.published
    status = cell.status + (f": {cell.why}" if cell.why else "") + (", to be judged again" if cell.stale else "")
    shown = "-"
    if found is not None and found.speedup is not None:
        shown = f"{found.speedup:.2f} [{found.low:.2f}, {found.high:.2f}]"
    claimed = f"{cell.claimed.speedup:.2f}" if cell.claimed and cell.claimed.speedup else "-"
    return [
        cell.problem,
        cell.family,
        status,
        shown,
        next(iter(found.speedups), "-") if found else "-",
        *(_ratio(found.against(name) if found else None) for name in BASELINES),
        claimed,
        str(cell.attempts),
        str(cell.passed),
        cell.run or "-",
        cell.attempt or "-",
        cell.record or "-",
    ]


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def unranked(board: Board) -> str:
    """Which problems are not ranked, each with the reason that its cells give."""
    why = {cell.problem: cell.why for row in board.rows for cell in row.cells if cell.status == "weak problem"}
    return "Not ranked: " + ", ".join(f"{name} ({why[name]})" if why.get(name) else name for name in board.weak)


def _fast(row: Row, baseline: str, p: float) -> str:
    return _share(row.fast.get(baseline, {}).get(p))


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def as_markdown(boards: Sequence[Board]) -> str:
    """A heading and two tables for each device: the rows, and every number with its record."""
    parts = ["# Leaderboard"]
    for board in boards:
        parts.append(f"## {_md(board.device)}")
        if board.weak:
            parts.append(f"{_md(unranked(board))}.")
        parts.append(_md_table([_md(name) for name in headings(board)], [row_cells(row, board) for row in board.rows]))
        for row in board.rows:
            parts.append(f"### {row.rank}. {_md(row.model)}, {_md(row.strategy)}, {_md(row.target)}")
            parts.append(_md_table(GROUPS, group_rows(row)))
            parts.append(_md_table(DETAILS, [detail_cells(cell) for cell in row.cells]))
    return "\n\n".join(parts) + "\n"


def _md_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *([_md(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _md(text: str) -> str:
    """Text that stays text in a table: names come from configurations and files."""
    for mark in "\\|<>`*_[]":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


def as_csv(boards: Sequence[Board]) -> str:
    """A line for each cell, whose numbers are whole; empty where there is none."""
    out = io.StringIO()
    writer = csv.writer(out)
    measured = ("speedup", "low", "high", "candidate_ms", "floor_ms", "authenticity")
    plain = (
        "problem", "problem_digest", "family", "level", "status", "why", "stale", "attempts", "passed",
        "run", "attempt", "record", "candidate_digest",
    )  # fmt: skip
    against = [f"speedup_{name}" for name in ("eager", "shipped", "compiled")]
    writer.writerow(["device", "rank", "model", "strategy", "target", *plain, *measured, "claimed_speedup", *against])
    for board in boards:
        for row in board.rows:
            for cell in row.cells:
                values = [getattr(cell, name) for name in plain]
                values += [getattr(cell.published, name, None) for name in measured]
                claimed = cell.claimed.speedup if cell.claimed else None
                others = [cell.published.against(name) if cell.published else None for name in BASELINES]
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
        details=DETAILS,
        groups=GROUPS,
        cells_of=row_cells,
        details_of=detail_cells,
        groups_of=group_rows,
    )


FORMATS: dict[str, Callable[[Sequence[Board]], str]] = {
    "md": as_markdown,
    "json": as_json,
    "csv": as_csv,
    "html": as_html,
}
