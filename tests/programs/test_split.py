import re
import xml.etree.ElementTree as ET

import pytest
import torch
from torch import nn

from kernelwright import capture
from kernelwright.programs.record import (
    CallSite,
    CapturedProgram,
    Part,
    PartInput,
    PartSize,
    Run,
    TensorSeen,
    read_capture,
)
from kernelwright.programs.split import attempts_for, choose, speedup_of_compile, split_picture, summary
from kernelwright.sandbox.verdict.roofline import HEADROOM, Level, NecessaryWork, Peaks
from kernelwright.sandbox.verdict.settings import JudgeSettings

TENSOR = TensorSeen(shape=(8, 64), dtype="float32", stride=(64, 1))
PEAKS = Peaks(
    device="d",
    levels=(Level(name="memory", inside_bytes=0, bytes_per_s=1e9 / HEADROOM),),
    flops_per_s={"float32": 1e12},
)
"""A byte takes a nanosecond."""


def part(name, *sites, run=None, floor_ms=0.0):
    work = NecessaryWork(read_bytes=int(floor_ms * 1e6), written_bytes=0)
    size = PartSize(
        name="cpu",
        inputs=(PartInput(name="x", leaf=0, tensor=TENSOR),),
        outputs=(TENSOR,),
        sites=tuple(CallSite(root="Net", module=module, calls=1, ms=ms) for module, ms in sites),
        work=work,
    )
    return Part(
        id=name, title=name, kind="run" if run else "module", class_name="Net", run=run, state={}, training=False,
        direction="forward", operators=2, sizes=(size,),
    )  # fmt: skip


def program(*parts, ms=100.0):
    return CapturedProgram(
        program="p", device="d", threads=1, steps=1, steps_seen=1, program_ms=ms, modules=(), parts=parts
    )


def run_of(*nodes, owners=("",)):
    return Run(nodes=nodes, outputs=nodes[-1:], graph="", owners=owners)


def chosen(split):
    return [(one.part, one.ms) for one in split.chosen]


def test_what_is_far_from_its_floor_comes_first():
    found = choose(program(part("near", ("a", 50.0), floor_ms=45), part("far", ("b", 30.0), floor_ms=1)), 5, PEAKS)
    assert [one.part for one in found.chosen] == ["far", "near"]
    assert found.chosen[0].gain_ms == pytest.approx(29.0)


def test_what_lies_within_a_chosen_part_is_not_counted_twice_and_a_module_around_it_is_left_out():
    found = choose(program(part("block", ("a", 50.0)), part("inner", ("a.x", 30.0), ("b", 10.0))), 5, PEAKS)
    assert chosen(found) == [("block", 50.0), ("inner", 10.0)]
    found = choose(program(part("inner", ("a.x", 50.0)), part("outer", ("a", 51.0), floor_ms=30)), 5, PEAKS)
    assert chosen(found) == [("inner", 50.0)]


@pytest.mark.parametrize(
    ("other", "left"),
    [
        (part("other", ("a", 20.0), run=run_of("n2", "n3")), False),
        (part("other", ("a", 20.0), run=run_of("n8", "n9")), True),
        (part("other", ("a", 20.0)), False),
        (part("other", ("a.x", 20.0)), False),
        (part("other", ("a.y", 20.0)), True),
        (part("other", ("", 20.0)), False),
        (part("other", ("ab", 20.0)), True),
    ],
)
def test_a_run_takes_its_own_nodes_and_the_children_that_it_calls(other, left):
    run = part("run", ("a", 50.0), run=run_of("n1", "n2", owners=("", "x")))
    found = choose(program(run, other), 5, PEAKS)
    assert [one.part for one in found.chosen] == (["run", "other"] if left else ["run"])


def test_what_torch_compile_already_gets_is_taken_off():
    parts = program(part("a", ("a", 50.0)), part("b", ("b", 30.0)))
    found = choose(parts, 1, PEAKS, lambda one: {"a": 5.0, "b": 1.0}[one.id])
    assert chosen(found) == [("b", 30.0)]
    assert found.compiled


def test_torch_compile_is_asked_only_for_what_may_be_chosen():
    asked = []
    parts = [part(name, (name, ms)) for name, ms in (("a", 50.0), ("b", 30.0), ("c", 10.0))]
    choose(program(*parts), 1, PEAKS, lambda one: asked.append(one.id) or 1.0)
    assert asked == ["a"]


@pytest.mark.parametrize(("ms", "floor_ms"), [(10.0, 20), (0.1, 0.0)], ids=["a floor above the time", "too little"])
def test_what_is_no_gain_that_matters_is_not_chosen(ms, floor_ms):
    assert not choose(program(part("a", ("a", ms), floor_ms=floor_ms)), 5, PEAKS).chosen


def test_weights_are_the_shares_of_what_could_be_had():
    split = choose(program(part("a", ("a", 60.0)), part("b", ("b", 20.0))), 5, None)
    assert split.weights() == {"a": 0.75, "b": 0.25}
    assert split.weights(1) == {"a": 1.0}


@pytest.mark.parametrize(
    ("weights", "each", "counts"),
    [([0.75, 0.25], 10, [14, 6]), ([1.0], 10, [10]), ([1, 0, 0], 4, [8, 2, 2]), ([0.5, 0.5], 1, [1, 1]), ([], 3, [])],
)
def test_attempts_go_where_most_can_be_had_and_are_as_many_in_all(weights, each, counts):
    assert attempts_for(weights, each) == counts


def test_the_picture_is_well_formed_whatever_a_program_is_called():
    captured = program(part("a", ("a", 60.0), floor_ms=1)).model_copy(update={"program": "<x> & \x00"})
    text = split_picture(captured, choose(captured, 5, PEAKS))
    ET.fromstring(text)
    assert not re.search(r"(?:href|src)=", text)


def test_shares_of_what_was_timed_apart_are_never_more_than_the_program():
    captured = program(part("a", ("a", 80.0)), part("b", ("b", 80.0)), ms=100.0)
    found = choose(captured, 5, PEAKS)
    assert [one.share for one in found.chosen] == [0.5, 0.5]
    assert all(float(share) <= 100 for share in re.findall(r"(\d+) %", summary(captured, found)))


def test_the_summary_says_how_much_lies_where():
    captured = program(part("a", ("a", 60.0), floor_ms=10))
    said = summary(captured, choose(captured, 5, PEAKS))
    assert said.startswith("100 ms a step on d; 60 %") and "1 part, " in said and "50 %" in said


class Chain(nn.Module):
    """Operators that a compiler fuses into one loop."""

    def forward(self, x):
        return torch.tanh(torch.exp(-x * x) + x * 2) * torch.sigmoid(x - 1)


@pytest.mark.slow
@pytest.mark.long
def test_a_chain_of_operators_is_measured_against_its_compiled_form(tmp_path):
    folder = capture(Chain().eval(), torch.randn(512, 1024), out=tmp_path / "capture", steps=1)
    (part,) = read_capture(folder).parts
    speedup = speedup_of_compile(folder, part, JudgeSettings(threads=1))
    assert speedup is not None and speedup > 0
