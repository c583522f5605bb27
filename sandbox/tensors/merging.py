"""Several values as one and parts of one by themselves: the calls of a burst, what a child tells at once. Pure."""

from collections.abc import Sequence
from typing import Any

from kernelwright.sandbox.tensors.process_memory import MemoryReadError
from kernelwright.sandbox.tensors.values import RawTensor, Values


def merged(calls: Sequence[Values]) -> Values:
    """Several calls' arguments as those of one burst: every tensor is lent, each call has its own."""
    tensors: list[RawTensor] = []
    trees = []
    for values in calls:
        trees.append(_shifted(values.tree, len(tensors)))
        tensors.extend(values.tensors)
    return Values({"l": trees}, tuple(tensors))


def parted(output: Values, calls: int) -> list[Values]:
    """The results of the calls of a burst. Raises `MemoryReadError` where there are not so many."""
    parts = output.tree.get("l")
    if not isinstance(parts, list) or len(parts) != calls:
        raise MemoryReadError("a burst gave another number of results than it had calls")
    return [Values(tree, output.tensors) for tree in parts]


def alone(tree: dict[str, Any], made: Values) -> Values:
    """A part of a bigger value with only its own tensors, renumbered."""
    tensors: list[RawTensor] = []
    return Values(_renumbered(tree, made, tensors), tuple(tensors))


def _shifted(tree: dict[str, Any], by: int) -> dict[str, Any]:
    """The same structure over tensors that come `by` later."""
    ((kind, body),) = tree.items()
    if kind == "t":
        return {"t": body + by}
    if kind in ("l", "p"):
        return {kind: [_shifted(item, by) for item in body]}
    if kind == "d":
        return {"d": [[key, _shifted(item, by)] for key, item in body]}
    return tree


def _renumbered(node: dict[str, Any], made: Values, tensors: list[RawTensor]) -> dict[str, Any]:
    """The node over `tensors`, to which those that it has of `made` are added."""
    ((kind, body),) = node.items()
    if kind == "t":
        tensors.append(made.tensors[int(str(body))])
        return {"t": len(tensors) - 1}
    if kind in ("l", "p") and isinstance(body, list):
        return {kind: [_renumbered(item, made, tensors) for item in body]}
    if kind == "d" and isinstance(body, list):
        return {"d": [[key, _renumbered(item, made, tensors)] for key, item in body]}
    return node
