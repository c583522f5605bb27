import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.problems import Problem, Tolerance
from kernelwright.sandbox.correctness.compare import Checks, is_right_anyhow, mismatch, tolerance_of
from kernelwright.sandbox.correctness.distance import measure
from kernelwright.sandbox.correctness.patterns import LOST_PRECISION
from kernelwright.sandbox.tensors import RawTensor, Values, is_sound
from kernelwright.sandbox.verdict.errors import BrokenProblem
from tests.support.tensors import packed


def verdict_on(got, exact, same_dtype, tolerance=None):
    return mismatch(packed(got), packed(exact), packed(same_dtype), tolerance or Tolerance())


torch.manual_seed(0)
A, B = torch.randn(96, 512), torch.randn(512, 80)
EXACT = A.double() @ B.double()
ROUNDED = A @ B
IN_EIGHTHS = sum(A[:, start : start + 8] @ B[start : start + 8] for start in range(0, 512, 8))


@pytest.mark.parametrize("got", [ROUNDED, IN_EIGHTHS], ids=["itself", "another order of summation"])
def test_what_is_as_near_as_the_reference_is_right_with_and_without_the_exact_result(got):
    assert verdict_on(got, EXACT, ROUNDED) is None
    assert is_right_anyhow(packed(got), packed(ROUNDED), Tolerance())


@pytest.mark.parametrize("seed", range(8))
def test_a_serial_sum_of_a_long_row_is_right(seed):
    torch.manual_seed(seed)
    x = torch.randn(64, 4096)
    serial = torch.zeros(64)
    for column in range(4096):
        serial += x[:, column]
    assert verdict_on(serial, x.double().sum(1), x.sum(1)) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_product_in_half_precision_is_wrong_and_never_right_anyhow(dtype):
    got = (A.to(dtype) @ B.to(dtype)).float()
    assert verdict_on(got, EXACT, ROUNDED)
    assert not is_right_anyhow(packed(got), packed(ROUNDED), Tolerance())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_output_of_16_bits_that_is_two_roundings_off_is_right_and_more_is_wrong(dtype):
    want = torch.rand(1000, dtype=torch.float64) + 1
    near = want.to(dtype)
    step = torch.finfo(dtype).eps
    assert verdict_on(near + step, want, near) is None
    assert verdict_on(near + 8 * step, want, near)


def truncated(tensor, bits):
    return (tensor.view(torch.int32) & ~((1 << bits) - 1)).view(torch.float32)


def test_a_product_with_tf32_inputs_is_right_only_where_the_policy_allows_it():
    got = truncated(A, 13) @ truncated(B, 13)
    assert verdict_on(got, EXACT, ROUNDED)
    problem = Problem(name="p", title="", family="", size="cpu", source="", precision="tf32")
    assert verdict_on(got, EXACT, ROUNDED, tolerance_of(problem)) is None


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (torch.zeros_like(ROUNDED), "all elements are zero"),
        (torch.full_like(ROUNDED, 3.0), "all elements are 3"),
        (ROUNDED + 0.5, "off by the constant 0.5"),
        (ROUNDED * 2, "2 times"),
        (ROUNDED.roll(1, 0), "axis 0 is shifted by 1"),
        (ROUNDED.flip(1), "axis 1 is reversed"),
        (torch.cat([ROUNDED[:, :-3], ROUNDED[:, -3:] + 1], 1), "77 to 79 (the tail)"),
        (torch.where(torch.arange(80) % 5 == 0, ROUNDED + 1, ROUNDED), "one index in 5"),
        (torch.cat([ROUNDED[:1] + 1, ROUNDED[1:]]), "index 0 (the first)"),
        (torch.randn(96, 80), "every element is wrong"),
        (torch.cat([ROUNDED[:32], torch.zeros(64, 80)]), "right only at the first 32"),
        (torch.cat([ROUNDED[:32], torch.zeros(64, 80)]), "elements are zero"),
        (ROUNDED + torch.arange(80.0), "a constant of its own"),
        (ROUNDED * torch.linspace(1, 2, 96)[:, None], "a factor of its own"),
        (ROUNDED.abs(), "value is negative"),
        (torch.cat([ROUNDED[1:], ROUNDED[-1:]]), "shifted by -1"),
        (ROUNDED.t().contiguous().view(96, 80), "transposed"),
        (-ROUNDED, "-1 times"),
        (ROUNDED[:1], "shape [1, 80]"),
        (ROUNDED.double(), "dtype float64"),
    ],
)
def test_the_reason_names_the_pattern(got, words):
    assert words in verdict_on(got, EXACT, ROUNDED).reason


