"""Times by place from a profile with a processor and a GPU."""

import pytest
from torch.autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent

from kernelwright.programs.capture import notes_of
from kernelwright.programs.watching import CallWatch, PlaceTimes, SeenStep, StepTimes, read_step, times_of, total_ms


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


def step(ms, **calls):
    """A step in which each call of a place took `ms`."""
    places = {int(name[1:]): PlaceTimes(calls=count, forward_ms=ms * count) for name, count in calls.items()}
    return SeenStep(ms, StepTimes(places, {}, frozenset(places)))


def test_a_disturbed_step_moves_neither_the_program_nor_its_places():
    steps = [step(1.0, _0=1), step(1.0, _0=1), step(9.0, _0=1), step(2.0, _0=1, _1=3)]
    assert total_ms(steps) == 3 * 1.0 + 8.0, "three alike by their median, and the one that does more"
    assert times_of(steps)[0].forward_ms == 4 * 1.5 and times_of(steps)[1].forward_ms == 6.0


@pytest.mark.parametrize(("last_ms", "is_told"), [(1.2, False), (4.0, True)])
def test_steps_alike_that_differ_much_are_told(last_ms, is_told):
    watch = CallWatch(4)
    watch.steps = [step(50.0, _0=1), step(1.0, _0=1), step(30.0, _0=2), step(last_ms, _0=1)]
    told = [note for note in notes_of(watch) if "idle machine" in note]
    assert len(told) == is_told, "neither the first step nor one that does more"
