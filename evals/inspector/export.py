"""A run or a score as one HTML file that needs nothing else, or as one picture (SVG); and the page of both views.

In a picture each problem is a row and each right attempt a point, the best one with its interval. It is drawn from the
run's log alone: the same run gives the same picture. It asks for nothing from outside, not even a font.
"""

import base64
import gzip
import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal
from xml.sax.saxutils import escape, quoteattr

from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.view import View
from kernelwright.evals.inspector.model import Data, RunModel
from kernelwright.evals.scores.score_log import log_of
from kernelwright.sandbox.verdict.report import DOUBTS, speedup_words
from kernelwright.sandbox.verdict.verdicts import Passed

SCRIPTS = ("dom.js", "store.js", "code.js", "plots.js", "pages.js", "main.js")
"""In the order in which they need one another."""
STRICT = '"use strict";\n'


def page(title: str, form: Literal["file", "live"], data: Mapping[str, str]) -> str:
    """The whole page. `data` are base64 texts by the id of the element that holds each.

    Everything that it says about a run comes out of that data, through scripts that make elements from text; the page's
    policy lets run only the script that stands in it, and ask only what gave it (a file: nothing).
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    # As one program, in which nothing is a name of the page's own.
    script = "(() => {\n" + STRICT + "".join(_text(name).replace(STRICT, "") for name in SCRIPTS) + "})();\n"
    style = _text("style.css")
    environment = Environment(
        loader=PackageLoader("kernelwright.evals.inspector", "assets"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("page.html.j2").render(
        title=title,
        form=form,
        data=data,
        script=Markup(script),
        style=Markup(style),
        policy=policy(script, style, form),
    )


def policy(script: str, style: str, form: Literal["file", "live"]) -> str:
    """The Content-Security-Policy: this script, this style, nothing else; no code from text."""
    parts = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
        "img-src": "data:",
        "connect-src": "'self'" if form == "live" else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _text(name: str) -> str:
    return files("kernelwright.evals.inspector").joinpath("assets", name).read_text(encoding="utf-8")


CHUNK = 25
"""Attempts that are unpacked together."""
LARGEST_BYTES = 5_000_000
LIMITS = (200_000, 60_000, 20_000, 8_000, 4_000)
"""Characters of a text that are kept; the first limit under which the file is small enough is taken."""
TEXTS = ("source", "reply", "reasoning")
SHORTEST_SHARED = 60
"""Characters below which a text is not worth a name of its own."""


def export(folder: Path, out: Path) -> int:
    """Write the run or score in `folder` to `out`, as a picture where that ends in `.svg`, else as a page; the bytes.

    Raises `RunLogError` or `OSError`.
    """
    with log_of(folder) as log:
        model = RunModel(log)
        data = (picture(model) if out.suffix == ".svg" else exported(model)).encode()
    out.write_bytes(data)
    return len(data)


def exported(model: RunModel) -> str:
    """The file's text. Long texts are cut where the whole would become too large, and say so."""
    details = {
        (name, attempt.number): model.detail(name, attempt.number)
        for name, view in model.views.items()
        for attempt in view.attempts
    }
    for limit in LIMITS:
        text = page(f"kernelwright: {model.log.header.run_id}", "file", _packed(model, details, limit))
        if len(text) <= LARGEST_BYTES:
            break
    return text


def _packed(model: RunModel, details: dict[tuple[str, int], Data], limit: int) -> dict[str, str]:
    index = model.index()
    texts = _Texts(details, limit)
    chunks: dict[str, Data] = {}
    for problem in index["problems"]:
        for summary in problem["attempts"]:
            number = summary["n"]
            summary["chunk"] = name = f"chunk-{index['problems'].index(problem)}-{(number - 1) // CHUNK}"
            own = chunks.setdefault(name, {"attempts": {}, "texts": {}})
            own["attempts"][f"{problem['name']}/{number}"] = texts.detail(problem["name"], number, own["texts"])
    references = {name: problem.source for name, problem in model.problems.items()}
    whole = {"index": index, "shared": {"texts": texts.shared, "references": references}} | chunks
    return {name: _pack(value) for name, value in whole.items()}


