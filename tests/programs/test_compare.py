"""A program judged end to end: its calls on every side alternately, and its outputs compared."""

import subprocess
import sys
from xml.etree import ElementTree

import pytest

from kernelwright.problems import ProblemError
from kernelwright.programs.compare import Comparison, Order, StageError, Times, compare, drawn, folded, headline, words
from tests.support.programs import KERNEL, ROWS, run_over_gates, script


def times(kernels, eager, **more):
    samples = {"kernels": kernels, "eager as shipped": eager, "eager again": eager} | more
    return Times(
        samples={name: (ms, ms * 1.001, ms, ms) for name, ms in samples.items()}, calls=1, backward=False,
        on_device=False, threads=2, errors=(), taken={}, fallbacks={}, notes=(),
    )  # fmt: skip


ORDER = Order(script="p.py", arguments=("3",), run="runs/x", compiled=("default",), errors=True)


def test_the_fastest_baseline_counts_and_shares_are_told():
    more = {"torch.compile default": 4.0, "alone a": 5.0, "alone b": 9.0}
    found = folded(ORDER, [times(2.0, 10.0, **more), times(2.0, 10.0, **more)])
    assert "is faster: 2.00 x" in headline(found) and "torch.compile default" in headline(found)
    assert [(share.part, round(share.saved, 2)) for share in found.shares] == [("a", 0.5), ("b", 0.1)]
    assert ElementTree.fromstring(drawn(found)).tag


def test_a_whole_that_is_not_faster_says_so():
    found = folded(ORDER, [times(2.0, 10.0, **{"torch.compile default": 1.0})] * 2)
    assert not found.is_faster and "NOT faster (slower): 0.50 x" in headline(found)


def test_a_baseline_that_failed_in_one_process_is_left_out():
    found = folded(ORDER, [times(2.0, 10.0, **{"torch.compile default": 1.0}), times(2.0, 10.0)])
    assert [pairing.baseline for pairing in found.whole.pairings] == ["eager as shipped"]


def test_a_stage_is_told_with_its_distance():
    error = StageError(place="a", own=1e-7, kernel=2e-7)
    said = words(folded(ORDER, [times(2.0, 10.0).model_copy(update={"errors": (error,)})] * 2))
    assert "a: off from float64 by 2e-07" in said and "own code by 1e-07" in said


def test_a_record_is_read_as_it_was_written_with_the_name_of_its_clock():
    found = folded(ORDER, [times(2.0, 10.0)] * 2)
    assert found.timing_clock == "call"
    assert Comparison.model_validate_json(found.model_dump_json()) == found


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path / "cache"))


def compared(tmp_path, *arguments, rows=ROWS, compiled=(), **how):
    run = run_over_gates(tmp_path / "run", **how)
    order = Order(script=str(script(tmp_path, rows)), arguments=arguments, run=str(run), compiled=compiled, errors=True)
    return compare(order, processes=2)


@pytest.mark.slow
@pytest.mark.long
def test_a_program_is_timed_with_and_without_kernels_and_compared(tmp_path):
    found = compared(tmp_path)
    assert found.calls == 1 and not found.backward
    (eager,) = found.whole.pairings
    assert eager.baseline == "eager as shipped" and set(eager.workers) == {0, 1}
    assert found.whole.placebo is not None and len(found.whole.placebo.candidate_ms) == len(eager.candidate_ms)
    assert found.taken == {"first": 1, "second": 1} and not found.fallbacks
    assert [error.place for error in found.errors] == ["first", "second", ""] and found.right
    assert "first: off from float64" in words(found)


@pytest.mark.slow
@pytest.mark.long
def test_gradients_belong_to_it_where_the_program_takes_them(tmp_path):
    found = compared(tmp_path, "train", direction="both")
    assert found.backward and found.right and found.taken == {"first": 1, "second": 1}


@pytest.mark.slow
@pytest.mark.long
def test_a_kernel_that_is_wrong_in_the_program_is_told_first(tmp_path):
    found = compared(tmp_path, kernel=KERNEL.replace("1 + torch.exp", "1.01 + torch.exp"))
    assert not found.right and not found.is_faster
    assert "WRONG" in headline(found)
    assert "first: " in words(found) and "REFUSED: output 0" in words(found)


@pytest.mark.slow
@pytest.mark.long
def test_a_program_whose_shapes_are_others_says_which_guard_it_met(tmp_path):
    found = compared(tmp_path, rows=ROWS + 1)
    assert found.taken == {"first": 0, "second": 0}
    assert found.fallbacks["first"] == {"another shape": 1}


@pytest.mark.slow
@pytest.mark.long
def test_torch_compile_is_a_baseline(tmp_path):
    found = compared(tmp_path, compiled=("default",))
    assert [pairing.baseline for pairing in found.whole.pairings] == ["eager as shipped", "torch.compile default"]
    assert ElementTree.fromstring(drawn(found)).tag


@pytest.mark.slow
def test_a_program_that_fails_is_told_with_its_last_words(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("raise ValueError('no data')\n")
    order = Order(script=str(broken), arguments=(), run=str(tmp_path), compiled=(), errors=False)
    with pytest.raises(ProblemError, match=r"not run(.|\n)*no data"):
        compare(order, processes=2)


PROGRAM = """
import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def forward(self, x):
        return F.softplus(x)


with torch.no_grad():
    nn.Sequential(Layer(), Layer())(torch.ones(8))
"""
COMPILED = """
import sys
from pathlib import Path

import torch

from kernelwright.programs.timing import calls_of

(call,) = calls_of(Path(sys.argv[1]), ())
same, _ = call.outputs(call.root)
compiled, _ = call.outputs(torch.compile(call.root))
torch.testing.assert_close(compiled, same)
"""


@pytest.mark.slow
@pytest.mark.long
def test_what_torch_compile_traces_finds_what_the_script_names_at_its_top(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-c", COMPILED, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
