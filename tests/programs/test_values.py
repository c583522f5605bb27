"""Statistics of values, and draws like them."""

import pytest
import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent

from kernelwright.programs.capture import notes_of
from kernelwright.programs.values import draw, drawn, look
from kernelwright.programs.watching import CallWatch, PlaceTimes, SeenStep, StepTimes, read_step, times_of, total_ms


def again(tensor):
    torch.manual_seed(1)
    (made,) = draw([look(tensor)], "cpu")
    return made


@pytest.mark.parametrize(
    ("tensor", "drawing"),
    [
        (torch.randn(64, 64), "normal"),
        (torch.rand(64, 64), "uniform"),
        (torch.rand(64, 64) - 0.5, "uniform"),
        (torch.randn(64, 64).relu(), "rectified"),
        (torch.ones(4), "constant"),
        (torch.randint(0, 9, (64,)), "integers"),
        (torch.arange(8).expand(2, 8), "counting"),
        (torch.ones(8, 8).tril().bool(), "causal"),
        (torch.full((8, 8), float("-inf")).triu(1), "causal"),
        (torch.rand(64, 64) < 0.9, "share"),
        (torch.tensor(True), "constant"),
    ],
)
def test_each_kind_of_values_is_recognised_and_drawn_again(tensor, drawing):
    seen = look(tensor)
    made = again(tensor)
    assert seen.values.drawing == drawing
    assert (made.shape, made.dtype) == (tensor.shape, tensor.dtype)
    assert look(made).values.drawing == drawing


def test_a_rectified_draw_has_as_many_zeros_and_the_same_mean():
    tensor = (torch.randn(200, 200) - 0.7).relu() * 3
    made = again(tensor)
    assert abs(float((made == 0).float().mean() - (tensor == 0).float().mean())) < 0.02
    assert abs(float(made.mean() / tensor.mean()) - 1) < 0.1


def test_whole_numbers_a_causal_mask_and_strides_stay_what_they_were():
    made = again(torch.tensor([[5, 9], [7, 6]]))
    assert int(made.min()) >= 5 and int(made.max()) <= 9
    mask = torch.full((5, 5), float("-inf")).triu(1)
    assert torch.equal(again(mask), mask)
    assert again(torch.randn(4, 6).t()).stride() == (1, 6)


def test_a_weight_is_not_drawn_as_a_constant_that_could_be_left_out():
    seen = look(torch.ones(64))
    assert "randn" in drawn(seen, "64", is_weight=True)
    assert drawn(seen, "64") == "torch.full((64,), 1.0)"


def test_an_empty_tensor_is_not_looked_at():
    assert look(torch.empty(0, 3)).values is None


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
