"""Baselines beside strict eager: which there are, what happens to one that cannot run, and how accurate each is."""

import contextlib

import pytest
import torch

from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.calls.reference import Form
from kernelwright.sandbox.correctness.families import Domain
from kernelwright.sandbox.tensors import RawTensor, Values
from kernelwright.sandbox.timing.baseline_facts import accuracy_of
from kernelwright.sandbox.verdict.settings import JudgeSettings
from tests.support.problems import tiny_problem

SETTINGS = JudgeSettings(threads=1, worker_pairs=1)
SOURCE = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.LAYER

    def forward(self, x):
        return self.layer(x)

def get_inputs():
    return [torch.randn(SHAPE)]

def get_init_inputs():
    return []
"""


def problem_of(layer="Conv2d(3, 4, 3)", shape="2, 3, 8, 8", direction="forward", before=""):
    source = SOURCE.replace("LAYER", layer).replace("SHAPE", shape).replace("return self", f"{before}return self")
    return tiny_problem(source, name="layer", size="file", direction=direction)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))


def test_each_form_has_a_name_of_its_own():
    forms = [Form(), Form(precision="shipped"), Form(precision="tf32"), Form(channels_last=True), Form("default")]
    forms += [Form("default", precision="tf32"), Form("default", precision="shipped")]
    assert [form.baseline for form in forms] == [
        "eager", "eager as shipped", "eager tf32", "eager channels_last", "torch.compile default",
        "torch.compile default tf32", "torch.compile default as shipped",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem", [problem_of(), problem_of("Conv3d(3, 4, 3)", "2, 3, 4, 8, 8"), problem_of(direction="both")]
)
def test_channels_last_computes_what_eager_computes(problem):
    with (
        contextlib.closing(backend_of(SETTINGS).reference(problem, Form(changed_weights=True))) as eager,
        contextlib.closing(backend_of(SETTINGS).reference(problem, Form(channels_last=True))) as other,
    ):
        assert eager.is_spatial and other.adopt(eager)
        values = eager.draw()
        expected, found = eager.call(values).output, other.call(values).output
    assert expected.tree == found.tree
    for one, another in zip(expected.tensors, found.tensors, strict=True):
        torch.testing.assert_close(one.tensor(), another.tensor())


@pytest.mark.slow
def test_a_baseline_that_cannot_run_is_left_out_by_name_with_a_short_reason():
    rigid = problem_of(before="assert x.is_contiguous(), 'a row' * 99; ")
    with contextlib.closing(backend_of(SETTINGS).baselines(rigid)) as baselines:
        forms = [Form(channels_last=True), Form()]
        assert [other.name for other in baselines._available(forms)] == ["eager"]
        ((name, reason),) = baselines.unavailable.items()
        assert name == "eager channels_last" and "AssertionError" in reason
        assert len(reason) <= 200 and "\n" not in reason


@pytest.mark.slow
def test_on_a_processor_there_are_compiled_modes_alone_and_their_accuracy_is_not_told():
    with contextlib.closing(backend_of(SETTINGS).baselines(problem_of())) as baselines:
        assert baselines.others(0) == [] and baselines.accuracy() == ({}, ())


def shortened(values):
    """The same values with the precision of bfloat16."""
    return Values(values.tree, tuple(RawTensor.of(raw.tensor().bfloat16().float()) for raw in values.tensors))


@pytest.mark.slow
def test_a_less_accurate_baseline_does_not_qualify_and_its_errors_are_shares_of_the_bound():
    with contextlib.closing(backend_of(SETTINGS).reference(problem_of("Linear(64, 64)", "64, 64"))) as eager:
        assert not eager.is_spatial
        calls = {
            "same": eager.call,
            "short": lambda values: (timed := eager.call(values))._replace(output=shortened(timed.output)),
        }
        found = accuracy_of(calls, eager, Domain())
    same, short = found["same"], found["short"]
    assert same.is_equal and not short.is_equal
    assert {"largest", "l2", "slice"} <= same.errors.keys()
    assert 0 < max(same.errors.values()) <= 1 < max(short.errors.values())
