"""Values as a child sends them, from tensors of the test."""

from kernelwright.sandbox.tensors import RawTensor, Values


def listed(*tensors):
    """Tensors in a list, as inputs are."""
    return Values({"l": [{"t": index} for index in range(len(tensors))]}, tuple(map(RawTensor.of, tensors)))


def packed(*tensors):
    """One tensor by itself, or a tuple of several."""
    trees = [{"t": index} for index in range(len(tensors))]
    return Values(trees[0] if len(trees) == 1 else {"p": trees}, tuple(map(RawTensor.of, tensors)))
