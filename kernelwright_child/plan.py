"""What a reference takes of memory, found on fake tensors: nothing is computed, and no memory is taken."""

import math
import sys
import types
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernelwright_child.casting import cast_inputs

NAME = "planned"
BLOCK, VOLUMES = 16, 5
"""Channels that oneDNN lays beside each other; axes of a batch of volumes."""


class Alive(TorchDispatchMode):
    """Counts the bytes of all storages that operations have made and that are still held."""

    def __init__(self, before: Iterable[torch.Tensor]) -> None:
        """`before`: what was there already. A view of it is no storage of its own."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._bytes = {tensor.untyped_storage()._cdata: 0 for tensor in before}
        self._now = 0
        self.peak_bytes = 0
        self.scratch_bytes = 0
        """Of the convolution that takes most on a processor, see `_scratch`."""

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Sequence[Any] = (), options: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation as it would be, then count what it has made."""
        result = function(*arguments, **(options or {}))
        if function is torch.ops.aten.convolution.default:
            taken = _scratch(arguments[0], arguments[1], result, arguments[6])
            self.scratch_bytes = max(self.scratch_bytes, taken)
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._bytes:
            self._bytes[key] = storage.nbytes()
            self._now += self._bytes[key]
            self.peak_bytes = max(self.peak_bytes, self._now)
            weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self._now -= self._bytes.pop(key, 0)


def plan(source: str, dtype: str | None, differentiated: bool) -> dict[str, int]:
    """Bytes of inputs, weights, result, float64 result, of what a call holds at most beside these, and more in float64.

    Any error is possible, since a reference may look at values: then there is no plan.
    """
    module = types.ModuleType(NAME)
    sys.modules[NAME] = module
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            return _planned(Path(source).read_text(encoding="utf-8"), module.__dict__, dtype, differentiated)
    finally:
        del sys.modules[NAME]


def _planned(text: str, namespace: dict[str, Any], dtype: str | None, differentiated: bool) -> dict[str, int]:
    exec(compile(text, NAME, "exec"), namespace)
    arguments = namespace["get_init_inputs"]()
    entry = namespace["Model"]
    model = entry(**arguments) if isinstance(arguments, dict) else entry(*arguments)
    state = dict.fromkeys([*model.parameters(), *model.buffers()])
    for tensor in state if dtype is not None else ():
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(getattr(torch, str(dtype)))
    inputs = cast_inputs(list(namespace["get_inputs"]()), dtype)
    with Alive([*_tensors(inputs), *state]) as alive, torch.set_grad_enabled(differentiated):
        results = _tensors(model(*inputs))
    # Gradients of inputs and weights come on top, and those of what lies between.
    more = sum(map(_bytes, [*_tensors(inputs), *state])) + alive.peak_bytes if differentiated else 0
    return {
        "inputs": sum(map(_bytes, _tensors(inputs))),
        "weights": sum(map(_bytes, state)),
        "result": sum(map(_bytes, results)),
        "exact": sum(tensor.numel() * max(8, tensor.element_size()) for tensor in results),
        "peak": alive.peak_bytes + more,
        "scratch": alive.scratch_bytes,
    }


def _scratch(given: torch.Tensor, weight: torch.Tensor, result: torch.Tensor, transposed: bool) -> int:
    """In float64 one side is held once for each place of the kernel, group after group, whose results are then joined.

    In narrower dtypes input and result are laid out in blocks of channels.
    """
    held, wide = (given, result) if transposed else (result, given)
    columns = math.prod(weight.shape[1:]) * held.numel() // held.shape[1]
    if transposed and given.dim() == VOLUMES:
        columns //= given.shape[0]  # one after the other
    joined = result.numel() if weight.shape[1] < wide.shape[1] else 0
    blocks = sum(_bytes(tensor) * -(-tensor.shape[1] // BLOCK) * BLOCK // tensor.shape[1] for tensor in (given, result))
    return 8 * (columns + joined) + blocks


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
