"""What a profile says of places, where a GPU is at work beside the processor."""

import pytest
from torch.autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent

from kernelwright.programs.capture.watching import SeenStep, read_step


def event(number, name, start, end, device=DeviceType.CPU, kernels=()):
    made = FunctionEvent(number, name, 1, start, end, use_device="cuda", device_type=device)
    for duration in kernels:
        made.append_kernel("kernel", 0, duration)
    return made


@pytest.mark.parametrize(("kernel_us", "inner_ms", "outer_ms"), [(400, 0.4, 0.4), (4, 0.05, 0.09)])
def test_on_a_gpu_a_call_counts_once_with_the_time_of_its_kernels_or_of_launching_them(kernel_us, inner_ms, outer_ms):
    outer, inner = event(1, "call 0", 0, 100), event(2, "call 1", 10, 60)
    product, launch = event(3, "aten::mm", 20, 30, kernels=(kernel_us,)), event(1, "cudaLaunchKernel", 22, 24)
    looking = event(4, "look", 70, 80)
    range_on_device = event(9, "call 1", 30, 530, device=DeviceType.CUDA)
    events = EventList([outer, inner, product, launch, looking, range_on_device], use_device="cuda")
    events._populate_cpu_children()
    found = read_step(events, "call ", "look")
    assert {place: times.calls for place, times in found.places.items()} == {0: 1, 1: 1}
    assert found.places[1].forward_ms == pytest.approx(inner_ms)
    assert found.places[0].forward_ms == pytest.approx(outer_ms)
    assert found.outermost == {0} and found.ms == pytest.approx(outer_ms)
    assert SeenStep(0.01, found).ms == found.ms and SeenStep(7.0, found).ms == 7.0
    assert found.places[1].operators == 1
    assert found.operators["aten::mm"][0] == 1
