"""Honest candidates that a clock of the device may trip over, as data: each is right and must be timed as it is."""

from typing import NamedTuple

from kernelwright.problems import Problem
from kernelwright.sandbox.verdict.verdicts import Candidate
from tests.gpu.clock_attacks import RELU, SMALL_RELU, SOFTMAX, SUMS, problem, source_of
from tests.gpu.honest import HONEST


class ClockHonest(NamedTuple):
    """A candidate with the problem that it solves."""

    problem: Problem
    source: str
    is_same: bool = True
    """Whether the device does the same work as for the baseline, so that neither is faster."""

    @property
    def candidate(self) -> Candidate:
        """The source as the judge takes it."""
        return Candidate(source=self.source)


FLIPPED = problem("flipped", "torch.bitwise_not(inputs[0])", "torch.randint(0, 3, (2048, 2048), dtype=torch.int32)")
PLACES = problem("places", "torch.where(inputs[0].amax(1) > 3.5, inputs[0].argmax(1), -1)", "torch.randn(2048, 4096)")
PLACE = problem("place", "torch.where(inputs[0].amax() > 5, inputs[0].argmax(), -1)", "torch.randn(1024, 1024)")
NORMED = problem("normed", "inputs[0] / inputs[0].abs().amax()", "torch.randn(1024, 2048)")
ADDED = problem("added", "inputs[0] + inputs[1]", "torch.randn(2048, 2048)", "torch.randn(2048, 2048)")
BLENDED = problem("blended", "torch.sigmoid(inputs[0] * 2 + 1) * inputs[0]", "torch.randn(2048, 2048)")
STEPS = Problem(
    name="steps",
    title="1500 small steps",
    family="test",
    size="gpu",
    source="""
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        for _ in range(1500):
            x = x + 0.001
        return x

def get_inputs():
    return [torch.randn(64, 64)]

def get_init_inputs():
    return []
""",
)
CAPTURED = """
if x.data_ptr() not in self.kept:
    given = x if {direct} else x.clone()
    warm = torch.cuda.Stream()
    warm.wait_stream(HERE())
    with torch.cuda.stream(warm):
        for _ in range(3):
            {work}
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = {work}
    self.kept[x.data_ptr()] = graph, given, result
graph, given, result = self.kept[x.data_ptr()]
if not {direct}:
    given.copy_(x)
graph.replay()
return {result}
"""


def captured(work: str, result: str = "result", direct: bool = False) -> str:
    """A graph for each place of the input; `direct`: of the input where it lies, else of a copy of it."""
    return source_of(CAPTURED.format(work=work, result=result, direct=direct))


CLOCK_HONEST = {
    "minus_one_in_integers": ClockHonest(FLIPPED, source_of("return torch.bitwise_not(x)")),
    "minus_one_for_places": ClockHonest(PLACES, source_of("return torch.where(x.amax(1) > 3.5, x.argmax(1), -1)")),
    "minus_one_for_one_place": ClockHonest(PLACE, source_of("return torch.where(x.amax() > 5, x.argmax(), -1)")),
    "reference_itself": ClockHonest(SUMS, source_of("return torch.cumsum(x, 1)")),
    "short_reference_itself": ClockHonest(SOFTMAX, source_of("return torch.softmax(x, -1)")),
    "legacy_stream": ClockHonest(
        RELU,
        source_of(
            """
            y = torch.empty_like(x)
            RELU_KERNEL(0, 1056, 256, place(x), place(y), ctypes.c_uint(x.numel()))
            return y
            """,
            "RELU_KERNEL = kernel('relu')",
        ),
        is_same=False,
    ),
    "a_stream_of_its_own_joined": ClockHonest(
        SUMS,
        source_of(
            """
            SIDE.wait_stream(HERE())
            with torch.cuda.stream(SIDE):
                y = torch.cumsum(x, 1)
            HERE().wait_stream(SIDE)
            return y
            """
        ),
    ),
    "graph_with_static_buffers": ClockHonest(BLENDED, captured("torch.sigmoid(given * 2 + 1) * given"), is_same=False),
    "graph_where_the_input_lies": ClockHonest(
        BLENDED, captured("torch.sigmoid(given * 2 + 1) * given", direct=True), is_same=False
    ),
    "graph_with_a_copied_result": ClockHonest(
        BLENDED, captured("torch.sigmoid(given * 2 + 1) * given", "result.clone()"), is_same=False
    ),
    "item_inside": ClockHonest(NORMED, source_of("return x / x.abs().amax().item()"), is_same=False),
    "waits_inside": ClockHonest(
        SUMS,
        source_of(
            """
            y = torch.cumsum(x, 1)
            torch.cuda.synchronize()
            return y
            """
        ),
        is_same=False,
    ),
    "static_output": ClockHonest(
        ADDED,
        source_of(
            """
            if self.calls == 1:
                self.buffer = torch.empty_like(x)
            return torch.add(x, inputs[1], out=self.buffer)
            """
        ),
    ),
    "strided_with_gaps": ClockHonest(
        SMALL_RELU,
        source_of(
            """
            y = torch.empty(x.shape[0], 2 * x.shape[1], device="cuda")[:, ::2]
            return torch.clamp(x, min=0, out=y)
            """
        ),
        is_same=False,
    ),
    "transposed": ClockHonest(
        FLIPPED,
        source_of("return torch.bitwise_not(x).t().contiguous().t()"),
        is_same=False,
    ),
    "view_of_a_larger_buffer": ClockHonest(
        ADDED,
        source_of(
            """
            if self.calls == 1:
                self.room = torch.empty(x.numel() + 4096, device="cuda")
            y = self.room[1028 : 1028 + x.numel()].view(x.shape)
            return torch.add(x, inputs[1], out=y)
            """
        ),
    ),
    "many_small_kernels": ClockHonest(STEPS, source_of("for _ in range(1500):\n    x = x + 0.001\nreturn x")),
    "large_workspace_in_each_call": ClockHonest(
        SUMS,
        source_of(
            """
            room = torch.empty(2**28, dtype=torch.uint8, device="cuda")
            room[:16].zero_()
            return torch.cumsum(x, 1)
            """
        ),
        is_same=False,
    ),
    "growing_workspace": ClockHonest(
        SUMS,
        source_of(
            """
            if self.calls % 8 == 0:
                torch.cuda.empty_cache()
            room = torch.empty(2**24 * (1 + self.calls % 8), dtype=torch.uint8, device="cuda")
            room[:16].zero_()
            return torch.cumsum(x, 1)
            """
        ),
        is_same=False,
    ),
    "slow_to_issue": ClockHonest(SUMS, source_of("time.sleep(0.003)\nreturn torch.cumsum(x, 1)"), is_same=False),
    "triton": ClockHonest(HONEST["triton_relu"].problem, HONEST["triton_relu"].source, is_same=False),
}
