"""A comparison as one picture (SVG): a bar for each way, and what each kernel brought. Pure."""

import statistics
from xml.sax.saxutils import escape, quoteattr

from kernelwright.programs.compare.comparison import Comparison
from kernelwright.programs.compare.words import headline

WIDTH, HEAD, ROW, FOOT = 900, 70, 38, 26
LEFT, RIGHT = 230, 640
"""Where bars begin, and where the longest ends."""
STYLE = """
.ground { fill: #fff; stroke: #d5dae1; } text { font: 13px system-ui, sans-serif; fill: #1c2128; }
.quiet { fill: #5a6472; font-size: 11px; } .head { font-size: 15px; font-weight: 600; } .name { font-weight: 600; }
.mine { fill: #17803d; } .theirs { fill: #98a3b1; } .one { fill: #a9d5b8; }
@media (prefers-color-scheme: dark) {
.ground { fill: #14171c; stroke: #363d47; } text { fill: #e3e7ec; } .quiet { fill: #98a3b1; }
.mine { fill: #52cf7d; } .theirs { fill: #5a6472; } .one { fill: #2c6b43; }
}"""


def drawn(found: Comparison) -> str:
    """The text of the SVG file."""
    rows = _rows(found)
    longest = max(ms for _, ms, _, _ in rows)
    height = HEAD + ROW * len(rows) + FOOT
    parts = [f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>']
    told = headline(found)
    parts.append(_text(20, 28, told[0].upper() + told[1:], "head"))
    parts.append(_text(20, 49, f"{found.program}; {found.device}, {found.whole.threads} threads", "quiet"))
    for index, (name, ms, kind, beside) in enumerate(rows):
        top = HEAD + ROW * index
        long = max(1.0, round((RIGHT - LEFT) * ms / longest, 1))
        parts.append(_text(20, top + 17, name, "name" if kind == "mine" else ""))
        parts.append(f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{long}" height="24" rx="3"/>')
        parts.append(_text(LEFT + long + 10, top + 17, f"{ms:#.3g} ms  {beside}".strip()))
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    label = f'role="img" aria-label={quoteattr(told)}'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label}>\n<style>{STYLE}</style>\n'
    return head + "\n".join(parts) + "\n</svg>\n"


def _rows(found: Comparison) -> list[tuple[str, float, str, str]]:
    """Name, time in ms, kind of bar, and words beside it."""
    whole = found.whole
    rows = []
    for pairing in whole.pairings:
        low, high = pairing.interval
        told = f"with kernels {pairing.speedup:.2f} x [{low:.2f}, {high:.2f}]"
        rows.append((pairing.baseline, statistics.median(pairing.baseline_ms), "theirs", told))
    for share in found.shares:
        ms = statistics.median(found.alone[share.part].candidate_ms)
        rows.append((f"only {share.part}", ms, "one", f"takes off {share.saved:.0%} of eager"))
    return [*rows, ("all kernels", whole.candidate_ms, "mine", "")]


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(plain)}</text>'
