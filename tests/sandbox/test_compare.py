import pytest
import torch

from problems import Problem, Tolerance
from sandbox.compare import mismatch, tolerance_of
from sandbox.values import RawTensor, Values


def output(*tensors):
    trees = [{"t": index} for index in range(len(tensors))]
    return Values(trees[0] if len(trees) == 1 else {"p": trees}, tuple(RawTensor.of(tensor) for tensor in tensors))


def verdict_on(got, exact, same_dtype, tolerance=None):
    return mismatch(output(got), output(exact), output(same_dtype), tolerance or Tolerance())


torch.manual_seed(0)
A, B = torch.randn(96, 512), torch.randn(512, 80)
EXACT = A.double() @ B.double()
ROUNDED = A @ B


def test_the_reference_itself_is_right():
    assert verdict_on(ROUNDED, EXACT, ROUNDED) is None


def test_another_order_of_summation_is_right():
    other = sum(A[:, start : start + 8] @ B[start : start + 8] for start in range(0, 512, 8))
    assert verdict_on(other, EXACT, ROUNDED) is None


@pytest.mark.parametrize("seed", range(8))
def test_a_serial_sum_of_a_long_row_is_right(seed):
    torch.manual_seed(seed)
    x = torch.randn(64, 4096)
    serial = torch.zeros(64)
    for column in range(4096):
        serial += x[:, column]
    assert verdict_on(serial, x.double().sum(1), x.sum(1)) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_product_in_half_precision_is_wrong(dtype):
    assert verdict_on((A.to(dtype) @ B.to(dtype)).float(), EXACT, ROUNDED)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_output_of_16_bits_that_is_two_roundings_off_is_right_and_more_is_wrong(dtype):
    want = torch.rand(1000, dtype=torch.float64) + 1
    near = want.to(dtype)
    step = torch.finfo(dtype).eps
    assert verdict_on(near + step, want, near) is None
    assert verdict_on(near + 8 * step, want, near)


def truncated(tensor, bits):
    return (tensor.view(torch.int32) & ~((1 << bits) - 1)).view(torch.float32)


def test_a_product_with_tf32_inputs_is_wrong_under_the_strict_policy():
    assert verdict_on(truncated(A, 13) @ truncated(B, 13), EXACT, ROUNDED)


def test_a_product_with_tf32_inputs_is_right_where_the_policy_allows_it():
    problem = Problem(name="p", title="", family="", size="cpu", source="", precision="tf32")
    assert verdict_on(truncated(A, 13) @ truncated(B, 13), EXACT, ROUNDED, tolerance_of(problem)) is None


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (torch.zeros_like(ROUNDED), "all elements are zero"),
        (torch.full_like(ROUNDED, 3.0), "all elements are 3"),
        (ROUNDED + 0.5, "off by the constant 0.5"),
        (ROUNDED * 2, "2 times"),
        (ROUNDED.roll(1, 0), "axis 0 is shifted by 1"),
        (ROUNDED.flip(1), "axis 1 is reversed"),
        (torch.cat([ROUNDED[:, :-3], ROUNDED[:, -3:] + 1], 1), "indices 77 to 79 (the tail) of axis 1"),
        (torch.where(torch.arange(80) % 5 == 0, ROUNDED + 1, ROUNDED), "every 5th index from 0 to 75 of axis 1"),
        (torch.cat([ROUNDED[:1] + 1, ROUNDED[1:]]), "index 0 (the first) of axis 0"),
        (torch.randn(96, 80), "every element is wrong"),
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


def test_a_broadcastable_output_is_wrong():
    assert "shape [1, 80]" in verdict_on(ROUNDED[:1], EXACT, ROUNDED).reason


def test_another_dtype_is_wrong():
    assert "dtype float64" in verdict_on(ROUNDED.double(), EXACT, ROUNDED).reason


def test_a_missing_output_is_wrong():
    assert mismatch(output(ROUNDED), output(EXACT, EXACT), output(ROUNDED, ROUNDED), Tolerance())


def test_a_nan_that_the_reference_lacks_is_wrong():
    got = ROUNDED.clone()
    got[3, 4] = float("nan")
    assert "has NaN at [3, 4]" in verdict_on(got, EXACT, ROUNDED).reason


def test_a_nan_that_the_reference_has_is_wanted():
    with_nan = ROUNDED.clone()
    with_nan[3, 4] = float("nan")
    assert verdict_on(with_nan, with_nan.double(), with_nan) is None
    assert "lacks NaN" in verdict_on(ROUNDED, with_nan.double(), with_nan).reason


def test_the_sign_of_an_infinity_counts():
    plus, minus = ROUNDED.clone(), ROUNDED.clone()
    plus[0, 0], minus[0, 0] = float("inf"), float("-inf")
    assert "Inf" in verdict_on(minus, plus.double(), plus).reason


def test_integers_must_be_equal():
    want = torch.arange(12).view(3, 4)
    assert verdict_on(want, want, want) is None
    assert "off by the constant 1" in verdict_on(want + 1, want, want).reason


def test_an_empty_output_is_right_where_it_is_wanted():
    empty = torch.empty(0, 3)
    assert verdict_on(empty, empty.double(), empty) is None
