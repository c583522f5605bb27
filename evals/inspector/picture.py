"""A run as one picture (SVG): a row for each problem, a point for each right attempt, the best with its interval.

The picture is drawn from the run's log alone: the same run gives the same picture. It asks for nothing from outside,
not even a font.
"""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.run_log import RunLog
from kernelwright.agent.log.view import View
from kernelwright.evals.inspector.model import RunModel
from kernelwright.sandbox.verdict.in_words import marks
from kernelwright.sandbox.verdict.verdicts import Passed

WIDTH, HEAD, ROW, FOOT = 900, 62, 46, 40
LEFT, RIGHT = 330, 640
"""Where the axis begins and ends; to its right stand the words for the best."""
TICKS = tuple(digit * 10.0**power for power in range(-4, 5) for digit in (1, 2, 5))
STYLE = """
.ground { fill: #fff; stroke: #d5dae1; } text { font: 13px system-ui, sans-serif; fill: #1c2128; }
.quiet { fill: #5a6472; font-size: 11px; } .head { font-size: 15px; font-weight: 600; } .name { font-weight: 600; }
.line { stroke: #d5dae1; } .one { stroke: #5a6472; stroke-dasharray: 4 3; } .way { stroke: #98a3b1; }
.right { fill: #fff; stroke: #17803d; stroke-width: 2; } .best { fill: #17803d; }
.range { stroke: #17803d; stroke-width: 3; }
@media (prefers-color-scheme: dark) {
.ground { fill: #14171c; stroke: #363d47; } text { fill: #e3e7ec; } .quiet { fill: #98a3b1; }
.line { stroke: #363d47; } .one { stroke: #98a3b1; } .right { fill: #14171c; stroke: #52cf7d; }
.best { fill: #52cf7d; } .range { stroke: #52cf7d; }
}"""


@dataclass(frozen=True)
class Axis:
    """Speedups as places between `LEFT` and `RIGHT`, on a logarithmic scale."""

    low: float
    high: float

    def at(self, speedup: float) -> float:
        """The place of a speedup in pixels; what lies beyond an end is drawn at it."""
        share = math.log(speedup / self.low) / math.log(self.high / self.low)
        return round(LEFT + min(1.0, max(0.0, share)) * (RIGHT - LEFT), 1)

    @property
    def ticks(self) -> list[float]:
        """The round speedups within, 1 among them."""
        inside = [tick for tick in TICKS if self.low <= tick <= self.high]
        return [tick for tick in inside if len(inside) <= 10 or f"{tick:e}"[0] == "1"]


def export_picture(folder: Path, out: Path) -> int:
    """Write the run in `folder` to `out` as SVG; the bytes written. Raises `RunLogError` or `OSError`."""
    with RunLog.open(folder) as log:
        data = picture(RunModel(log)).encode()
    out.write_bytes(data)
    return len(data)


def picture(model: RunModel) -> str:
    """The text of the SVG file."""
    views = list(model.views.items())
    axis = axis_for([attempt.speedup for _, view in views for attempt in view.attempts if attempt.speedup is not None])
    height = HEAD + ROW * len(views) + FOOT
    parts = [_frame(height), _text(20, 26, _title(model), "head"), _text(20, 45, _circumstances(model), "quiet")]
    parts += [_scale(axis, height)]
    parts += [_row(name, view, axis, HEAD + ROW * index) for index, (name, view) in enumerate(views)]
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    label = f'role="img" aria-label={quoteattr(_plain(_title(model)))}'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label}>\n' + "\n".join(parts) + "\n</svg>\n"


def axis_for(speedups: list[float]) -> Axis:
    """An axis that ends at round numbers, holds 1 and nearly everything that was measured."""
    found = [*speedups, 0.5, 2.0]
    low = max((tick for tick in TICKS if tick <= min(found)), default=TICKS[0])
    high = min((tick for tick in TICKS if tick >= max(found)), default=TICKS[-1])
    return Axis(low=low, high=high)


def _frame(height: int) -> str:
    ground = f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>'
    return f"<style>{STYLE}</style>\n{ground}"


