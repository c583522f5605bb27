"""A program judged end to end: its own calls in every way, in turn, and what it gives compared."""

from xml.etree import ElementTree

import pytest

from kernelwright.problems import ProblemError
from kernelwright.programs.compare import Order, compare, drawn, headline, words
from tests.support.programs import KERNEL, ROWS, run_over_gates, script

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path / "cache"))


def compared(tmp_path, *arguments, rows=ROWS, compiled=(), **how):
    run = run_over_gates(tmp_path / "run", **how)
    order = Order(script=str(script(tmp_path, rows)), arguments=arguments, run=str(run), compiled=compiled, errors=True)
    return compare(order, processes=2)


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


@pytest.mark.long
def test_gradients_belong_to_it_where_the_program_takes_them(tmp_path):
    found = compared(tmp_path, "train", direction="both")
    assert found.backward and found.right and found.taken == {"first": 1, "second": 1}


@pytest.mark.long
def test_a_kernel_that_is_wrong_in_the_program_is_told_first(tmp_path):
    found = compared(tmp_path, kernel=KERNEL.replace("1 + torch.exp", "1.01 + torch.exp"))
    assert not found.right and not found.is_faster
    assert "WRONG" in headline(found)
    assert "first: " in words(found) and "REFUSED: output 0" in words(found)


@pytest.mark.long
def test_a_program_whose_shapes_are_others_says_which_guard_it_met(tmp_path):
    found = compared(tmp_path, rows=ROWS + 1)
    assert found.taken == {"first": 0, "second": 0}
    assert found.fallbacks["first"] == {"another shape": 1}


@pytest.mark.long
def test_torch_compile_is_a_baseline(tmp_path):
    found = compared(tmp_path, compiled=("default",))
    assert [pairing.baseline for pairing in found.whole.pairings] == ["eager as shipped", "torch.compile default"]
    assert ElementTree.fromstring(drawn(found)).tag


def test_a_program_that_fails_is_told_with_its_last_words(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("raise ValueError('no data')\n")
    order = Order(script=str(broken), arguments=(), run=str(tmp_path), compiled=(), errors=False)
    with pytest.raises(ProblemError, match=r"not run(.|\n)*no data"):
        compare(order, processes=2)