def test_a_transposed_square_is_named():
    square = A[:, :96] @ A[:, :96]
    assert "transposed" in verdict_on(square.T, square.double(), square).reason


def test_the_details_give_places_with_got_and_want():
    wrong = verdict_on(torch.zeros_like(ROUNDED), EXACT, ROUNDED)
    assert f"at [0, 0]: got 0, want {float(EXACT[0, 0]):.7g}" in wrong.details


def test_a_missing_output_is_wrong():
    assert mismatch(packed(ROUNDED), packed(EXACT, EXACT), packed(ROUNDED, ROUNDED), Tolerance())


def with_value(place, value, tensor=ROUNDED):
    changed = tensor.clone()
    changed[place] = value
    return changed


def test_nan_and_infinities_are_where_the_reference_has_them():
    nan = with_value((3, 4), float("nan"))
    assert "has NaN at [3, 4]" in verdict_on(nan, EXACT, ROUNDED).reason
    assert verdict_on(nan, nan.double(), nan) is None
    assert "lacks NaN" in verdict_on(ROUNDED, nan.double(), nan).reason
    plus, minus = with_value((0, 0), float("inf")), with_value((0, 0), float("-inf"))
    assert "Inf" in verdict_on(minus, plus.double(), plus).reason
    column = with_value((slice(None), -1), float("nan"))
    assert "index 79 (the last)" in verdict_on(column, EXACT, ROUNDED).reason


def test_integers_must_be_equal_and_nothing_is_right_where_it_is_wanted():
    want = torch.arange(12).view(3, 4)
    assert verdict_on(want, want, want) is None
    assert "off by the constant 1" in verdict_on(want + 1, want, want).reason
    empty = torch.empty(0, 3)
    assert verdict_on(empty, empty.double(), empty) is None


def test_the_reason_gives_the_worst_place_with_got_want_and_bound():
    got = with_value((7, 5), ROUNDED[7, 5] + 3)
    reason = verdict_on(got, EXACT, ROUNDED).reason
    assert "largest error is 3" in reason
    assert f"at [7, 5]: got {float(got[7, 5]):.7g}, want {float(EXACT[7, 5]):.7g}" in reason


def test_an_overflow_of_the_reference_may_be_avoided():
    want = torch.tensor([1.0, 3e38, 2.0], dtype=torch.float64)
    overflown = torch.tensor([1.0, float("inf"), 2.0])
    assert verdict_on(want.float(), want, overflown) is None
    assert verdict_on(overflown, want, overflown) is None
    assert verdict_on(torch.tensor([1.0, 1e38, 2.0]), want, overflown)


def test_a_dict_is_the_same_in_whatever_order_it_was_filled():
    a, b = RawTensor.of(torch.ones(3)), RawTensor.of(torch.zeros(2))
    one = Values({"d": [["a", {"t": 0}], ["b", {"t": 1}]]}, (a, b))
    other = Values({"d": [["b", {"t": 0}], ["a", {"t": 1}]]}, (b, a))
    assert mismatch(other, one, one, Tolerance()) is None


@pytest.mark.parametrize(("got", "right"), [(1, False), (True, True), (1.0, False), ("yes", False), (None, False)])
def test_a_truth_value_is_only_itself(got, right):
    want = Values({"v": True}, ())
    assert (mismatch(Values({"v": got}, ()), want, want, Tolerance()) is None) == right


def test_a_float_was_rounded_like_an_element():
    want = Values({"v": 0.1}, ())
    assert mismatch(Values({"v": 0.1 + 1e-8}, ()), want, want, Tolerance()) is None
    assert "the number is wrong" in mismatch(Values({"v": 0.11}, ()), want, want, Tolerance()).reason


def test_a_place_in_a_nest_is_named():
    want = Values({"d": [["x", {"p": [{"t": 0}, {"t": 1}]}]]}, (RawTensor.of(A), RawTensor.of(B)))
    got = want._replace(tensors=(want.tensors[0], RawTensor.of(B + 1)))
    assert mismatch(got, want, want, Tolerance()).reason.startswith("output 'x'[1] is wrong")


def test_complex_values_are_compared_in_both_parts():
    want = torch.view_as_complex(torch.randn(8, 8, 2))
    assert verdict_on(want, want, want) is None
    assert verdict_on(want.conj().resolve_conj(), want, want)