def _title(model: RunModel) -> str:
    attempts = [attempt for view in model.views.values() for attempt in view.attempts]
    right = sum(1 for attempt in attempts if attempt.passed)
    return f"{len(model.views)} problems, {len(attempts)} attempts, {right} right: speedup over PyTorch"


def _circumstances(model: RunModel) -> str:
    run = model.index()["run"]
    torch = model.log.header.versions.get("torch", "unknown")
    device = model.log.header.device
    return f"{run['target']}, answers: {run['model']}, strategy: {run['strategy']}; {device}, torch {torch}"


def _scale(axis: Axis, height: int) -> str:
    bottom = height - FOOT + 4
    parts = []
    for tick in axis.ticks:
        x = axis.at(tick)
        kind = "one" if tick == 1 else "line"
        parts.append(f'<line class="{kind}" x1="{x}" x2="{x}" y1="{HEAD}" y2="{bottom}"/>')
        parts.append(_text(x, bottom + 15, f"{tick:g}", "quiet", anchor="middle"))
    parts.append(_text(20, bottom + 15, "open: right attempts; filled: the best, with its interval", "quiet"))
    parts.append(_text(RIGHT + 16, bottom + 15, "times as fast as PyTorch, best [95 %]", "quiet"))
    return "\n".join(parts)


def _row(name: str, view: View, axis: Axis, top: int) -> str:
    middle = top + ROW // 2
    best = view.best
    parts = [_text(20, middle - 2, _shortened(name), "name"), _text(20, middle + 13, _ends(view.attempts), "quiet")]
    parts += [_way(view.attempts, axis, middle)]
    parts += [_point(attempt, axis, middle) for attempt in view.attempts if attempt is not best]
    if best is not None:
        parts += [_best(best, axis, middle)]
    else:
        parts += [_text(RIGHT + 16, middle + 4, "not judged" if view.fault else "none right yet", "quiet")]
    return "\n".join(part for part in parts if part)


def _way(attempts: tuple[Attempt, ...], axis: Axis, y: int) -> str:
    """From the slowest right attempt to the fastest."""
    places = [axis.at(attempt.speedup) for attempt in attempts if attempt.speedup is not None]
    return f'<line class="way" x1="{min(places)}" x2="{max(places)}" y1="{y}" y2="{y}"/>' if places else ""


def _point(attempt: Attempt, axis: Axis, y: int) -> str:
    if attempt.speedup is None:
        return ""
    told = f"<title>attempt {attempt.number}: {attempt.speedup:.2f} x{attempt.marks}</title>"
    return f'<circle class="right" cx="{axis.at(attempt.speedup)}" cy="{y}" r="4">{told}</circle>'


def _best(attempt: Attempt, axis: Axis, y: int) -> str:
    assert isinstance(attempt.ruling, Passed), "only what passed is the best"
    found = attempt.ruling.measurement
    ends = axis.at(found.interval.low), axis.at(found.interval.high)
    kind = found.comparison.replace("_", " ") + marks(None, found.timing_clock, found.is_launch_bound)
    said = f"{found.speedup:.2f} x [{found.interval.low:.2f}, {found.interval.high:.2f}], {kind}"
    return "\n".join(
        [
            f'<line class="range" x1="{ends[0]}" x2="{ends[1]}" y1="{y}" y2="{y}"/>',
            f'<circle class="best" cx="{axis.at(found.speedup)}" cy="{y}" r="6"/>',
            _text(RIGHT + 16, y + 4, said),
        ]
    )


def _ends(attempts: tuple[Attempt, ...]) -> str:
    """`4 attempts: 1 failed at build, 1 failed at check`."""
    count = f"{len(attempts)} attempt{'' if len(attempts) == 1 else 's'}"
    failures = Counter(attempt.outcome for attempt in attempts if not attempt.passed)
    told = ", ".join(f"{number} {outcome}" for outcome, number in failures.most_common(2))
    return f"{count}: {told}" if told else count


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(_plain(text))}</text>'


def _plain(text: str) -> str:
    """Names of problems and models come from outside, and XML has no place for control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _shortened(name: str, most: int = 38) -> str:
    return name if len(name) <= most else f"{name[: most - 3]}..."
