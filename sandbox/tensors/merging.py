"""Several values as one and parts of one by themselves: the calls of a burst, what a child tells at once. Pure."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kernelwright.sandbox.tensors.process_memory import MemoryReadError
from kernelwright.sandbox.tensors.values import RawTensor, Values


def merged(calls: Sequence[Values]) -> Values:
    """Several calls' arguments as those of one burst: every tensor is lent, each call has its own."""
    tensors: list[RawTensor] = []
    trees = []
    for values in calls:
        trees.append(_renumbered(values.tree, partial(int.__add__, len(tensors))))
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

    def taken(number: int) -> int:
        tensors.append(made.tensors[number])
        return len(tensors) - 1

    return Values(_renumbered(tree, taken), tuple(tensors))


def _renumbered(tree: dict[str, Any], number: Callable[[int], int]) -> dict[str, Any]:
    """The same structure over tensors of other numbers, which are asked for in its order."""
    ((kind, body),) = tree.items()
    if kind == "t":
        return {"t": number(body)}
    if kind in ("l", "p"):
        return {kind: [_renumbered(item, number) for item in body]}
    if kind == "d":
        return {"d": [[key, _renumbered(item, number)] for key, item in body]}
    return tree
