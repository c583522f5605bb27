"""What PyTorch takes for a problem and what the device needs at least, as facts that a prompt tells."""

import statistics
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from kernelwright.agent.log.view import View
from kernelwright.problems import Problem
from kernelwright.prompts import DeviceSheet
from kernelwright.prompts.brief import Yardstick
from kernelwright.sandbox.floor.local_peaks import known_peaks_here
from kernelwright.sandbox.machine.fact_store import Store, work_key
from kernelwright.sandbox.machine.identity import versions
from kernelwright.sandbox.timing.baseline_times import BaselineTimes
from kernelwright.sandbox.verdict.roofline import Floor, NecessaryWork, floor_of
from kernelwright.sandbox.verdict.verdicts import AS_SHIPPED, EAGER, Measurement, Passed


def yardstick_of(view: View) -> Yardstick:
    """What the log says that the judge found of PyTorch before the first ask; the same for every role, for good.

    Where nothing was found then, what the first verdict tells that passed and has a floor.
    """
    first = view.measured.verdict if view.measured else None
    if isinstance(first, Passed):
        return _as_measured(first.measurement)
    passed = (one.verdict.measurement for one in view.attempts if isinstance(one.verdict, Passed))
    found = next((one for one in passed if one.floor is not None), None)
    return Yardstick() if found is None else _as_measured(found)


def remembered(problem: Problem, sheet: DeviceSheet, threads: int, folder: Path | None = None) -> Yardstick:
    """What earlier judgings of the problem left on this machine, whose sheet it is; for prompts of no search.

    Measures nothing: a prompt is worth no seconds of an idle machine. `threads` are those that a candidate on the
    processor is judged with. `folder` is where facts are kept.
    """
    place = sheet.name if sheet.kind != "cpu" else f"{sheet.name}, {threads} threads"
    store = Store(f"baselines/{problem.digest}", folder)
    times = {
        one.baseline: one.median_ms
        for one in BaselineTimes(problem, store).known()
        if one.device == place and one.versions.get("torch") == versions()["torch"]
    }
    return Yardstick(times=_times(times), floor=_floor(_remembered_floor(problem, sheet, threads, folder)))


def _remembered_floor(problem: Problem, sheet: DeviceSheet, threads: int, folder: Path | None) -> Floor | None:
    kept = Store("works", folder).get(work_key(problem.digest))
    peaks = None if kept is None else known_peaks_here(sheet.kind != "cpu", threads, Store("peaks", folder))
    try:
        return None if peaks is None else floor_of(NecessaryWork.model_validate(kept), peaks, problem.precision)
    except ValidationError:
        return None


def _as_measured(found: Measurement) -> Yardstick:
    times = _times(found.baselines_ms, is_shipped=found.against(AS_SHIPPED) is found.against(EAGER))
    if found.timing_clock == "call" and found.protocol_ms:
        times += (f"a call that does nothing: {statistics.median(found.protocol_ms):#.3g} ms, part of all of these",)
    return Yardstick(times=times, floor=_floor(found.floor))


def _times(baselines_ms: Mapping[str, float], is_shipped: bool = False) -> tuple[str, ...]:
    """The fastest first. `is_shipped`: whether eager as shipped is the same as eager."""
    ordered = sorted(baselines_ms.items(), key=lambda one: one[1])
    how = {
        EAGER: ", at the precision policy above" + (", which is also PyTorch as it ships here" if is_shipped else ""),
        AS_SHIPPED: ", under PyTorch's own precision switches",
    }
    return tuple(f"{name}: {ms:#.3g} ms{how.get(name, '')}" for name, ms in ordered)


def _floor(floor: Floor | None) -> tuple[str, ...]:
    if floor is None:
        return ()
    work = floor.work
    moved = f"{_amount(work.read_bytes)}B to read and {_amount(work.written_bytes)}B to write, each once"
    facts = [f"{moved}: {floor.memory_ms:#.3g} ms on this device at the very least"]
    if floor.copy_ms:
        rate = _amount(1e3 * work.bytes / floor.copy_ms)
        facts.append(f"a plain copy that moves as many bytes: {floor.copy_ms:#.3g} ms ({rate}B/s)")
    if work.flops:
        counts = " and ".join(f"{_amount(count)}FLOP in {dtype}" for dtype, count in work.flops.items())
        facts.append(f"{counts} the reference's way: {floor.direct_ms:#.3g} ms at the device's highest rate")
    return tuple(facts)


def _amount(count: float) -> str:
    """Three digits and a decimal prefix, to which a unit is joined: `268 M`."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {prefix}"
    return f"{count:.3g} "
