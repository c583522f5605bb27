"""The choice of parts that get a kernel, from a capture's folder alone: ranking, the table and the picture."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

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
    svg,
    write_record,
)
from kernelwright.sandbox.storage import write_atomically
from kernelwright.sandbox.verdict.errors import BrokenProblem, MachineError, UnsupportedHere, UnsupportedProblem
from kernelwright.sandbox.verdict.roofline import Peaks, floor_of
from kernelwright.sandbox.verdict.settings import JudgeSettings

LEAST_GAIN = 0.005
"""Of the program's time: where less could be gained, no part is chosen."""
MOST_UNCUT = 5
PICTURE = "split.svg"
TOP = 5
ROUNDS = 9
BAR = 860
"""Pixels of the bar that is the program's time."""
HUES = ("#2f6fb3", "#b3602f", "#3d8a4b", "#8a4b8a", "#9a8423", "#3b8a8a", "#a84a5e", "#6a6ab8", "#6f8a2f", "#8a6a3b")
SpeedupOfCompile = Callable[[Part], float | None]
"""Eager's time over that of torch.compile; None where that is not known."""


class SiteClaim(NamedTuple):
    """The share of the program that a part takes at one site."""

    root: str
    module: str
    owners: frozenset[str] | None = None
    """Of a run: the modules whose operators it has; None for a module with everything below it."""
    nodes: frozenset[str] = frozenset()

    @classmethod
    def of(cls, part: Part, site: CallSite) -> "SiteClaim":
        if part.run is None:
            return cls(site.root, site.module)
        owners = frozenset(".".join(filter(None, (site.module, owner))) for owner in part.run.owners)
        return cls(site.root, site.module, owners, frozenset(part.run.nodes))

    def overlaps(self, other: "SiteClaim") -> bool:
        if self.root != other.root:
            return False
        if self.owners is None:
            return other._lies_in(self.module) or (other.owners is None and _within(self.module, other.module))
        if other.owners is None:
            return self._lies_in(other.module)
        return bool(self.nodes & other.nodes if self.module == other.module else self.owners & other.owners)

    def _lies_in(self, module: str) -> bool:
        return any(_within(owner, module) for owner in (self.owners or {self.module}))


def _within(name: str, module: str) -> bool:
    return module in ("", name) or name.startswith(f"{module}.")


class _Left(NamedTuple):
    """A part at the sites that no other part has taken."""

    part: Part
    sites: tuple[tuple[PartSize, CallSite], ...]
    speedup: float | None
    peaks: Peaks | None

    @property
    def ms(self) -> float:
        return sum(site.ms for _, site in self.sites)

    @property
    def floor_ms(self) -> float:
        """The roofline of all calls, at most the time that they took, since one that is higher is our mistake."""
        return sum(min(site.ms, site.calls * self._floor_ms(size)) for size, site in self.sites)

    def _floor_ms(self, size: PartSize) -> float:
        if size.work is None or self.peaks is None:
            return 0.0
        return floor_of(size.work, self.peaks, self.part.precision).floor_ms

    @property
    def gain_ms(self) -> float:
        return max(0.0, self.ms / max(1.0, self.speedup or 1.0) - self.floor_ms)


def choose(captured: CapturedProgram, top: int, peaks: Peaks | None, speedup: SpeedupOfCompile | None = None) -> Split:
    """Choose at most `top` parts by possible gain, each at the sites that no part before it has.

    `speedup` is called for parts that are about to be chosen, since it takes its time to answer.
    """
    claims: list[SiteClaim] = []
    chosen: list[_Left] = []
    known: dict[str, float | None] = {}
    while len(chosen) < top:
        left = [_left(part, claims, known.get(part.id), peaks) for part in captured.parts]
        best = max((one for one in left if one.sites), key=lambda one: one.gain_ms, default=None)
        if best is None or best.gain_ms < LEAST_GAIN * captured.program_ms:
            break
        if speedup is not None and best.part.id not in known:
            known[best.part.id] = speedup(best.part)
            continue
        chosen.append(best)
        claims += [SiteClaim.of(best.part, site) for _, site in best.sites]
    # Shares of a part's own operators are timed separately from the program, so their sum may be more than it.
    whole_ms = max(captured.program_ms, sum(one.ms for one in chosen))
    found = tuple(
        Chosen(
            part=one.part.id,
            ms=one.ms,
            share=one.ms / whole_ms if whole_ms else 0.0,
            floor_ms=one.floor_ms,
            compiled_ms=one.ms / one.speedup if one.speedup else None,
            gain_ms=one.gain_ms,
            sites=tuple(dict.fromkeys((site.root, site.module) for _, site in one.sites)),
        )
        for one in chosen
    )
    return Split(program_ms=whole_ms, chosen=found, compiled=speedup is not None)


