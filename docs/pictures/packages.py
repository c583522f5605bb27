"""Draws the packages and who imports whom, from the sources: `python -m docs.pictures.packages` writes packages.svg."""

from collections import Counter
from pathlib import Path
from xml.sax.saxutils import escape

from tests import structure

PLACES = {
    "kernelwright": (265, 16), "programs": (265, 116), "evals": (265, 216), "agent": (265, 316),
    "prompts": (95, 416), "sandbox": (435, 416), "problems": (95, 516), "kernelwright_child": (435, 516),
}  # fmt: skip
"""Left upper corners; an import points down."""
SIZE = (280, 64)
WALK = {
    "kernelwright": "commands, and the names for Python",
    "programs": "a program's slow parts as problems",
    "evals": "many problems at once; boards, inspector",
    "agent": "2 ask  ·  4 reply, extract  ·  7 log  ·  8 decide",
    "prompts": "3 the prompt, section by section",
    "sandbox": "5 children in a jail  ·  6 one call, judged",
    "problems": "1 a frozen problem; nothing is run",
    "kernelwright_child": "5 what runs inside the jail",
}
"""The topic of each package; the numbers are the steps of a run in docs/architecture.md."""
STYLE = """
.room { fill: #f5f6f8; stroke: #5a6472; } text { font: 12px system-ui, sans-serif; fill: #1c2128; }
.name { font: 600 15px system-ui, sans-serif; } .quiet { fill: #5a6472; } .ground { fill: #fff; stroke: #d5dae1; }
path { fill: none; stroke: #5a6472; } .tip { fill: #5a6472; stroke: none; }
@media (prefers-color-scheme: dark) {
.room { fill: #1d2229; stroke: #98a3b1; } text { fill: #e3e7ec; } .quiet { fill: #98a3b1; } .tip { fill: #98a3b1; }
.ground { fill: #14171c; stroke: #363d47; } path { stroke: #98a3b1; }
}"""


def imports() -> Counter[tuple[str, str]]:
    """How many modules of one package import the other."""
    found: Counter[tuple[str, str]] = Counter()
    for module in structure.modules().values():
        others = {structure.modules()[name].package for name in structure.imports(module.path)}
        found.update((module.package, other) for other in others - {module.package})
    return found


def shown(edges: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    """The arrows: edges that do not follow from others, so that the picture stays a picture."""
    return sorted(edge for edge in edges if not any(_leads(edge, between, edges) for between in PLACES))


def _leads(edge: tuple[str, str], between: str, edges: Counter[tuple[str, str]]) -> bool:
    return (edge[0], between) in edges and (between, edge[1]) in edges


def drawn() -> str:
    """The text of the SVG file."""
    width, height = 810, 596
    parts = [f'<rect class="ground" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>']
    parts += [_arrow(*edge) for edge in shown(imports())]
    parts += [_room(package) for package in PLACES]
    head = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img"'
    label = 'aria-label="The packages, each importing only those below it"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {head} {label}>\n<style>{STYLE}</style>\n{body}\n</svg>\n'


def _room(package: str) -> str:
    x, y = PLACES[package]
    return "\n".join(
        [
            f'<rect class="room" x="{x}" y="{y}" width="{SIZE[0]}" height="{SIZE[1]}" rx="6"/>',
            f'<text class="name" x="{x + 14}" y="{y + 26}">{package}</text>',
            f'<text class="quiet" x="{x + 14}" y="{y + 47}">{escape(WALK[package])}</text>',
        ]
    )


def _arrow(upper: str, lower: str) -> str:
    """From the lower edge of one room to the upper edge of another."""
    (x1, y1), (x2, y2) = PLACES[upper], PLACES[lower]
    start = x1 + SIZE[0] / 2 + (x2 - x1) / 4, y1 + SIZE[1]
    end = x2 + SIZE[0] / 2 + (x1 - x2) / 4, y2
    line = f'<path d="M {start[0]:g} {start[1]} L {end[0]:g} {end[1] - 6}"/>'
    tip = f"{end[0]:g},{end[1]} {end[0] - 4:g},{end[1] - 8} {end[0] + 4:g},{end[1] - 8}"
    return f'{line}\n<polygon class="tip" points="{tip}"/>'


if __name__ == "__main__":
    Path(__file__).with_name("packages.svg").write_text(drawn(), encoding="utf-8")
