"""A program judged end to end: several processes of it, one record of what they measured, in words and as one picture.

Each process is one of `programs.child`.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from pydantic import Field

from kernelwright.problems.record.base import Record
from kernelwright.problems.record.problem import ProblemError
from kernelwright.sandbox.machine.identity import device_name, versions
from kernelwright.sandbox.machine.timing_locks import processor_turn
from kernelwright.sandbox.timing.samples import PLACEBO
from kernelwright.sandbox.verdict.report import ratio_words
from kernelwright.sandbox.verdict.verdicts import AS_SHIPPED, COMPILED, Measurement, Pairing

KERNELS, ALONE = "kernels", "alone "
"""Names of the sides with all kernels, and with those of one part, whose id stands behind."""


class StageError(Record):
    """How far off one stage of the program is from float64, by its own code and by the kernel, on the program's inputs.

    As shares of the largest magnitude of the float64 result.
    """

    place: str
    """The module; empty for the program's outputs as a whole, with gradients where some flow."""
    own: float
    kernel: float
    wrong: str = ""
    """Why the judge's bound would refuse the kernel's result here; empty where it would not."""
    exact: bool = True
    """Whether float64 could be had; else the distance is that from the module's own result."""


class Order(Record):
    script: str
    arguments: tuple[str, ...]
    run: str
    compiled: tuple[str, ...]
    """Modes of torch.compile."""
    errors: bool


class Times(Record):
    samples: dict[str, tuple[float, ...]]
    """By side, times in ms."""
    calls: int
    backward: bool
    on_device: bool
    """Whether the program's calls have anything on a GPU."""
    threads: int
    errors: tuple[StageError, ...]
    taken: dict[str, int]
    fallbacks: dict[str, dict[str, int]]
    notes: tuple[str, ...]


class Comparison(Record):
    """A program judged end to end. What is reported is derived from the samples."""

    program: str
    run: str
    device: str
    versions: dict[str, str]
    calls: int = Field(ge=1)
    """Kinds of calls of the program's outermost modules; one of each makes up a sample."""
    backward: bool
    whole: Measurement
    """With all kernels, against eager as shipped and torch.compile."""
    alone: dict[str, Pairing] = Field(default_factory=dict)
    """By part: the program with this kernel alone, against eager."""
    errors: tuple[StageError, ...] = ()
    taken: dict[str, int] = Field(default_factory=dict)
    """By place, how often the kernel was taken in one sample."""
    fallbacks: dict[str, dict[str, int]] = Field(default_factory=dict)
    """By place, how often the module's own code was taken in one sample, by the reason."""
    notes: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        return not any(error.wrong for error in self.errors)

    @property
    def is_faster(self) -> bool:
        """Whether the whole is right, and faster than every baseline beyond doubt."""
        return self.right and self.whole.comparison == "faster"

    @property
    def shares(self) -> "list[Share]":
        found = [Share.of(part, pairing) for part, pairing in self.alone.items()]
        return sorted(found, key=lambda share: -share.saved)


class Share(NamedTuple):
    part: str
    saved: float
    """The share of eager's time that is gone; below 0 it costs time."""
    low: float
    high: float
    """The ends of the 95 % interval."""

    @classmethod
    def of(cls, part: str, pairing: Pairing) -> "Share":
        return cls(part, *(1 - 1 / ratio for ratio in (pairing.speedup, *pairing.interval)))


PROCESSES = 5


def compare(order: Order, processes: int = PROCESSES, tell: Callable[[str], None] = lambda text: None) -> Comparison:
    """Run the program in so many processes, each of which times all ways in turn. `ProblemError` where it can not be.

    The program and the kernels run here as the user's own: this is no jail, and the kernels were judged before.
    """
    found = []
    for number in range(processes):
        with processor_turn(tuple(sorted(os.sched_getaffinity(0)))):
            found.append(_times(order.model_copy(update={"errors": number == 0})))
        medians = (f"{name} {statistics.median(times):.3g} ms" for name, times in found[-1].samples.items())
        tell(f"process {number + 1} of {processes}: {', '.join(medians)}")
    return folded(order, found)