def test_an_integer_may_be_what_either_precision_says():
    near, exact = torch.tensor([1, 2, 3]), torch.tensor([1, 5, 3])
    assert verdict_on(torch.tensor([1, 5, 3]), exact, near) is None
    assert "want 2" in verdict_on(torch.tensor([1, 4, 3]), exact, near).reason


@pytest.mark.parametrize("batch", [(), (1,), (1, 1)])
def test_small_rows_beside_large_ones_count(batch):
    size = torch.logspace(-3, 3, 96)[:, None]
    got = (ROUNDED * size).clone()
    got[:4] = 0
    got, want, near = (tensor.reshape(*batch, 96, 80) for tensor in (got, EXACT * size, ROUNDED * size))
    assert f"4 of 96 indices of axis {len(batch)}" in verdict_on(got, want, near).reason
    assert verdict_on(near, want, near) is None


@pytest.mark.parametrize("batch", [(), (1,)])
def test_the_place_and_the_pattern_within_a_slice_are_those_of_the_whole_result(batch):
    size = torch.logspace(-3, 3, 8)[:, None, None]
    want = torch.randn(*batch, 8, 6, 16).double() * size
    near = want.float().double()
    got = near.clone()
    got[..., 2, 4, :] += 1e-3 * size[2, 0]
    found = verdict_on(got, want, near)
    assert f"at {[*[0] * len(batch), 2, 4]}"[:-1] in found.reason
    assert f"wrong only at index 4 (of 6) of axis {len(batch) + 1}" in found.reason
    assert f"of the part from {[*[0] * len(batch), 2, 0, 0]} on" in found.details


@pytest.mark.parametrize(("error", "is_small"), [(1e-4, True), (1.0, False)])
def test_errors_far_below_the_values_are_told_from_elements_in_a_wrong_place(error, is_small):
    want = torch.randn(64, 32).double()
    got = want + error * torch.randn(64, 32)
    assert (LOST_PRECISION in verdict_on(got, want, want.float().double()).reason) is is_small


def test_a_slice_in_which_the_reference_had_luck_may_be_off_as_others_are():
    rounded = EXACT + 1e-3 * torch.randn(96, 80)
    lucky = rounded.clone()
    lucky[5] = EXACT[5]
    assert verdict_on(rounded, EXACT, lucky) is None


def test_a_lower_precision_beside_a_few_huge_elements_is_wrong():
    torch.manual_seed(0)
    x, y = torch.randn(100_000), torch.randn(100_000)
    y[:3] *= 1e-9
    want, near = x.double() / y.double(), x / y
    got = torch.where(near.abs() > 1e6, near, (x.bfloat16() / y.bfloat16()).float())
    assert verdict_on(near * (1 + 1e-6), want, near) is None
    assert "its usual error is" in verdict_on(got, want, near).reason


def test_a_denormal_may_be_taken_for_zero():
    near = torch.full((100,), 1e-39)
    near[0] = 1
    got = torch.where(near < 1e-38, 0.0, near)
    assert verdict_on(got, near.double(), near) is None


def test_places_that_nothing_contributes_to_are_named():
    want = torch.zeros(8, 30, dtype=torch.float64)
    want[:, ::5] = torch.randn(8, 6, dtype=torch.float64)
    reason = verdict_on(torch.randn(8, 30), want, want.float()).reason
    assert "192 of 192 elements" in reason and "exactly zero (80 %" in reason


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("tvlpd"), inner, max_size=2),
    max_leaves=8,
)


@pytest.mark.slow
@given(TREES)
@settings(max_examples=200, deadline=None)
def test_whatever_a_child_sends_as_a_tree_is_judged_without_a_crash(tree):
    want = packed(A)
    is_sound(tree, 1)
    if tree != want.tree:
        assert mismatch(Values(tree, want.tensors), want, want, Tolerance())


@pytest.mark.slow
@given(st.integers(0, 10**6), st.sampled_from([(7,), (5, 9), (3, 80), (2, 3, 64)]), st.floats(1e-6, 1e6))
@settings(max_examples=60, deadline=None)
def test_rounding_passes_and_half_precision_does_not_at_any_scale(seed, shape, scale):
    want = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * scale
    near = want.float()
    assert verdict_on(near, want, near) is None
    assert verdict_on(torch.nextafter(near, torch.zeros_like(near)), want, near) is None
    assert verdict_on(near.bfloat16().float(), want, near)


