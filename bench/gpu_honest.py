"""Every honest CUDA and Triton candidate through the judge: whether it passes, and its times.

`python -m bench gpu_honest`. None may be refused; those in CUDA are compiled side by side.
"""

from bench.chosen import chosen
from bench.gpu_facts import NO_DEVICE, Report
from bench.gpu_placebo import clock_facts, shown_clock
from kernelwright.sandbox.verdict.verdicts import Passed
from kernelwright_child import driver
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
    return (
        f"{seconds:5.1f} s passed: {found.speedup:.3f} x, {found.comparison}, {found.candidate_ms:.4f} ms by "
        f"{found.timing_clock}, {shown_clock(clock_facts(found))}; floor {found.floor_ms or 0:.4f}; "
        f"{found.on_device.dropped or ''}"
    )
