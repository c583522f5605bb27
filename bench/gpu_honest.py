"""Every honest CUDA and Triton candidate through the judge: whether it passes, and its times on both clocks.

`python -m bench gpu_honest`. None may be refused; those in CUDA are compiled side by side.
"""

import statistics

from bench.chosen import chosen
from bench.gpu_facts import NO_DEVICE, Report
from kernelwright.sandbox.verdict.verdicts import Passed
from kernelwright_child.gpu import driver
from tests.gpu.harness import Judges
from tests.gpu.honest import HONEST


def run() -> Report:
    """One line for each."""
    if driver.device_count() == 0:
        return NO_DEVICE
    names = chosen(HONEST)
    refused = []
    with Judges() as judges:
        for name, verdict in judges.all_judged([(name, HONEST[name].problem, HONEST[name].source) for name in names]):
            print(f"  {name:26} {told(verdict)}", flush=True)
            if not isinstance(verdict, Passed):
                refused.append(name)
    return Report(f"honest candidates refused, of {len(names)}: {', '.join(refused) or 'none'}", not refused)


def told(verdict):
    """One line on a verdict."""
    seconds = sum(verdict.evidence.seconds.values())
    if not isinstance(verdict, Passed):
        return f"{seconds:5.1f} s {verdict.stage}: {verdict.reason}\n{verdict.log[-2000:]}"
    found = verdict.measurement
    bound = statistics.median(found.on_device.bound_ms["candidate"])
    events = statistics.median(found.on_device.device_ms["candidate"])
    burst = f"{found.on_device.burst.call_ms:.4f}" if found.on_device.burst else "-"
    return (
        f"{seconds:5.1f} s passed: {found.speedup:.3f} x, {found.comparison}, by {found.clock}; bound {bound:.4f}, "
        f"events {events:.4f}, burst {burst} ms; floor {found.floor_ms or 0:.4f}; {found.on_device.dropped or ''}"
    )
