"""Statistics of values, and draws like them."""

import pytest
import torch

from kernelwright.programs.values import draw, drawn, look


def again(tensor):
    torch.manual_seed(1)
    (made,) = draw([look(tensor)], "cpu")
    return made


@pytest.mark.parametrize(
    ("tensor", "drawing"),
    [
        (torch.randn(64, 64), "normal"),
        (torch.rand(64, 64), "uniform"),
        (torch.rand(64, 64) - 0.5, "uniform"),
        (torch.randn(64, 64).relu(), "rectified"),
        (torch.ones(4), "constant"),
        (torch.randint(0, 9, (64,)), "integers"),
        (torch.arange(8).expand(2, 8), "counting"),
        (torch.ones(8, 8).tril().bool(), "causal"),
        (torch.full((8, 8), float("-inf")).triu(1), "causal"),
        (torch.rand(64, 64) < 0.9, "share"),
        (torch.tensor(True), "constant"),
    ],
)
def test_each_kind_of_values_is_recognised_and_drawn_again(tensor, drawing):
    seen = look(tensor)
    made = again(tensor)
    assert seen.values.drawing == drawing
    assert (made.shape, made.dtype) == (tensor.shape, tensor.dtype)
    assert look(made).values.drawing == drawing


def test_a_rectified_draw_has_as_many_zeros_and_the_same_mean():
    tensor = (torch.randn(200, 200) - 0.7).relu() * 3
    made = again(tensor)
    assert abs(float((made == 0).float().mean() - (tensor == 0).float().mean())) < 0.02
    assert abs(float(made.mean() / tensor.mean()) - 1) < 0.1


def test_whole_numbers_a_causal_mask_and_strides_stay_what_they_were():
    made = again(torch.tensor([[5, 9], [7, 6]]))
    assert int(made.min()) >= 5 and int(made.max()) <= 9
    mask = torch.full((5, 5), float("-inf")).triu(1)
    assert torch.equal(again(mask), mask)
    assert again(torch.randn(4, 6).t()).stride() == (1, 6)


def test_a_weight_is_not_drawn_as_a_constant_that_could_be_left_out():
    seen = look(torch.ones(64))
    assert "randn" in drawn(seen, "64", is_weight=True)
    assert drawn(seen, "64") == "torch.full((64,), 1.0)"


def test_an_empty_tensor_is_not_looked_at():
    assert look(torch.empty(0, 3)).values is None
