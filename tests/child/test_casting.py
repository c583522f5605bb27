import pytest
import torch

from kernelwright_child.models import cast_inputs, cast_model

DTYPES = pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])


@DTYPES
def test_floating_inputs_are_cast_and_all_others_stay(dtype):
    given = [torch.randn(3), torch.arange(3), torch.tensor([True]), torch.randn(2, dtype=torch.complex64), 7, None]
    found = cast_inputs(given, dtype)
    assert found[0].dtype == getattr(torch, dtype)
    assert all(one is other for one, other in zip(found[1:], given[1:], strict=True))


@DTYPES
def test_what_lies_in_lists_tuples_and_dictionaries_is_cast_too(dtype):
    (nested,) = cast_inputs([{"a": [torch.randn(2), (torch.randn(1), torch.arange(2))], "b": 1.5}], dtype)
    wanted = getattr(torch, dtype)
    assert nested["a"][0].dtype == wanted and nested["a"][1][0].dtype == wanted
    assert nested["a"][1][1].dtype == torch.int64 and nested["b"] == 1.5


def test_without_a_dtype_nothing_is_touched():
    given, model = [torch.randn(2, dtype=torch.float64)], torch.nn.Linear(2, 2).double()
    cast_model(model, None)
    assert cast_inputs(given, None) is given
    assert model.weight.dtype == torch.float64


@DTYPES
def test_floating_weights_and_buffers_are_cast_and_counters_stay(dtype):
    model = torch.nn.BatchNorm1d(3)
    cast_model(model, dtype)
    assert model.weight.dtype == model.running_mean.dtype == getattr(torch, dtype)
    assert model.num_batches_tracked.dtype == torch.int64
