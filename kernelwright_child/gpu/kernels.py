"""Which kernels a call runs, by torch's profiler. In the candidate's own process, so it is evidence, never proof."""

from collections.abc import Callable
from typing import Any

import torch
from torch._C._autograd import DeviceType


def kernels(run: Callable[[], Any], calls: int = 3) -> list[tuple[str, int, float]]:
    """Name, launches and milliseconds of each kernel (and copy) on the device, for one call on average."""
    run()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(calls):
            run()
        torch.cuda.synchronize()
    found: dict[str, tuple[int, float]] = {}
    for event in profiler.events() or ():
        if event.device_type == DeviceType.CUDA:
            count, total = found.get(event.name, (0, 0.0))
            found[event.name] = count + 1, total + event.time_range.elapsed_us() / 1e3
    return [(name, -(-count // calls), total / calls) for name, (count, total) in found.items()]
