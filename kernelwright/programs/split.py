"""Which parts of a capture get a kernel, from its folder alone: ranking, choosing, the table and the picture."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from rich.table import Table

from kernelwright.problems import load_problem
from kernelwright.programs.record import (
    SPLIT,
    CallSite,
    CapturedProgram,
    Chosen,
    Part,
    PartSize,
    Split,
    read_capture,
    read_split,
    write_record,
)
from kernelwright.sandbox.machine.cache import write_atomically
from kernelwright.sandbox.verdict.errors import BrokenProblem, MachineError, UnsupportedHere, UnsupportedProblem
from kernelwright.sandbox.verdict.roofline import Peaks, floor_of
from kernelwright.sandbox.verdict.settings import Settings

LEAST_GAIN = 0.005
"""Of the program's time: where less could be had, no part is chosen."""
SpeedupOfCompile = Callable[[Part], float | None]
"""How many times as fast as eager torch.compile makes a part; None where that can not be told."""


class SiteClaim(NamedTuple):
    """What a part takes of the program at one site."""

    root: str
    module: str
    owners: frozenset[str] | None = None
    """Of a run: the modules whose operators it has; None for a module with everything below it."""
    nodes: frozenset[str] = frozenset()

    def overlaps(self, other: "SiteClaim") -> bool:
        if self.root != other.root:
            return False
        if self.owners is None:
            return other._lies_in(self.module) or (other.owners is None and _within(self.module, other.module))
        if other.owners is None:
            return self._lies_in(other.module)
        if self.module == other.module:
            return bool(self.nodes & other.nodes)
        return bool(self.owners & other.owners)

    def _lies_in(self, module: str) -> bool:
        return any(_within(owner, module) for owner in (self.owners or {self.module}))


def _within(name: str, module: str) -> bool:
    return module in ("", name) or name.startswith(f"{module}.")


def claim_of(part: Part, site: CallSite) -> SiteClaim:
    if part.run is None:
        return SiteClaim(site.root, site.module)
    owners = frozenset(".".join(filter(None, (site.module, owner))) for owner in part.run.owners)
    return SiteClaim(site.root, site.module, owners, frozenset(part.run.nodes))


class _Left(NamedTuple):
    part: Part
    sites: tuple[tuple[PartSize, CallSite], ...]
    speedup: float | None

    @property
    def ms(self) -> float:
        return sum(site.ms for _, site in self.sites)

    def floor_ms(self, peaks: Peaks | None) -> float:
        """Of all calls: never more than what they took, since a floor that is higher is our mistake."""
        return sum(min(site.ms, site.calls * floor_ms(self.part, size, peaks)) for size, site in self.sites)

    def gain_ms(self, peaks: Peaks | None) -> float:
        return max(0.0, self.ms / max(1.0, self.speedup or 1.0) - self.floor_ms(peaks))


def floor_ms(part: Part, size: PartSize, peaks: Peaks | None) -> float:
    """The least time of one call; 0 where it is not known."""
    if size.work is None or peaks is None:
        return 0.0
    return floor_of(size.work, peaks, part.precision).floor_ms


def choose(captured: CapturedProgram, top: int, peaks: Peaks | None, speedup: SpeedupOfCompile | None = None) -> Split:
    """The parts by what could be had, each at the sites that no part before it has; at most `top`.

    `speedup` is asked for parts that are about to be chosen, since it takes its time to answer.
    """
    claims: list[SiteClaim] = []
    chosen: list[_Left] = []
    known: dict[str, float | None] = {}
    while len(chosen) < top:
        left = [one for part in captured.parts if (one := _left(part, claims, known)).sites]
        best = max(left, key=lambda one: one.gain_ms(peaks), default=None)
        if best is None or best.gain_ms(peaks) < LEAST_GAIN * captured.program_ms:
            break
        if speedup is not None and best.part.id not in known:
            known[best.part.id] = speedup(best.part)
            continue
        chosen.append(best)
        claims += [claim_of(best.part, site) for _, site in best.sites]
    # Shares of a part's own operators are timed apart from the program, so their sum may be more than it.
    whole_ms = max(captured.program_ms, sum(one.ms for one in chosen))
    found = tuple(_chosen(one, whole_ms, peaks) for one in chosen)
    return Split(program_ms=whole_ms, chosen=found, compiled=speedup is not None)


