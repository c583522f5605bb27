"""A program judged end to end: several processes of it, one record of what they measured, in words and as one picture.

Each process is one of `programs.timing`.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from kernelwright.problems.problem import ProblemError, Record
from kernelwright.programs.record import svg
from kernelwright.sandbox.locks import processor_lock
from kernelwright.sandbox.machine import device_name, versions
from kernelwright.sandbox.timing.baseline_facts import PLACEBO
from kernelwright.sandbox.verdict.report import ratio_words
from kernelwright.sandbox.verdict.verdicts import AS_SHIPPED, COMPILED, Measurement, Pairing, TimingClock

PROCESSES = 5
CHILD = "import sys; from kernelwright.programs.timing import main; sys.exit(main(*sys.argv[1:]))"
KERNELS, ALONE = "kernels", "alone "
"""Names of the sides with all kernels, and with those of one part, whose id follows."""


class StageError(Record):
    """The distance of one stage of the program from float64 on its inputs, by its own code and by the kernel.

    As shares of the largest magnitude of the float64 result.
    """

    place: str
    """The module; empty for the program's outputs as a whole, with gradients where some flow."""
    own: float
    kernel: float
    wrong: str = ""
    """Why the judge's bound would refuse the kernel's result here; empty where it would not."""
    exact: bool = True
    """False where float64 failed: the distance is then from the module's own result."""


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
    """True where the program's calls have tensors on a GPU."""
    threads: int
    errors: tuple[StageError, ...]
    taken: dict[str, int]
    fallbacks: dict[str, dict[str, int]]
    notes: tuple[str, ...]


class Share(NamedTuple):
    part: str
    saved: float
    """The share of eager's time that the part's kernel alone takes off; below 0 it costs time."""
    low: float
    high: float
    """The ends of the 95 % interval."""


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
    timing_clock: TimingClock
    """Of all times, as `Measurement.timing_clock`."""

    @property
    def right(self) -> bool:
        return not any(error.wrong for error in self.errors)

    @property
    def is_faster(self) -> bool:
        """True where the program is right, and faster than every baseline beyond doubt."""
        return self.right and self.whole.comparison == "faster"

    @property
    def shares(self) -> list[Share]:
        ratios = {part: (pairing.speedup, *pairing.interval) for part, pairing in self.alone.items()}
        found = [Share(part, *(1 - 1 / ratio for ratio in each)) for part, each in ratios.items()]
        return sorted(found, key=lambda share: -share.saved)


def compare(order: Order, processes: int = PROCESSES, report: Callable[[str], None] = lambda text: None) -> Comparison:
    """Run the program in several processes, each of which times all sides. `ProblemError` where it fails.

    The program and the kernels run here as the user's own: without a jail, and the kernels were judged before.
    """
    found = []
    for number in range(processes):
        with processor_lock(tuple(sorted(os.sched_getaffinity(0)))):
            found.append(_times(order.model_copy(update={"errors": number == 0})))
        medians = (f"{name} {statistics.median(times):.3g} ms" for name, times in found[-1].samples.items())
        report(f"process {number + 1} of {processes}: {', '.join(medians)}")
    return folded(order, found)


def folded(order: Order, found: Sequence[Times]) -> Comparison:
    """Make one record of several processes' times; a baseline counts where all of them have it."""
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
        timing_clock=whole.timing_clock,
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
        words = [sys.executable, "-c", CHILD, order.model_dump_json(), str(out)]
        done = subprocess.run(words, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
        if done.returncode == 0 and out.is_file():
            return Times.model_validate_json(out.read_text(encoding="utf-8"))
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode == 2 and lines:
        raise ProblemError(lines[-1])
    said = "\n  ".join(lines[-12:]) or f"it ended with exit code {done.returncode}"
    raise ProblemError(f"{order.script} did not run through; mend it, and compare again:\n  {said}")


def words(found: Comparison) -> str:
    whole = found.whole
    samples, processes = len(whole.closest.candidate_ms), len(set(whole.closest.workers))
    kind = "forward and backward" if found.backward else "forward"
    lines = [
        headline(found),
        "",
        f"{found.program}, {kind}, on {found.device}, {whole.threads} threads:",
        f"  {'kernels':<28}{whole.candidate_ms:#9.3g} ms   ({samples} samples in {processes} processes)",
    ]
    for pairing in whole.pairings:
        ms = statistics.median(pairing.baseline_ms)
        lines.append(f"  {pairing.baseline:<28}{ms:#9.3g} ms   {ratio_words(pairing.speedup, *pairing.interval)}")
    if whole.placebo is not None:
        ratio = ratio_words(whole.placebo.speedup, *whole.placebo.interval)
        lines.append(f"  {'placebo: eager against eager':<28}{'':12}   {ratio}")
    lines.append("")
    lines += [
        f"{share.part} alone takes off {share.saved:.1%} of eager's time [{share.low:.1%}, {share.high:.1%}]"
        for share in found.shares
    ]
    for error in found.errors:
        truth = "float64" if error.exact else "its own result (float64 could not be had)"
        off = f"{error.kernel:.2g} of the largest value, the own code by {error.own:.2g}"
        refused = f"; REFUSED: {error.wrong}" if error.wrong else ""
        lines.append(f"{error.place or 'the whole'}: off from {truth} by {off}{refused}")
    lines += [f"{place}: the kernel was taken {count} times a sample" for place, count in found.taken.items()]
    for place, reasons in found.fallbacks.items():
        lines += [f"{place}: the module's own code {count} times a sample: {why}" for why, count in reasons.items()]
    return "\n".join([*lines, *found.notes])


def headline(found: Comparison) -> str:
    """Say `faster: 8.31 x [8.1, 8.5] against the fastest baseline, torch.compile default`; or why it is not."""
    whole = found.whole
    ratio = f"{ratio_words(whole.speedup, *whole.interval)} against the fastest baseline, {whole.closest.baseline}"
    if not found.right:
        return f"the whole is WRONG with the kernels by the judge's bound (and {ratio})"
    if whole.comparison == "faster":
        return f"the whole is faster: {ratio}"
    if whole.comparison == "too_noisy":
        return f"the machine is too noisy to say whether the whole is faster: {ratio}"
    return f"the whole is NOT faster ({whole.comparison}): {ratio}"


def drawn(found: Comparison) -> str:
    whole, head = found.whole, headline(found)
    rows = []
    for pairing in whole.pairings:
        low, high = pairing.interval
        facts = f"with kernels {pairing.speedup:.2f} x [{low:.2f}, {high:.2f}]"
        rows.append((pairing.baseline, statistics.median(pairing.baseline_ms), "theirs", facts))
    for share in found.shares:
        ms = statistics.median(found.alone[share.part].candidate_ms)
        rows.append((f"only {share.part}", ms, "one", f"takes off {share.saved:.0%} of eager"))
    rows.append(("all kernels", whole.candidate_ms, "mine", ""))
    return svg(
        "compare.svg",
        height=96 + 38 * len(rows),
        label=head,
        title=head[0].upper() + head[1:],
        subtitle=f"{found.program}; {found.device}, {whole.threads} threads",
        rows=rows,
        longest=max(row[1] for row in rows),
    )
