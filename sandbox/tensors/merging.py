"""Parts of values by themselves. Pure."""

from collections.abc import Callable
from typing import Any

from kernelwright.sandbox.tensors.values import RawTensor, Values


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