def _left(part: Part, claims: Sequence[SiteClaim], known: dict[str, float | None]) -> _Left:
    sites = [(size, site) for size in part.sizes for site in size.sites]
    free = (one for one in sites if not any(claim_of(part, one[1]).overlaps(claim) for claim in claims))
    return _Left(part, tuple(free), known.get(part.id))


def _chosen(one: _Left, program_ms: float, peaks: Peaks | None) -> Chosen:
    return Chosen(
        part=one.part.id,
        ms=one.ms,
        share=one.ms / program_ms if program_ms else 0.0,
        floor_ms=one.floor_ms(peaks),
        compiled_ms=one.ms / one.speedup if one.speedup else None,
        gain_ms=one.gain_ms(peaks),
        sites=tuple(dict.fromkeys((site.root, site.module) for _, site in one.sites)),
    )


def attempts_for(weights: Iterable[float], each: int) -> list[int]:
    """`each` attempts a problem, handed out by weight: at least two, and as many in all as there would have been.

    Where the least takes more than its share, the others have less.
    """
    shares = list(weights)
    least = min(2, each)
    over = each * len(shares) - least * len(shares)
    total = sum(shares) or 1.0
    exact = [over * share / total for share in shares]
    counts = [int(one) for one in exact]
    for index in sorted(range(len(shares)), key=lambda index: counts[index] - exact[index])[: over - sum(counts)]:
        counts[index] += 1
    return [least + count for count in counts]


MOST_UNCUT = 5


def split_table(captured: CapturedProgram, split: Split) -> Table:
    table = Table(title=summary(captured, split), title_justify="left", box=None, pad_edge=False)
    for name, right in (("part", False), ("what", False), ("places", True), ("calls", True), ("ms", True)):
        table.add_column(name, justify="right" if right else "left", no_wrap=name == "part")
    for name in ("of all", "floor ms", *(["compiled ms"] if split.compiled else []), "to gain"):
        table.add_column(name, justify="right")
    for one in split.chosen:
        table.add_row(*_cells(captured, split, one))
    return table


def _cells(captured: CapturedProgram, split: Split, one: Chosen) -> Iterator[str]:
    part = captured.part(one.part)
    wanted = set(one.sites)
    calls = sum(site.calls for size in part.sizes for site in size.sites if (site.root, site.module) in wanted)
    shapes = ", ".join(given.tensor.words for given in part.sizes[0].inputs[:2])
    more = f" and {len(part.sizes) - 1} more sizes" if len(part.sizes) > 1 else ""
    yield from (one.part, f"{part.title} ({shapes}{more})", str(len(one.sites)), str(calls), f"{one.ms:.3g}")
    yield f"{100 * one.share:.1f} %"
    yield f"{one.floor_ms:.3g}" if one.floor_ms else "?"
    if split.compiled:
        yield f"{one.compiled_ms:.3g}" if one.compiled_ms else "?"
    yield f"{100 * one.gain_ms / split.program_ms:.1f} %"


def summary(captured: CapturedProgram, split: Split) -> str:
    """`12 ms a step on AMD EPYC; 61 % of it lies in 3 parts, and at most 40 % could be had`."""
    share = sum(one.share for one in split.chosen)
    gain = sum(one.gain_ms for one in split.chosen) / split.program_ms if split.program_ms else 0.0
    step_ms = captured.program_ms / captured.steps
    count = f"{len(split.chosen)} part{'' if len(split.chosen) == 1 else 's'}"
    return (
        f"{step_ms:.3g} ms a step on {captured.device}; {100 * share:.0f} % of it lies in {count}, "
        f"and at most {100 * gain:.0f} % could be had"
    )


