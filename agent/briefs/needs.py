"""What a problem needs at least and what PyTorch takes, as facts that a prompt shows beside the hardware's.

They stand among the facts of the device's sheet: replaying takes the sheet from the prompt and so finds them again.
"""

from pathlib import Path

from pydantic import ValidationError

from kernelwright.agent.log.view import View
from kernelwright.problems import Problem
from kernelwright.prompts import DeviceSheet
from kernelwright.sandbox.floor.local_peaks import known_peaks_here
from kernelwright.sandbox.machine.fact_store import Store, work_key
from kernelwright.sandbox.verdict.peaks import Peaks
from kernelwright.sandbox.verdict.roofline import Floor, NecessaryWork, floor_of
from kernelwright.sandbox.verdict.verdicts import Measurement, Passed

NEEDS, PEAKS = "this problem: ", "measured here: "


def as_judged(sheet: DeviceSheet, view: View) -> DeviceSheet:
    """The sheet with the floor and PyTorch's times as the first verdict told them that passed; as it is before.

    A pure function, and the same for every role, so that a replay makes the same sheet out of any prompt's.
    """
    passed = (one.verdict.measurement for one in view.attempts if isinstance(one.verdict, Passed))
    measured = next((one for one in passed if one.floor is not None), None)
    return sheet if measured is None else _with(sheet, NEEDS, _needs(measured.floor) + _times(measured))


def as_remembered(sheet: DeviceSheet, problem: Problem, threads: int, folder: Path | None = None) -> DeviceSheet:
    """The sheet, which is this machine's, with its measured peaks and the problem's floor where a judging left both.

    Measures nothing: a prompt is worth no seconds of an idle machine, and the first verdict tells what is missing.
    `threads` are those that a candidate on the processor is judged with. `folder` is where facts are kept.
    """
    kept = Store("works", folder).get(work_key(problem.digest))
    peaks = None if kept is None else known_peaks_here(sheet.kind != "cpu", threads, Store("peaks", folder))
    if peaks is None:
        return sheet
    try:
        floor = floor_of(NecessaryWork.model_validate(kept), peaks, problem.precision)
    except ValidationError:
        return sheet
    return _with(_with(sheet, PEAKS, _rates(peaks)), NEEDS, _needs(floor))


def _with(sheet: DeviceSheet, prefix: str, words: str) -> DeviceSheet:
    others = tuple(fact for fact in sheet.facts if not fact.startswith(prefix))
    return sheet.model_copy(update={"facts": (*others, prefix + words)})


def _needs(floor: Floor | None) -> str:
    assert floor is not None
    work = floor.work
    words = (
        f"{_amount(work.read_bytes)}B to read and {_amount(work.written_bytes)}B to write, "
        f"{floor.memory_ms:#.3g} ms on this device at the very least"
    )
    if floor.copy_ms is not None:
        words += f" ({floor.copy_ms:#.3g} ms for a plain copy of as many)"
    if not work.flops:
        return words
    counts = " and ".join(f"{_amount(count)}FLOP in {dtype}" for dtype, count in work.flops.items())
    return f"{words}; {counts} the reference's way, {floor.direct_ms:#.3g} ms at its highest rate"


def _times(measured: Measurement) -> str:
    return "".join(f"; {name} takes {ms:#.3g} ms" for name, ms in measured.baselines_ms.items())


def _rates(peaks: Peaks) -> str:
    memory = f"memory {_amount(peaks.levels[-1].bytes_per_s)}B/s"
    return ", ".join([memory, *(f"{dtype} {_amount(rate)}FLOP/s" for dtype, rate in peaks.flops_per_s.items())])


def _amount(count: float) -> str:
    """Three digits and a decimal prefix, to which a unit is joined: `268 M`."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {prefix}"
    return f"{count:.3g} "