def _pack(value: Any) -> str:
    # The level that halves the time of the best one, for a few per cent more bytes; no date, so that the same run gives
    # the same file.
    data = gzip.compress(json.dumps(value, separators=(",", ":")).encode(), compresslevel=8, mtime=0)
    return base64.b64encode(data).decode()


class _Texts:
    """Texts stored once: each is a list of pieces, and a piece that is stored under a name is [name].

    A reply quotes its candidate's source, and a prompt its parent's; sections are the same in many prompts.
    """

    def __init__(self, details: dict[tuple[str, int], Data], limit: int) -> None:
        self._details = details
        self._limit = limit
        counts = Counter(section["text"] for detail in details.values() for section in detail["sections"])
        self.shared = {_name(text): self._cut(text) for text, count in counts.items() if count > 1}
        for number, detail in details.items():
            for child in self._children(number, detail):
                self.shared[_name(child)] = self._cut(child)

    def _children(self, number: tuple[str, int], detail: Data) -> list[str]:
        """The parent's source, where the attempt's prompt quotes it."""
        source = self._parent_source(number, detail)
        quotes = source and any(source in section["text"] for section in detail["sections"] if not section["stable"])
        return [source] if source and quotes else []

    def _parent_source(self, number: tuple[str, int], detail: Data) -> str | None:
        parent = self._details.get((number[0], detail["parent"] or 0))
        return parent["source"] if parent else None

    def detail(self, problem: str, number: int, own: dict[str, str]) -> Data:
        detail = dict(self._details[problem, number])
        quoted = [detail["source"], self._parent_source((problem, number), detail)]
        known = [text for text in quoted if text and len(text) >= SHORTEST_SHARED]
        if detail["source"]:
            own.setdefault(_name(detail["source"]), self._cut(detail["source"]))
        for name in TEXTS:
            detail[name] = None if detail[name] is None else self._pieces(detail[name], known, own)
        detail["sections"] = [one | {"text": self._pieces(one["text"], known, own)} for one in detail["sections"]]
        for name in ("log", "reason"):
            detail[name] = None if detail[name] is None else self._cut(detail[name])
        return detail

    def _pieces(self, text: str, known: list[str], own: dict[str, str]) -> list[Any]:
        if _name(text) in self.shared or _name(text) in own:
            return [[_name(text)]]
        for quoted in known:
            before, found, after = text.partition(quoted)
            if found and (_name(quoted) in self.shared or _name(quoted) in own):
                return [self._cut(before), [_name(quoted)], self._cut(after)]
        return [self._cut(text)]

    def _cut(self, text: str) -> str:
        if len(text) <= self._limit:
            return text
        return (
            f"{text[: self._limit]}\n[... {len(text) - self._limit} more characters are in the run, not in this file]"
        )


def _name(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


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
    low: float
    high: float

    def at(self, speedup: float) -> float:
        share = math.log(speedup / self.low) / math.log(self.high / self.low)
        return round(LEFT + min(1.0, max(0.0, share)) * (RIGHT - LEFT), 1)

    @property
    def ticks(self) -> list[float]:
        inside = [tick for tick in TICKS if self.low <= tick <= self.high]
        return [tick for tick in inside if len(inside) <= 10 or f"{tick:e}"[0] == "1"]


def picture(model: RunModel) -> str:
    views = list(model.views.items())
    axis = axis_for([attempt.speedup for _, view in views for attempt in view.attempts if attempt.speedup is not None])
    height = HEAD + ROW * len(views) + FOOT
    run, torch = model.index()["run"], model.log.header.versions.get("torch", "unknown")
    circumstances = f"{run['target']}, answers: {run['model']}, strategy: {run['strategy']}"
    ground = f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>'
    parts = [
        f"<style>{STYLE}</style>\n{ground}",
        _svg_text(20, 26, _title(model), "head"),
        _svg_text(20, 45, f"{circumstances}; {model.log.header.device}, torch {torch}", "quiet"),
    ]
    parts += [_scale(axis, height)]
    parts += [_row(name, view, axis, HEAD + ROW * index) for index, (name, view) in enumerate(views)]
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    label = f'role="img" aria-label={quoteattr(_plain(_title(model)))}'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label}>\n' + "\n".join(parts) + "\n</svg>\n"