def uncut_lines(captured: CapturedProgram) -> list[str]:
    """A sentence for each module that could not be cut out, the dearest first."""
    dearest = sorted(captured.uncut, key=lambda one: -one.ms)
    whole_ms = max([captured.program_ms, 1e-9, *(one.ms for one in dearest)])
    lines = [
        f"{'.'.join(filter(None, (one.root, one.module)))} ({100 * one.ms / whole_ms:.0f} % of "
        f"the time) is not cut out {f'at {one.run}' if one.run else 'as a whole'}: {one.why}"
        for one in dearest[:MOST_UNCUT]
    ]
    return lines + ([f"and {len(dearest) - MOST_UNCUT} more in capture.json"] if len(dearest) > MOST_UNCUT else [])


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
    title = f"{one.part}: {captured.part(one.part).title}"
    compiled = f", torch.compile {one.compiled_ms:.3g} ms" if one.compiled_ms else ""
    floor = f"floor {one.floor_ms:.3g} ms" if one.floor_ms else "floor unknown"
    said = f"{one.ms:.3g} ms in {len(one.sites)} place{'' if len(one.sites) == 1 else 's'}{compiled}, {floor}"
    return [
        f'<rect fill="{hue}" x="{LEFT}" y="{top}" width="12" height="12"/>',
        _text(LEFT + 20, top + 11, title if len(title) <= 74 else f"{title[:71]}..."),
        _text(560, top + 11, said, "quiet"),
    ]


def _pixels(ms: float, program_ms: float) -> float:
    return (RIGHT - LEFT) * ms / program_ms if program_ms else 0.0


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(_plain(text))}</text>'


def _plain(text: str) -> str:
    """Names come from outside, and XML has no place for control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


PICTURE = "split.svg"
TOP = 5
ROUNDS = 9


def split_capture(
    folder: Path, top: int = TOP, compiling: Settings | None = None, tell: Callable[[str], None] = lambda text: None
) -> Split:
    """Choose at most `top` parts, and write `split.json` and `split.svg`; with settings torch.compile is measured."""
    captured = read_capture(folder)

    def speedup(part: Part) -> float | None:
        assert compiling is not None, "asked for only where it is given"
        tell(f"measuring torch.compile on {part.id}")
        return speedup_of_compile(folder, part, compiling)

    split = choose(captured, top, _peaks(captured, tell), speedup if compiling else None)
    write_record(folder, split)
    write_atomically(folder / PICTURE, split_picture(captured, split))
    return split


def speedup_of_compile(folder: Path, part: Part, settings: Settings) -> float | None:
    """How many times as fast as eager torch.compile makes a part, by the least of a few turns each, in the jail.

    None where it can not compile the part. Raises `MachineError`.
    """
    from kernelwright.sandbox.calls.backend import device_held
    from kernelwright.sandbox.calls.reference import ReferenceSession
    from kernelwright.sandbox.calls.sessions import Misbehaved, Refused
    from kernelwright.sandbox.jail.children import ChildGone, ChildLate
    from kernelwright.sandbox.timing.compiled import compiled_reference

    problem = load_problem(str(folder / part.problem))
    try:
        with (
            device_held(settings),
            closing(ReferenceSession(problem, settings)) as eager,
            closing(compiled_reference(problem, settings, "default")) as compiled,
        ):
            values = eager.draw()
            times = [(eager.call_ms(values), compiled.call_ms(values)) for _ in range(ROUNDS)]
            nothing_ms = min(eager.nothing_ms() for _ in range(ROUNDS))
    except (BrokenProblem, UnsupportedHere, UnsupportedProblem, Misbehaved, Refused, ChildGone, ChildLate):
        return None
    mine, theirs = (max(1e-6, min(column) - nothing_ms) for column in zip(*times, strict=True))
    return float(mine / theirs)


def _peaks(captured: CapturedProgram, tell: Callable[[str], None]) -> Peaks | None:
    """Of the device here, which is taken to be that of the capture; None where they can not be had."""
    from kernelwright.sandbox.floor.processor import peaks_here

    try:
        return peaks_here(captured.is_gpu, captured.threads)
    except MachineError as error:
        tell(f"no part has a floor: {error}")
        return None


def chosen_problems(folder: Path, top: int | None = None) -> dict[str, float]:
    """By the path of each chosen problem, its weight: the share of a budget that it deserves.

    Chooses afresh where no choice was made, or fewer parts than are wanted.
    """
    known = read_split(folder) if (folder / SPLIT).exists() else None
    if known is None or (top or TOP) > len(known.chosen):
        known = split_capture(folder, top or TOP) if known is None or not known.compiled else known
    weights = known.weights(top)
    captured = read_capture(folder)
    return {str(folder / captured.part(name).problem): weight for name, weight in weights.items()}
