"""What was compared is let go at once: results may take gigabytes, and a cycle keeps them until it is collected."""

import gc
import weakref

import pytest
import torch

from kernelwright.problems import Tolerance
from kernelwright.sandbox.correctness.compare import is_right_anyhow, mismatch
from kernelwright.sandbox.tensors import RawTensor, Values, flatten

TREES = {
    "a tensor": {"t": 0},
    "a list": {"l": [{"t": 0}, {"v": 1.5}]},
    "a dict": {"d": [["a", {"t": 0}], ["b", {"p": [{"t": 0}]}]]},
}


class Watched(bytearray):
    """Bytes that can be referred to weakly."""


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("look", ["flatten", "quick", "whole"])
def test_a_result_that_was_looked_at_is_let_go_without_a_collection(name, look):
    looks = {
        "flatten": flatten,
        "quick": lambda values: is_right_anyhow(values, values, Tolerance()),
        "whole": lambda values: mismatch(values, values, values, Tolerance()),
    }
    data = Watched(torch.ones(64).numpy().tobytes())
    values, kept = Values(TREES[name], (RawTensor("float32", (64,), data),)), weakref.ref(data)
    gc.disable()
    try:
        looks[look](values)
        del values, data
        assert kept() is None
    finally:
        gc.enable()
