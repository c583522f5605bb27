"""The choice as a picture (SVG): the program's time as a bar, and in each part what could be had at most."""

from xml.sax.saxutils import escape, quoteattr

from kernelwright.programs.record.capture_folder import CapturedProgram, Chosen, Split
from kernelwright.programs.split.table import summary

WIDTH, LEFT, RIGHT, BAR, ROW = 900, 20, 880, 40, 30
HUES = ("#2f6fb3", "#b3602f", "#3d8a4b", "#8a4b8a", "#9a8423", "#3b8a8a", "#a84a5e", "#6a6ab8", "#6f8a2f", "#8a6a3b")
STYLE = """
.ground { fill: #fff; stroke: #d5dae1; } text { font: 13px system-ui, sans-serif; fill: #1c2128; }
.quiet { fill: #5a6472; font-size: 11px; } .head { font-size: 15px; font-weight: 600; } .rest { fill: #d5dae1; }
.held { fill: #fff; opacity: 0.45; }
@media (prefers-color-scheme: dark) {
.ground { fill: #14171c; stroke: #363d47; } text { fill: #e3e7ec; } .quiet { fill: #98a3b1; } .rest { fill: #363d47; }
.held { fill: #14171c; }
}"""


def split_picture(captured: CapturedProgram, split: Split) -> str:
    """The text of the SVG file."""
    height = 130 + ROW * len(split.chosen) + 14
    parts = [
        f"<style>{STYLE}</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        _text(LEFT, 28, captured.program, "head"),
        _text(LEFT, 47, summary(captured, split), "quiet"),
        f'<rect class="rest" x="{LEFT}" y="60" width="{RIGHT - LEFT}" height="{BAR}"/>',
    ]
    at = float(LEFT)
    for index, one in enumerate(split.chosen):
        parts += _segment(one, at, split.program_ms, HUES[index % len(HUES)])
        at += _pixels(one.ms, split.program_ms)
        parts += _row(captured, one, 130 + ROW * index, HUES[index % len(HUES)])
    parts.append(
        _text(LEFT, 116, "the whole bar: the program's time; pale: no kernel can have it; grey: not chosen", "quiet")
    )
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    label = f'role="img" aria-label={quoteattr(_plain(summary(captured, split)))}'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label}>\n' + "\n".join(parts) + "\n</svg>\n"


def _segment(one: Chosen, at: float, program_ms: float, hue: str) -> list[str]:
    """A part: what could be had in full colour, what lies below the floor, or is torch.compile's, pale."""
    width, gain = _pixels(one.ms, program_ms), _pixels(one.gain_ms, program_ms)
    told = f"<title>{escape(_plain(one.part))}</title>"
    return [
        f'<rect fill="{hue}" x="{at:.1f}" y="60" width="{width:.1f}" height="{BAR}">{told}</rect>',
        f'<rect class="held" x="{at + gain:.1f}" y="60" width="{max(0.0, width - gain):.1f}" height="{BAR}"/>',
    ]


def _row(captured: CapturedProgram, one: Chosen, top: int, hue: str) -> list[str]:
    part = captured.part(one.part)
    compiled = f", torch.compile {one.compiled_ms:.3g} ms" if one.compiled_ms else ""
    floor = f"floor {one.floor_ms:.3g} ms" if one.floor_ms else "floor unknown"
    said = f"{one.ms:.3g} ms in {len(one.sites)} place{'' if len(one.sites) == 1 else 's'}{compiled}, {floor}"
    return [
        f'<rect fill="{hue}" x="{LEFT}" y="{top}" width="12" height="12"/>',
        _text(LEFT + 20, top + 11, _shortened(f"{one.part}: {part.title}")),
        _text(560, top + 11, said, "quiet"),
    ]


def _pixels(ms: float, program_ms: float) -> float:
    return (RIGHT - LEFT) * ms / program_ms if program_ms else 0.0


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(_plain(text))}</text>'


def _plain(text: str) -> str:
    """Names come from outside, and XML has no place for control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _shortened(text: str, most: int = 74) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
