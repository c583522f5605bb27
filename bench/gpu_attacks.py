"""Every hostile GPU candidate through the judge: where each ended, and with which words.

`python -m bench gpu_attacks`. None may be accepted for what it claims; `KERNELWRIGHT_BENCH=NAME,NAME` picks some.
"""

import time

from bench.chosen import chosen
from bench.gpu_facts import NO_DEVICE, Report
from bench.gpu_placebo import clock_facts, shown_clock
from kernelwright.sandbox.verdict.verdicts import Passed
from kernelwright_child import driver
from tests.gpu.attacks import ATTACKS, NOT_FASTER, PROBLEM, SLOWER
from tests.gpu.harness import Judges


def run() -> Report:
    """One line for each; those that ended otherwise than expected are marked."""
    if driver.device_count() == 0:
        return NO_DEVICE
    wrong = []
    with Judges() as judges:
        for name in chosen(ATTACKS):
            attack, start = ATTACKS[name], time.perf_counter()
            verdict = judges.judged(PROBLEM, attack.candidate.source)
            right, told = ended(attack, verdict)
            if not right:
                wrong.append(name)
            mark = "as expected" if right else f"WRONG, wanted {attack.stage}"
            print(f"  {name:26} {time.perf_counter() - start:5.1f} s {mark}: {told}", flush=True)
    return Report(
        f"hostile candidates that ended otherwise, of {len(ATTACKS)}: {', '.join(wrong) or 'none'}", not wrong
    )


def ended(attack, verdict):
    """Whether it ended as it must, and how it did in one line."""
    if isinstance(verdict, Passed):
        found = verdict.measurement
        told = f"passed, {found.comparison} ({found.speedup:.3f}; {shown_clock(clock_facts(found))})"
        if attack.stage == SLOWER:
            return found.comparison == "slower", told
        return attack.stage == NOT_FASTER and found.comparison != "faster", told
    reason = " ".join(verdict.reason.split())
    right = verdict.stage in attack.stage.split("|") and any(word in verdict.reason for word in attack.words.split("|"))
    return right, f"{verdict.stage}: {reason[:110] if right else verdict.reason + verdict.log[-2000:]}"
