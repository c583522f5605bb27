"""The page's pictures as SVG, drawn as those of the inspector are: from numbers alone, asking for nothing outside."""

from collections.abc import Sequence

from bench.results.figures import DtypeBoard, floor_share, level_of
from bench.results.records import Kept
from kernelwright.evals import metrics
from kernelwright.evals.leaderboard import LeaderboardCell
from kernelwright.evals.plots import LEFT, RIGHT, WIDTH, Axis, axis_for, scale, svg, svg_text

HEAD, ROW, FOOT = 62, 24, 40
CURVE_HEIGHT, SHIFT = 340, 250
"""Curves have no names to their left, so they are moved there."""
STEPS = 160
CURVES = {
    "best": ("#17803d", "against the fastest of all"),
    "eager": ("#2f6fde", "against strict eager"),
    "shipped": ("#b25b00", "against eager as shipped"),
    "compile": ("#8a3ffc", "against torch.compile"),
}
"""By baseline, colour and words: each is legible on light and on dark ground."""
OWN = """
.floor { stroke: #b25b00; stroke-width: 2; } .curve { fill: none; stroke-width: 2; }
.small { font-size: 11px; }
"""


def speedups(dtype_board: DtypeBoard) -> str:
    """Return a row for each problem: every right answer, the best with its interval, and where the roofline is."""
    known = [trial.speedup for kept, _ in dtype_board.pairs for trial in kept.tries if trial.speedup is not None]
    floors = [place for _, cell in dtype_board.pairs if (place := _floor_place(cell)) is not None]
    axis = axis_for([*known, *floors])
    height = HEAD + ROW * len(dtype_board.kept) + FOOT
    reported = f"{dtype_board.dtype}: speedup over the fastest baseline, {len(dtype_board.kept)} problems"
    legend = "open: correct answers; filled: the best, with its interval; upright: the roofline"
    parts = [
        svg_text(20, 26, reported, "head"),
        svg_text(20, 45, _circumstances(dtype_board, dtype_board.kept), "quiet"),
        scale(axis, HEAD, height - FOOT + 4),
    ]
    parts.append(svg_text(20, height - 7, legend, "quiet"))
    parts += [_row(kept, cell, axis, HEAD + ROW * at) for at, (kept, cell) in enumerate(dtype_board.pairs)]
    return svg((WIDTH, height), reported, parts, OWN)


def fast_curves(dtype_board: DtypeBoard) -> str:
    """Return the share of problems that are right and more than p times as fast, over p, against each baseline."""
    found = {name: results for name, results in dtype_board.results().items() if results}
    speeds = [one.speedup for results in found.values() for one in results if one.speedup is not None]
    axis = Axis(low=0.5, high=max(axis_for(speeds).high, 2.0))
    reported = f"{dtype_board.dtype}: fast_p, the share of {len(dtype_board.ranked)} problems more than p times as fast"
    parts = [scale(axis, HEAD, CURVE_HEIGHT - FOOT + 4), _shares()]
    for at, (name, results) in enumerate(found.items()):
        colour, words = CURVES[name]
        ps = [axis.low * (axis.high / axis.low) ** (step / STEPS) for step in range(STEPS + 1)]
        points = " ".join(f"{axis.at(p)},{_height(metrics.fast_p(results, p))}" for p in ps)
        parts.append(f'<polyline class="curve" stroke="{colour}" points="{points}"/>')
        x, y = RIGHT + 16, HEAD + 18 + 20 * at
        parts.append(f'<line class="curve" stroke="{colour}" x1="{x}" x2="{x + 24}" y1="{y - 4}" y2="{y - 4}"/>')
        parts.append(svg_text(x + 32, y, words, "small"))
    moved = f'<g transform="translate(-{SHIFT} 0)">{"".join(parts)}</g>'
    ranked = [kept for kept, _ in dtype_board.ranked]
    heads = [svg_text(20, 26, reported, "head"), svg_text(20, 45, _circumstances(dtype_board, ranked), "quiet")]
    return svg((WIDTH - SHIFT, CURVE_HEIGHT), reported, [*heads, moved], OWN)


def _height(share: float) -> float:
    return round(CURVE_HEIGHT - FOOT - share * (CURVE_HEIGHT - FOOT - HEAD - 8), 1)


def _shares() -> str:
    lines = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _height(share)
        lines.append(f'<line class="line" x1="{LEFT}" x2="{RIGHT}" y1="{y}" y2="{y}"/>')
        lines.append(svg_text(LEFT - 8, y + 4, f"{100 * share:.0f} %", "quiet", "end"))
    return "\n".join(lines)


def _row(kept: Kept, cell: LeaderboardCell, axis: Axis, top: int) -> str:
    y = top + ROW // 2
    name = f"{kept.address}  {kept.title.partition('_')[2]}"
    parts = [svg_text(20, y + 4, name if len(name) <= 46 else f"{name[:43]}...", "small")]
    for trial in kept.tries:
        if trial.speedup is not None:
            parts.append(f'<circle class="right" cx="{axis.at(trial.speedup)}" cy="{y}" r="3"/>')
    floor = _floor_place(cell)
    if floor is not None:
        parts.append(f'<line class="floor" x1="{axis.at(floor)}" x2="{axis.at(floor)}" y1="{y - 7}" y2="{y + 7}"/>')
    return "\n".join([*parts, *_best(cell, axis, y)])


def _best(cell: LeaderboardCell, axis: Axis, y: int) -> list[str]:
    found = cell.published
    if cell.result().speedup is None or found is None or not found.speedup or not found.low or not found.high:
        return [svg_text(RIGHT + 16, y + 4, cell.status, "quiet")]
    ends = axis.at(found.low), axis.at(found.high)
    return [
        f'<line class="range" x1="{ends[0]}" x2="{ends[1]}" y1="{y}" y2="{y}"/>',
        f'<circle class="best" cx="{axis.at(found.speedup)}" cy="{y}" r="5"/>',
        svg_text(RIGHT + 16, y + 4, f"{found.speedup:.2f} x [{found.low:.2f}, {found.high:.2f}]", "small"),
    ]


def _floor_place(cell: LeaderboardCell) -> float | None:
    """Return the speedup of the roofline over the baseline."""
    share = floor_share(cell)
    found = cell.published
    return found.speedup / share if share and found is not None and found.speedup else None


def _circumstances(dtype_board: DtypeBoard, shown: Sequence[Kept]) -> str:
    row = dtype_board.row
    levels = ", ".join(f"{sum(level_of(kept) == level for kept in shown)} of {level}" for level in dtype_board.levels)
    return f"{levels}; {row.target}, answers: {row.model}, strategy: {row.strategy}; {dtype_board.board.device}"
