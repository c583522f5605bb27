"""Parts of values by themselves, and results together with what calls make of inputs. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from kernelwright.sandbox.tensors.values import RawTensor, Values
from kernelwright_child.wire import CHANGED_INPUT, RESULT


def with_changed(result: Values, inputs: Mapping[int, RawTensor]) -> Values:
    """A result, with what the call has made of these inputs as further outputs; the result alone without any."""
    if not inputs:
        return result
    first = len(result.tensors)
    entries = [[CHANGED_INPUT.format(index), {"t": number}] for number, index in enumerate(inputs, first)]
    return Values({"d": [[RESULT, result.tree], *entries]}, (*result.tensors, *inputs.values()))


def poisoned(values: Values, index: int) -> Values:
    """The values with NaN in one tensor; without NaN, 1 in place of 0 and 0 in place of all else."""
    tensor = values.tensors[index].tensor()
    has_nan = tensor.is_floating_point() or tensor.is_complex()
    raw = RawTensor.of(torch.full_like(tensor, torch.nan) if has_nan else (tensor == 0).to(tensor.dtype))
    return values._replace(tensors=(*values.tensors[:index], raw, *values.tensors[index + 1 :]))


def changed_inputs(result: Values) -> dict[int, int]:
    """By input, the number of the tensor that `with_changed` has added for it. For results of a reference."""
    (key, _), *entries = result.tree.get("d") or [(None, None)]
    is_mixed = key == RESULT and all(name.startswith(CHANGED_INPUT[:6]) for name, _ in entries)
    return {int(name.split()[1]): body["t"] for name, body in entries} if is_mixed else {}


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
