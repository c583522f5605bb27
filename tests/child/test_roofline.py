"""What is counted as necessary, by small models whose bytes and operations can be told by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright_child import driver
from kernelwright_child.roofline import trace

FOUR = 4
"""Bytes of a float32."""


class Of(nn.Module):
    """A model of one function, with weights of the given shapes."""

    def __init__(self, function, **shapes):
        super().__init__()
        self.function = function
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.ones(shape)))

    def forward(self, *inputs):
        return self.function(self, *inputs)


def work(function, *inputs, **shapes):
    return trace(Of(function, **shapes), list(inputs))


X = torch.ones(100, 10)


def test_inputs_weights_and_outputs_count_once_however_often_they_are_used():
    found = work(lambda self, x: (x * self.w + x * self.w).relu() + x, X, w=(10,))
    assert found["bytes"] == {"read": FOUR * 1010, "written": FOUR * 1000}


def test_intermediate_results_and_an_input_handed_back_count_nothing():
    assert work(lambda self, x: (x @ x.t()).relu().sum(), X)["bytes"] == {"read": FOUR * 1000, "written": FOUR}
    assert work(lambda self, x: x.view(10, 100), X)["bytes"] == {"read": 0, "written": 0}


READ = {
    "a weight that is not used": (lambda self, x: x * 2, X, (50,), 1000),
    "an operation whose result is dropped": (lambda self, x: (x + self.w, x * 2)[1], X, (10,), 1000),
    "a slice": (lambda self, x: x[:, 3:5] * 2, X, (), 200),
    "slices that make up the whole": (lambda self, x: x[:, :4].sum() + x[:, 4:].sum(), X, (), 1000),
    "slices that overlap": (lambda self, x: x[:, :4].sum() + x[:, 2:6].sum(), X, (), 600),
    "an expanded input": (lambda self, x: x * 2, torch.ones(1, 10).expand(100, 10), (), 10),
    "an input that is only asked for its shape": (lambda self, x: torch.zeros_like(x), X, (), 0),
    "a strided convolution of single taps": (
        lambda self, x: F.conv2d(x, self.w, stride=2), torch.ones(1, 3, 8, 8), (1, 3, 1, 1), 3 * 16 + 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_only_what_is_needed_is_read_and_that_once(name):
    function, x, weight, elements = READ[name]
    assert work(function, x, w=weight)["bytes"]["read"] == FOUR * elements


def test_a_table_that_is_looked_up_need_not_be_read_whole():
    found = work(lambda self, i: F.embedding(i, self.table), torch.zeros(5, dtype=torch.long), table=(1000, 8))
    assert found["bytes"] == {"read": 5 * 8, "written": FOUR * 40}


def test_pooling_with_gaps_does_not_count_what_lies_between():
    found = work(lambda self, x: F.max_pool2d(x, 2, 4), torch.ones(1, 1, 8, 8))
    assert found["bytes"]["read"] <= FOUR * 16


@pytest.mark.parametrize(
    ("function", "x", "flops"),
    [
        (lambda self, x: F.linear(x, self.w), X, {"float32": 2 * 100 * 10 * 7}),
        (
            lambda self, x: (x @ x.t()).bfloat16() @ x.bfloat16(),
            X,
            {"float32": 2 * 100 * 100 * 10, "bfloat16": 2 * 100 * 100 * 10},
        ),
        (
            lambda self, q: F.scaled_dot_product_attention(q, q, q),
            torch.ones(2, 3, 16, 8),
            {"float32": 2 * 2 * (2 * 3 * 16 * 16 * 8)},
        ),
    ],
    ids=["a linear layer", "each in its dtype", "torch's own attention, which is two products"],
)
def test_the_direct_operations_are_counted_by_the_dtype_that_they_are_done_in(function, x, flops):
    assert work(function, x, w=(7, 10))["flops"] == flops


FIRM = {
    "one product": lambda self, x: x @ self.w,
    "a product with a bias and a bend": lambda self, x: torch.relu(x @ self.w + self.b),
    "two with a bend between": lambda self, x: torch.relu(x @ self.w) @ self.w,
    "attention": lambda self, x: torch.softmax(x @ x.t(), -1) @ x,
}
LOOSE = {
    "two products in a row": lambda self, x: x @ self.w @ self.w,
    "a sum of products": lambda self, x: x @ self.w + x @ self.w,
    "a product that is summed up": lambda self, x: (x @ self.w).sum(0),
    "a product of which half is kept": lambda self, x: torch.tril(x @ x.t()),
    "a product of which a slice is kept": lambda self, x: (x @ self.w)[:, :2] * 1,
    "a diagonal matrix": lambda self, x: torch.diag(self.b) @ self.w,
    "a repeated factor": lambda self, x: x[:1].expand(100, 10) @ self.w,
}


@pytest.mark.parametrize("name", [*FIRM, *LOOSE])
def test_operations_that_nothing_can_save_make_the_least_and_others_are_left_out_of_it(name):
    found = work((FIRM | LOOSE)[name], X, w=(10, 10), b=(10,))
    assert found["flops"]
    assert bool(found["least_flops"]) == (name in FIRM)


NO_DEVICE = pytest.mark.skipif(driver.device_count() == 0, reason="the driver sees no CUDA device")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_DEVICE])])
@pytest.mark.parametrize(("layers", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_each_matrix_of_a_recurrent_network_counts_at_each_step(layers, gates, device):
    network = layers(16, 32, num_layers=2, batch_first=True).to(device)
    found = trace(network, [torch.rand(4, 7, 16, device=device)])
    first, second = gates * 32 * (16 + 32), gates * 32 * (32 + 32)
    assert found["flops"] == {"float32": 2 * 4 * 7 * (first + second)}
    assert not found["least_flops"]


def test_a_model_that_looks_at_its_values_is_traced_on_them():
    found = work(lambda self, x: x * 2 if x.sum() > 0 else x * self.w, X, w=(10,))
    assert found["bytes"] == {"read": FOUR * 1000, "written": FOUR * 1000}


def test_buffers_and_plain_attributes_are_weights_too():
    model = Of(lambda self, x: x * self.scale + self.shift)
    model.register_buffer("scale", torch.ones(10))
    model.shift = torch.ones(10)
    assert trace(model, [X])["bytes"]["read"] == FOUR * 1020


def test_gradients_are_traced_where_the_call_computes_them():
    def call(model, inputs):
        x = inputs[0].detach().requires_grad_()
        (x * model.w).relu().sum().backward()
        return [x.grad, model.w.grad]

    found = trace(Of(None, w=(100, 10)), [X], call)
    assert found["bytes"] == {"read": FOUR * 2000, "written": FOUR * 2000}


def test_tracing_changes_neither_model_nor_gradients():
    model = Of(lambda self, x: x * self.w, w=(10,))
    before = model.w
    trace(model, [X])
    assert model.w is before
    assert type(model.w) is nn.Parameter
    assert model.w.grad is None
