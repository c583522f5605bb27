import pytest
import torch

from kernelwright_child.wire import WireError, failure, refuse_unplain


class OwnError(Exception):
    """An exception of a candidate's."""


def told(error):
    try:
        raise error
    except Exception as caught:
        return failure(caught)


def test_an_exception_of_ours_is_told_without_the_name_of_its_class():
    with pytest.raises(WireError) as caught:
        refuse_unplain(torch.zeros(1), "cuda")
    found = failure(caught.value)
    assert "a tensor on cpu" in found["error"] and "on cuda" in found["error"] and "WireError" not in found["error"]
    assert found["log"].splitlines()[-1] == found["error"]


def test_exceptions_of_python_and_of_torch_keep_their_names():
    assert told(KeyError("size"))["error"] == "KeyError: 'size'"
    assert told(torch.OutOfMemoryError("CUDA out"))["error"] == "torch.OutOfMemoryError: CUDA out"
    assert told(OwnError("it is wrong"))["error"].endswith("OwnError: it is wrong")
