"""A program judged end to end: several processes of it one after the other, and one record of what they measured."""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from kernelwright.problems.record.problem import ProblemError
from kernelwright.programs.compare.child import Order, Times
from kernelwright.programs.compare.comparison import ALONE, KERNELS, Comparison
from kernelwright.sandbox.machine.identity import device_name, versions
from kernelwright.sandbox.machine.timing_locks import processor_turn
from kernelwright.sandbox.timing.paired_samples import PLACEBO
from kernelwright.sandbox.verdict.verdicts import AS_SHIPPED, COMPILED, Measurement, Pairing

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
    """The samples of two sides, process by process; the baseline is named."""
    return Pairing(
        baseline=theirs,
        candidate_ms=tuple(ms for times in found for ms in times.samples[mine]),
        baseline_ms=tuple(ms for times in found for ms in times.samples[theirs]),
        workers=tuple(number for number, times in enumerate(found) for _ in times.samples[mine]),
    )


def _times(order: Order) -> Times:
    with tempfile.TemporaryDirectory(prefix="kernelwright-compare-") as folder:
        out = Path(folder) / "times.json"
        words = [sys.executable, "-m", "kernelwright.programs.compare.child", order.model_dump_json(), str(out)]
        done = subprocess.run(words, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
        if done.returncode == 0 and out.is_file():
            return Times.model_validate_json(out.read_text(encoding="utf-8"))
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode == 2 and lines:
        raise ProblemError(lines[-1])
    told = "\n  ".join(lines[-12:]) or f"it ended with exit code {done.returncode}"
    raise ProblemError(f"{order.script} did not run through; mend it, and compare again:\n  {told}")
