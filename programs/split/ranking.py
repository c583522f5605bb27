"""Which parts are worth a kernel: what could be had of each, and a choice of parts that do not overlap. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from kernelwright.programs.record.capture_folder import CapturedProgram, Chosen, Split
from kernelwright.programs.record.parts import CallSite, Part, PartSize
from kernelwright.sandbox.verdict.peaks import Peaks
from kernelwright.sandbox.verdict.roofline import floor_of

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
        """Whether some time would be counted twice."""
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
        """Whether any of it is done within that module."""
        return any(_within(owner, module) for owner in (self.owners or {self.module}))


def _within(name: str, module: str) -> bool:
    return module in ("", name) or name.startswith(f"{module}.")


def claim_of(part: Part, site: CallSite) -> SiteClaim:
    """What the part takes there."""
    if part.run is None:
        return SiteClaim(site.root, site.module)
    owners = frozenset(".".join(filter(None, (site.module, owner))) for owner in part.run.owners)
    return SiteClaim(site.root, site.module, owners, frozenset(part.run.nodes))


class _Left(NamedTuple):
    """A part at the sites that are left to it."""

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
        """From the better of eager and torch.compile down to the floor."""
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
    chosen: list[Chosen] = []
    known: dict[str, float | None] = {}
    while len(chosen) < top:
        left = [one for part in captured.parts if (one := _left(part, claims, known)).sites]
        best = max(left, key=lambda one: one.gain_ms(peaks), default=None)
        if best is None or best.gain_ms(peaks) < LEAST_GAIN * captured.program_ms:
            break
        if speedup is not None and best.part.id not in known:
            known[best.part.id] = speedup(best.part)
            continue
        chosen.append(_chosen(best, captured.program_ms, peaks))
        claims += [claim_of(best.part, site) for _, site in best.sites]
    return Split(program_ms=captured.program_ms, chosen=tuple(chosen), compiled=speedup is not None)


def _left(part: Part, claims: Sequence[SiteClaim], known: dict[str, float | None]) -> _Left:
    sites = tuple(
        (size, site) for size, site in _sites(part) if not any(claim_of(part, site).overlaps(one) for one in claims)
    )
    return _Left(part, sites, known.get(part.id))


def _sites(part: Part) -> Iterator[tuple[PartSize, CallSite]]:
    for size in part.sizes:
        for site in size.sites:
            yield size, site


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