@given(st.integers(0, 10**6), st.integers(0, 239), st.floats(0.01, 100))
@settings(max_examples=60, deadline=None)
def test_one_wrong_element_is_found_wherever_it_is(seed, place, error):
    near = torch.randn(3, 80, generator=torch.Generator().manual_seed(seed))
    got = near.clone()
    got.view(-1)[place] += error
    wrong = verdict_on(got, near.double(), near)
    assert f"at [{place // 80}, {place % 80}]" in wrong.reason


def spiked():
    """An error that is small beside the whole, and too large for one element."""
    got = torch.ones(64, 100)
    got[3, 5] += 3e-5
    return got, torch.ones(64, 100)


def spread():
    """An error in some elements that is small beside the largest one, and too large for all of them together."""
    want = torch.ones(10_000)
    want[0] = 100
    got = want.clone()
    got[5000:5500] += 2e-4
    return got, want


def under_a_peak():
    """Values of a lower precision, beside one so large that both norms are its own."""
    want = torch.rand(1, 10_000) + 1
    want[0, 0] = 2**20
    return want.bfloat16().float(), want


def small_rows():
    want = torch.ones(64, 100) * torch.logspace(-3, 3, 64)[:, None]
    got = want.clone()
    got[:8] = 0
    return got, want


ROW = torch.randn(1, 80)
ATTACKS = {
    "shape": lambda: (ROW, ROW.expand(9, 80)),
    "dtype": lambda: (ROUNDED.double(), ROUNDED),
    "masks": lambda: (torch.full((3, 5), float("nan")), torch.randn(3, 5)),
    "largest": spiked,
    "norm": spread,
    "usual": under_a_peak,
    "slices": small_rows,
}
SHARED = packed(ROW)._replace(tensors=(RawTensor.of(ROW)._replace(is_shared=True),))


def test_elements_that_share_a_place_are_refused_where_the_references_do_not():
    exact = packed(ROW.double())
    assert "share one place" in mismatch(SHARED, exact, packed(ROW), Tolerance()).reason
    assert not is_right_anyhow(SHARED, packed(ROW), Tolerance())
    assert mismatch(SHARED, exact, packed(ROW), Tolerance(), Checks(places=False)) is None
    assert mismatch(SHARED, exact, SHARED, Tolerance()) is None
    assert mismatch(packed(ROW), exact, SHARED, Tolerance()) is None


@pytest.mark.parametrize("check", ATTACKS)
def test_without_a_check_its_attack_passes(check):
    got, want = ATTACKS[check]()
    without = Checks(**{check: False})
    exact = want.double()
    assert mismatch(packed(got), packed(exact), packed(want), Tolerance())
    assert mismatch(packed(got), packed(exact), packed(want), Tolerance(), without) is None


def test_without_the_check_of_the_structure_nothing_passes_for_everything():
    nothing = Values({"l": []}, ())
    assert mismatch(nothing, packed(EXACT), packed(ROUNDED), Tolerance())
    assert mismatch(nothing, packed(EXACT), packed(ROUNDED), Tolerance(), Checks(structure=False)) is None


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 2**32),
    st.floats(-9, -3),
    st.floats(-9, -4),
    st.sampled_from([(4,), (3, 5), (6, 80), (2, 3, 64), (500,)]),
    st.sampled_from([torch.float32, torch.float64, torch.float16]),
    st.sampled_from([Tolerance(), Tolerance(factor=4.0), Tolerance(floor_ulp=8192.0), Tolerance(floor_ulp=1.0)]),
)
def test_what_is_right_anyhow_is_right_whatever_the_exact_result_is(seed, far, off, shape, dtype, tolerance):
    torch.manual_seed(seed)
    scales = 10 ** torch.randint(-4, 4, (shape[0], *[1] * (len(shape) - 1)))
    exact = torch.randn(shape, dtype=torch.float64) * scales * (torch.rand(shape) < 0.9)
    near = (exact + 10**far * torch.randn(shape) * exact.abs().max()).to(dtype)
    got = (near.double() * (1 + 10**off * torch.randn(shape))).to(dtype)
    if is_right_anyhow(packed(got), packed(near), tolerance):
        assert mismatch(packed(got), packed(exact), packed(near), tolerance) is None


@pytest.mark.parametrize(
    ("got", "near"),
    [
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("nan")])),
        (torch.tensor([1.0, float("inf")]), torch.tensor([1.0, 2.0])),
        (torch.tensor([1.0, float("inf")]), torch.tensor([1.0 + 1e-6, float("inf")])),
        (torch.tensor([1.0, 3e38]), torch.tensor([1.0, float("inf")])),
        (torch.tensor([1.0, 2.0]), torch.tensor([[1.0, 2.0]])),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0], dtype=torch.float64)),
        (torch.tensor([0.0, 1e-30]), torch.tensor([0.0, 0.0])),
    ],
)
def test_what_differs_in_more_than_rounding_is_left_to_the_exact_result(got, near):
    assert not is_right_anyhow(packed(got), packed(near), Tolerance())