def axis_for(speedups: list[float]) -> Axis:
    found = [*speedups, 0.5, 2.0]
    low = max((tick for tick in TICKS if tick <= min(found)), default=TICKS[0])
    high = min((tick for tick in TICKS if tick >= max(found)), default=TICKS[-1])
    return Axis(low=low, high=high)


def _title(model: RunModel) -> str:
    attempts = [attempt for view in model.views.values() for attempt in view.attempts]
    right = sum(1 for attempt in attempts if attempt.passed)
    return f"{len(model.views)} problems, {len(attempts)} attempts, {right} right: speedup over PyTorch"


def _scale(axis: Axis, height: int) -> str:
    bottom = height - FOOT + 4
    parts = []
    for tick in axis.ticks:
        x = axis.at(tick)
        kind = "one" if tick == 1 else "line"
        parts.append(f'<line class="{kind}" x1="{x}" x2="{x}" y1="{HEAD}" y2="{bottom}"/>')
        parts.append(_svg_text(x, bottom + 15, f"{tick:g}", "quiet", anchor="middle"))
    parts.append(_svg_text(20, bottom + 15, "open: right attempts; filled: the best, with its interval", "quiet"))
    parts.append(_svg_text(RIGHT + 16, bottom + 15, "times as fast as PyTorch, best [95 %]", "quiet"))
    return "\n".join(parts)


def _row(name: str, view: View, axis: Axis, top: int) -> str:
    middle = top + ROW // 2
    best = view.best
    parts = [
        _svg_text(20, middle - 2, name if len(name) <= 38 else f"{name[:35]}...", "name"),
        _svg_text(20, middle + 13, _ends(view.attempts), "quiet"),
    ]
    places = [axis.at(attempt.speedup) for attempt in view.attempts if attempt.speedup is not None]
    if places:
        parts.append(f'<line class="way" x1="{min(places)}" x2="{max(places)}" y1="{middle}" y2="{middle}"/>')
    parts += [_point(attempt, axis, middle) for attempt in view.attempts if attempt is not best]
    if best is not None:
        parts += [_best(best, axis, middle)]
    else:
        parts += [_svg_text(RIGHT + 16, middle + 4, "not judged" if view.fault else "none right yet", "quiet")]
    return "\n".join(part for part in parts if part)


def _point(attempt: Attempt, axis: Axis, y: int) -> str:
    if attempt.speedup is None:
        return ""
    told = f"<title>attempt {attempt.number}: {attempt.speedup:.2f} x{attempt.marks}</title>"
    return f'<circle class="right" cx="{axis.at(attempt.speedup)}" cy="{y}" r="4">{told}</circle>'


def _best(attempt: Attempt, axis: Axis, y: int) -> str:
    assert isinstance(attempt.ruling, Passed), "only what passed is the best"
    found = attempt.ruling.measurement
    ends = axis.at(found.interval.low), axis.at(found.interval.high)
    said = speedup_words(attempt.ruling) + (f", {found.comparison}" if found.comparison not in DOUBTS else "")
    return "\n".join(
        [
            f'<line class="range" x1="{ends[0]}" x2="{ends[1]}" y1="{y}" y2="{y}"/>',
            f'<circle class="best" cx="{axis.at(found.speedup)}" cy="{y}" r="6"/>',
            _svg_text(RIGHT + 16, y + 4, said),
        ]
    )


def _ends(attempts: tuple[Attempt, ...]) -> str:
    count = f"{len(attempts)} attempt{'' if len(attempts) == 1 else 's'}"
    failures = Counter(attempt.outcome for attempt in attempts if not attempt.passed)
    told = ", ".join(f"{number} {outcome}" for outcome, number in failures.most_common(2))
    return f"{count}: {told}" if told else count


def _svg_text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(_plain(text))}</text>'


def _plain(text: str) -> str:
    """Names of problems and models come from outside, and XML has no place for control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
