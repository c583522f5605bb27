"""What a call is like: its arguments as leaves, and whether they are those that a kernel was judged for.

Needs torch alone: packages that are exported carry this file.
"""

import ast
import functools
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

ALIGNED = 64
"""Bytes: torch gives memory on such places, and a kernel may load vectors from there."""


class CallSize(NamedTuple):
    """One kind of calls that a kernel was judged for."""

    inputs: tuple[tuple[int, dict[str, Any]], ...]
    """For each of the kernel's arguments which leaf of (args, kwargs) it is, and the tensor that was seen there."""
    call: pytree.TreeSpec
    others: dict[int, Any]
    """The leaves that are no tensors."""
    result: pytree.TreeSpec
    result_leaves: tuple[int | None, ...]

    @classmethod
    def of(cls, size: dict[str, Any]) -> "CallSize":
        """From a part's record."""
        return cls(
            inputs=tuple((one["leaf"], one["tensor"]) for one in size["inputs"]),
            call=_canonical(pytree.treespec_loads(size["call"])),
            others={int(leaf): ast.literal_eval(text) for leaf, text in size["other_leaves"].items()},
            result=pytree.treespec_loads(size["result"]),
            result_leaves=tuple(size["result_leaves"]),
        )

    def why_not(self, leaves: list[Any]) -> str:
        """What is another than was judged; empty where nothing is."""
        for leaf, value in self.others.items():
            if type(leaves[leaf]) is not type(value) or leaves[leaf] != value:
                return "other arguments"
        for leaf, seen in self.inputs:
            if why := differs(leaves[leaf], seen):
                return why
        return ""

    def put_together(self, outputs: Any) -> Any:
        """What the module would return, of the kernel's outputs."""
        if self.result.is_leaf():
            return outputs
        each = outputs if isinstance(outputs, tuple | list) else (outputs,)
        return pytree.tree_unflatten([None if i is None else each[i] for i in self.result_leaves], self.result)


def differs(value: Any, seen: dict[str, Any]) -> str:
    """In what a tensor is another than the one that was seen; empty where in nothing."""
    if type(value) not in (torch.Tensor, nn.Parameter):
        return "other arguments"
    if value.shape != tuple(seen["shape"]):
        return "another shape"
    if str(value.dtype) != f"torch.{seen['dtype']}":
        return "another dtype"
    if value.device.type != torch.device(seen["device"]).type:
        return "another device"
    strides = zip(value.shape, value.stride(), seen["stride"], strict=True)
    moved = value.stride() != tuple(seen["stride"]) and any(size > 1 and one != other for size, one, other in strides)
    if moved or value.is_conj() or value.is_neg():
        return "another layout in memory"
    return "memory that is not aligned" if value.numel() and value.data_ptr() % ALIGNED else ""


@functools.cache
def _of_tensors(count: int) -> pytree.TreeSpec:
    """The structure of a call with so many arguments, each a leaf. The same object each time, so `is` compares it."""
    return pytree.tree_structure(((0,) * count, {}))


def _canonical(call: pytree.TreeSpec) -> pytree.TreeSpec:
    plain = _of_tensors(call.num_leaves)
    return plain if call == plain else call


def flat(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], pytree.TreeSpec]:
    """The leaves of a call. torch's way takes longer than a small kernel, and most calls are of tensors alone."""
    if not kwargs and all(type(one) is torch.Tensor for one in args):
        return list(args), _of_tensors(len(args))
    return pytree.tree_flatten((args, kwargs))
