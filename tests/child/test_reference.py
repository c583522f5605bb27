import sys

import pytest
import torch

from kernelwright_child.reference import NAME, Reference, plan

MODEL = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self{parameters}):
        super().__init__()
        {constructor}

    def forward(self, x):
        {forward}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return {arguments}
"""
F32, F64 = 4, 8


@pytest.fixture
def planned(tmp_path):
    def run(forward, inputs, constructor="pass", parameters="", arguments="[]", dtype=None, differentiated=False):
        source = MODEL.format(
            forward=forward, inputs=inputs, constructor=constructor, parameters=parameters, arguments=arguments
        )
        file = tmp_path / "reference.py"
        file.write_text(source)
        return plan(str(file), dtype, differentiated)

    return run


def test_one_operation_takes_its_result(planned):
    assert planned("return torch.relu(x)", "torch.randn(100, 30)") == {
        "inputs": 3000 * F32,
        "weights": 0,
        "result": 3000 * F32,
        "exact": 3000 * F64,
        "peak": 3000 * F32,
        "scratch": 0,
    }


@pytest.mark.parametrize(
    ("layer", "elements"),
    [
        ("nn.Conv2d(32, 64, 3, padding=1)", 200 * 9 * 32),
        ("nn.Conv2d(32, 64, 3, padding=1, groups=4)", 200 * (9 * 8 + 64)),
        ("nn.ConvTranspose2d(32, 64, 3, padding=1)", 200 * 9 * 64),
        ("nn.ConvTranspose2d(32, 64, 3, padding=1, groups=4)", 200 * (9 * 16 + 64)),
    ],
)
def test_a_convolution_takes_one_side_once_for_each_place_of_the_kernel(planned, layer, elements):
    found = planned("return self.layer(x)", "torch.randn(2, 32, 10, 10)", f"self.layer = {layer}")
    assert found["scratch"] == F64 * elements + F32 * 200 * (32 + 64)


def test_what_lies_between_counts_for_as_long_as_it_is_held(planned):
    chain = "for _ in range(5): x = x + 1\n        return x.sum()"
    assert planned(chain, "torch.randn(1000)")["peak"] == 2 * 1000 * F32
    kept = "a = x + 1\n        b = x + 2\n        c = x + 3\n        return a + b + c"
    assert planned(kept, "torch.randn(1000)")["peak"] == 5 * 1000 * F32


def test_views_take_nothing(planned):
    assert planned("return x.view(10, 100).t()[3:]", "torch.randn(1000)")["peak"] == 0
    assert planned("y = x * 2\n        return y.view(10, 100).t()", "torch.randn(1000)")["peak"] == 1000 * F32


def test_weights_are_parameters_and_buffers_once_each_with_arguments_by_place_or_name(planned):
    constructor = (
        "self.one = nn.Linear(n, 20, bias=False); self.same = self.one; self.register_buffer('b', torch.ones(7))"
    )
    found = planned("return self.one(x)", "torch.randn(5, 30)", constructor, ", n", "[30]")
    assert found["weights"] == (30 * 20 + 7) * F32
    assert found["result"] == found["peak"] == 5 * 20 * F32
    found = planned("return self.one(x)", "torch.randn(5, 30)", "self.one = nn.Linear(n, 2)", ", n", "{'n': 30}")
    assert found["weights"] == 62 * F32


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_at_16_bits_all_but_the_float64_result_is_half(planned, dtype):
    found = planned("return self.one(x)", "torch.randn(5, 30)", "self.one = nn.Linear(30, 20)", dtype=dtype)
    assert found["weights"] == 620 * 2 and found["inputs"] == 150 * 2
    assert found["result"] == found["peak"] == 100 * 2
    assert found["exact"] == 100 * F64


def test_integers_keep_their_size(planned):
    found = planned("return x + 1", "torch.zeros(10, dtype=torch.int64)", dtype="bfloat16")
    assert found["inputs"] == found["result"] == 80


def test_gradients_take_more_than_the_call_alone(planned):
    alone, both = (planned("return torch.tanh(x)", "torch.randn(1000)", differentiated=each) for each in (False, True))
    assert both["peak"] >= alone["peak"] + 2 * 1000 * F32
    assert both["inputs"] == alone["inputs"]


def test_terabytes_are_planned_without_being_taken(planned):
    found = planned("return x @ x", "torch.randn(2**20, 2**20)")
    assert found["inputs"] == 2**42 and found["peak"] == 2**42


def test_a_reference_that_looks_at_values_has_no_plan(planned):
    with pytest.raises(Exception, match="_local_scalar_dense"):
        planned("return x * int(x.sum().item())", "torch.randn(10)")


def test_nothing_is_left_behind(planned):
    planned("return x", "torch.randn(10)")
    assert NAME not in sys.modules
    assert type(torch.randn(2)) is torch.Tensor


def test_weights_are_changed_once_under_all_their_names_and_buffers_of_its_own_and_counters_stay(tmp_path):
    made = "self.a, self.b, self.n = nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3); self.b.weight = self.a.weight"
    own = "; self.register_buffer('mine', torch.ones(3)); self.a.bias.data = torch.ones(2, 3).T[:, 0]"
    (source := tmp_path / "reference.py").write_text(
        MODEL.format(parameters="", constructor=made + own, forward="return x", inputs="torch.ones(3)", arguments="[]")
    )
    message = {"source": str(source), "seed": 1, "threads": 1, "cores": [], "direction": "forward", "dtype": None}
    plain, other = Reference(), Reference()
    plain.load(message | {"near": None}, [])
    other.load(message | {"near": 2}, [])
    before, after = plain.model.state_dict(), other.model.state_dict()
    assert {name for name in before if torch.equal(before[name], after[name])} == {"mine", "n.num_batches_tracked"}
    assert (after["a.weight"] - before["a.weight"]).abs().max() < 0.16 * before["a.weight"].abs().max()
