"""Comparisons in pieces and calls in parts: they find what one look at the whole would."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.problems import Tolerance
from kernelwright.sandbox.correctness import compare, distance
from kernelwright.sandbox.correctness.compare import Checks, mismatch
from kernelwright.sandbox.correctness.distance import (
    MOVES,
    Cut,
    Joined,
    Moved,
    all_within,
    are_alike,
    cuts,
    finite,
    measure,
    part,
    result_rows,
    spans,
    worst,
)
from tests.support.tensors import listed, packed

SHAPES = [(), (1,), (7,), (3, 50), (5, 4, 30), (2, 3, 4, 100)]


def judged(got, want, near=None, checks=None):
    near = want.float() if near is None else near
    return mismatch(packed(got), packed(want), packed(near), Tolerance(), checks or Checks())


@pytest.fixture(params=[1, 7, 64, 2**15])
def piece(request, monkeypatch):
    """Pieces of so many elements."""
    monkeypatch.setattr(distance, "PIECE", request.param)


@pytest.fixture
def parts(monkeypatch):
    """Outputs of more than 32 elements are looked at in parts."""
    monkeypatch.setattr(compare, "LOOKED_AT", 32)


def at_once(got, want, draws):
    """What an element may be pulled back by, by its definition."""
    moved = torch.stack([draw.double() - want for draw in draws]).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    allowed = MOVES * moved.square().mean(0).sqrt()
    error = got.double() - want
    return want + error.sign() * (error.abs() - allowed).clamp(min=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_moves_is_pulled_back_as_one_formula_says(piece, shape):
    torch.manual_seed(1)
    want = torch.randn(shape, dtype=torch.float64)
    draws = [want + 1e-3 * torch.randn(shape, dtype=torch.float64) for _ in range(6)]
    got = (want + 1e-2 * torch.randn(shape, dtype=torch.float64)).float()
    moved = Moved(want)
    for draw in draws:
        moved.note(draw)
    torch.testing.assert_close(moved.pulled_back(got), at_once(got, want, draws), rtol=1e-6, atol=1e-9)


def test_what_moves_beyond_all_bounds_has_not_moved(piece):
    want = torch.ones(40, dtype=torch.float64)
    moved = Moved(want)
    for odd in (math.nan, math.inf, -math.inf):
        moved.note(torch.full((40,), odd, dtype=torch.float64))
    got = torch.full((40,), 1.5)
    assert torch.equal(moved.pulled_back(got), got.double())


@pytest.mark.parametrize("size", [1e-30, 1e-41, 1e30])
def test_what_moves_is_known_at_every_magnitude_that_float32_has(size):
    """Squares of it would be none, or too large, in float32."""
    want = torch.full((50,), size, dtype=torch.float64)
    moved, draw = Moved(want), want * 1.25
    moved.note(draw)
    torch.testing.assert_close(moved.pulled_back(want * 2), at_once(want * 2, want, [draw]), rtol=1e-3, atol=0)


def test_transposed_tensors_are_compared_element_by_element(piece):
    want = torch.arange(60, dtype=torch.float64).view(6, 10).t()
    moved = Moved(want)
    moved.note(want.contiguous() + 1)
    assert torch.equal(moved.pulled_back(want + 100), want + 100 - MOVES)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape])
def test_the_worst_element_is_found_wherever_it_lies(piece, shape):
    torch.manual_seed(2)
    want = torch.randn(shape, dtype=torch.float64)
    for place in {0, want.numel() // 2, want.numel() - 1}:
        got = want + 1e-3 * torch.rand(shape, dtype=torch.float64)
        got.view(-1)[place] -= 5
        index = worst(got, want)
        assert want[index] == want.view(-1)[place] and got[index] == got.view(-1)[place]


def test_what_is_not_finite_is_not_the_worst(piece):
    want = torch.zeros(30, dtype=torch.float64)
    got = want.clone()
    got[3], got[4], got[20] = math.nan, math.inf, 1
    assert worst(got, want) == (20,)
    assert worst(torch.full((30,), math.nan), want) == (0,)


@pytest.mark.parametrize("undefined", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_is_made_finite_leaves_what_it_was_given_alone(undefined, dtype):
    got, near, want = (torch.tensor([1.0, math.nan, math.inf, -math.inf, 2.0]).roll(turn) for turn in range(3))
    given = [got.to(dtype), near.to(dtype), want.double()]
    before = [tensor.clone() for tensor in given]
    found = finite(*given, undefined)
    assert all(torch.isfinite(tensor).all() for tensor in found)
    assert all(torch.equal(one.nan_to_num(7), other.nan_to_num(7)) for one, other in zip(given, before, strict=True))


@pytest.mark.parametrize("settled", [True, False])
def test_what_is_measured_is_left_as_it_is(piece, settled):
    got, near, want = (torch.randn(4, 80, dtype=torch.float64) for _ in range(3))
    got[1, 2] = math.nan
    before = [tensor.clone() for tensor in (got, near, want)]
    measure(got, near, want, settled=settled)
    assert torch.equal(got.nan_to_num(7), before[0].nan_to_num(7))
    assert torch.equal(near, before[1]) and torch.equal(want, before[2])


def test_sizes_do_not_hang_on_the_pieces(piece):
    torch.manual_seed(3)
    want = torch.randn(6, 200, dtype=torch.float64)
    got, near = (want + 1e-3 * torch.randn(6, 200, dtype=torch.float64) for _ in range(2))
    error = measure(got, near, want).error
    assert error.largest == pytest.approx(float((got - want).abs().max()), rel=1e-12)
    assert error.norm == pytest.approx(float((got - want).norm()), rel=1e-12)
    torch.testing.assert_close(error.slices, (got - want).norm(dim=1))


@pytest.mark.parametrize(("odd", "name"), [(math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf")])
@pytest.mark.parametrize("row", [0, 9, 19])
def test_the_part_whose_masks_differ_is_named(parts, odd, name, row):
    want = torch.randn(20, 8, dtype=torch.float64)
    got = want.float()
    got[row, 3] = odd
    wrong = judged(got, want)
    first = row // 4 * 4
    assert f"[{first}:{first + 4}] has {name} at [{row - first}, 3]" in wrong.reason


@pytest.mark.parametrize("shape", [(3, 50), (1, 150), (1, 3, 50), (150,)])
def test_where_one_index_is_too_much_it_is_parted_along_the_next_axis(parts, shape):
    want = torch.randn(shape, dtype=torch.float64)
    got = want.float()
    got.view(-1)[149] = math.nan
    named = {(3, 50): "[2][32:64] has NaN at [17]", (150,): "[128:160] has NaN at [21]"}
    last = named.get(shape, "has NaN at [")
    assert last in judged(got, want).reason


def test_where_masks_agree_in_every_part_the_rest_is_compared(parts):
    want = torch.randn(20, 8, dtype=torch.float64)
    want[7, 1], want[15, 2] = math.nan, math.inf
    assert judged(want.float(), want) is None
    got = want.float()
    got[18, 5] += 1
    assert "at [18, 5]" in judged(got, want).reason


def test_parts_outside_of_what_is_defined_are_not_compared(parts):
    want = torch.randn(20, 8, dtype=torch.float64)
    want[7] = math.nan
    got = want.float()
    got[7] = 3
    assert judged(got, want) is not None
    assert judged(got, want, checks=Checks(undefined=False)) is None


@pytest.mark.parametrize("shape", [(40, 8), (2, 160), (4, 5, 16), (320,)])
def test_what_is_wrong_is_placed_in_the_whole_and_described_in_a_part(parts, shape):
    torch.manual_seed(4)
    want = torch.randn(shape, dtype=torch.float64)
    for place in (0, 170, 319):
        got = want.float()
        got.view(-1)[place] += 3
        index = [int(axis) for axis in torch.unravel_index(torch.tensor(place), shape)]
        wrong = judged(got, want)
        assert f"at {index}: got" in wrong.reason
        assert "of the part from" in wrong.details and "counted from there" in wrong.details


def test_a_small_output_is_described_whole(parts):
    want = torch.randn(4, 8, dtype=torch.float64)
    got = want.float()
    got[2, 2] += 3
    assert "of the part from" not in judged(got, want).details


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_elements_that_are_all_near_are_found_by_pieces_and_one_that_is_not_too(piece, shape, dtype):
    near = torch.randn(shape).to(dtype)
    got = (near.double() * 1.01).to(dtype)
    assert all_within(got, near, 0.02)
    assert not all_within(got, near, 0.002)
    got.view(-1)[-1] = near.view(-1)[-1] * 1.1
    assert not all_within(got, near, 0.02)


@pytest.mark.parametrize(("got", "near"), [("inf", "inf"), ("nan", "nan"), ("1", "inf"), ("inf", "1"), ("1e-30", "0")])
def test_what_is_not_finite_is_near_nothing_and_what_is_not_zero_is_not_near_zero(got, near):
    assert not all_within(torch.tensor([1.0, float(got)]), torch.tensor([1.0, float(near)]), 0.5)
    assert all_within(torch.zeros(3), torch.zeros(3), 0.5)


@pytest.mark.parametrize(("got", "near"), [(1.09, True), (1.11, False), (0.91, True), (0.89, False)])
def test_near_is_off_by_no_more_than_the_share(got, near):
    assert all_within(torch.tensor([2.0, got]), torch.tensor([2.0, 1.0]), 0.1) == near


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


def test_only_inputs_as_long_as_the_result_are_cut_and_of_several_all_first_and_then_each():
    inputs = listed(torch.randn(8, 3), torch.randn(3, 8), torch.tensor(2.0))
    assert list(cuts(inputs, listed(torch.randn(8, 2)))) == [Cut(frozenset({0}), 8)]
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