def _left(part: Part, claims: Sequence[SiteClaim], speedup: float | None, peaks: Peaks | None) -> _Left:
    sites = [(size, site) for size in part.sizes for site in size.sites]
    free = (one for one in sites if not any(SiteClaim.of(part, one[1]).overlaps(claim) for claim in claims))
    return _Left(part, tuple(free), speedup, peaks)


def attempts_for(weights: Iterable[float], each: int) -> list[int]:
    """Distribute `each` attempts a problem by weight: at least two for each, and as many in all.

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


def split_table(captured: CapturedProgram, split: Split) -> Table:
    table = Table(title=summary(captured, split), title_justify="left", box=None, pad_edge=False)
    for name in ("part", "what", "places", "calls", "ms", "of all", "floor ms", "compiled ms", "to gain"):
        if split.compiled or name != "compiled ms":
            table.add_column(name, justify="left" if name in ("part", "what") else "right", no_wrap=name == "part")
    for one in split.chosen:
        part = captured.part(one.part)
        wanted = set(one.sites)
        calls = sum(site.calls for size in part.sizes for site in size.sites if (site.root, site.module) in wanted)
        shapes = ", ".join(given.tensor.words for given in part.sizes[0].inputs[:2])
        more = f" and {len(part.sizes) - 1} more sizes" if len(part.sizes) > 1 else ""
        table.add_row(
            one.part,
            f"{part.title} ({shapes}{more})",
            str(len(one.sites)),
            str(calls),
            f"{one.ms:.3g}",
            f"{100 * one.share:.1f} %",
            f"{one.floor_ms:.3g}" if one.floor_ms else "?",
            *([f"{one.compiled_ms:.3g}" if one.compiled_ms else "?"] if split.compiled else []),
            f"{100 * one.gain_ms / split.program_ms:.1f} %",
        )
    return table


def summary(captured: CapturedProgram, split: Split) -> str:
    """Sum up: `12 ms a step on AMD EPYC; 61 % of it lies in 3 parts, and at most 40 % could be had`."""
    share = sum(one.share for one in split.chosen)
    gain = sum(one.gain_ms for one in split.chosen) / split.program_ms if split.program_ms else 0.0
    step_ms = captured.program_ms / captured.steps
    count = f"{len(split.chosen)} part{'' if len(split.chosen) == 1 else 's'}"
    return (
        f"{step_ms:.3g} ms a step on {captured.device}; {100 * share:.0f} % of it lies in {count}, "
        f"and at most {100 * gain:.0f} % could be had"
    )


def uncut_lines(captured: CapturedProgram) -> list[str]:
    """Return a sentence for each module that could not be cut out, the slowest first."""
    slowest = sorted(captured.uncut, key=lambda one: -one.ms)
    whole_ms = max([captured.program_ms, 1e-9, *(one.ms for one in slowest)])
    lines = [
        f"{'.'.join(filter(None, (one.root, one.module)))} ({100 * one.ms / whole_ms:.0f} % of "
        f"the time) is not cut out {f'at {one.run}' if one.run else 'as a whole'}: {one.why}"
        for one in slowest[:MOST_UNCUT]
    ]
    return lines + ([f"and {len(slowest) - MOST_UNCUT} more in capture.json"] if len(slowest) > MOST_UNCUT else [])


def split_picture(captured: CapturedProgram, split: Split) -> str:
    """Draw a bar of all parts, each with its possible gain in full colour, and a line for each."""

    def pixels(ms: float) -> float:
        return BAR * ms / split.program_ms if split.program_ms else 0.0

    parts, at = [], 20.0
    for index, one in enumerate(split.chosen):
        title = f"{one.part}: {captured.part(one.part).title}"
        compiled = f", torch.compile {one.compiled_ms:.3g} ms" if one.compiled_ms else ""
        floor = f"floor {one.floor_ms:.3g} ms" if one.floor_ms else "floor unknown"
        width, gain = pixels(one.ms), pixels(one.gain_ms)
        parts.append(
            {
                "name": one.part,
                "title": title if len(title) <= 74 else f"{title[:71]}...",
                "facts": f"{one.ms:.3g} ms in {len(one.sites)} place{'' if len(one.sites) == 1 else 's'}{compiled}, "
                f"{floor}",
                "hue": HUES[index % len(HUES)],
                "x": round(at, 1),
                "width": round(width, 1),
                "held_x": round(at + gain, 1),
                "held_width": round(max(0.0, width - gain), 1),
            }
        )
        at += width
    height = 144 + 30 * len(parts)
    return svg(PICTURE, height=height, title=captured.program, label=summary(captured, split), parts=parts)


def split_capture(
    folder: Path,
    top: int = TOP,
    compiling: JudgeSettings | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Split:
    """Choose at most `top` parts, and write `split.json` and `split.svg`; with settings torch.compile is measured.

    The rooflines are of the device here, which is taken to be that of the capture.
    """
    from kernelwright.sandbox.peaks import peaks_here

    captured, peaks = read_capture(folder), None
    try:
        peaks = peaks_here(captured.is_gpu, captured.threads)
    except MachineError as error:
        report(f"no part has a floor: {error}")

    def speedup(part: Part) -> float | None:
        assert compiling is not None, "called only where it is given"
        report(f"measuring torch.compile on {part.id}")
        return speedup_of_compile(folder, part, compiling)

    split = choose(captured, top, peaks, speedup if compiling else None)
    write_record(folder, split)
    write_atomically(folder / PICTURE, split_picture(captured, split))
    return split


def speedup_of_compile(folder: Path, part: Part, settings: JudgeSettings) -> float | None:
    """Measure eager against torch.compile for a part in the jail, by the least of a few calls each.

    None where it cannot compile the part. Raises `MachineError`.
    """
    from kernelwright.sandbox.backends import backend_of
    from kernelwright.sandbox.calls.reference import Form
    from kernelwright.sandbox.calls.sessions import Misbehaved, Refused
    from kernelwright.sandbox.jail.process import ChildGone, ChildLate

    problem, backend = load_problem(str(folder / part.problem)), backend_of(settings)
    try:
        with (
            backend.device_lock(),
            closing(backend.reference(problem)) as eager,
            closing(backend.reference(problem, Form("default"))) as compiled,
        ):
            values = eager.draw()
            times = [(eager.call_ms(values), compiled.call_ms(values)) for _ in range(ROUNDS)]
            nothing_ms = min(eager.nothing_ms() for _ in range(ROUNDS))
    except (BrokenProblem, UnsupportedHere, UnsupportedProblem, Misbehaved, Refused, ChildGone, ChildLate):
        return None
    mine, theirs = (max(1e-6, min(column) - nothing_ms) for column in zip(*times, strict=True))
    return float(mine / theirs)


def chosen_problems(folder: Path, top: int | None = None) -> dict[str, float]:
    """Return by the path of each chosen problem its share of a budget; choose where too few parts were chosen."""
    known = read_split(folder) if (folder / SPLIT).exists() else None
    if known is None or (top or TOP) > len(known.chosen):
        known = split_capture(folder, top or TOP) if known is None or not known.compiled else known
    captured = read_capture(folder)
    return {str(folder / captured.part(name).problem): weight for name, weight in known.weights(top).items()}
