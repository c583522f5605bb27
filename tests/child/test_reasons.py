"""What a child says of an exception."""

from kernelwright_child import wire
from kernelwright_child.programs.serving import failure


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return failure(caught)


def test_a_reason_of_ours_does_not_begin_with_the_name_of_a_class_of_ours():
    assert raised(wire.WireError("a tensor on cpu was returned"))["error"] == "a tensor on cpu was returned"


def test_a_candidates_own_error_keeps_its_name():
    assert raised(RuntimeError("no"))["error"] == "RuntimeError: no"
