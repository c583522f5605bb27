"""Every honest CUDA and Triton candidate through the device half of the judge: whether it passes, and its times."""

import statistics
import time

from bench.gpu_facts import NO_DEVICE, Report
from sandbox.gpu import driver
from sandbox.gpu.device import Device
from tests.gpu.harness import judged
from tests.gpu.honest import HONEST


def run() -> Report:
    """One line for each. Those in CUDA are compiled, which takes up to a minute each."""
    if driver.device_count() == 0:
        return NO_DEVICE
    refused = []
    with Device(wait_s=5) as device:
        for name, honest in HONEST.items():
            start = time.perf_counter()
            came = judged(device, honest.problem, honest.source, build=name.startswith("cuda"))
            times = "-"
            if len(came.calls) > 3:
                bound = statistics.median(call.milliseconds for call in came.calls[3:])
                events = statistics.median(call.device_ms or 0.0 for call in came.calls[3:])
                times = f"bound {bound:.4f} ms, events {events:.4f} ms"
            print(f"  {name:26} {came.stage:7} {time.perf_counter() - start:5.1f} s  {times}", flush=True)
            if came.stage != "passed":
                refused.append(name)
                print(came.reason[-3000:])
    return Report(f"honest candidates refused: {', '.join(refused) or 'none'}", not refused)