def test_a_small_row_beside_large_ones_is_left_to_the_exact_result():
    near = torch.cat([torch.full((1, 64), 1e-6), torch.ones(3, 64)])
    assert is_right_anyhow(packed(near * (1 + 1e-6)), packed(near), Tolerance())
    assert not is_right_anyhow(packed(near + 1e-8), packed(near), Tolerance())


def test_a_tolerance_that_asks_for_more_than_the_reference_gives_needs_the_exact_result():
    assert not is_right_anyhow(packed(ROUNDED), packed(ROUNDED), Tolerance(factor=0.5, reason="strict"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.int64])
def test_what_is_compared_stays_as_it_is(dtype):
    got, near, exact = (torch.arange(6).reshape(2, 3).to(dtype) + k for k in (1, 2, 3))
    before = [tensor.clone() for tensor in (got, near, exact)]
    measure(got, near, exact)
    mismatch(packed(got), packed(exact), packed(near), Tolerance())
    is_right_anyhow(packed(got), packed(near), Tolerance())
    assert all(torch.equal(tensor, earlier) for tensor, earlier in zip((got, near, exact), before, strict=True))


def test_a_reference_that_gives_fewer_tensors_in_float64_is_no_problem_to_judge():
    with pytest.raises(BrokenProblem, match=r"2 tensors .* 1 in float64"):
        mismatch(packed(ROUNDED, ROUNDED), packed(EXACT), packed(ROUNDED, ROUNDED), Tolerance())


def test_a_denormal_may_be_taken_for_zero_even_where_nothing_else_stands():
    want = torch.full((8, 80), 1e-38, dtype=torch.float64)
    assert verdict_on(torch.zeros(8, 80), want, want.float()) is None
    assert verdict_on(torch.zeros(8, 80), 10 * want, 10 * want.float())


UNDEFINED = EXACT.clone()
UNDEFINED[::2] = math.nan


def judged_outside(got):
    near = UNDEFINED.float()
    return mismatch(packed(got), packed(UNDEFINED), packed(near), Tolerance(), Checks(undefined=False))


def test_where_a_problem_is_not_defined_anything_is_right():
    assert judged_outside(torch.where(UNDEFINED.isnan(), 7.0, ROUNDED)) is None
    assert verdict_on(torch.where(UNDEFINED.isnan(), 7.0, ROUNDED), UNDEFINED, UNDEFINED.float())


def test_beside_what_is_not_defined_all_is_compared():
    assert judged_outside(torch.where(torch.arange(96)[:, None] == 1, 0.0, ROUNDED)).by_distance
    assert "has NaN at [1, 0]" in judged_outside(torch.full_like(ROUNDED, math.nan)).reason


UNIT = 2.0**-17
"""64 units in the last place of 1 in float32."""


@pytest.mark.parametrize(("off", "right"), [(0.5, True), (1.0, True), (1.0 + 2**-6, False), (1.5, False)])
@pytest.mark.parametrize("shape", [(1,), (2, 64)])
def test_where_rounding_does_nothing_the_floor_is_what_an_output_may_be_off_by(shape, off, right):
    ones = torch.ones(shape)
    assert (verdict_on(ones + off * UNIT, ones.double(), ones) is None) == right


@pytest.mark.parametrize(("off", "right"), [(7.9, True), (8.1, False)])
def test_beyond_the_floor_an_output_may_be_off_by_the_factor_times_what_the_reference_is(off, right):
    rounding = 2.0**-12
    ones, near = torch.ones(4, dtype=torch.float64), torch.full((4,), 1 + rounding)
    assert (verdict_on((ones + off * rounding).float(), ones, near) is None) == right


def test_a_few_elements_that_are_off_hide_nothing_where_the_usual_one_is_near():
    near = torch.ones(4097)
    near[0] = 1e6
    few, all_of_them = near.clone(), near.clone()
    few[1] += 10 * UNIT
    all_of_them[1:] += 10 * UNIT
    assert is_right_anyhow(packed(few), packed(near), Tolerance())
    assert not is_right_anyhow(packed(all_of_them), packed(near), Tolerance())