def folded(order: Order, found: Sequence[Times]) -> Comparison:
    """One record of what several processes measured; a baseline counts where all of them have it."""
    first = found[0]
    names = [name for name in first.samples if all(name in times.samples for times in found)]
    baselines = [name for name in names if name == AS_SHIPPED or name.startswith(COMPILED)]
    whole = Measurement(
        pairings=tuple(_pairing(found, KERNELS, name) for name in baselines),
        threads=first.threads,
        placebo=_pairing(found, AS_SHIPPED, PLACEBO),
    )
    alone = [name for name in names if name.startswith(ALONE)]
    return Comparison(
        program=" ".join([order.script, *order.arguments]),
        run=order.run,
        device=device_name("cuda" if first.on_device else "cpu"),
        versions=versions(),
        calls=first.calls,
        backward=first.backward,
        whole=whole,
        alone={name.removeprefix(ALONE): _pairing(found, name, AS_SHIPPED) for name in alone},
        errors=first.errors,
        taken=first.taken,
        fallbacks=first.fallbacks,
        notes=tuple(dict.fromkeys(note for times in found for note in times.notes)),
    )


def _pairing(found: Sequence[Times], mine: str, theirs: str) -> Pairing:
    return Pairing(
        baseline=theirs,
        candidate_ms=tuple(ms for times in found for ms in times.samples[mine]),
        baseline_ms=tuple(ms for times in found for ms in times.samples[theirs]),
        workers=tuple(number for number, times in enumerate(found) for _ in times.samples[mine]),
    )


def _times(order: Order) -> Times:
    with tempfile.TemporaryDirectory(prefix="kernelwright-compare-") as folder:
        out = Path(folder) / "times.json"
        words = [sys.executable, "-m", "kernelwright.programs.child", order.model_dump_json(), str(out)]
        done = subprocess.run(words, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
        if done.returncode == 0 and out.is_file():
            return Times.model_validate_json(out.read_text(encoding="utf-8"))
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode == 2 and lines:
        raise ProblemError(lines[-1])
    told = "\n  ".join(lines[-12:]) or f"it ended with exit code {done.returncode}"
    raise ProblemError(f"{order.script} did not run through; mend it, and compare again:\n  {told}")


def words(found: Comparison) -> str:
    whole = found.whole
    samples, processes = len(whole.closest.candidate_ms), len(set(whole.closest.workers))
    kind = "forward and backward" if found.backward else "forward"
    lines = [f"{headline(found)}", ""]
    lines.append(f"{found.program}, {kind}, on {found.device}, {whole.threads} threads:")
    lines.append(f"  {'kernels':<28}{whole.candidate_ms:#9.3g} ms   ({samples} samples in {processes} processes)")
    for pairing in whole.pairings:
        ms = statistics.median(pairing.baseline_ms)
        lines.append(f"  {pairing.baseline:<28}{ms:#9.3g} ms   {ratio_words(pairing.speedup, *pairing.interval)}")
    if whole.placebo is not None:
        told = ratio_words(whole.placebo.speedup, *whole.placebo.interval)
        lines.append(f"  {'placebo: eager against eager':<28}{'':12}   {told}")
    shares = [
        f"{share.part} alone takes off {share.saved:.1%} of eager's time [{share.low:.1%}, {share.high:.1%}]"
        for share in found.shares
    ]
    lines += ["", *shares, *map(error_words, found.errors)]
    lines += [f"{place}: the kernel was taken {count} times a sample" for place, count in found.taken.items()]
    for place, reasons in found.fallbacks.items():
        lines += [f"{place}: the module's own code {count} times a sample: {why}" for why, count in reasons.items()]
    return "\n".join([*lines, *found.notes])


def headline(found: Comparison) -> str:
    """`faster: 8.31 x [8.1, 8.5] against the fastest baseline, torch.compile default`; or why it is not."""
    whole = found.whole
    told = f"{ratio_words(whole.speedup, *whole.interval)} against the fastest baseline, {whole.closest.baseline}"
    if not found.right:
        return f"the whole is WRONG with the kernels by the judge's bound (and {told})"
    if whole.comparison == "faster":
        return f"the whole is faster: {told}"
    if whole.comparison == "too_noisy":
        return f"the machine is too noisy to say whether the whole is faster: {told}"
    return f"the whole is NOT faster ({whole.comparison}): {told}"


def error_words(error: StageError) -> str:
    """`tonal: off from float64 by 2.1e-07 of the largest value, its own code by 1.9e-07`."""
    truth = "float64" if error.exact else "its own result (float64 could not be had)"
    what = error.place or "the whole"
    said = f"{what}: off from {truth} by {error.kernel:.2g} of the largest value, the own code by {error.own:.2g}"
    return f"{said}; REFUSED: {error.wrong}" if error.wrong else said


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
