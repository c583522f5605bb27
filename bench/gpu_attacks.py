"""Every hostile GPU candidate through the device half of the judge: where each ended, and with which words."""

import time

from bench.gpu_facts import NO_DEVICE, Report
from sandbox.gpu import driver
from sandbox.gpu.device import Device
from tests.gpu.attacks import ATTACKS, NOT_FASTER, PROBLEM, SLOWER
from tests.gpu.harness import judged


def run() -> Report:
    """One line for each; those that ended otherwise than expected are marked."""
    if driver.device_count() == 0:
        return NO_DEVICE
    wrong = []
    with Device(wait_s=5) as device:
        for name, attack in ATTACKS.items():
            start = time.perf_counter()
            came = judged(device, PROBLEM, attack.candidate.source)
            right = came.stage in attack.stage.split("|") and any(w in came.reason for w in attack.words.split("|"))
            if attack.stage in (SLOWER, NOT_FASTER):
                right = came.stage == "passed"
            if not right:
                wrong.append(name)
            reason = " ".join((came.reason.splitlines() or ["-"])[0].split())[:110]
            mark = "as expected" if right else f"WRONG, wanted {attack.stage}"
            spent = time.perf_counter() - start
            print(f"  {name:26} {came.stage:7} {len(came.calls)} calls {spent:5.1f} s {mark}: {reason}", flush=True)
            if not right:
                print(came.reason[-3000:])
    return Report(f"hostile candidates that ended otherwise: {', '.join(wrong) or 'none'}", not wrong)
