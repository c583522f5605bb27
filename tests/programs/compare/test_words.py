import json
from xml.etree import ElementTree

from kernelwright.programs.compare import Order, StageError, Times, drawn, folded, headline, words


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
    assert json.loads(json.dumps(found.model_dump(mode="json")))["whole"]["threads"] == 2
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
