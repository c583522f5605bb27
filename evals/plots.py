"""A run or a score as one picture (SVG), drawn from its log alone: the same run gives the same picture.

It loads nothing from outside, not even a font.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.store import Header
from kernelwright.agent.log.view import View
from kernelwright.evals.verdict_store import search_of
from kernelwright.sandbox.verdict.report import DOUBTS, speedup_words
from kernelwright.sandbox.verdict.verdicts import Passed

WIDTH, HEAD, ROW, FOOT = 900, 62, 46, 40
LEFT, RIGHT = 330, 640
"""The ends of the axis; the words for the best are to its right."""
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
    low: float
    high: float

    def at(self, speedup: float) -> float:
        share = math.log(speedup / self.low) / math.log(self.high / self.low)
        return round(LEFT + min(1.0, max(0.0, share)) * (RIGHT - LEFT), 1)

    @property
    def ticks(self) -> list[float]:
        inside = [tick for tick in TICKS if self.low <= tick <= self.high]
        return [tick for tick in inside if len(inside) <= 10 or f"{tick:e}"[0] == "1"]


def picture(header: Header, shown: Mapping[str, View]) -> str:
    """Draw a run or a score: each problem is a row, each correct attempt a point, the best one with its interval."""
    axis = axis_for([one.speedup for view in shown.values() for one in view.attempts if one.speedup is not None])
    height = HEAD + ROW * len(shown) + FOOT
    run, torch = search_of(header), header.versions.get("torch", "unknown")
    circumstances = f"{run['target']}, answers: {run['model']}, strategy: {run['strategy']}"
    attempts = [attempt for view in shown.values() for attempt in view.attempts]
    right = sum(1 for attempt in attempts if attempt.passed)
    title = f"{len(shown)} problems, {len(attempts)} attempts, {right} right: speedup over PyTorch"
    parts = [
        svg_text(20, 26, title, "head"),
        svg_text(20, 45, f"{circumstances}; {header.device}, torch {torch}", "quiet"),
        scale(axis, HEAD, height - FOOT + 4),
        svg_text(20, height - FOOT + 19, "open: correct attempts; filled: the best, with its interval", "quiet"),
        svg_text(RIGHT + 16, height - FOOT + 19, "times as fast as PyTorch, best [95 %]", "quiet"),
    ]
    parts += [_row(name, view, axis, HEAD + ROW * index) for index, (name, view) in enumerate(shown.items())]
    return svg((WIDTH, height), title, parts)


def axis_for(speedups: list[float]) -> Axis:
    found = [*speedups, 0.5, 2.0]
    low = max((tick for tick in TICKS if tick <= min(found)), default=TICKS[0])
    high = min((tick for tick in TICKS if tick >= max(found)), default=TICKS[-1])
    return Axis(low=low, high=high)


def scale(axis: Axis, top: int, bottom: int) -> str:
    parts = []
    for tick in axis.ticks:
        x = axis.at(tick)
        kind = "one" if tick == 1 else "line"
        parts.append(f'<line class="{kind}" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>')
        parts.append(svg_text(x, bottom + 15, f"{tick:g}", "quiet", anchor="middle"))
    return "\n".join(parts)


def _row(name: str, view: View, axis: Axis, top: int) -> str:
    middle = top + ROW // 2
    best = view.best
    parts = [
        svg_text(20, middle - 2, name if len(name) <= 38 else f"{name[:35]}...", "name"),
        svg_text(20, middle + 13, _ends(view.attempts), "quiet"),
    ]
    places = [axis.at(attempt.speedup) for attempt in view.attempts if attempt.speedup is not None]
    if places:
        parts.append(f'<line class="way" x1="{min(places)}" x2="{max(places)}" y1="{middle}" y2="{middle}"/>')
    parts += [_point(attempt, axis, middle) for attempt in view.attempts if attempt is not best]
    if best is not None:
        parts += [_best(best, axis, middle)]
    else:
        parts += [svg_text(RIGHT + 16, middle + 4, "not judged" if view.fault else "none correct yet", "quiet")]
    return "\n".join(part for part in parts if part)


def _point(attempt: Attempt, axis: Axis, y: int) -> str:
    if attempt.speedup is None:
        return ""
    hint = f"<title>attempt {attempt.number}: {attempt.speedup:.2f} x{attempt.marks}</title>"
    return f'<circle class="right" cx="{axis.at(attempt.speedup)}" cy="{y}" r="4">{hint}</circle>'


def _best(attempt: Attempt, axis: Axis, y: int) -> str:
    assert isinstance(attempt.ruling, Passed), "only what passed is the best"
    found = attempt.ruling.measurement
    ends = axis.at(found.interval.low), axis.at(found.interval.high)
    said = speedup_words(attempt.ruling) + (f", {found.comparison}" if found.comparison not in DOUBTS else "")
    return "\n".join(
        [
            f'<line class="range" x1="{ends[0]}" x2="{ends[1]}" y1="{y}" y2="{y}"/>',
            f'<circle class="best" cx="{axis.at(found.speedup)}" cy="{y}" r="6"/>',
            svg_text(RIGHT + 16, y + 4, said),
        ]
    )


def _ends(attempts: tuple[Attempt, ...]) -> str:
    count = f"{len(attempts)} attempt{'' if len(attempts) == 1 else 's'}"
    failures = Counter(attempt.outcome for attempt in attempts if not attempt.passed)
    most = ", ".join(f"{number} {outcome}" for outcome, number in failures.most_common(2))
    return f"{count}: {most}" if most else count


def svg(sides: tuple[int, int], label: str, parts: Sequence[str], more_style: str = "") -> str:
    width, height = sides
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    ground = f'<rect class="ground" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>'
    body = "\n".join([f"<style>{STYLE}{more_style}</style>", ground, *parts])
    label = f'role="img" aria-label={quoteattr(_plain(label))}'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label}>\n{body}\n</svg>\n'


def svg_text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(_plain(text))}</text>'


def _plain(text: str) -> str:
    """Replace control characters, which XML does not allow: names of problems and models come from outside."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
