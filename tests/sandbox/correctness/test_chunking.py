import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.problems import Tolerance
from kernelwright.sandbox.correctness.compare import mismatch
from kernelwright.sandbox.correctness.distance import Cut, Joined, are_alike, cuts, part, result_rows, spans
from tests.support.tensors import listed


@given(st.integers(2, 300), st.integers(1, 300))
def test_spans_cover_all_in_parts_of_one_size(rows, step):
    step = min(step, rows)
    found = spans(rows, step)
    assert {row for start, stop in found for row in range(start, stop)} == set(range(rows))
    assert all(stop - start == step and start >= 0 for start, stop in found)
    assert len(found) == -(-rows // step)


@pytest.mark.parametrize("rows", [7, 10, 11])
def test_parts_join_to_the_whole_bit_by_bit(rows):
    x, weight = torch.randn(rows, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    cut, joined = Cut(frozenset({0}), rows), Joined(rows)
    for start, stop in spans(rows, 3):
        here, also = (raw.tensor() for raw in part(listed(x, weight), cut, start, stop).tensors)
        assert torch.equal(also, weight), "what has no batch axis stays whole"
        joined.put(listed(torch.stack([row @ also for row in here]), here.sum(1)), start, stop)
    product, sums = (raw.tensor() for raw in joined.values().tensors)
    assert torch.equal(product, torch.stack([row @ weight for row in x])) and torch.equal(sums, x.sum(1))
    assert joined.values().tree == {"l": [{"t": 0}, {"t": 1}]}


def test_only_inputs_as_long_as_the_result_are_cut():
    inputs = listed(torch.randn(8, 3), torch.randn(3, 8), torch.tensor(2.0))
    assert list(cuts(inputs, listed(torch.randn(8, 2)))) == [Cut(frozenset({0}), 8)]


def test_where_several_are_as_long_all_of_them_are_tried_first_and_then_each():
    square = listed(torch.randn(6, 6), torch.randn(6, 6))
    found = list(cuts(square, listed(torch.randn(6, 6))))
    assert found == [Cut(frozenset(which), 6) for which in ({0, 1}, {0}, {1})]


@pytest.mark.parametrize(
    "result",
    [listed(torch.randn(6), torch.randn(7)), listed(torch.tensor(1.0)), listed(torch.randn(1, 9)), listed()],
    ids=["other lengths", "a scalar", "one row", "nothing"],
)
def test_a_result_without_one_long_first_axis_is_not_cut(result):
    assert not list(cuts(listed(torch.randn(6, 2), torch.randn(1, 2)), result))


def fits(cut, call, inputs, whole, start=2, stop=5):
    """Whether a part from the middle gives what the whole has there, which is how a cut is tried."""
    try:
        got = call(*(raw.tensor() for raw in part(inputs, cut, start, stop).tensors))
    except RuntimeError:
        return False
    want = result_rows(listed(whole), start, stop).tensors[0].tensor()
    return got.shape == want.shape and torch.allclose(got, want)


def test_of_a_square_product_the_first_operand_alone_may_be_cut():
    a, b = torch.randn(6, 6), torch.randn(6, 6)
    inputs, whole = listed(a, b), a @ b
    found = [cut for cut in cuts(inputs, listed(whole)) if fits(cut, torch.matmul, inputs, whole)]
    assert found == [Cut(frozenset({0}), 6)]


def test_what_mixes_rows_is_not_cut():
    x = torch.randn(6, 4)
    inputs, whole = listed(x), torch.softmax(x, 0)
    assert not [cut for cut in cuts(inputs, listed(whole)) if fits(cut, lambda x: torch.softmax(x, 0), inputs, whole)]


def test_a_part_is_of_the_same_memory_where_that_is_the_hosts_copy():
    x = torch.arange(12).view(4, 3)
    piece = part(listed(x), Cut(frozenset({0}), 4), 1, 3)
    assert torch.equal(piece.tensors[0].tensor(), x[1:3])
    assert torch.equal(piece.copied().tensors[0].tensor(), x[1:3])


def test_batch_statistics_of_a_part_are_not_those_of_the_whole():
    """They differ by less than 16 bits hold, so that no tolerance of the result tells."""
    torch.manual_seed(5)
    x = torch.randn(200_000, 3).bfloat16()
    whole = torch.nn.functional.batch_norm(x, None, None, training=True)
    part = torch.nn.functional.batch_norm(x[50_000:150_000], None, None, training=True)
    rows = result_rows(listed(whole), 50_000, 150_000)
    assert mismatch(listed(part), rows, rows, Tolerance()) is None
    assert not are_alike(listed(part), rows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_part_that_adds_in_another_order_is_alike(dtype):
    torch.manual_seed(6)
    x, weight = torch.randn(256, 512).to(dtype), torch.randn(512, 300).to(dtype)
    forward = x.float() @ weight.float()
    backward = x.float().flip(1) @ weight.float().flip(0)
    assert not torch.equal(forward, backward)
    assert are_alike(listed(forward.to(dtype)), listed(backward.to(dtype)))
    assert are_alike(listed(torch.arange(5)), listed(torch.arange(5)))
